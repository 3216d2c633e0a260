"""The driver's output, written by one thread: no slow or full disk, pipe or terminal holds training up.

Lines wait in memory, in order, while nothing can be written. When there are too many, the oldest are dropped, and a
line in their place says how many are missing. Writes to a full disk are repeated, those to a pipe without a reader are
not.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator

from bftd.protocol.bounds import TAIL_LINE_MOST, TAIL_LINES_MOST
from elastic.base.timing import LAST_WORDS_S

HELD_BYTES = 4 << 20
"""The most that may wait to be written: some ten thousand lines, for a file system that hangs for a minute."""

_LINE_BYTES = 64
"""The memory that a line takes beside its bytes."""

_AT_ONCE_BYTES = 4096
"""A pipe takes this much in one piece: lines of other processes do not get in between."""

_RETRY_S = 1.0
_LAST_RETRY_S = 0.1
"""The pauses between two tries: while there is time, and at the end."""

_STALLED = "they were not taken in time"

_NOBODY = {errno.EPIPE, errno.EBADF, errno.ECONNRESET, errno.ENXIO}
"""Errors after which nobody will ever read the output."""


class JobOutput:
    """Lines on their way to a file descriptor; call `close` at the end."""

    def __init__(self, fd: int, encoding: str = "utf-8", held_bytes: int = HELD_BYTES) -> None:
        self._fd = fd
        self._encoding = encoding
        self._most_bytes = held_bytes
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._dropped = 0
        self._gone = False
        self._why = _STALLED
        self._last: deque[str] = deque(maxlen=TAIL_LINES_MOST)
        self._deadline_s: float | None = None
        self._news = threading.Condition()
        # As a daemon thread, so that a write that never returns does not keep the process from ending.
        self._thread = threading.Thread(target=self._write_all, name="bft-output", daemon=True)
        self._thread.start()

    @classmethod
    def standard(cls) -> JobOutput:
        """The standard output of this process, in its locale's encoding."""
        if sys.stdout is None:  # closed before the start: its number may be another file's by now
            nowhere = cls(-1)
            nowhere._gone = True
            return nowhere
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        return cls(1, getattr(sys.stdout, "encoding", None) or "utf-8")

    def line(self, text: str) -> None:
        """Writes one line soon, and never waits. Characters that the encoding lacks are escaped."""
        data = f"{text}\n".encode(self._encoding, "backslashreplace")
        with self._news:
            self._last.append(text[:TAIL_LINE_MOST])
            if self._gone:
                return
            self._lines.append(data)
            self._bytes += len(data) + _LINE_BYTES
            while self._bytes > self._most_bytes:
                self._bytes -= len(self._lines.popleft()) + _LINE_BYTES
                self._dropped += 1
            self._news.notify()

    def tail(self) -> tuple[str, ...]:
        """Returns the last lines, cut to TAIL_LINE_MOST characters."""
        with self._news:
            return tuple(self._last)

    @contextlib.contextmanager
    def logging(self) -> Iterator[None]:
        """Takes the log messages of libraries meanwhile: on standard error they could hold everything up."""
        handler = _Handler(self)
        logger = logging.getLogger()
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)

    def close(self, within_s: float = LAST_WORDS_S) -> None:
        """Writes the waiting lines, and gives up after `within_s`."""
        with self._news:
            self._deadline_s = time.monotonic() + within_s
            self._news.notify()
        self._thread.join(within_s + 2 * _LAST_RETRY_S)

    # -- the thread ---

    def _write_all(self) -> None:
        data: bytes | None = b""
        while data is not None and self._write(data):
            data = self._next()
        with self._news:
            if self._gone:
                return
            left = len(self._lines) + self._dropped + (data or b"").count(b"\n")
            self._gone = True
            self._lines.clear()
        if left:
            self._print_aside(f"bft: {left} lines of output were not written: {self._why}")

    def _next(self) -> bytes | None:
        """Returns whole lines to write at once; None at the end."""
        with self._news:
            while not self._lines and not self._dropped:
                if self._deadline_s is not None or self._gone:
                    return None
                self._news.wait()
            if self._dropped:
                message = f"bft: {self._dropped} lines of output are missing here: {self._why}\n"
                self._dropped, self._why = 0, _STALLED
                return message.encode(self._encoding, "backslashreplace")
            data = b""
            while self._lines and (not data or len(data) + len(self._lines[0]) <= _AT_ONCE_BYTES):
                line = self._lines.popleft()
                self._bytes -= len(line) + _LINE_BYTES
                data += line
            return data

    def _write(self, data: bytes) -> bool:
        """Whether all of it was written, however long that took."""
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._fd, left) :]
            except BlockingIOError:  # another program has set the terminal to non-blocking
                poll = select.poll()
                poll.register(self._fd, select.POLLOUT)
                poll.poll(_LAST_RETRY_S * 1000)
            except OSError as error:
                self._why = error.strerror or str(error)
                if error.errno in _NOBODY:
                    self._nobody_reads()
                    return False
                self._wait()
            if self._deadline_s is not None and time.monotonic() >= self._deadline_s:
                return not left
        return True

    def _wait(self) -> None:
        """Waits a while before the next try."""
        with self._news:
            if self._deadline_s is None:
                self._news.wait_for(lambda: self._deadline_s is not None, _RETRY_S)
                return
        time.sleep(_LAST_RETRY_S)

    def _nobody_reads(self) -> None:
        with self._news:
            self._gone, self._dropped = True, 0
            self._lines.clear()
        self._print_aside("bft: nobody reads the output any more; training goes on")

    def _print_aside(self, text: str) -> None:
        """Writes a text to standard error, unless that is the same file."""
        with contextlib.suppress(OSError):
            if not os.path.samestat(os.fstat(self._fd), os.fstat(2)):
                os.write(2, f"{text}\n".encode(errors="backslashreplace"))


class _Handler(logging.Handler):
    def __init__(self, output: JobOutput) -> None:
        super().__init__(logging.WARNING)
        self._output = output
        self.setFormatter(logging.Formatter("bft: %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):  # a record that cannot be formatted must not stop the driver
            self._output.line(self.format(record))
