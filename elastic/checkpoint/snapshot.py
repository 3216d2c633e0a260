"""One copy in memory of what a script saves, so that it can be written while training goes on.

`StateCopy(state)` freezes everything but the data of tensors and arrays, by pickling it. `copy()` copies that data,
each storage once and whole, into memory that an earlier snapshot has left: touching fresh memory takes longer than
copying. The commit belongs between the two: it releases the snapshot that waits behind the one being written, so that
the new one can take its memory.
"""

from __future__ import annotations

import contextlib
import functools
import io
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar, cast

import torch

from elastic.base.errors import SHARD_IN_OBJECT, CheckpointError
from elastic.checkpoint.buffers import POOL, Buffer, BufferPool

_T = TypeVar("_T")

ALIGN_BYTES = 64
"""The alignment of storages: that of torch's own allocator, so that copies use whole cache lines."""

ARRAY_BYTES = 4096
"""Smaller numpy arrays are pickled like any other object."""

_WORD = torch.int64
_cuda: Any = torch.cuda
_PROTOCOL = 5
"""The first pickle protocol that can leave out the data of arrays and does not encode it as text."""


def write(state: Any, file: BinaryIO, protocol: int = torch.serialization.DEFAULT_PROTOCOL) -> None:
    """Write `state` for torch.load into a file, which need not be seekable; storages are written as they lie in memory.

    Checksums are left out if torch can do so: they take half as long as a digest, and every checkpoint has a digest.
    """
    with _no_checksums() as begun:
        torch.save(state, cast(BinaryIO, _Beginning(file, begun)), pickle_protocol=protocol)


def read(file: BinaryIO) -> Any:
    """Read what `write` has written, onto the CPU; a real file is mapped, so all its readers share the memory.

    Changes in place stay private to the reader. The file may be closed and unlinked, but not altered.
    """
    try:
        named: BinaryIO | str = f"/proc/self/fd/{file.fileno()}"
    except OSError:  # io.UnsupportedOperation, for bytes in memory
        named = file
    return torch.load(named, map_location="cpu", weights_only=False, mmap=named is not file)


class _Beginning:
    """A file that calls `begun` when it is written to."""

    def __init__(self, file: BinaryIO, begun: Callable[[], None]) -> None:
        self._file = file
        self._begun = begun
        self.flush = file.flush

    def write(self, data: Any) -> int:
        self._begun()
        return self._file.write(data)


@contextlib.contextmanager
def _no_checksums() -> Iterator[Callable[[], None]]:
    """Turn off torch's process-wide checksum option until the yielded function is called, for this one file only."""
    option = getattr(torch.serialization, "set_crc32_options", None)  # from 2.6 on
    if option is None or not _option.acquire(blocking=False):  # a child forked meanwhile must not block
        yield lambda: None
        return
    before = [torch.serialization.get_crc32_options()]
    option(False)

    def restore() -> None:
        if before:
            option(before.pop())
            _option.release()

    try:
        yield restore
    finally:
        restore()


_option = threading.Lock()


@dataclass(frozen=True)
class _Part:
    """The place of a storage or an array in a buffer."""

    source: torch.UntypedStorage | memoryview | None
    offset: int
    size_bytes: int


