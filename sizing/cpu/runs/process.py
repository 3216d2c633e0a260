"""A running confined command: its output and its guard's messages, until both are over, and the end of both."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sizing.base.errors import SizingError
from sizing.child.launch import end_marked
from sizing.cpu.runs import supervisor
from sizing.cpu.runs.affinity import message_of

_MARK = "BFT_CPU"
_KEPT_BYTES = 32 * 2**20
_TAIL_BYTES = 64 * 2**10
_WORDS = 20
_LEAVE_S = 12.0  # the guard kills its processes within about ten
_PAUSE_S = 0.05
_DRAIN_S = 1.0


class CommandOutput:
    """The file that keeps a command's output up to a size, and beyond that only the end."""

    def __init__(self, folder: Path | None) -> None:
        """Make the file in `folder`, or if that is None or not writable in the temporary folder. Raises SizingError."""
        for place in (folder, None) if folder else (None,):
            try:
                self._descriptor, self.path = tempfile.mkstemp(".log", "bft-cpu-", place)
                break
            except OSError as error:
                why = error.strerror
        else:
            raise SizingError(f"no file for the command's output can be made: {why}; $TMPDIR names another folder")
        self._bytes = 0
        self._tail: deque[bytes] = deque()

    def write(self, chunk: bytes) -> None:
        """Keep a chunk; a full disk ends nothing."""
        if self._bytes < _KEPT_BYTES:
            with suppress(OSError):
                os.write(self._descriptor, chunk)
        else:
            self._tail.append(chunk)
            while sum(map(len, self._tail)) - len(self._tail[0]) > _TAIL_BYTES:
                self._tail.popleft()
        self._bytes += len(chunk)

    def close(self, *, keep: bool) -> None:
        """Write the end, or remove the file."""
        with suppress(OSError):
            if self._tail:
                os.write(self._descriptor, b"\n[...]\n" + b"".join(self._tail))
        os.close(self._descriptor)
        if not keep:
            with suppress(OSError):
                os.unlink(self.path)


class Running:
    """One run of a command below its guard; `end` leaves nothing of it, whatever happened before."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str], output: CommandOutput) -> None:
        """Start the guard; raise SizingError if that fails."""
        self.words: deque[str] = deque(maxlen=_WORDS)
        """Lines on the error output that were not the guard's, such as srun's complaints."""
        self.left = 0
        self._mark = f"{os.getpid()}-{os.urandom(8).hex()}"
        self._output = output
        self._is_step, self._step = argv[0] == "srun", ""
        self._said = b""
        self._over = False
        self._drained_s = 0.0  # deadline for reading output after the guard has ended; 0 before that
        try:
            self._process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**environ, _MARK: self._mark},
                start_new_session=True,
            )
        except OSError as error:
            raise SizingError(f"{argv[0]} cannot be started: {error.strerror}") from None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._out, self._err = self._process.stdout.fileno(), self._process.stderr.fileno()
        self._selector = selectors.DefaultSelector()
        for descriptor in (self._out, self._err):
            self._selector.register(descriptor, selectors.EVENT_READ)

    @property
    def over(self) -> bool:
        """Whether the guard has ended, and all output until then is read."""
        return self._over

    def events(self, wait_s: float) -> tuple[bytes, list[dict[str, Any]]]:
        """Return the output and the guard's messages, after at most `wait_s`."""
        printed: bytes = b""
        said: list[dict[str, Any]] = []
        if self.over:
            return printed, said
        ready = self._selector.select(0.0 if self._drained_s else wait_s)
        if self._drained_s and (not ready or time.monotonic() > self._drained_s):
            self._over = True  # any process that still holds the pipe open is not guarded
        for key, _ in ready:
            chunk = os.read(key.fd, 65536)
            if not chunk:
                self._selector.unregister(key.fd)
                if key.fd == self._err:
                    self._drained_s = time.monotonic() + _DRAIN_S
            elif key.fd == self._out:
                self._output.write(chunk)
                printed += chunk
            else:
                said += self._heard(chunk)
        return printed, said

    def end(self) -> list[dict[str, Any]]:
        """End the command and all that it started, as far as possible; return the guard's messages meanwhile."""
        assert self._process.stdin is not None
        said: list[dict[str, Any]] = []
        with suppress(OSError):
            self._process.stdin.close()
        ends_s = time.monotonic() + _LEAVE_S
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
                ends_s = time.monotonic() + 1.0
            while self._process.poll() is None and time.monotonic() < ends_s:
                said += self.events(_PAUSE_S)[1]  # a guard that cannot write cannot end
                if self.over:
                    time.sleep(_PAUSE_S / 10)
        if self._process.returncode != 0 and self._step:
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    ["scancel", "--signal=KILL", self._step], timeout=_LEAVE_S, capture_output=True, check=False
                )
        end_marked(f"{_MARK}={self._mark}".encode())
        ends_s = time.monotonic() + 1.0
        while not self.over and time.monotonic() < ends_s and (more := self.events(0.0)) != (b"", []):
            said += more[1]
        self._selector.close()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        return said

    def _heard(self, chunk: bytes) -> list[dict[str, Any]]:
        *lines, rest = (self._said + chunk).split(b"\n")
        self._said = rest[-65536:]
        found = []
        for line in lines:
            text = line.decode(errors="replace")
            said = message_of(text) if supervisor.MARK in text else None
            if said is None:
                if text.strip():
                    self.words.append(text.strip()[:300])
                continue
            if self._is_step and said.get("op") == "began":
                self._step = str(said["step"])
            self.left = int(said.get("left", 0))
            found.append(said)
        return found
