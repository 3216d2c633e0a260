"""Each check by itself: what it says of a host or site, and that nothing which hangs or fails stops the others."""

from __future__ import annotations

import dataclasses
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftd.config.keys import Config
from bftd.doctor import host, slurm
from bftd.doctor.check import Check, limited
from bftd.doctor.daemon import apart
from slurm_plugin.errors import NoAnswer
from slurm_plugin.site import RULES, Site, check, plugstack
from slurm_plugin.site.model import SiteFile
from slurm_plugin.site.plugins import lua_module
from tests.slurm_plugin.site.sites import recorded
from tests.support.messages import says
from tests.support.programs import shell_script

GIB = 2**30


def test_what_was_found_before_a_check_hangs_is_kept_and_the_hang_is_a_failure() -> None:
    never = threading.Event()

    def work() -> Iterator[Check]:
        yield Check("first", "ok", "there")
        never.wait()

    first, second = limited("second", work, 0.05)
    assert first == Check("first", "ok", "there")
    assert (second.name, second.level) == ("second", "failure")
    assert says(second.text, "bftd.doctor.hangs", limit_s="0.05")
    never.set()


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (NoAnswer("scontrol gave no answer"), "failure"),
        (PermissionError("denied"), "failure"),
        (KeyError("x"), "unknown"),
    ],
)
def test_an_error_of_the_world_is_a_failure_and_a_fault_of_the_check_leaves_it_unknown(
    error: Exception, level: str
) -> None:
    def work() -> Iterator[Check]:
        raise error
        yield

    (found,) = limited("it", work, 60.0)
    assert found.level == level
    assert str(error) in found.text
    assert says(found.text, "bftd.doctor.fault").found == (level == "unknown")


@given(st.floats(-1e6, 1e6), st.floats(0, 10))
def test_clocks_are_apart_only_if_no_delay_of_the_answer_explains_it(ahead_s: float, took_s: float) -> None:
    found = apart("clock", ahead_s - took_s, ahead_s)
    least_s = max(ahead_s - took_s, -ahead_s, 0.0)
    assert found.level == ("ok" if least_s <= 5.0 else "warning" if least_s < 60.0 else "failure")
    if found.level != "ok":
        assert ("ahead of" in found.text) == (ahead_s > 0)