class StateCopy:
    """A state as it was at one moment; that moment ends with `copy`. Any thread may call `write`."""

    def __init__(self, state: Any, pool: BufferPool = POOL) -> None:
        """Freeze all but the data. Raises what pickling `state` raises."""
        self._pool = pool
        self._storages: list[_Part] = []
        self._arrays: list[_Part] = []
        self._bytes = 0
        self._numbers: dict[int, int] = {}
        self._dtypes: dict[int, torch.dtype] = {}
        self._pickle = self._frozen(state)
        self._buffer: Buffer | None = None
        self._error: BaseException | None = None
        self._copied = threading.Event()
        self._lock = threading.Lock()
        self._writers = 0
        self._released = False

    @property
    def size_bytes(self) -> int:
        """The size of the copy."""
        return self._bytes

    def copy(self) -> None:
        """Copy the data; the state may be changed afterwards. Raises CheckpointError if there is no memory for it."""
        try:
            buffer = self._pool.take(self._bytes)
            with self._lock:
                self._buffer = buffer
            self._copy_into(buffer)
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._storages = [_Part(None, part.offset, part.size_bytes) for part in self._storages]
            self._arrays = [_Part(None, part.offset, part.size_bytes) for part in self._arrays]
            self._copied.set()
            self._give_back()
        self._pool.copied(self._bytes, time.monotonic())

    def write(self, file: BinaryIO) -> None:
        """Write the state as the function `write` does, once it is copied; raises the error of a failed copy."""
        # torch's default protocol is also the one that torch.load takes with weights_only.
        self.use(lambda state: write(state, file, *([_PROTOCOL] if self._arrays else [])))

    def use(self, use: Callable[[Any], _T]) -> _T:
        """Call `use` with the copied state, which it must only read; raises the error of a failed copy."""
        with self._lock:
            if self._released:
                raise CheckpointError("this state was released: a newer one has taken its place")
            self._writers += 1
        try:
            self._copied.wait()
            if self._error is not None:
                raise self._error
            began_s = time.monotonic()
            used = use(self.rebuilt())
            self._pool.wrote(time.monotonic() - began_s)
            return used
        finally:
            with self._lock:
                self._writers -= 1
            self._give_back()

    def rebuilt(self) -> Any:
        """Rebuild the state on the copied data: it may only be read, and only until it is released."""
        buffer = self._buffer
        assert buffer is not None
        storages = [buffer.storage(part.offset, part.size_bytes) for part in self._storages]
        whole = memoryview(buffer)
        arrays = [whole[part.offset : part.offset + part.size_bytes] for part in self._arrays]
        return _Unpickler(io.BytesIO(self._pickle), storages, arrays).load()

    def release(self) -> None:
        """Declare that `write` is not called any more, so the next snapshot may use the memory."""
        with self._lock:
            self._released = True
        self._give_back()

    def _give_back(self) -> None:
        with self._lock:
            if not self._released or self._writers or not self._copied.is_set():
                return
            buffer, self._buffer = self._buffer, None
        if buffer is not None:
            self._pool.give_back(buffer)

    # -- freezing ---

    def _frozen(self, state: Any) -> bytes:
        file = io.BytesIO()
        _Pickler(file, self).dump(state)
        return file.getvalue()

    def placed(self, storage: torch.UntypedStorage, dtype: torch.dtype | None) -> int:
        """Return the index of this storage; raises RuntimeError if one is seen as two types, as torch.save does."""
        seen = self._dtypes.setdefault(storage._cdata, dtype or torch.uint8)
        if seen != (dtype or torch.uint8):
            raise RuntimeError(
                f"cannot save tensors that view the same memory as {seen} and as {dtype}; save a clone of one of them"
            )
        if storage._cdata not in self._numbers:
            self._numbers[storage._cdata] = len(self._storages)
            self._storages.append(self._part(storage, storage.nbytes()))
        return self._numbers[storage._cdata]

    def keep_array(self, buffer: pickle.PickleBuffer) -> bool:
        """Take an array's data out of the pickle, unless it is small; returns whether it stays in."""
        data = buffer.raw()
        if data.nbytes < ARRAY_BYTES:
            return True
        self._arrays.append(self._part(data, data.nbytes))
        return False

    def _part(self, source: torch.UntypedStorage | memoryview, size_bytes: int) -> _Part:
        part = _Part(source, self._bytes, size_bytes)
        self._bytes += -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES
        return part

    def _copy_into(self, buffer: Buffer) -> None:
        devices: set[torch.device] = set()
        for part in self._storages:
            source = part.source
            assert isinstance(source, torch.UntypedStorage)
            on_cuda = source.device.type == "cuda"
            if on_cuda:
                buffer.lock_pages()
                devices.add(source.device)
            if part.size_bytes:
                target = buffer.storage(part.offset, part.size_bytes)
                if on_cuda:
                    target.copy_(source, non_blocking=True)
                else:
                    _copy(target, source)
        with memoryview(buffer) as whole:
            for part in self._arrays:
                whole[part.offset : part.offset + part.size_bytes] = part.source  # type: ignore[assignment]
        for device in devices:
            _cuda.current_stream(device).synchronize()


def _copy(target: torch.UntypedStorage, source: torch.UntypedStorage) -> None:
    """Copy in words: torch takes a third longer to copy byte by byte."""
    rest = source.nbytes() % _WORD.itemsize if source.data_ptr() % _WORD.itemsize == 0 else source.nbytes()
    words = (source.nbytes() - rest) // _WORD.itemsize
    _view(target, _WORD, 0, words).copy_(_view(source, _WORD, 0, words))
    if rest:
        start = source.nbytes() - rest
        _view(target, torch.uint8, start, rest).copy_(_view(source, torch.uint8, start, rest))


def _view(storage: torch.UntypedStorage, dtype: torch.dtype, start: int, count: int) -> torch.Tensor:
    empty = torch.empty(0, dtype=dtype, device=storage.device)  # a script may have set another default
    return empty.set_(storage, start, (count,))  # type: ignore[call-overload,no-any-return]


class _Pickler(pickle.Pickler):
    """A pickler that leaves out the data of storages and arrays."""

    def __init__(self, file: BinaryIO, snapshot: StateCopy) -> None:
        super().__init__(file, protocol=_PROTOCOL, buffer_callback=snapshot.keep_array)
        self._placed = snapshot.placed

    def persistent_id(self, obj: Any) -> tuple[int, torch.dtype | None] | None:
        """Identify a storage by its index, with the type that it is seen as."""
        if isinstance(obj, torch.storage.TypedStorage):
            return (self._placed(obj._untyped_storage, obj.dtype), obj.dtype)
        if isinstance(obj, torch.UntypedStorage):
            return (self._placed(obj, None), None)
        if type(obj).__name__ in ("DTensor", "ShardedTensor"):
            raise CheckpointError(SHARD_IN_OBJECT)
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO, storages: list[torch.UntypedStorage], arrays: list[memoryview]) -> None:
        super().__init__(file, buffers=arrays)
        self._storages = storages

    def persistent_load(self, pid: tuple[int, torch.dtype | None]) -> Any:
        """Return a left-out storage; without a type as torch.load has it, since newer tensors rely on that."""
        number, dtype = pid
        return _typed(wrap_storage=self._storages[number], dtype=dtype or torch.uint8)


# torch marks this class as internal, and warns about other uses.
_typed = functools.partial(torch.storage.TypedStorage, _internal=True)
