"""A result as it is kept: what `--json` printed, and the command, commit, date and machine that made it."""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = REPOSITORY / "benchmarks" / "results"
_FREE = (":!benchmarks/results", ":!docs", ":!README.md")
"""Files that no benchmark reads: they may differ from the commit."""


class EvidenceError(Exception):
    """A benchmark that failed, or a result that cannot be kept or read."""


@dataclass(frozen=True, slots=True)
class Host:
    """The machine of a run; `load` is that of the last minute before it."""

    cores: int
    memory_bytes: int
    processor: str
    load: float


@dataclass(frozen=True, slots=True)
class Kept:
    """A result; `command` is as a user types it, `date` as 2026-11-28."""

    command: str
    commit: str
    date: str
    host: Host
    result: Any

    @property
    def source(self) -> str:
        """A line for below a table: where the figures come from."""
        return (
            f"*`{self.command}`, {self.date}, commit {self.commit}, {self.host.cores} cores, "
            f"load {self.host.load:.1f}.*"
        )


def read(name: str) -> Kept:
    """Read a result by its name; raises EvidenceError."""
    path = RESULTS / f"{name}.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return Kept(**fields | {"host": Host(**fields["host"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise EvidenceError(
            f"{path.name} is no result: {error}; python -m benchmarks.evidence --keep {name}"
        ) from error


def names() -> list[str]:
    """Return the names of the results that are kept."""
    return sorted(path.stem for path in RESULTS.glob("*.json"))


def write(name: str, kept: Kept) -> None:
    """Keep a result under a name."""
    text = json.dumps(asdict(kept), separators=(",", ":"), sort_keys=True)
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n", encoding="utf-8")


def run(words: Sequence[str]) -> Kept:
    """Run `python -m WORDS --json`; raises EvidenceError if it fails or the tree is not that of its commit."""
    changed = _git("status", "--porcelain", "--", ".", *_FREE)
    if changed:
        raise EvidenceError(f"files differ from the commit, so it would not tell what ran: {changed.splitlines()[0]}")
    host = this_host()
    done = subprocess.run(
        [sys.executable, "-m", *words, "--json"], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=False
    )
    command = shlex.join(["python", "-m", *words])
    if done.returncode:
        raise EvidenceError(f"{command} ended with code {done.returncode}")
    try:
        result = json.loads(done.stdout)
    except ValueError as error:
        raise EvidenceError(f"{command} --json printed no JSON: {error}") from error
    return Kept(command, commit(), today(), host, result)


def this_host() -> Host:
    """Return this machine and its load."""
    return Host(os.cpu_count() or 1, psutil.virtual_memory().total, _processor(), round(os.getloadavg()[0], 1))


def commit() -> str:
    """Return the commit that is checked out; raises EvidenceError."""
    return _git("rev-parse", "--short=10", "HEAD")


def today() -> str:
    """Return the date in UTC."""
    return str(datetime.datetime.now(datetime.timezone.utc).date())


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EvidenceError(f"git {words[0]} failed, and a result names its commit: {done.stderr.strip()}")
    return done.stdout.strip()


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