@pytest.mark.parametrize(
    ("program", "level", "key"),
    [
        ("""echo '[[3, 11, 2], {"torch": "2.9.0", "horovod": "0.28.1"}]'""", "ok", ""),
        ("""echo '[[3, 11, 2], {}]'""", "warning", "bftd.doctor.no_torch"),
        ("""echo '[[3, 6, 8], {"torch": "1.10"}]'""", "warning", "bftd.doctor.old_python"),
        ("exit 1", "failure", "bftd.doctor.python_fails"),
        ("echo no python", "failure", "bftd.doctor.python_fails"),
    ],
)
def test_the_python_of_training_scripts_is_the_one_on_path(
    program: str, level: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{shell_script(tmp_path / 'python3', program).parent}:/usr/bin:/bin")
    bft, found = host.programs()
    assert bft.level == "ok"
    assert found.level == level
    assert says(found.text, key) if key else "torch 2.9.0, horovod 0.28.1" in found.text
    assert str(tmp_path / "python3") in found.text


def test_without_any_python_a_training_script_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert says([found.text for found in host.programs()], "bftd.doctor.no_python")


def test_few_open_files_are_a_warning_and_the_usual_limits_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    most: dict[int, tuple[int, int]] = {resource.RLIMIT_NOFILE: (1024, 524288)}
    monkeypatch.setattr(resource, "getrlimit", lambda which: most.get(which, (-1, -1)))
    monkeypatch.setattr(host, "_has_infiniband", lambda: False)
    assert [found.level for found in host.limits()] == ["ok"]
    most[resource.RLIMIT_NOFILE] = (1024, 1024)
    assert [found.level for found in host.limits()] == ["warning"]
    most[resource.RLIMIT_NOFILE], most[resource.RLIMIT_MEMLOCK] = (1024, 524288), (2**16, 2**16)
    assert [found.level for found in host.limits()] == ["ok"]
    monkeypatch.setattr(host, "_has_infiniband", lambda: True)
    assert [found.level for found in host.limits()] == ["warning"]


@pytest.mark.parametrize(
    ("free", "inodes", "level"),
    [(9 * GIB, (10, 10), "ok"), (9 * GIB, (0, 0), "ok"), (GIB // 2, (10, 10), "warning"), (2**20, (10, 10), "failure"),
     (9 * GIB, (10, 0), "failure")],
)  # fmt: skip
def test_a_full_disk_of_checkpoints_is_told(
    free: int, inodes: tuple[int, int], level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BFT_STATE_DIR", str(tmp_path / "not" / "there" / "yet"))
    seen = SimpleNamespace(f_bavail=free // 512, f_frsize=512, f_files=inodes[0], f_favail=inodes[1])
    monkeypatch.setattr(os, "statvfs", lambda path: seen)
    nowhere = dataclasses.replace(Config().ledger, path=str(tmp_path / "nowhere" / "ledger.sqlite"))
    (found,) = host.disks(dataclasses.replace(Config(), ledger=nowhere))
    assert found.level == level


def test_a_host_whose_name_does_not_resolve_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [found.level for found in host.own_name()] == ["ok"]
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    assert [found.level for found in host.own_name()] == ["failure"]


@pytest.fixture
def lua_site(tmp_path: Path) -> Callable[[str], Site]:
    """The recommended site with a bftd.lua of this text."""

    def made(text: str) -> Site:
        (tmp_path / "bftd.lua").write_text(text)
        site = recorded("recommended")
        path = str(tmp_path / "bftd.lua")
        lua = SiteFile("/etc/slurm/job_submit.lua", "present", site.lua.text.replace("/etc/slurm/bftd.lua", path))
        return dataclasses.replace(site, lua=lua)

    return made


def _lua(site: Site) -> Check:
    return slurm._lua(site, {finding.rule.name: finding for finding in check(site, RULES)})


def test_a_lua_file_of_another_release_is_told(lua_site: Callable[[str], Site]) -> None:
    assert _lua(lua_site(lua_module())).level == "ok"
    other = _lua(lua_site("-- of last year"))
    assert (other.level, bool(says(other.text, "bftd.doctor.other_lua"))) == ("warning", True)


def test_a_lua_file_that_cannot_be_seen_is_unknown_and_no_failure(lua_site: Callable[[str], Site]) -> None:
    site = lua_site(lua_module())
    for state in ("absent", "unreadable"):
        assert _lua(dataclasses.replace(site, lua=SiteFile("/etc/slurm/job_submit.lua", state))).level == "unknown"
    assert _lua(dataclasses.replace(site, module_missing="/etc/slurm/bftd.lua")).level == "failure"
    off = dataclasses.replace(site, config={**site.config, "JobSubmitPlugins": "(null)"})
    assert _lua(off).level == "warning"
    waiting = dataclasses.replace(off, wanted=dataclasses.replace(off.wanted, pilot_mode="sbatch"))
    assert _lua(waiting).level == "ok"


def test_a_plug_in_that_slurm_does_not_load_is_a_failure_and_none_at_all_is_not() -> None:
    site = recorded("recommended")
    assert slurm._spank(site).level == "ok"
    assert slurm._spank(dataclasses.replace(site, plugin_fault="it is for Slurm 21.08")).level == "failure"
    missing = dataclasses.replace(site, missing_plugins=("/p/spank_bftd.so",))
    assert slurm._spank(missing).level == "failure"
    none = dataclasses.replace(site, plugstack=SiteFile("/etc/slurm/plugstack.conf", "absent"))
    assert slurm._spank(none).level == "ok"
    assert slurm._spank(dataclasses.replace(none, plugstack=SiteFile("/p", "unreadable"))).level == "unknown"
    out = SiteFile("/p", "present", f"{plugstack.OUT}{site.plugstack.text}")
    assert slurm._spank(dataclasses.replace(none, plugstack=out)) == slurm._spank(none)


def test_commands_of_another_release_than_the_controller_are_told() -> None:
    assert slurm._releases("slurm-wlm 22.05.8", "22.05.11").level == "ok"
    assert slurm._releases("slurm 24.11.5", "22.05.8").level == "warning"
    assert slurm._releases("", "22.05.8").level == "ok"


def test_an_address_without_a_name_has_no_route() -> None:
    assert slurm._has_route("127.0.0.1")
    assert not slurm._has_route("no-such-host.invalid")


@pytest.mark.parametrize(
    ("program", "level"),
    [
        ("echo 'physics||||'; echo 'art|1000||50|'", "ok"),
        ("echo 'physics|4|8||'; echo 'art||||'", "warning"),
        ("true", "warning"),
        ("echo no >&2; exit 1", "unknown"),
    ],
)
def test_few_jobs_at_once_are_told_since_each_node_is_one(
    program: str, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{shell_script(tmp_path / 'sacctmgr', program).parent}:/usr/bin:/bin")
    checks = slurm.SlurmChecks(Config())
    checks._config = {"AccountingStorageType": "accounting_storage/slurmdbd"}
    (found,) = checks.job_limits()
    assert found.level == level
    if level == "warning" and "4" in program:
        assert says(found.text, "bftd.doctor.few_jobs", few="4 in physics")
    checks._config = {"AccountingStorageType": "(null)"}
    assert [found.level for found in checks.job_limits()] == ["ok"]
