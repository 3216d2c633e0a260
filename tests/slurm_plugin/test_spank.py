"""The SPANK plug-in: what it accepts, and what the user sees of it on the real commands."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.cli.admin.sandbox_site import SandboxSite
from elastic.backends import KINDS
from elastic.base.errors import UsageError
from elastic.options.elastic_option import ElasticSpec
from elastic.options.node_share import NodeShare
from slurm_plugin.errors import SandboxError
from slurm_plugin.sandbox.cluster import compiled_plugin
from tests.slurm_plugin.plugins import CHECKOUT, User, another_driver, another_lua
from tests.support.messages import pattern, says, wording
from tests.support.programs import shell_script
from tests.support.waiting import until
from tools.backends_header import header

INHERITED = "SLURM_SPANK__SLURM_SPANK_OPTION_bftd_elastic"


@pytest.fixture(scope="module")
def compiler() -> str:
    return shutil.which("cc") or pytest.skip("no C compiler")


@pytest.fixture(scope="module")
def complaint(compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], str | None]:
    """The plug-in's check of a value by itself, without Slurm: None, or the line that the user gets."""
    return check_of(compiler, tmp_path_factory.mktemp("spank"), KINDS)


def check_of(compiler: str, folder: Path, backends: Iterable[str]) -> Callable[[bytes], str | None]:
    """The check of a plug-in that is compiled for these back-ends."""
    (folder / "backends.h").write_text(header(backends))
    library = folder / "elastic.so"
    source = CHECKOUT / "slurm_plugin" / "plugins" / "spank" / "elastic.c"
    flags = ["-std=c11", "-g", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined"]
    flags += ["-fsanitize-undefined-trap-on-error", f"-I{folder}"]
    subprocess.run([compiler, *flags, "-o", str(library), str(source)], check=True)
    check = ctypes.CDLL(str(library)).elastic_check

    def complaint(value: bytes) -> str | None:
        why = ctypes.create_string_buffer(512)
        return why.value.decode() if check(value, why, ctypes.c_size_t(len(why))) else None

    return complaint


def test_a_further_row_of_the_table_is_all_that_the_plug_in_needs_to_know_a_back_end(
    compiler: str, tmp_path: Path
) -> None:
    complaint = check_of(compiler, tmp_path, [*KINDS, "torch-ft2"])
    assert complaint(b"1-4,backend=torch-ft2") is None
    assert complaint(b"1-4,backend=jax") == ("--elastic: unknown back-end 'jax'; known: horovod, torchrun, torch-ft2")


@pytest.mark.parametrize("name", ["", "Horovod", 'a", "b', "a|b", "9", "a,b"])
def test_a_name_that_would_break_the_plug_in_or_the_option_is_not_written_into_it(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be called"):
        header([name])


def test_the_plug_ins_list_is_made_by_a_python_that_has_nothing_installed(tmp_path: Path) -> None:
    made = tmp_path / "backends.h"
    python = [sys.executable, "-BIS", str(CHECKOUT / "tools" / "backends_header.py"), str(made)]
    subprocess.run(python, cwd=tmp_path, env={}, check=True)
    assert made.read_text() == header(KINDS)


ranges = st.tuples(st.integers(1, 999_999_999), st.integers(1, 999_999_999)).map(sorted)
costs = st.none() | st.floats(1e-9, 1e9)


texts = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20).map(re.escape)
expressions = st.tuples(texts, st.sampled_from(["(?P<step>[0-9]+)", "(?P<samples>.*) (?P<loss>.*)"]), texts).map(
    "".join
)


@st.composite
def specs(draw: st.DrawFn) -> ElasticSpec:
    low, high = draw(ranges)
    sizes = draw(st.lists(st.integers(low, high), max_size=5, unique=True))
    return ElasticSpec(
        low,
        high,
        backend=draw(st.sampled_from([None, *KINDS])),
        sizes=tuple(sorted(sizes)) or None,
        weight=draw(st.floats(1e-9, 1e9)),
        up_cost_s=draw(costs),
        down_cost_s=draw(costs),
        workers_per_node=draw(st.none() | st.integers(1, 64)),
        gpu=draw(st.sampled_from(["", "a100", "1g.5gb", "nvidia_h100-80gb"])),
        gpus=draw(st.integers(0, 999_999_999)),
        mix=draw(st.booleans()),
        without=draw(st.sampled_from([(), ("v100",), ("k80", "1g.5gb")])),
        estimates=(estimates := draw(st.booleans())),
        estimate_batch=draw(st.none() | st.integers(1, 999_999_999)) if estimates else None,
        frozen_s=draw(costs),
        resume=draw(st.none() | st.from_regex("[A-Za-z0-9][A-Za-z0-9_.@-]{0,127}", fullmatch=True)),
        state_path=draw(st.none() | st.from_regex("/[A-Za-z0-9_=:.+@/~#%-]{1,80}", fullmatch=True)),
        container=draw(st.none() | st.from_regex("(?!-)[A-Za-z0-9_=:.+@/~#%-]{1,80}", fullmatch=True)),
        progress=draw(st.none() | expressions),
        share=draw(
            st.sampled_from([NodeShare.parse(None), NodeShare.parse("no"), NodeShare.parse("profile")])
            | st.builds(NodeShare, st.integers(1, 999), st.integers(1, 999_999_999).map(lambda mib: mib * 2**20))
        ),
    )


pieces = "1-4 8-2 backend= torchrun sizes= 1:2 ,weight= ,up= ,down= ,workers= 0x10 nan inf 1e999 1_0 9999999999 %s%n"
pieces += " ,gpu= ,gpu=a100: ,without= ,without=a:b ,curve= ,curve=estimate :32"
pieces += " ,share= ,share=no ,share=profile ,share=4:16G :16M 16T"
pieces += " ,mix ,frozen= ,resume= ,resume=4711 ,resume=7@hpc ,resume=run-svc1-7.u0.0a"
pieces += (
    " ,state= ,state=/a ,container= ,container=a:b@c ,progress= (?P<step> (?P<loss>.) (?P<samples>\\d+) ) [ ( \\( ]"
)
fragments = st.sampled_from([*pieces.split(), *"0123456789-,:=.+ \t_xeE\x1b\xe9"])


@settings(deadline=None)
@given(specs())
def test_every_value_that_the_driver_knows_is_accepted(
    complaint: Callable[[bytes], str | None], spec: ElasticSpec
) -> None:
    assert complaint(spec.format().encode()) is None


def refusal(value: str) -> str:
    """What the driver has against a value, "" for nothing."""
    try:
        ElasticSpec.parse(value)
    except UsageError as error:
        return str(error)
    return ""


@settings(deadline=None, max_examples=500)
@given(st.lists(fragments, max_size=8).map("".join) | st.text(max_size=20), st.booleans())
def test_what_is_accepted_the_driver_accepts_too_and_what_is_refused_gets_one_plain_line(
    complaint: Callable[[bytes], str | None], text: str, prefixed: bool
) -> None:
    value = (f"1-4,{text}" if prefixed else text).replace("\0", "")
    said = complaint(value.encode(errors="surrogatepass"))
    if said is None:
        refused = refusal(value)
        assert "not a regular" in refused or "there is none" in refused or not refused  # the driver tells as it begins
    else:
        assert said.startswith("--elastic")
        assert said.isascii()
        assert said.isprintable()


@pytest.mark.parametrize(
    "value",
    ["4-1", "0", "0-4", "many", "1-", "1-4,sizes=1:9", "1-4,sizes=", "1-4,sizes=1:", "1-4,workers=0", "1-4,workers=x"]
    + [f"1-4,{key}={number}" for key in ("weight", "up", "down") for number in ("0", "-1", "", "inf", "nan", "1e999")]
    + [f"1-4,without={names}" for names in ("", "4", "a:", ":a", "a/b", ":".join("a" * 33))]
    + [f"1-4,curve={curve}" for curve in ("", "guess", "estimate:", "estimate:0", "estimate:x", "estimate:1:1")]
    + [f"1-4,resume={id_}" for id_ in ("", ".", "../7", "7/8", "-7")]
    + [
        f"1-4,share={share}"
        for share in ("", "4", "4:", ":4G", "4:16", "0:4G", "4:0G", "4:4g", "4:4GB", "x:4G", "4:4:4G")
    ]
    + ["1-4,up=0x10", "1-4,up=1e", "1-4,up=1.2.3", "1-4,up=-0"]
    + [f"1-4,state={path}" for path in ("", "/", "run7", "/a'b", "/a;b", "/a$b", '/a"', "/a\\b")]
    + [f"1-4,container={image}" for image in ("", "'a'", 'a"', "a\\b", "-v")]
    + [
        f"1-4,progress={text}"
        for text in ("", "step", "(?P<loss>.)", "(?P<stp>.)", "(?P<step>.),(?P<x>.)", "é (?P<step>.)")
    ]
    + ["1-4,progress=(?P<step>.)\n", " 1-4", "1-4 ", "1-4,state=/é"],
)
def test_plug_in_and_driver_say_the_same(complaint: Callable[[bytes], str | None], value: str) -> None:
    with pytest.raises(UsageError) as caught:
        ElasticSpec.parse(value)
    assert complaint(value.encode()) == str(caught.value)


def test_a_long_value_neither_overflows_nor_fills_the_screen(complaint: Callable[[bytes], str | None]) -> None:
    for value in (b"x" * 100_000, b"1-4,sizes=" + b"1:" * 50_000, b"1-4," + b"k" * 100_000):
        said = complaint(value)
        assert said is not None
        assert len(said) < 300


def test_a_cluster_that_wants_the_plug_in_uncompiled_says_how_to_compile_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_plugin.sandbox.cluster.PLUGIN", "nothing.so")
    missing = pattern("slurm_plugin.plugin.not_compiled", plugin="")
    with pytest.raises(SandboxError, match=rf"nothing\.so{missing}$"):
        compiled_plugin()


@pytest.mark.cluster
@pytest.mark.parametrize("command", ["sbatch", "salloc", "srun"])
def test_the_option_is_in_the_help_of_each_command(user: User, command: str) -> None:
    words = " ".join(user.run(command, "--help").stdout.split())
    usage = wording("slurm_plugin.spank_bftd.elastic_usage")
    assert f"--elastic=MIN-MAX[,backend=horovod|torchrun][,sizes=1:2:4:8] {usage}" in words


@pytest.mark.cluster
@pytest.mark.parametrize("command", ["salloc", "srun"])
def test_only_a_batch_job_can_be_elastic(user: User, command: str) -> None:
    done = user.run(command, "--elastic=1-2", "-N1", "true")
    assert done.returncode != 0
    first = done.stderr.splitlines()[0]
    assert says(first, "slurm_plugin.spank_bftd.elastic_batch_only", command=command)
    assert user.run("squeue", "-h").stdout == ""


@pytest.mark.cluster
def test_without_the_option_every_command_works_as_ever(user: User) -> None:
    assert user.run("srun", "-t1", "id", "-u").stdout == f"{user.uid}\n"
    assert user.run("salloc", "-t1", "true").returncode == 0
    assert user.run("sbatch", "-t1", "-o", "/dev/null", "--wait", "--wrap", "true").returncode == 0


@pytest.mark.cluster
def test_where_the_controller_does_not_know_the_option_the_job_fails_with_one_line_and_others_run_as_ever(
    site: SandboxSite, user: User
) -> None:
    (user.home / "alone.py").write_text("#!/usr/bin/env python3\nprint('alone')\n")
    with another_lua(site, lambda text: text.replace("/bftd.lua", "/nothing.lua")):
        lost = user.run("sbatch", "--elastic=1-2", "-t1", "-o", "lost", "--wait", "alone.py")
        plain = user.run("sbatch", "-t1", "-o", "plain", "--wait", "alone.py")
    assert (lost.returncode, plain.returncode) == (1, 0)
    [line] = [line for line in (user.home / "lost").read_text().splitlines() if "TMPDIR" not in line]
    assert line == wording("slurm_plugin.spank_bftd.elastic_unknown")
    assert "alone" in (user.home / "plain").read_text()


@pytest.mark.cluster
def test_the_driver_runs_as_the_user_with_script_and_arguments_and_what_it_submits_is_not_elastic(
    site: SandboxSite, user: User
) -> None:
    seen = user.home / "seen"
    driver = site.root / "driver.sh"
    # In place of the driver, what a training script could do in an elastic job.
    shell_script(
        driver,
        '#!/bin/sh\nexec >seen 2>&1\nid -u\nshift\necho "$@"\n'
        f"env | grep -c {INHERITED}\nsrun --overlap -n1 echo step\nsbatch -H -p batch --wrap true\necho end\n",
    )
    (user.home / "train.py").write_text("#!/usr/bin/env python3\n")
    try:
        with another_driver(site, driver):
            done = user.run("sbatch", "--elastic=1-2", "-o", "/dev/null", "train.py", "a", "b c")
        assert done.returncode == 0, done.stderr
        until("the driver's end", lambda: seen.exists() and seen.read_text().endswith("end\n"))
        uid, arguments, inherited, step, submitted, _ = seen.read_text().splitlines()
        assert (uid, arguments, inherited, step) == (str(user.uid), "a b c", "1", "step")
        assert user.run("squeue", "-h", "-o", "%P %j", "-j", submitted.split()[-1]).stdout == "batch wrap\n"
    finally:
        user.run("scancel", "--me")
