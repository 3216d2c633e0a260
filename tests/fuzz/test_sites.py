"""A site's settings and plug-in files with faults in them: the rules judge it, or one error says what was not shown."""

from __future__ import annotations

import re
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from slurm_plugin.clients.client import CommandResult
from slurm_plugin.clients.visibility import hidden_from_us, private_data
from slurm_plugin.errors import SlurmError
from slurm_plugin.site import RULES, plugstack
from slurm_plugin.site.lines import FILES, advise, render
from slurm_plugin.site.model import SiteFile
from slurm_plugin.site.read import _missing_module, read
from slurm_plugin.site.rule import check
from tests.fuzz.mutations import WORDS, contents, few, refused, texts
from tests.slurm_plugin.site.sites import ASSETS, LUA, WANTED, recorded
from tests.slurm_plugin.site.test_plugstack import shared_object

CONFIGS = [path.read_text() for path in sorted(ASSETS.glob("*/*/config.txt"))]
PARTITIONS = [path.read_text() for path in sorted(ASSETS.glob("*/*/partitions.txt"))]
STACK = "required /p/a.so x=1\noptional /p/spank_bftd.so\ninclude /etc/slurm/plugstack.conf.d/*.conf\n"
SITE = recorded("recommended")
KEYS = sorted(SITE.config)
OPTIONS = sorted({key for options in SITE.partitions.values() for key in options})


class Answering:
    """A Slurm that shows these texts."""

    def __init__(self, config: str, partitions: str) -> None:
        self._shown = {"config": config, "partition": partitions}

    def run(self, command: str, *arguments: str, **_: object) -> CommandResult:
        return CommandResult(0, self._shown.get(arguments[1], "") if arguments[1:] else "", "")


@few(4)
@given(texts(CONFIGS), texts(PARTITIONS))
def test_a_site_with_faults_is_judged_or_not_shown(config: str, partitions: str) -> None:
    with refused(SlurmError):
        client = Answering(config, partitions)
        site = read(client, WANTED)  # type: ignore[arg-type]
        private_data(site.config)
        check(site, RULES)
        hidden_from_us(client, site.config)  # type: ignore[arg-type]
        for file in FILES:
            render(advise(site, RULES, nodes="n[1-4]", driver_nodes="n9"), file)


@few(4)
@given(st.data())
def test_any_word_may_stand_for_a_setting(data: st.DataObject) -> None:
    config, partitions = dict(SITE.config), {name: dict(options) for name, options in SITE.partitions.items()}
    for _ in range(3):
        word = data.draw(st.sampled_from(WORDS))
        if data.draw(st.booleans()):
            config[data.draw(st.sampled_from(KEYS))] = word
        else:
            partitions[data.draw(st.sampled_from(sorted(partitions)))][data.draw(st.sampled_from(OPTIONS))] = word
    with refused(SlurmError):
        site = replace(SITE, config=config, partitions=partitions)
        check(site, RULES)
        advised = advise(site, RULES, nodes="n[1-4]", driver_nodes="n9")
        assert all(
            re.match(r"[^\0]*\Z", render(advised, file)) is not None for file in FILES if "\0" not in str(config)
        )


@given(contents([shared_object(0x160508), shared_object(0x160508, ">"), b"\x7fELF"], 6))
def test_a_plug_in_with_faults_tells_its_release_or_nothing(raw: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder, refused():
        (Path(folder) / "spank_bftd.so").write_bytes(raw)
        found = plugstack.release_of(Path(folder) / "spank_bftd.so")
        assert found is None or len(found) == 2


@given(texts([STACK]))
@example(f"{plugstack.OUT}optional /p/{plugstack.NAME}\n")
@example("include [\n" * 50)
@example("include \0\n")
def test_a_plugstack_with_faults_is_read_and_switched(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder, refused():
        path = Path(folder) / "plugstack.conf"
        path.write_text(text, errors="surrogateescape")
        stack = plugstack.read({"PlugStackConfig": str(path)})
        plugstack.missing(stack, "/p:/q")
        plugstack.fault(stack, "/p:/q")
        before = plugstack.line_of(path)
        plugstack.switch(path, False)
        plugstack.switch(path, True)
        after = plugstack.line_of(path)
        assert (before is None) == (after is None)


@given(texts([LUA]))
@example(f'dofile("/{"a" * 5000}/bftd.lua")')
@example('dofile("/\0/bftd.lua")')
def test_a_lua_file_with_faults_names_a_module_or_none(text: str) -> None:
    with refused():
        _missing_module(SiteFile("/etc/slurm/job_submit.lua", "present", text))
