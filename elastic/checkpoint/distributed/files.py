"""The files of a checkpoint version: written with digests, flushed to the disk, copied from a stage, and verified."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch.distributed.checkpoint.filesystem import FileSystem

from elastic.base.errors import CheckpointError
from elastic.base.timing import LAST_CHECKPOINT_S, SAVING_S
from elastic.checkpoint.writeback import Writeback

_COPY_BYTES = 16 << 20
_MANIFEST = "manifest.json"
_WRITER = re.compile(r"__(\d+)_\d+\.distcp$")
"""The names that torch.distributed.checkpoint gives the files of a rank."""


@dataclass(frozen=True)
class Sealed:
    """A file of a version: its name in the folder, its size and its digest (xxh3_128, hexadecimal)."""

    name: str
    size_bytes: int
    digest: str


def new_digest() -> Any:
    """Return an empty digest; raises CheckpointError if the library is missing."""
    try:
        import xxhash
    except ImportError:
        why = "distributed checkpoints need the Python package xxhash beside torch: pip install xxhash"
        raise CheckpointError(why) from None
    return xxhash.xxh3_128()


class SaveProgress:
    """A count of the bytes of a save, reported now and then as a long save's sign of life."""

    def __init__(self, tell: Callable[[int, bool], object]) -> None:
        """`tell` takes the number of bytes written, and whether all of them wait for the disk."""
        self._tell = tell
        self._bytes = 0
        self._told_s = time.monotonic()

    def add(self, size_bytes: int) -> None:
        """Count bytes that were written."""
        self._bytes += size_bytes
        if time.monotonic() - self._told_s >= SAVING_S:
            self._told_s = time.monotonic()
            self._tell(self._bytes, False)

    def flush(self, descriptor: int) -> None:
        """Flush a file to the disk. The kernel may take minutes to write what it accepted at once."""
        over = threading.Event()
        telling = threading.Thread(target=self._wait, args=(over,), name="bft-flush", daemon=True)
        telling.start()
        try:
            os.fsync(descriptor)
        finally:
            over.set()
            telling.join()

    def _wait(self, over: threading.Event) -> None:
        until_s = time.monotonic() + LAST_CHECKPOINT_S
        while not over.wait(SAVING_S) and time.monotonic() < until_s:
            self._tell(self._bytes, True)


class _Stream(io.RawIOBase):
    """A file that is digested as it is written, and flushed to the disk when it is closed."""

    def __init__(self, path: Path, pace: SaveProgress) -> None:
        super().__init__()
        self._file = open(path, "wb")  # noqa: SIM115  (closed by close)
        self._writeback = Writeback(self._file.fileno(), keep=True)
        self._pace = pace
        self.digest = new_digest()
        self.size_bytes = 0
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        try:
            self._file.write(view)
        except OSError as error:
            self.error = error
            raise
        self.digest.update(view)
        self.size_bytes += len(view)
        self._writeback.wrote(len(view))
        self._pace.add(len(view))
        return len(view)

    def tell(self) -> int:
        return self.size_bytes

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()

    def close(self) -> None:
        if self._file.closed:
            return
        try:
            self._file.flush()
            self._pace.flush(self._file.fileno())
        finally:
            self._file.close()
            super().close()


class SealingFileSystem(FileSystem):
    """The file system that torch.distributed.checkpoint writes through; it records the size and digest of each file."""

    def __init__(self, pace: SaveProgress) -> None:
        self._pace = pace
        self._sealed: dict[str, Sealed] = {}

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase, None, None]:
        if mode != "wb":
            with super().create_stream(path, mode) as plain:
                yield plain
            return
        stream = _Stream(Path(path), self._pace)
        try:
            yield stream
        except BaseException:
            if stream.error is not None:  # torch's error is about file positions, wrong because of this one
                raise stream.error from None
            raise
        finally:
            stream.close()
        name = Path(path).name
        self._sealed[name] = Sealed(name, stream.size_bytes, stream.digest.hexdigest())

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        old, name = self._sealed.pop(Path(path).name), Path(new_path).name
        self._sealed[name] = Sealed(name, old.size_bytes, old.digest)

    def sealed(self) -> list[Sealed]:
        """Return all files written, by name."""
        return [self._sealed[name] for name in sorted(self._sealed)]


def make_folder(path: Path) -> None:
    """Make a version's folder, for its owner alone; several workers may do so at once."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def flush_folder(path: Path) -> None:
    """Flush a folder and its parent, so that names survive a crash of the host; some file systems cannot do that."""
    for each in (path, path.parent):
        with contextlib.suppress(OSError):
            descriptor = os.open(each, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def copy(source: Path, target: Path, pace: SaveProgress) -> None:
    """Copy a file and flush it to the disk."""
    with open(source, "rb") as reading, open(target, "wb") as writing:
        writeback = Writeback(writing.fileno(), keep=True)
        while block := reading.read(_COPY_BYTES):
            writing.write(block)
            writeback.wrote(len(block))
            pace.add(len(block))
        writing.flush()
        pace.flush(writing.fileno())


def listed(version: dict[str, Any]) -> list[Sealed]:
    """Return a version's files, from the driver's list or the manifest in its folder; raises ValueError."""
    rows = version.get("files")
    if rows is None:
        try:
            rows = json.loads((Path(str(version["path"])) / _MANIFEST).read_text(encoding="utf-8"))["files"]
        except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{_MANIFEST}: {why_of(error)}") from None
    try:
        files = [Sealed(str(name), int(size_bytes), str(digest)) for name, size_bytes, digest in rows]
    except (TypeError, ValueError):
        raise ValueError("its list of files cannot be understood") from None
    if any(Path(file.name).name != file.name for file in files):
        raise ValueError("its list of files names others than those in its folder")
    return files


def share(listed: Sequence[Sealed], rank: int, size: int) -> list[Sealed]:
    """Return the files that one of `size` workers verifies.

    They are those that a worker of its rank wrote: it is about to read them, and then finds them in its node's memory.
    """
    writers = [_WRITER.match(file.name) for file in listed]
    owners = [int(writer[1]) if writer else index for index, writer in enumerate(writers)]
    return [file for file, owner in zip(listed, owners, strict=True) if owner % size == rank]


def faults(folder: Path, files: Sequence[Sealed]) -> Iterator[str]:
    """Describe what is wrong with each of these files that differs from what was written; every byte is read.

    Raises OSError if that cannot be determined: an unreachable file server has altered nothing.
    """
    for file in files:
        try:
            with open(folder / file.name, "rb") as reading:
                size_bytes = os.fstat(reading.fileno()).st_size
                if size_bytes != file.size_bytes:
                    yield f"{file.name} has {size_bytes} bytes instead of {file.size_bytes}"
                elif _digest_of(reading, size_bytes) != file.digest:
                    yield f"{file.name} was altered"
        except FileNotFoundError:
            yield f"{file.name} is missing"


def _digest_of(file: io.BufferedReader, size_bytes: int) -> str:
    digest = new_digest()
    # Read, not mapped: if another host truncates a mapped file, SIGBUS ends this process.
    block = memoryview(bytearray(_COPY_BYTES))
    while size_bytes > 0 and (got := file.readinto(block)):
        digest.update(block[:got])
        size_bytes -= got
    return cast(str, digest.hexdigest())


def why_of(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
