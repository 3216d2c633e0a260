"""Programs of tests: `bft` in a process of its own, and scripts in the place of others' commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_bft(
    *words: str, env: Mapping[str, str] = os.environ, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command line of this checkout to its end, whatever that is."""
    argv = [sys.executable, "-m", "bftd.cli.main", *words]
    environ = {**env, "PYTHONPATH": str(ROOT)}
    return subprocess.run(argv, env=environ, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


def shell_script(path: Path, body: str) -> Path:
    """Make a program of lines for the shell, or of a text with a `#!`; it replaces what was at its path."""
    path.unlink(missing_ok=True)
    path.write_text(body if body.startswith("#!") else f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@contextmanager
def suspended(pids: Collection[int]) -> Iterator[None]:
    """Stop processes for the length of the block."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
