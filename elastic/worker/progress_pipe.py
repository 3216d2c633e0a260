"""The progress of a script that runs outside bftd, for a program that measures it (`bft size cpu`).

If BFT_PROGRESS names a pipe, rank 0 writes a line there as it steps: the step, the samples so far, and the time of
CLOCK_MONOTONIC in seconds. This never holds up or ends the script: a line that cannot be written at once is left out.
"""

from __future__ import annotations

import os
import stat
import time

VARIABLE = "BFT_PROGRESS"
_APART_S = 0.02  # the reader counts from line to line, so more lines say no more


class ProgressPipe:
    """A writer to the pipe that the environment names; it does nothing if there is none."""

    def __init__(self) -> None:
        self._path = os.environ.get(VARIABLE, "")
        self._descriptor = -1
        self._written_s = 0.0

    def step(self, step: int, samples: int, rank: int) -> None:
        """Report a step; `samples` are those of all workers since the beginning."""
        if not self._path or rank != 0:
            return
        now_s = time.monotonic()
        if now_s - self._written_s < _APART_S:
            return
        self._written_s = now_s
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                if not stat.S_ISFIFO(os.fstat(self._descriptor).st_mode):
                    self._path = ""
                    return
            os.write(self._descriptor, f"{step} {samples} {now_s:.6f}\n".encode())
        except BlockingIOError:
            pass  # the pipe is full: the next line says as much
        except OSError:
            self._path = ""  # the reader is gone


progress_pipe = ProgressPipe()
