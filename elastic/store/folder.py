"""Opening the folders of checkpoints by descriptor, level by level: nobody can put another folder in their place.

A checkpoint is unpickled and a script is run from there as the user. So each level of the path belongs to root or to
the user, nobody else can write in it, and operations in a folder are relative to its descriptor.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from elastic.base.errors import ElasticError, UsageError

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PASS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""For levels on the way: the parent of a home often can be passed through but not listed."""

_WRITABLE = stat.S_IWGRP | stat.S_IWOTH
_PRIVATE = 0o700
_LINKS_MAX = 40
"""The kernel's limit for links in one path."""

_SET = "set BFT_STATE_DIR to a folder of your own that the pool's nodes can read"
_ELSEWHERE = f"or {_SET}"
_SET_PATH = "give a folder of your own in state=, below which nobody else can rename or replace one"


class StoreError(ElasticError):
    """A checkpoint, or its folder, cannot be read or written."""


class UnsafeFolderError(UsageError):
    """Another user could change what is in a folder of checkpoints."""


@dataclass(frozen=True)
class Place:
    """The folder of one trainer's checkpoints, opened anew for each use: a file server may come back as another one.

    `shared`: its parent folder need not be the user's own, as long as nobody else can put another in its place.
    """

    path: Path
    shared: bool = False

    @contextmanager
    def opened(self, *, make: bool = False, close: bool = True) -> Iterator[int]:
        """Opens the folder; raises UnsafeFolderError, and OSError if it cannot be opened.

        `close`: whether to make it private from now on; False as long as it may be any folder of the user's.
        """
        root = open_root(self.path.parent, make=make, shared=self.shared)
        try:
            folder = _open_own(root, self.path, make, close)
        finally:
            os.close(root)
        try:
            yield folder
        finally:
            os.close(folder)


def open_root(path: Path, *, make: bool = False, shared: bool = False) -> int:
    """Opens the folder that holds the folders of all the user's checkpoints; `shared` as in Place.

    Raises UnsafeFolderError if another user could change its contents, OSError if it cannot be opened.
    """
    if not path.is_absolute():
        raise UsageError(f"BFT_STATE_DIR={path}: give an absolute path, for example BFT_STATE_DIR=$HOME/checkpoints")
    advice = _SET_PATH if shared else _SET
    fd, left, links = os.open("/", _PASS), deque(path.parts[1:]), 0
    try:
        sticky = _checked(fd, path, advice)
        while left:
            name = left.popleft()
            try:
                inner = _stepped(fd, name, make)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                    raise
                links += 1
                target = _link(fd, name, path, sticky, links, advice)
                left.extendleft(reversed(target.parts[1:] if target.is_absolute() else target.parts))
                inner = os.open("/", _PASS) if target.is_absolute() else os.dup(fd)
            os.close(fd)
            fd = inner
            sticky = _checked(fd, path, advice)
        if not shared:
            _check_root(fd, path, sticky)
        return os.open(".", _OPEN, dir_fd=fd)
    finally:
        os.close(fd)


def _stepped(fd: int, name: str, make: bool) -> int:
    """Opens a folder one level down."""
    try:
        return os.open(name, _PASS, dir_fd=fd)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, _PRIVATE, dir_fd=fd)
    return os.open(name, _PASS, dir_fd=fd)


def _link(fd: int, name: str, path: Path, sticky: bool, links: int, advice: str) -> Path:
    """Returns the target of a link on the way: homes often are links, made where only root or the user could."""
    found = os.stat(name, dir_fd=fd, follow_symlinks=False)
    if not stat.S_ISLNK(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    if links > _LINKS_MAX:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    if found.st_uid != 0 and (sticky or found.st_uid != os.geteuid()):
        raise UnsafeFolderError(
            f"{path}: {name!r} on the way is a link that another user could have made; remove it, or {advice}"
        )
    return Path(os.readlink(name, dir_fd=fd))


def _checked(fd: int, path: Path, advice: str) -> bool:
    """Whether this level is a sticky folder of root's, in which others may create entries; or UnsafeFolderError."""
    level = os.fstat(fd)
    if level.st_uid not in (0, os.geteuid()):
        raise UnsafeFolderError(f"{path}: {_shown(fd)} belongs to {_user(level.st_uid)}, not to you; {advice}")
    if not level.st_mode & _WRITABLE:
        return False
    # In a sticky folder of root's, such as /tmp or a cluster's scratch, only an entry's owner can rename or remove it.
    if level.st_mode & stat.S_ISVTX and level.st_uid == 0:
        return True
    raise UnsafeFolderError(f"{path}: other users can write in {_shown(fd)}; chmod go-w {_shown(fd)}, or {advice}")


def _check_root(fd: int, path: Path, sticky: bool) -> None:
    level = os.fstat(fd)
    if sticky or level.st_uid != os.geteuid():
        raise UnsafeFolderError(f"{path} is not a folder of your own; {_SET}: {path}/{_user(os.geteuid())}, say")


def _open_own(root: int, path: Path, make: bool, close: bool) -> int:
    """Opens the trainer's own folder: the user's, never a link, closed to everybody else."""
    if make:
        with suppress(FileExistsError):
            os.mkdir(path.name, _PRIVATE, dir_fd=root)
    try:
        folder = os.open(path.name, _OPEN, dir_fd=root)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise UnsafeFolderError(f"{path} is no folder but a link or a file; remove it and try again") from None
        raise
    try:
        level = os.fstat(folder)
        if level.st_uid != os.geteuid():
            raise UnsafeFolderError(f"{path} belongs to {_user(level.st_uid)}, not to you; remove it, {_ELSEWHERE}")
        if close and level.st_mode & 0o777 != _PRIVATE:
            os.fchmod(folder, _PRIVATE)
    except BaseException:
        os.close(folder)
        raise
    return folder


def _shown(fd: int) -> str:
    """Returns the path of an open folder, for a message."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return "a folder on the way"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
