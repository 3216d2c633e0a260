"""Checkpoints on a connection of their own (role `state`), so that nothing else ever waits behind them.

    upload      worker: pieces, {"op": "whole", bytes, sha256};  driver: {"op": "kept"}
    download    driver: {"op": "sending", step, samples, bytes, sha256}, the raw bytes;  worker: "whole" or "altered"

The hello of a connection says what it is for in `what`: `send` (with step, samples and whether it is the `last`) or
`fetch`. A piece is its length in 4 bytes and that many bytes; an empty piece is the last. So the length of a checkpoint
need not be known before it is written. Lines are sealed as on every connection, and the digest in a line covers the raw
bytes: one hash serves the way to the driver, the disk and the way back. Calls block; only Python itself is needed, not
torch.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import struct
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO

from elastic.base.errors import WireError
from elastic.base.timing import CHECKPOINT_STALL_S
from elastic.link.channel import BlockingChannel
from elastic.link.wire import CHUNK_BYTES, Message

if TYPE_CHECKING:
    from typing_extensions import Buffer  # collections.abc has it from Python 3.12 on

UPLOAD, DOWNLOAD = "send", "fetch"

LEAST_BYTES = 1 << 20
"""A sender of less than this within CHECKPOINT_STALL_S has stalled, or wants to hold a thread forever."""

_LENGTH = struct.Struct(">I")
_SEND_BYTES = 8 << 20
_CUT_SHORT = "the other end went away in the middle of a checkpoint"
_ALTERED = "a checkpoint was altered on its way"

Moved = Callable[[int], None]
"""Called after every piece with the number of bytes of the checkpoint that have passed."""


class AlteredError(WireError):
    """A checkpoint arrived whole, but it is not what was saved."""


def _nobody(_: int) -> None:
    pass


class PieceWriter(io.RawIOBase):
    """A file that cannot seek: bytes written to it are sent at once, in pieces; `whole` ends it.

    `size_bytes` counts what was written so far. `broken` is the connection's error, which was also raised to the
    writing code. A write blocks for as long as the other end takes nothing.
    """

    def __init__(self, channel: BlockingChannel, moved: Moved = _nobody) -> None:
        super().__init__()
        self._channel = channel
        self._moved = moved
        self._hash = hashlib.sha256()
        self._small = bytearray()
        self.size_bytes = 0
        self.broken: OSError | None = None

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Buffer, /) -> int:
        """Send all of `data`; raises OSError if the connection is gone."""
        view = memoryview(data).cast("B")
        # Serializers write headers of a few bytes: a piece for each would cost a call at both ends.
        if len(view) + len(self._small) < CHUNK_BYTES:
            self._small += view
            return len(view)
        self._flush()
        for start in range(0, len(view), CHUNK_BYTES):
            self._put(view[start : start + CHUNK_BYTES])
        return len(view)

    def whole(self) -> str:
        """Send the rest, and the digest of everything; returns the digest. Raises OSError."""
        self._flush()
        digest = self._hash.hexdigest()
        try:
            self._channel.send_raw(_LENGTH.pack(0))
            self._channel.send({"op": "whole", "bytes": self.size_bytes, "sha256": digest})
        except OSError as error:
            self.broken = error
            raise
        return digest

    def _flush(self) -> None:
        small, self._small = self._small, bytearray()
        if small:
            self._put(memoryview(small))

    def _put(self, piece: memoryview) -> None:
        try:
            self._channel.send_raw(_LENGTH.pack(len(piece)), piece)
        except OSError as error:
            self.broken = error
            raise
        self._hash.update(piece)  # the other end works on the piece meanwhile
        self.size_bytes += len(piece)
        self._moved(self.size_bytes)


class Incoming:
    """The other end of a PieceWriter; `size_bytes` grows, `digest` is set once everything has come and is right."""

    def __init__(self, channel: BlockingChannel, clock: Callable[[], float] = time.monotonic) -> None:
        self._channel = channel
        self._clock = clock
        self.size_bytes = 0
        self.digest = ""

    def pieces(self) -> Iterator[memoryview]:
        """Yield all of the checkpoint in parts, each valid until the next one is asked for.

        Raises WireError, at the latest after the last part, if the checkpoint was cut short or altered, or comes too
        slowly.
        """
        content, buffer = hashlib.sha256(), memoryview(bytearray(CHUNK_BYTES))
        mark_s, mark_bytes = self._clock(), 0
        while left := self._length():
            while left:
                part = buffer[: _some(self._channel, buffer[:left])]
                left -= len(part)
                content.update(part)
                self.size_bytes += len(part)
                yield part
                now_s = self._clock()
                if now_s - mark_s > CHECKPOINT_STALL_S:
                    if self.size_bytes - mark_bytes < LEAST_BYTES:
                        raise WireError("a checkpoint comes too slowly")
                    mark_s, mark_bytes = now_s, self.size_bytes
        end = self._channel.receive()
        if end is None or end["op"] != "whole":
            raise WireError(_CUT_SHORT)
        if end.get("bytes") != self.size_bytes or not _equal(end.get("sha256"), content.hexdigest()):
            raise AlteredError(_ALTERED)
        self.digest = content.hexdigest()

    def _length(self) -> int:
        header = memoryview(bytearray(_LENGTH.size))
        filled = 0
        while filled < len(header):
            filled += _some(self._channel, header[filled:])
        length = int(_LENGTH.unpack(header)[0])
        if length > CHUNK_BYTES:
            raise WireError(f"a piece of a checkpoint has at most {CHUNK_BYTES} bytes")
        return length


def send_file(channel: BlockingChannel, about: Message, file: BinaryIO, moved: Moved = _nobody) -> bool:
    """Send a file whose size and digest are in `about`; returns whether it came as it was saved.

    Nothing is read or hashed in this process. Raises ConnectionError or TimeoutError for the connection, another
    OSError for the file.
    """
    channel.send(about)
    sent, size_bytes = 0, int(about["bytes"])
    while sent < size_bytes:
        passed = channel.send_file(file, sent, min(size_bytes - sent, _SEND_BYTES))
        if not passed:
            raise OSError("its file ends too early")
        sent += passed
        moved(sent)
    answer = channel.receive()
    if answer is None:
        raise ConnectionResetError(_CUT_SHORT)
    return bool(answer["op"] == "whole")


def receive_file(channel: BlockingChannel, about: Message, file: BinaryIO, moved: Moved = _nobody) -> None:
    """Write the bytes that follow `about` into a file, and tell the other end whether they are what was saved.

    Raises AlteredError if they are not, another WireError if they were cut short, and OSError of the file.
    """
    content, buffer, left = hashlib.sha256(), memoryview(bytearray(CHUNK_BYTES)), size_of(about)
    passed = 0
    while passed < left:
        part = buffer[: _some(channel, buffer[: left - passed])]
        content.update(part)
        written = 0
        while written < len(part):  # an unbuffered file may take less than it is given
            written += file.write(part[written:])
        passed += len(part)
        moved(passed)
    right = _equal(about.get("sha256"), content.hexdigest())
    try:
        channel.send({"op": "whole" if right else "altered"})
    except OSError as error:
        raise WireError(_CUT_SHORT) from error
    if not right:
        raise AlteredError(_ALTERED)


def size_of(about: Message) -> int:
    """Return how many raw bytes follow a message; raises WireError."""
    size_bytes = about.get("bytes")
    if not isinstance(size_bytes, int) or isinstance(size_bytes, bool) or size_bytes <= 0:
        raise WireError(f"a checkpoint cannot have {size_bytes!r} bytes")
    return size_bytes


def _some(channel: BlockingChannel, into: memoryview) -> int:
    try:
        count = channel.read_into(into)
    except OSError as error:
        raise WireError(_CUT_SHORT) from error
    if not count:
        raise WireError(_CUT_SHORT)
    return count


def _equal(given: object, digest: str) -> bool:
    return isinstance(given, str) and hmac.compare_digest(given.encode(errors="replace"), digest.encode())
