"""The paths through the documentation that one shell can walk, walked: every command, and what a page shows for it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_plugin.sandbox import Sandbox, processes
from tests.docs import written
from tests.support import waiting
from tests.support.ports import free_port

pytestmark = [pytest.mark.cluster, pytest.mark.torch, pytest.mark.prometheus]

# What only looks is asked again until it shows what the page shows: things take as long as they take.
READING = (
    "bft status",
    "bft explain",
    "bft nodes",
    "bft trainers",
    "bft logs",
    "bft history",
    "bft usage",
    "bft checkpoints ls",
    "squeue",
    "curl",
    "grep",
)
_MARK = "-- done --"

_DOWN = (r"sandbox down$", 'sandbox down --root "$(dirname "$SLURM_CONF")"', "others may have one on this machine")

# session -> (what a page says, what is typed here instead, why)
INSTEAD = {
    "administrators": [
        (r"^\. \.venv/bin/activate$", "true", "the shell is in the environment already"),
        (r"--no-daemon", "--no-daemon --tuned", "Slurm's own settings let a job wait for half a minute"),
        (r"127\.0\.0\.1:8470", "127.0.0.1:{port}", "somebody may have the port"),
        _DOWN,
    ],
    "scientists": [
        (r"^\. \.venv/bin/activate$", "true", "the shell is in the environment already"),
        (r"sandbox up", "sandbox up --tuned", "Slurm's own settings let a job wait for half a minute"),
        _DOWN,
    ],
    "solvers": [],
}


class Shell:
    """One bash for a whole session, as a reader has it; its processes end with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        environ = {name: os.environ[name] for name in ("HOME", "LANG", "USER") if name in os.environ}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin"
        self._bash = subprocess.Popen(
            ["bash", "-u"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**environ, "PATH": path, "TMPDIR": str(folder), "COLUMNS": "160"},
            start_new_session=True,
        )

    def run(self, text: str) -> tuple[int, str]:
        """The exit code and all that the command printed."""
        typed, said = self.folder / ".typed", self.folder / ".said"
        typed.write_text(f"{text}\n")
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.write(f". {typed} > {said} 2>&1 < /dev/null; echo {_MARK} $?\n")
        self._bash.stdin.flush()
        for line in self._bash.stdout:
            if line.startswith(_MARK):
                return int(line.removeprefix(_MARK)), said.read_text(errors="replace")
        raise AssertionError(f"{text}: the shell has ended: {said.read_text(errors='replace')}")

    def end(self) -> None:
        """Ends the shell, and what it left in the background."""
        os.killpg(self._bash.pid, signal.SIGTERM)
        self._bash.communicate(timeout=300)


@contextmanager
def shell() -> Iterator[Shell]:
    """A shell in a folder with what a clone has, and nothing else; whatever cluster was begun there is ended."""
    with tempfile.TemporaryDirectory(prefix="bft-docs-") as name:
        folder = Path(name).resolve()
        for part in ("examples", "docs"):
            (folder / part).symlink_to(written.ROOT / part)
        begun = Shell(folder)
        try:
            yield begun
        finally:
            begun.end()
            for root in Sandbox.running():
                if folder in root.parents:
                    processes.end(root, grace_s=0, limit_s=10)


def pattern(shown: str) -> re.Pattern[str]:
    """A line as a page shows it, with other nodes, numbers, times and spaces; `...` is anything."""
    text = re.escape(" ".join(shown.split())).replace(r"\.\.\.", ".*")
    text = re.sub(r"\bn(\\\[[\d,\\-]+\\\]|\d+)", "\0", text)
    text = re.sub(r"\d(?:[\d:e]|\\[.+-](?=\d)|,(?=\d))*", "\1", text)
    text = text.replace("\0", r"n(?:\[[\d,-]+\]|\d+)").replace("\1", r"\d[\d.,:e+-]*")
    return re.compile(text.replace("\\ ", r"\s+"))


def missing(shown: tuple[str, ...], said: str) -> list[str]:
    """The lines of a page that were not printed."""
    lines = said.splitlines()
    rows = [row for row in shown if row.strip() not in ("", "...")]
    return [row for row in rows if not any(pattern(row).search(line) for line in lines)]


def walk(session: str) -> list[str]:
    """Types all commands of a session; returns what went otherwise than its page says."""
    instead = [(old, new.format(port=free_port()), why) for old, new, why in INSTEAD[session]]
    unused = {old for old, _, _ in instead}
    with shell() as begun:
        for block in (block for page in written.PAGES for block in written.blocks(page) if block.run == session):
            for line in block.lines:
                text = line.text
                for old, new, _ in instead:
                    text, count = re.subn(old, new, text)
                    unused -= {old} if count else set()
                if wrong := typed(begun, text, line.shown):
                    return [f"{block.page}:{line.at}: {text}", *wrong]
    return [f"{old} stands on no page" for old in unused]


def typed(shell: Shell, text: str, shown: tuple[str, ...]) -> list[str]:
    begun_s = time.monotonic()
    wrong: list[str] = []

    def over() -> bool:
        code, said = shell.run(text)
        lost = missing(shown, said)
        wrong[:] = [f"exit code {code}", f"not printed: {lost}", f"printed: {said}"] if code or lost else []
        return not wrong or not text.startswith(READING)

    try:
        waiting.until(text, over, waiting.written(shell.folder))
    except AssertionError as error:
        return [str(error), *wrong]
    print(f"{time.monotonic() - begun_s:5.1f} s  {text.splitlines()[0]}")
    return wrong


@pytest.fixture(scope="module")
def walked() -> dict[str, list[str]]:
    """What went wrong in each session; they wait more than they work, so they are walked side by side."""
    with ThreadPoolExecutor() as pool:
        return dict(zip(INSTEAD, pool.map(walk, INSTEAD), strict=True))


@pytest.mark.parametrize("session", INSTEAD)
def test_what_a_page_tells_to_type_does_what_it_shows(walked: dict[str, list[str]], session: str) -> None:
    assert walked[session] == [], walked[session][-1]


def test_a_line_that_is_shown_and_not_printed_is_told() -> None:
    said = "train: 1 to 8 nodes of elastic\nn[1-4]  3   working\n"
    assert missing(("train: 1 to 4 nodes of elastic", "...", "n[1-8]   1  working"), said) == []
    assert missing(("train: 1 to 8 nodes of batch",), said) != []
    assert missing(("n7 1 suspended", "n[1-8]     1 working"), said) == ["n7 1 suspended"]
    assert (
        missing(
            ("2026-11-22 00:16:52  it grows: +1.35e+03 samples/s",), "2026-11-23 06:07:35  it grows: +3e+02 samples/s"
        )
        == []
    )
