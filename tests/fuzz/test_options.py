"""What users and administrators write, with faults in it: options, job scripts, the configuration, addresses, hours."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bftd.base.errors import ConfigError, UsageError
from bftd.cli.jobs import sbatch_options
from bftd.cli.size.shared import worker_memory
from bftd.config import hours
from bftd.config.keys import Config
from bftd.config_file import parse, to_toml
from bftd.protocol import comment
from bftd.protocol.address import split_address
from elastic.base.errors import UsageError as ElasticUsageError
from elastic.driver.progress.regex import Printed
from elastic.options.elastic_option import ElasticSpec, features_of
from elastic.options.job_script import (
    Header,
    backend_of,
    constraints,
    elastic_option,
    interpreter_of,
    restore,
    rewrite,
    words_of,
)
from tests.elastic.options.test_elastic_option import EXPRESSIONS
from tests.fuzz.mutations import WORDS, documents, refused, texts

pytestmark = pytest.mark.slow

SPECS = [
    "1-64",
    "2-8,backend=torchrun,sizes=2:4:8,weight=2,up=20,down=5,workers=4,gpu=a100:4,without=k80:v100,mix",
    "1-4,curve=estimate:32,frozen=60,resume=4711@hpc,state=/lustre/ann,container=img:1,share=4:8G,save_share=0.01",
    *(f"1-4,progress={expression}" for expression in EXPRESSIONS),
]
HEADER = Header("1-4", "elastic", "/run/bftd.sock", "train.py", "/usr/bin/python3", ("--qos=low",), "salloc", "ib")
SCRIPT = (
    "#!/usr/bin/env python3\n#SBATCH --elastic=1-4 # a comment\n#SBATCH --constraint='a100&ib'\n#SBATCH -J \"a b\"\n"
    "import torch\nfrom torch import nn\n\n\ndef worker_memory(batch):\n    return batch * 2**20\n\n\nprint(1)\n"
)
REWRITTEN = rewrite(SCRIPT, "/opt/bft-driver", HEADER)
TOML = to_toml(Config())
FILE = (
    '[slurm]\npartition = "elastic"\npoll_s = 1.0\n[pool]\nhours = "Mon-Fri 20:00-07:00, Sat-Sun"\n[api]\ntcp = "a:1"\n'
)


@given(texts(SPECS, 4))
def test_an_elastic_option_with_faults_is_read_or_refused(text: str) -> None:
    with refused(ElasticUsageError, UsageError):
        spec = ElasticSpec.parse(text)
        assert ElasticSpec.parse(spec.format()) == spec
        Printed(None)
    with refused(ElasticUsageError, UsageError):
        features_of(text)


@given(texts([SCRIPT, REWRITTEN]))
@example("#!/bin/sh\n#BFT " + "[" * 100_000 + "\n")
@example("-" * 100_000 + "1")
@example("#SBATCH " + '"' * 3000)
@example("#SBATCH " + "\\" * 3001)
@example("#SBATCH --elastic=" + '"a\\' * 3000)
def test_a_job_script_with_faults_is_read_or_refused(source: str) -> None:
    for look in (
        lambda: elastic_option(source),
        lambda: constraints(source),
        lambda: interpreter_of(source, "train.py", contained=True),
        lambda: backend_of(source, "train.py"),
        lambda: sbatch_options.of_script(source),
        lambda: sbatch_options.foreign(source),
        lambda: worker_memory.find(source),
        lambda: rewrite(source, "/opt/bft-driver", HEADER),
        lambda: restore(source),
        lambda: words_of(source.partition("\n")[0]),
    ):
        with refused(ElasticUsageError, UsageError):
            look()


FIELDS = {**vars(HEADER), "pilot_options": ["--qos=low"], "first": "#!/usr/bin/env python3"}


@given(documents([FIELDS]))
def test_the_drivers_own_line_with_faults_is_read_or_refused(text: str) -> None:
    with refused(ElasticUsageError):
        header, _ = restore(f"#!/opt/bft-driver\n#BFT {text}\nprint(1)\n")
        assert all(isinstance(value, str) for name, value in vars(header).items() if name != "pilot_options")
        assert all(isinstance(option, str) for option in header.pilot_options)


@given(st.lists(st.sampled_from([*WORDS, "-N", "-N4", "--nodes=1-4", "--elastic=1-4", "-", "--", "-tJ", "a.py"])))
def test_any_words_are_a_command_line_or_refused(words: list[str]) -> None:
    with refused(UsageError, ElasticUsageError):
        found = sbatch_options.parse(words)
        sbatch_options.refuse_decided(found.options, "here")
        found.words("nodes")


@given(texts([TOML, FILE]))
@example("a = " + "[" * 100_000)
@example("[slurm]\na = " + "{a=" * 20_000)
@example('["a\\nb"]\n')
@example('[slurm]\n"a\\nb" = 1\n')
@example(f'[api]\ntcp = "a:{"9" * 5000}"\n')
@example(f'[web]\nlisten = "a:{"9" * 5000}"\n')
@example('[slurm]\npartitions = ["a\\nb", "a\\nb"]\n')
def test_a_configuration_with_faults_is_read_or_refused(text: str) -> None:
    lines = list[str]()
    with refused(ConfigError):
        found = parse(text, "bftd.toml", lines.append)
        assert parse(to_toml(found)) == found
    assert all(len(line.splitlines()) == 1 for line in lines)


@given(texts(["Mon-Fri 20:00-07:00, Sat-Sun", "20:00-07:00", "Sat-Sun"], 3))
def test_hours_with_faults_are_read_or_refused(text: str) -> None:
    with refused(ValueError):
        hours.check(text)
        hours.opening(text, hours.UTC, 1.8e9)


@given(texts(["bftd@host:6820", "[::1]:6820", "host:1", "/run/bftd/socket"], 3))
def test_an_address_with_faults_is_read_or_refused(text: str) -> None:
    with refused(ValueError):
        _, _, port = split_address(text)
        assert 0 <= int(port) < 65536


@given(texts([comment.make("7", "n1.3", "bftd@host"), comment.make("7", "n1.3"), "mine"], 3))
def test_a_comment_with_faults_is_a_pilots_or_not(text: str) -> None:
    with refused():
        comment.parse(text)
        assert comment.daemon_of(text).isprintable()
