"""The owner of a checkpoint folder: one driver, by a lock and, if locks do not reach other hosts, by an epoch.

A job whose node was lost is requeued, and its old driver may live on. The new driver raises the epoch in the owner's
note and signs it with a random number. A driver that finds another number there has been taken over, and writes no
more. Each driver checks this before it gives a checkpoint its name. An old driver may be just past that check: it can
then still add a whole checkpoint under a name of its own, and remove checkpoints of lower steps than that.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import time
from dataclasses import asdict, dataclass

from elastic.base.errors import ElasticError
from elastic.store import files

LOCK, NOTE = "lock", "owner.json"
_TRIES, _PAUSE_S = 6, 0.05
"""`bft checkpoints ls` holds a lock only while it looks at it."""

_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class FencedError(ElasticError):
    """Another driver of this trainer has taken over."""


class InUseError(ElasticError):
    """A driver has the lock of this folder."""


@dataclass(frozen=True)
class OwnerNote:
    """The owner's note: the epoch, the driver, and whether it has said that it ends."""

    epoch: int = 0
    token: str = ""
    host: str = ""
    pid: int = 0
    since_s: float = 0.0
    title: str = ""
    released: bool = False

    @property
    def elsewhere(self) -> bool:
        """Whether a driver on another host has not said that it ends: its lock may not be visible from here."""
        return bool(self.host) and not self.released and self.host != os.uname().nodename


class Ownership:
    """One driver's hold on a folder, from `take` to `release`."""

    def __init__(self, title: str = "") -> None:
        """`title`: the user's name for the trainer."""
        self._title = title
        self._mine = OwnerNote()
        self._lock: int | None = None
        self._succeeds = False

    @property
    def alone(self) -> bool:
        """Whether no other driver can be writing: one that was taken over may still have the lock, and write."""
        return self._lock is not None or self._succeeds

    def take(self, folder: int) -> None:
        """Makes this driver the owner, whoever was it before; raises OSError."""
        try:
            before = read_owner(folder)
        except ValueError:  # a later driver compares the token, so the epoch may start again
            before = OwnerNote()
        self._succeeds = before.released  # without locks, this has to do
        self.try_lock(folder, _TRIES)
        self._mine = OwnerNote(
            before.epoch + 1, secrets.token_hex(16), os.uname().nodename, os.getpid(), time.time(), self._title
        )
        _write(folder, self._mine)

    def try_lock(self, folder: int, tries: int = 1) -> None:
        """Takes the lock if nobody has it; raises OSError."""
        for attempt in range(tries):
            if self._lock is None:
                if attempt:
                    time.sleep(_PAUSE_S)
                with contextlib.suppress(InUseError):
                    self._lock = lock(folder)
                    break

    def check(self, folder: int) -> None:
        """Raises FencedError if there is another owner, OSError if the note cannot be read."""
        try:
            found = read_owner(folder)
        except ValueError as error:
            raise OSError(errno.EIO, str(error)) from None
        if not found.token:
            raise OSError(errno.ENOENT, "the note of its owner is gone")
        if found.token != self._mine.token:
            raise FencedError(
                "another driver of this trainer has taken over its checkpoints; this one saves nothing more"
            )

    def release(self, folder: int) -> None:
        """Writes in the note that this driver ends; raises the errors of `check`."""
        self.check(folder)
        _write(folder, OwnerNote(**{**asdict(self._mine), "released": True}))

    def unlock(self) -> None:
        """Gives up the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def lock(folder: int, *, make: bool = True) -> int | None:
    """Takes the folder's lock, held while the returned descriptor is open; None if its file system has no locks.

    Raises InUseError if another driver has it, and OSError.
    """
    fd = os.open(LOCK, os.O_RDWR | (os.O_CREAT if make else 0) | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if error.errno in _UNSUPPORTED:
            return None
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise InUseError("a driver has the lock of this folder") from None
        raise
    return fd


def read_owner(folder: int) -> OwnerNote:
    """Returns the folder's owner; raises OSError, and ValueError for a malformed note."""
    note = files.read_note(folder, NOTE)
    if note is None:
        return OwnerNote()
    known = {name: note[name] for name in asdict(OwnerNote()) if name in note}
    owner = OwnerNote(**known)
    if any(type(value) is not type(getattr(OwnerNote(), name)) for name, value in known.items()):
        raise ValueError(f"{NOTE} is not of its form")
    return owner


def _write(folder: int, owner: OwnerNote) -> None:
    files.write(folder, NOTE, json.dumps(asdict(owner)).encode())
