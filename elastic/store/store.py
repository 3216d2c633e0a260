"""The trainer's checkpoints on disk: it resumes from this after it lost every node.

A file gets its name once it is whole and on the disk, and an older checkpoint is removed only after that. Nothing here
runs in the driver's event loop, which answers give-backs: a file server may be slow, or hang.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

from elastic.base.errors import ElasticError, WireError
from elastic.link.bulk import send_file
from elastic.link.channel import BlockingChannel
from elastic.link.wire import Message
from elastic.store import files
from elastic.store.error_latch import ErrorLatch, text_of
from elastic.store.file_names import CheckpointFile, Contents, contents, set_aside
from elastic.store.folder import Place, StoreError, UnsafeFolderError
from elastic.store.partial_file import Upload
from elastic.store.writer_lock import FencedError, Ownership

_PASSING = (errno.EIO, errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT)
_TRIES, _PAUSE_S = 3, 1.0
"""A file server that has just come back may answer only the second time."""

_THREADS = 4

_STREAMS = 32
"""The threads that checkpoints pass through, in each direction; further transfers wait for a moment."""

_UNREACHED = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.ENOBUFS)

_FAILURES = (OSError, UnsafeFolderError)

T = TypeVar("T")
_Stamp = tuple[int, int, int]


class _FailedError(StoreError):
    """The disk's own error, unlike one of the connection that a checkpoint comes by. `passing`: it may work again."""

    def __init__(self, error: Exception) -> None:
        super().__init__(text_of(error))
        self.passing = isinstance(error, OSError) and error.errno in _PASSING


class _AlteredError(_FailedError):
    """The file is not what was saved."""

    def __init__(self) -> None:
        StoreError.__init__(self, "it is not what was saved: it was altered on the disk; nothing else is used instead")
        self.passing = False


class NotStoredError(StoreError):
    """A checkpoint was not stored; the one before it is still there. `again`: whether it may be stored later."""

    def __init__(self, text: str, *, again: bool) -> None:
        super().__init__(text)
        self.again = again


class Content(Protocol):
    """A checkpoint as it arrives: `size_bytes` and `digest` (SHA-256) cover all of it once the last piece was read."""

    @property
    def size_bytes(self) -> int:
        """The bytes received so far."""

    @property
    def digest(self) -> str:
        """The digest of all of it."""

    def pieces(self) -> Iterator[memoryview]:
        """Yields all of it, each piece valid until the next one; raises WireError when it is not what was sent."""


