"""The trainer's saved state on disk: what it resumes with after it lost every node.

A file appears under its name once it is whole and on the disk, and an older state is removed only after that. Nothing
here runs in the driver's loop, which answers give-backs: a file server may be slow, or hang.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from elastic.driver.state import files
from elastic.driver.state.folder import Place, StateError, UnsafeFolderError
from elastic.driver.state.owner import FencedError, Ownership
from elastic.driver.state.saved import Contents, Saved, contents, set_aside
from elastic.driver.state.trouble import Trouble, text_of
from elastic.errors import ElasticError, WireError
from elastic.link.peer import Peer
from elastic.link.wire import CHUNK_BYTES, Payload

_PASSING = (errno.EIO, errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT)
_TRIES, _PAUSE_S = 3, 1.0
"""A file server that has just come back answers a second time."""

_THREADS = 4

_FAILURES = (OSError, UnsafeFolderError)

T = TypeVar("T")


class _FailedError(StateError):
    """The disk's own error, apart from one of the connection that a state comes by. `passing`: it may work again."""

    def __init__(self, error: Exception) -> None:
        super().__init__(text_of(error))
        self.passing = isinstance(error, OSError) and error.errno in _PASSING


class NotStoredError(StateError):
    """A state was not stored; what was there before is there still. `again`: whether it may be stored later."""

    def __init__(self, text: str, *, again: bool) -> None:
        super().__init__(text)
        self.again = again


