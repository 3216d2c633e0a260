"""What a shell completes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from bftd import api_client
from bftd.base.errors import ConfigError, DaemonUnreachable
from bftd.cli import completion
from bftd.cli.main import bft
from elastic.backends import KINDS
from elastic.base.errors import UsageError
from elastic.options.elastic_option import ElasticSpec
from tests.support.waiting import STILL_S

STATUS = {
    "trainers": [{"id": "17", "name": "mynet"}, {"id": "18", "name": "mynet"}, {"id": "19", "name": "two words"}],
    "node_groups": [{"nodes": "n[1-3]"}, {"nodes": "gpu7"}],
}


class Daemon:
    """Answers with a status, or fails."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def request(self, method: str, path: str, body: Any = None, timeout_s: float | None = None) -> Any:
        assert timeout_s is not None
        assert timeout_s <= 1.0, "a shell waits"
        self.asked.append(path)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Daemon:
    made = Daemon(STATUS)
    monkeypatch.setattr(api_client, "find", lambda path=None: made)
    return made


def completed(*words: str) -> list[str]:
    shell = ShellComplete(bft, {}, "bft", "_BFT_COMPLETE")
    return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]


def test_trainers_are_completed_by_id_and_name_and_nodes_by_name_at_one_request(daemon: Daemon) -> None:
    assert completed("trainers", "") == ["17", "18", "19", "mynet"], "a shell would take a name of two words apart"
    assert completed("trainers", "17", "m") == ["mynet"]
    assert completed("explain", "") == ["17", "18", "19", "mynet", "n1", "n2", "n3", "gpu7"]
    assert completed("explain", "--node", "n") == ["n1", "n2", "n3"]
    assert completed("pause", "--nodes", "n1,g") == ["n1,gpu7"]
    assert len(daemon.asked) == 5


def test_an_older_daemon_tells_nodes_one_by_one(daemon: Daemon) -> None:
    daemon.answer = {"trainers": [], "nodes": [{"name": "n1"}]}
    assert completed("explain", "") == ["n1"]


@pytest.mark.parametrize(
    "answer", [DaemonUnreachable("none"), ConfigError("none"), OSError(), {}, {"trainers": 3}, None]
)
def test_a_daemon_that_does_not_answer_completes_nothing_and_says_nothing(
    daemon: Daemon, answer: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    daemon.answer = answer
    assert [completed(*words) for words in (("trainers", ""), ("explain", "n"), ("sbatch", "--elastic", ""))] == [
        []
    ] * 3
    assert capfd.readouterr() == ("", "")


def test_states_are_completed_one_after_the_other() -> None:
    assert completed("trainers", "-t", "") == ["waiting", "running", "suspended", "finished", "all"]
    assert completed("trainers", "--state", "running,s") == ["running,suspended"]


@pytest.mark.parametrize("before", [(), ("-J", "x"), ("--parsable",)])
def test_elastic_is_completed_before_and_behind_options_of_sbatch(daemon: Daemon, before: tuple[str, ...]) -> None:
    assert completed("sbatch", *before, "--el") == ["--elastic"]
    assert completed("sbatch", *before, "--elastic", "") == ["1-4"], "as many as there are nodes"
    assert completed("sbatch", *before, "--elastic=1") == ["1-4"]
    assert completed("sbatch", *before, "--elastic=1-8,backend=") == [f"1-8,backend={name}" for name in KINDS]
    assert completed("sbatch", *before, "--elastic=1-8,mix,we") == ["1-8,mix,weight="]
    assert completed("run", "--nodes", "1-8,m") == ["1-8,mix"]


def test_each_option_that_elastic_knows_is_completed() -> None:
    offered = {value.partition(",")[2].partition("=")[0] for value in completed("sbatch", "--elastic", "1-8,")}
    with pytest.raises(UsageError) as refused:
        ElasticSpec.parse("1-8,unheard-of")
    known = str(refused.value).rpartition(": ")[2].split(", ")
    assert offered == {name.removesuffix("=") for name in known}


def test_a_script_is_completed_by_files() -> None:
    shell = ShellComplete(bft, {}, "bft", "_BFT_COMPLETE")
    for words in (["sbatch", "--elastic=1-4"], ["run", "--nodes", "1-4"]):
        assert [item.type for item in shell.get_completions(words, "tr")] == ["file"]


def test_a_command_that_is_not_there_completes_nothing_and_a_former_name_as_the_new_one() -> None:
    assert completed("statsu", "x") == []
    assert completed("state", "l") == completed("checkpoints", "l") == ["ls"]
    assert "auto" not in completed("size", ""), "a plug-in calls it"


def test_commands_are_completed_without_loading_any() -> None:
    code = (
        "import sys; from click.shell_completion import ShellComplete; from bftd.cli.main import bft; "
        "print(len(ShellComplete(bft, {}, 'bft', 'X').get_completions([], '')), 'bftd.cli.jobs.submit' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=STILL_S)
    count, loaded = ran.stdout.split()
    assert int(count) > 15
    assert loaded == "False"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["sbatch", "--elastic", "=", "1-8,backend", "=", "to"], "torchrun"),
        (["sbatch", "--elastic", "=", "1-8,ba"], " ".join(f"1-8,backend={name}" for name in KINDS)),
        (["sbatch", "--elastic", "1-8,wei"], "nospace 1-8,weight="),
        (["trainers", "-t", ""], "waiting running suspended finished all"),
        (["trainers", "--state", "=", "r"], "running"),
    ],
)
def test_bash_completes_what_it_takes_apart(words: list[str], found: str, tmp_path: Path) -> None:
    """Bash passes the words as here: = ends one. What `bft` answers replaces the last."""
    bash = shutil.which("bash")
    assert bash is not None
    completion.install()
    shell = completion._Bash(bft, {}, "bft", "_BFT_COMPLETE")
    quoted = " ".join(f"'{word}'" for word in ["bft", *words])
    script = (
        f'bft() {{ "{sys.executable}" -m bftd.cli.main; }}; '
        f"compopt() {{ printf '%s ' nospace; }}\n"
        f"{shell.source()}\n"
        f"COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _bft_completion '{tmp_path}/bft'; echo \"${{COMPREPLY[*]}}\""
    )
    (tmp_path / "bft").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m bftd.cli.main\n')
    (tmp_path / "bft").chmod(0o755)
    ran = subprocess.run([bash, "-c", script], capture_output=True, text=True, check=True, timeout=STILL_S)
    assert (ran.stdout.split(), ran.stderr) == (found.split(), "")
