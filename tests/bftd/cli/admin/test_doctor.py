"""`bft doctor` where there is nothing to find: it ends with a line for each check, whatever is missing or broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bftd import config_file
from tests.support.messages import excerpt, says
from tests.support.programs import shell_script
from tests.support.terminal import Ended, Terminal

NEEDS_SLURM = {
    "slurmctld's clock", "munge", "site settings", "SPANK plug-in", "job_submit.lua", "driver partition", "association",
    "service nodes",
}  # fmt: skip
NEEDS_A_DAEMON = {"daemon's version", "daemon's clock", "daemon's state", "your limits"}


@pytest.fixture
def doctor(bft: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Runs it with neither Slurm nor a daemon nor a configuration."""
    monkeypatch.delenv("BFTD_CONFIG", raising=False)
    monkeypatch.setattr(config_file, "DEFAULT_PATH", tmp_path / "none.toml")
    monkeypatch.setenv("PATH", str(tmp_path))
    bft.before = ("doctor",)
    return bft


def levels(ended: Ended) -> dict[str, str]:
    return {check["name"]: check["level"] for check in json.loads(ended.out)["checks"]}


def test_without_slurm_and_daemon_they_fail_and_what_they_would_tell_is_unknown(doctor: Terminal) -> None:
    ended = doctor("--json")
    assert (ended.code, ended.err) == (1, "")
    found = levels(ended)
    assert {name for name, level in found.items() if level == "failure"} == {"slurmctld", "daemon"}
    assert {name for name, level in found.items() if level == "unknown"} == NEEDS_SLURM | NEEDS_A_DAEMON
    texts = {check["name"]: check["text"] for check in json.loads(ended.out)["checks"]}
    assert excerpt("slurm_plugin.client.not_found", command="scontrol") in texts["slurmctld"]
    counts = json.loads(ended.out)
    assert counts["failure"] == 2
    assert sum(counts[level] for level in ("ok", "warning", "failure", "unknown")) == len(found)


def test_each_check_is_a_line_that_begins_with_its_level(doctor: Terminal) -> None:
    shown, told = doctor(), doctor("--json")
    *lines, empty, last = shown.out.splitlines()
    assert [line.split()[0] for line in lines] == list(levels(told).values())
    assert empty == ""
    assert last.endswith("unknown")
    assert shown.code == 1


def test_a_configuration_with_an_error_is_a_failure_and_the_rest_is_checked_all_the_same(
    doctor: Terminal, tmp_path: Path
) -> None:
    (tmp_path / "bftd.toml").write_text("[pool]\nwrong = 1\n")
    ended = doctor("--config", str(tmp_path / "bftd.toml"), "--json")
    found = {check["name"]: check for check in json.loads(ended.out)["checks"]}
    assert found["configuration"]["level"] == "failure"
    assert says(found["configuration"]["text"], "bftd.doctor.defaults")
    assert found["host name"]["level"] == "ok"


@pytest.mark.parametrize("body", ["exit 1", "echo slurm 22.05.8", "kill $$", "printf '\\033[2J\\377'"])
def test_slurm_commands_that_fail_or_say_nonsense_are_a_failure(doctor: Terminal, tmp_path: Path, body: str) -> None:
    for name in ("scontrol", "sdiag", "sbatch"):
        shell_script(tmp_path / name, body)
    found = levels(doctor("--json"))
    assert found["slurmctld"] == "failure"
    assert found["driver partition"] == "unknown"
    assert "\033" not in doctor().out
