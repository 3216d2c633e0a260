"""The site's command as a real process: what it gets, for how long it may run, and that nothing of it stays."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from bftd.service.alerts import hook
from tests.support.messages import says, wording
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow


def script(folder: Path, text: str, mode: int = 0o755) -> Path:
    """A command of the site's."""
    path = folder / "tell"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(mode)
    return path


def run(command: object, message: bytes = b"{}\n", limit_s: float = STILL_S) -> str:
    return hook.run(str(command), message, threading.Event(), limit_s)


def gone(pid: int) -> bool:
    """Whether a process has ended, or is about to be reaped."""
    end_s = time.monotonic() + STILL_S
    while time.monotonic() < end_s:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_a_command_gets_its_words_the_message_and_a_clean_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "@secret")
    command = script(tmp_path, f'cat > {tmp_path}/got; echo "$1|$2|$(pwd)" > {tmp_path}/words; env > {tmp_path}/env')
    message = json.dumps({"text": "x" * 200_000}).encode()  # more than a pipe holds
    assert run(f"{command} 'one word' $HOME", message) == ""
    assert (tmp_path / "got").read_bytes() == message
    assert (tmp_path / "words").read_text() == "one word|$HOME|/\n"
    names = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert "NOTIFY_SOCKET" not in names
    assert {"PATH", "LANG"} <= names <= {"PATH", "LANG", "HOME", "LOGNAME", "USER", "TZ", "PWD", "_", "SHLVL", "OLDPWD"}


def test_a_command_that_reads_nothing_and_prints_much_is_no_matter(tmp_path: Path) -> None:
    command = script(tmp_path, "exec <&-; i=0; while [ $i -lt 3000 ]; do echo 'a line of many words'; i=$((i+1)); done")
    assert run(command, b"y" * 300_000) == ""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "echo first; echo the mail server is away >&2; exit 3",
            "tell ended with exit code 3: the mail server is away",
        ),
        ("kill -9 $$", wording("alarms.hook.ended", name="tell", how="signal 9")),
        ("exit 1", wording("alarms.hook.ended", name="tell", how="exit code 1")),
    ],
)
def test_a_command_that_fails_says_how(tmp_path: Path, text: str, told: str) -> None:
    assert run(script(tmp_path, text)).endswith(told)


def test_a_command_that_never_ends_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    command = script(tmp_path, f"trap '' TERM; sleep 600 & echo $! > {tmp_path}/child; sleep 600")
    assert run(command, limit_s=1.0).endswith(wording("alarms.hook.killed_late", name="tell", limit_s=1))
    assert gone(int((tmp_path / "child").read_text()))


def test_what_a_command_leaves_running_ends_with_it(tmp_path: Path) -> None:
    command = script(tmp_path, f"sleep 600 & echo $! > {tmp_path}/child")
    assert run(command) == ""
    assert gone(int((tmp_path / "child").read_text()))


def test_a_stop_ends_it_at_once(tmp_path: Path) -> None:
    command, stop = script(tmp_path, f"echo $$ > {tmp_path}/pid; sleep 600"), threading.Event()
    threading.Timer(0.3, stop.set).start()
    assert hook.run(str(command), b"", stop).endswith(wording("alarms.hook.ended_with_daemon", name="tell"))
    if (tmp_path / "pid").exists():
        assert gone(int((tmp_path / "pid").read_text()))


def test_what_cannot_be_run_is_said_beforehand(tmp_path: Path) -> None:
    plain = script(tmp_path, "true", 0o644)
    missing = wording("alarms.hook.no_such_command", words=f"{tmp_path}/nothing")
    assert hook.objection(f"{tmp_path}/nothing --now") == run(f"{tmp_path}/nothing --now") == missing
    if os.geteuid():
        assert "make it executable" in hook.objection(str(plain))
    assert says(
        hook.objection("mail 'root"), "alarms.hook.not_a_command", command="mail 'root", error="No closing quotation"
    )
    assert hook.objection("") == hook.objection("sh -c 'true'") == ""


@pytest.mark.parametrize("command", ["  ", "/bin/true \0"])
def test_what_is_no_command_at_all_is_said_in_a_line(command: str) -> None:
    assert "is no command" in run(command)


def test_a_host_without_a_file_descriptor_left_is_a_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(_: str) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", none_left)
    assert run("/bin/true") == wording("alarms.hook.cannot_run", name="/bin/true", strerror="Too many open files")


def test_a_command_that_floods_its_output_waits_for_its_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, read = [], os.read

    def counted(descriptor: int, most: int) -> bytes:
        part = read(descriptor, most)
        sizes.append(len(part))
        return part

    monkeypatch.setattr(os, "read", counted)
    assert run(script(tmp_path, "exec yes"), limit_s=1.0).endswith("was killed")
    assert sum(sizes) < 4 * 2**20


def test_what_a_command_said_last_reaches_the_log_without_control_characters(tmp_path: Path) -> None:
    complaint = run(script(tmp_path, r"printf '\033[31mred\r'; exit 3"))
    assert complaint.isprintable()
