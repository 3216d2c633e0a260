"""A checkpoint as a file that the workers of one node share: one of them downloads it.

The first worker that asks takes a lock and downloads; the others wait for the lock and open the same file. It is a
kernel lock: if the downloading worker dies, the next one continues. The folder is the node's own for one trainer (the
agent's, in which it keeps $TMPDIR); if nothing can be shared there, each worker downloads for itself.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from elastic.base.errors import CheckpointError
from elastic.link.wire import Message

_FOLDER = "bft-state"
_LOCK = "lock"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


_turns: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
"""Locks among the threads of this process, by the folder's inode."""


@dataclass(frozen=True)
class CheckpointOffer:
    """A checkpoint that the driver has: its step, the samples seen until then, its size and its content's SHA-256."""

    step: int
    samples: int
    size_bytes: int
    digest: str

    @classmethod
    def parse(cls, message: Message) -> CheckpointOffer | None:
        """Return the offer in a driver's answer, None if there is none."""
        size_bytes, digest = message.get("size"), message.get("sha256")
        if not isinstance(size_bytes, int) or not isinstance(digest, str) or not digest.isalnum():
            return None
        return cls(int(message["step"]), int(message["samples"]), size_bytes, digest)

    @property
    def name(self) -> str:
        """The name of the checkpoint's file; no other content has this name."""
        return f"state-{self.step}-{self.digest}"


Copy = Callable[[BinaryIO], None]
"""Writes the offered checkpoint into an empty file, verified. Raises WireError (the connection), OSError (the file)."""


def shared(folder: str, offer: CheckpointOffer, copy: Copy) -> BinaryIO:
    """Return the offered checkpoint as a readable, mappable file; `copy` downloads it unless another worker did.

    `folder` is the node's own for this trainer, "" if there is none. Raises WireError.
    """
    if folder:
        # Start anyway if there is no space, no locks or no folder.
        with contextlib.suppress(OSError):
            return _shared(Path(folder) / _FOLDER, offer, copy)
    return alone(copy)


def forget(folder: str) -> None:
    """Remove the shared files in `folder`, to free the node's disk, once every worker has them open.

    A worker that has a file open reads on; one that comes later downloads it again.
    """
    with contextlib.suppress(OSError):
        fd = os.open(Path(folder) / _FOLDER, _READ | os.O_DIRECTORY)
        try:
            with _locked(fd):
                _empty(fd)
        finally:
            os.close(fd)


def alone(copy: Copy) -> BinaryIO:
    """Return the checkpoint as a file in memory; raises WireError, and CheckpointError without enough memory."""
    file = os.fdopen(os.memfd_create("bft-state"), "w+b", buffering=0)
    try:
        copy(file)
    except OSError as error:
        file.close()
        raise CheckpointError(
            f"there is not enough memory for the checkpoint on this node: {error.strerror}; it is kept"
        ) from None
    except BaseException:
        file.close()
        raise
    return _rewound(file)


def _shared(folder: Path, offer: CheckpointOffer, copy: Copy) -> BinaryIO:
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    fd = os.open(folder, _READ | os.O_DIRECTORY)
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"{folder} is another user's")
        with _locked(fd):
            try:
                return _opened(fd, offer)
            except FileNotFoundError:
                _empty(fd)
                return _downloaded(fd, offer, copy)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _locked(folder: int) -> Iterator[None]:
    """Hold the thread lock and the file lock. A file lock is one process's, so the script's forks do not keep it."""
    with _turns[os.fstat(folder).st_ino], _file_locked(folder):
        yield


@contextlib.contextmanager
def _file_locked(folder: int) -> Iterator[None]:
    lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _opened(folder: int, offer: CheckpointOffer) -> BinaryIO:
    return os.fdopen(os.open(offer.name, _READ, dir_fd=folder), "rb")


def _empty(folder: int) -> None:
    """Remove older checkpoints and the remains of a worker that died while it downloaded; open files stay readable."""
    for name in os.listdir(folder):
        if name != _LOCK:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)


def _downloaded(folder: int, offer: CheckpointOffer, copy: Copy) -> BinaryIO:
    part = f"{secrets.token_hex(8)}.part"
    with os.fdopen(os.open(part, _NEW, 0o600, dir_fd=folder), "w+b", buffering=0) as file:
        try:
            _reserve(file.fileno(), offer.size_bytes)
            copy(file)
            os.rename(part, offer.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part, dir_fd=folder)
            raise
    return _opened(folder, offer)


def _reserve(fd: int, size_bytes: int) -> None:
    """Reserve the space now: a full disk found only at the end would mean a second download."""
    try:
        os.posix_fallocate(fd, 0, size_bytes)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise


def _rewound(file: BinaryIO) -> BinaryIO:
    file.seek(0)
    return file