class CheckpointStore:
    """The store of the checkpoint of the highest step; a half-received or older one never replaces it.

    `step` and `samples` are the checkpoint's, -1 and 0 while there is none; `fenced`: another driver has taken over;
    `receiving` is the number of checkpoints on their way.
    """

    def __init__(
        self,
        path: Path,
        tell: Callable[[str], None] = lambda text: None,
        on_fenced: Callable[[], None] = lambda: None,
        title: str = "",
    ) -> None:
        """Takes the folder over, and creates it if need be.

        `tell` gets messages for the user, `on_fenced` is called at most once; `title` is the trainer's name. Raises
        UnsafeFolderError if another user could write in it, StoreError if it cannot be read.
        """
        self._place = Place(path)
        self._tell = tell
        self._on_fenced = on_fenced
        self._owner = Ownership(title)
        self._saving = ErrorLatch(tell, "checkpoints are saved again")
        self._reading = ErrorLatch(tell, "the checkpoint can be read again")
        self._threads = ThreadPoolExecutor(_THREADS, "bft-state")
        self._coming = ThreadPoolExecutor(_STREAMS, "bft-coming")
        self._going = ThreadPoolExecutor(_STREAMS, "bft-going")
        self._publishing = threading.Lock()
        self._finding = threading.Lock()
        self._newest: CheckpointFile | None = None
        self._found: tuple[CheckpointFile, str] | None = None
        self._failing: tuple[CheckpointFile, _Stamp, _FailedError, int] | None = None
        self.fenced = False
        self.receiving = 0
        try:
            self._begin()
        except BaseException:
            self._owner.unlock()
            raise

    @property
    def step(self) -> int:
        """The step of the checkpoint, -1 while there is none."""
        return self._newest.step if self._newest else -1

    @property
    def samples(self) -> int:
        """The number of samples seen until then."""
        return self._newest.samples if self._newest else 0

    @property
    def failing(self) -> bool:
        """Whether the last checkpoint that came could not be stored."""
        return self._saving.present

    def _begin(self) -> None:
        for tries_left in reversed(range(_TRIES)):
            try:
                with self._place.opened(make=True) as folder:
                    self._owner.take(folder)
                    found = self._tidied(folder)
                    break
            except OSError as error:
                if error.errno not in _PASSING or not tries_left:
                    raise StoreError(
                        f"cannot use {self._place.path} for checkpoints: {text_of(error)}; mend that, or set "
                        "BFT_STATE_DIR to a folder of your own that the pool's nodes can read"
                    ) from None
                time.sleep(_PAUSE_S)
        self._newest = found.newest

    def _tidied(self, folder: int) -> Contents:
        """Returns the folder's contents; removes parts and sets broken files aside if no other driver can write."""
        found = contents(folder)
        if found.broken and not found.checkpoints:
            raise StoreError(
                f"the only checkpoint in {self._place.path}, {found.broken[-1]}, is not whole: it is left as it is, "
                "and no training begins anew in its place; submit the job once more for that"
            )
        if self._owner.alone:
            for part in found.parts:
                files.remove(folder, part)
            for name in found.broken:
                self._tell(f"{name} is not whole: it is not used, and kept as {set_aside(folder, name)}")
        return found

    # -- a worker's checkpoint comes ---

    async def receive(self, content: Content, step: int, samples: int) -> bool:
        """Receives a checkpoint to its end, in a thread; returns whether it is the newest now.

        Raises WireError when it is cut short or altered, and NotStoredError, maybe before its end, when it cannot be
        stored.
        """
        if CheckpointFile.parse(CheckpointFile(step, samples, 1).name) is None:
            raise WireError("a checkpoint has a step")
        upload = Upload(self._place)
        self.receiving += 1
        try:
            adopted = await self._in_thread(self._take, upload, content, step, samples, threads=self._coming)
        except _FailedError as error:
            kept = f"; the one of step {self.step} is kept" if self._newest else ""
            text = f"the checkpoint of step {step} cannot be saved in {self._place.path}: {error}"
            self._saving.came(f"{text}{kept}; training goes on, and it is tried again")
            raise NotStoredError(text, again=True) from None
        except FencedError as error:
            self.taken_over(str(error))
            raise NotStoredError(str(error), again=False) from None
        finally:
            self.receiving -= 1
            await asyncio.shield(self._in_thread(upload.discard))
        self._saving.went()
        return adopted

    def _take(self, upload: Upload, content: Content, step: int, samples: int) -> bool:
        for piece in content.pieces():
            upload.write(piece)
        if not content.size_bytes:
            raise WireError("a checkpoint has bytes")
        upload.finish()
        with self._publishing:
            return self._publish(upload, CheckpointFile(step, samples, content.size_bytes, content.digest))

    def _publish(self, upload: Upload, checkpoint: CheckpointFile) -> bool:
        """Gives an upload its name; lists the folder again first, as another driver may have been there."""
        with self.opened_by_owner() as folder:
            found = contents(folder)
            if found.newest is not None and found.newest.step > checkpoint.step:
                self._newest = found.newest
                return False
            upload.publish(folder, checkpoint.name)
            self._newest = checkpoint
            for older in found.checkpoints:
                if older != checkpoint:
                    files.remove(folder, older.name)
        return True

    @contextlib.contextmanager
    def opened_by_owner(self) -> Iterator[int]:
        """Opens the folder for a change by its one writer; raises FencedError, UnsafeFolderError and OSError."""
        if self.fenced:
            raise FencedError("another driver of this trainer has taken over")
        with self._place.opened() as folder:
            self._owner.check(folder)
            self._owner.try_lock(folder)
            yield folder

    # -- a worker begins with it ---

    async def offer(self) -> Message:
        """Returns the answer to a worker that asks for the checkpoint: its size and digest, `none`, or an error."""
        if self._newest is None:
            return {"op": "fetched", "none": True}
        try:
            checkpoint, file = await self._opened_newest()
            with file:
                digest = await self._in_thread(self._digest, checkpoint, file, threads=self._going)
        except _FailedError as error:
            return {"op": "fetched", "error": self._unreadable(error)}
        if self._failing is None:
            self._reading.went()
        about = {
            "step": checkpoint.step,
            "samples": checkpoint.samples,
            "size": checkpoint.size_bytes,
            "sha256": digest,
        }
        return {"op": "fetched", **about}

    async def send(self, channel: BlockingChannel, moved: Callable[[int], None] = lambda _: None) -> None:
        """Sends the checkpoint on a connection of its own; this process does not read it.

        Raises OSError when the connection breaks, or the file fails: the connection is then of no use any more.
        """
        if self._newest is None:
            return
        try:
            checkpoint, file = await self._opened_newest()
            with file:
                digest = await self._in_thread(self._digest, checkpoint, file, threads=self._going)
                about = {
                    "step": checkpoint.step,
                    "samples": checkpoint.samples,
                    "bytes": checkpoint.size_bytes,
                    "sha256": digest,
                }
                message = {"op": "sending", **about}
                await self._in_thread(self._give, channel, message, checkpoint, file, moved, threads=self._going)
            self._reading.went()
        except _FailedError as error:
            self._unreadable(error)

    def _digest(self, checkpoint: CheckpointFile, file: BinaryIO) -> str:
        """Returns a checkpoint's digest; computes it, once, by reading a checkpoint that has none.

        Raises _FailedError for a file that was sent for nothing, unless it has been replaced since.
        """
        if self._failing is not None:
            failed, stamp, error, times = self._failing
            if (failed, stamp) != (checkpoint, _stamp(file)):
                self._failing = None
            elif times >= _TRIES or not error.passing:  # else workers would ask for it for ever
                raise error.with_traceback(None)
        if checkpoint.digest:
            return checkpoint.digest
        with self._finding:  # many ask at the same time
            if self._found is None or self._found[0] != checkpoint:
                self._found = (checkpoint, _hashed(file))
            return self._found[1]

    def _give(
        self,
        channel: BlockingChannel,
        message: Message,
        checkpoint: CheckpointFile,
        file: BinaryIO,
        moved: Callable[[int], None],
    ) -> None:
        """Sends the checkpoint; notes and raises its file's fault as _FailedError; raises those of the connection."""
        try:
            right = send_file(channel, message, file, moved)
            # A worker has received something else than was saved: was it altered on the way, or is it the file?
            if not right and checkpoint.digest and _hashed(file) != checkpoint.digest:
                raise _AlteredError
            if right:
                self._failing = None
        except ConnectionError:
            raise
        except OSError as error:
            if isinstance(error, TimeoutError) or error.errno in _UNREACHED:  # it is the connection's, not the file's
                raise ConnectionAbortedError(str(error)) from None
            raise self._failed(checkpoint, file, _FailedError(error)) from None
        except _FailedError as error:
            raise self._failed(checkpoint, file, error) from None

    def _failed(self, checkpoint: CheckpointFile, file: BinaryIO, error: _FailedError) -> _FailedError:
        before = self._failing
        times = before[3] + 1 if before is not None and before[0] == checkpoint else 1
        self._failing = (checkpoint, _stamp(file), error, times)
        return error

    def _unreadable(self, error: ElasticError) -> str:
        text = f"the checkpoint of step {self.step} in {self._place.path} cannot be read: {error}"
        self._reading.came(f"{text}; mend that: no worker begins without it")
        return text

    async def _opened_newest(self) -> tuple[CheckpointFile, BinaryIO]:
        for _ in range(_TRIES - 1):
            try:
                return await self._in_thread(self._open_newest)
            except _FailedError as error:
                if not error.passing:
                    raise
            await asyncio.sleep(_PAUSE_S)
        return await self._in_thread(self._open_newest)

    def _open_newest(self) -> tuple[CheckpointFile, BinaryIO]:
        """Opens the checkpoint's file: it is read to its end even if a newer one replaces it."""
        while True:
            checkpoint = self._newest
            assert checkpoint is not None
            try:
                with self._place.opened() as folder:
                    return checkpoint, files.open_old(folder, checkpoint.name)
            except FileNotFoundError:
                if checkpoint == self._newest:
                    raise

    # -- the end ---

    def fence(self) -> None:
        """Notes that another driver has this trainer: nothing is saved any more."""
        self.fenced = True

    def taken_over(self, text: str) -> None:
        """Ends this driver, as another one was found to have this trainer; tells the user once."""
        if not self.fenced:
            self.fenced = True
            self._tell(text)
            self._on_fenced()

    def release(self) -> None:
        """Notes in the folder that this driver ends; it keeps the lock until `close`.

        Raises FencedError if the folder is another driver's, and OSError or UnsafeFolderError.
        """
        if self.fenced:
            raise FencedError("another driver of this trainer has taken over")
        with self._place.opened() as folder:
            self._owner.release(folder)

    def close(self) -> None:
        """Gives up the folder; its contents stay."""
        self._owner.unlock()

    async def _in_thread(self, work: Callable[..., T], *args: Any, threads: ThreadPoolExecutor | None = None) -> T:
        """Runs work on the disk in a thread; raises the disk's errors as _FailedError."""
        try:
            return await asyncio.get_running_loop().run_in_executor(threads or self._threads, work, *args)
        except ConnectionError:
            raise
        except _FAILURES as error:
            raise _FailedError(error) from None


def _hashed(file: BinaryIO) -> str:
    """Returns the SHA-256 of a file from its beginning."""
    file.seek(0)
    content, buffer = hashlib.sha256(), bytearray(1 << 20)
    while count := file.readinto(buffer):  # type: ignore[attr-defined]
        content.update(memoryview(buffer)[:count])
    return content.hexdigest()


def _stamp(file: BinaryIO) -> _Stamp:
    found = os.fstat(file.fileno())
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns
