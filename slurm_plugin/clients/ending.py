"""Ending of child processes in bounded time, even of one stuck in the kernel.

A process that waits for a dead file server dies, SIGKILL or not, only when the server answers. It is left alone, and
reaped when it is over.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from typing import Any

_KILLED_WITHIN_S = 1.0
_left: list[subprocess.Popen[Any]] = []
_lock = threading.Lock()


def end(process: subprocess.Popen[Any], grace_s: float = 0.0) -> None:
    """End a process: SIGTERM with `grace_s` to leave by itself, then SIGKILL and a second; close its pipes."""
    over = False
    if grace_s:
        process.terminate()
        over = _is_over_within(process, grace_s)
    if not over:
        process.kill()
        over = _is_over_within(process, _KILLED_WITHIN_S)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    if not over:
        with _lock:
            _left.append(process)


def left() -> int:
    """Reap the processes that have ended late, and count those still running."""
    with _lock:
        _left[:] = [process for process in _left if process.poll() is None]
        return len(_left)


def _is_over_within(process: subprocess.Popen[Any], limit_s: float) -> bool:
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return False
    return True