class CheckpointStore:
    """Keeps the state of the highest step; a half-received or older one never replaces it.

    `step` and `samples` are the state's, -1 and 0 while there is none; `fenced`: another driver has taken over;
    `receiving`: how many states are on their way.
    """

    def __init__(
        self,
        path: Path,
        tell: Callable[[str], None] = lambda text: None,
        on_fenced: Callable[[], None] = lambda: None,
        title: str = "",
    ) -> None:
        """Takes the folder over, and makes it if need be.

        `tell` gets what the user has to know, `on_fenced` is called at most once; `title` is the trainer's name.
        Raises UnsafeFolderError where another user could write in it, StateError where it cannot be read.
        """
        self._place = Place(path)
        self._tell = tell
        self._on_fenced = on_fenced
        self._owner = Ownership(title)
        self._saving = Trouble(tell, "states are saved again")
        self._reading = Trouble(tell, "the saved state can be read again")
        self._threads = ThreadPoolExecutor(_THREADS, "bft-state")
        self._lock = asyncio.Lock()
        self._newest: Saved | None = None
        self.fenced = False
        self.receiving = 0
        try:
            self._begin()
        except BaseException:
            self._owner.unlock()
            raise

    @property
    def step(self) -> int:
        """The step of the state, -1 while there is none."""
        return self._newest.step if self._newest else -1

    @property
    def samples(self) -> int:
        """The samples seen until then."""
        return self._newest.samples if self._newest else 0

    def _begin(self) -> None:
        for tries_left in reversed(range(_TRIES)):
            try:
                with self._place.opened(make=True) as folder:
                    self._owner.take(folder)
                    found = self._tidied(folder)
                    break
            except OSError as error:
                if error.errno not in _PASSING or not tries_left:
                    raise StateError(
                        f"cannot use {self._place.path} for the saved state: {text_of(error)}; mend that, or set "
                        "BFT_STATE_DIR to a folder of your own that the pool's nodes can read"
                    ) from None
                time.sleep(_PAUSE_S)
        self._newest = found.newest

    def _tidied(self, folder: int) -> Contents:
        """What is in the folder. Only who has the lock removes what others may be writing, or sets it aside."""
        found = contents(folder)
        if found.broken and not found.states:
            raise StateError(
                f"the only state in {self._place.path}, {found.broken[-1]}, is not whole: it is left as it is, and no "
                "training begins anew in its place; submit the job once more for that"
            )
        if self._owner.alone:
            for part in found.parts:
                files.remove(folder, part)
            for name in found.broken:
                self._tell(f"{name} is not whole: it is not used, and kept as {set_aside(folder, name)}")
        return found

    # -- a worker's state comes ---

    async def receive(self, reader: Payload, size_bytes: int, step: int, samples: int) -> bool:
        """Reads `size_bytes` from `reader`; returns whether they are the state now.

        Raises WireError when they are cut short, and NotStoredError, with all of them read, when they cannot be stored.
        """
        saved, upload = Saved(step, samples, size_bytes), _Upload(self._place)
        if not size_bytes or Saved.parse(saved.name) != saved:
            raise WireError("a state has a step, and bytes")
        self.receiving += 1
        try:
            await self._fill(upload, reader, size_bytes)
            async with self._lock:
                adopted = await self._in_thread(self._publish, upload, saved)
        except _FailedError as error:
            kept = f"; the one of step {self.step} is kept" if self._newest else ""
            text = f"the state of step {step} cannot be saved in {self._place.path}: {error}"
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

    async def _fill(self, upload: _Upload, reader: Payload, size_bytes: int) -> None:
        """Reads a payload to its end whatever becomes of it: the next message of the connection is behind it."""
        left, failure = size_bytes, None
        while left:
            chunk = await reader.read(min(left, CHUNK_BYTES))
            if not chunk:
                raise WireError("a worker went away in the middle of a checkpoint")
            left -= len(chunk)
            if failure is None:
                try:
                    await self._in_thread(upload.write, chunk)
                except _FailedError as error:
                    failure = error
                    await self._in_thread(upload.discard)
        if failure is not None:
            raise failure
        await self._in_thread(upload.finish)

    def _publish(self, upload: _Upload, saved: Saved) -> bool:
        """Gives an upload its name; the folder is looked through again, as another driver may have been there."""
        with self.opened_by_owner() as folder:
            found = contents(folder)
            if found.newest is not None and found.newest.step > saved.step:
                self._newest = found.newest
                return False
            upload.publish(folder, saved.name)
            self._newest = saved
            for older in found.states:
                if older != saved:
                    files.remove(folder, older.name)
        return True

    @contextlib.contextmanager
    def opened_by_owner(self) -> Iterator[int]:
        """The folder, for a change by its one writer; raises FencedError, UnsafeFolderError and OSError."""
        if self.fenced:
            raise FencedError("another driver of this trainer has taken over")
        with self._place.opened() as folder:
            self._owner.check(folder)
            self._owner.try_lock(folder)
            yield folder

    # -- a worker begins with it ---

    async def send(self, peer: Peer) -> None:
        """Sends the state to a worker, or that there is none yet, or why it cannot be read."""
        if self._newest is None:
            peer.send({"op": "fetched", "none": True})
            return
        try:
            saved, file = await self._opened_newest()
        except _FailedError as error:
            peer.send({"op": "fetched", "error": self._unreadable(error)})
            return
        try:
            with file:
                await peer.send_file({"op": "fetched"}, cast(BinaryIO, _Whole(file)), saved.size_bytes)
        except _UnreadableError as error:
            self._unreadable(error)
            raise
        self._reading.went()

    def _unreadable(self, error: ElasticError) -> str:
        text = f"the state of step {self.step} in {self._place.path} cannot be read: {error}"
        self._reading.came(f"{text}; mend that: no worker begins without it")
        return text

    async def _opened_newest(self) -> tuple[Saved, BinaryIO]:
        for _ in range(_TRIES - 1):
            try:
                return await self._in_thread(self._open_newest)
            except _FailedError as error:
                if not error.passing:
                    raise
            await asyncio.sleep(_PAUSE_S)
        return await self._in_thread(self._open_newest)

    def _open_newest(self) -> tuple[Saved, BinaryIO]:
        """The state's file, open: when a newer one takes its place, it is read to its end nevertheless."""
        while True:
            saved = self._newest
            assert saved is not None
            try:
                with self._place.opened() as folder:
                    return saved, files.open_old(folder, saved.name)
            except FileNotFoundError:
                if saved == self._newest:
                    raise

    # -- the end ---

    def fence(self) -> None:
        """Notes that another driver has this trainer: nothing is saved any more."""
        self.fenced = True

    def taken_over(self, text: str) -> None:
        """Another driver was found to have this trainer: its user is told, once, and this driver ends."""
        if not self.fenced:
            self.fenced = True
            self._tell(text)
            self._on_fenced()

    def release(self) -> None:
        """Notes in the folder that this driver ends; it has the lock until `close`.

        Raises FencedError where the folder is another driver's, and OSError or UnsafeFolderError.
        """
        if self.fenced:
            raise FencedError("another driver of this trainer has taken over")
        with self._place.opened() as folder:
            self._owner.release(folder)

    def close(self) -> None:
        """Lets go of the folder; what is in it stays."""
        self._owner.unlock()

    async def _in_thread(self, work: Callable[..., T], *args: Any) -> T:
        """Runs work on the disk; what the disk says against it is a _FailedError."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)
        except _FAILURES as error:
            raise _FailedError(error) from None


class _Upload:
    """A file that grows as a worker's state comes; its calls run in the store's threads, one at a time."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._name = ""
        self._file: BinaryIO | None = None
        self._over = False
        self._turn = threading.Lock()

    def write(self, chunk: bytes) -> None:
        """Appends; raises OSError."""
        with self._turn:
            if self._over:
                raise OSError(errno.ECANCELED, "the worker is gone")
            if self._file is None:
                with self._place.opened() as folder:
                    self._name, self._file = files.create_part(folder)
            files.write_all(self._file, chunk)

    def finish(self) -> None:
        """Has all of it on the disk; raises OSError."""
        with self._turn:
            assert self._file is not None
            files.sync_and_close(self._file)

    def publish(self, folder: int, name: str) -> None:
        """Gives it its name; raises OSError."""
        with self._turn:
            files.publish(folder, self._name, name)
            self._name = ""

    def discard(self) -> None:
        """Removes it unless it was published."""
        with self._turn, contextlib.suppress(*_FAILURES):
            self._over = True
            if self._file is not None:
                with contextlib.suppress(OSError):
                    self._file.close()
            if self._name:
                with self._place.opened() as folder:
                    files.remove(folder, self._name)


class _UnreadableError(WireError):
    """A state's file failed while it was sent: the connection is of no use any more."""


class _Whole:
    """A file whose end before its time is an error: what was announced has to follow."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size_bytes: int) -> bytes:
        """Some bytes, never none."""
        try:
            chunk = self._file.read(size_bytes)
        except OSError as error:
            raise _UnreadableError(text_of(error)) from None
        if not chunk:
            raise _UnreadableError("its file ends too early")
        return chunk
