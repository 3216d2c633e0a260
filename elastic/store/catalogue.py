"""The user's checkpoints side by side: their names, and how long each is kept."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from elastic.base.errors import UsageError
from elastic.store import manifest, shards
from elastic.store import writer_lock as owners
from elastic.store.error_latch import text_of
from elastic.store.file_names import CheckpointFile, contents
from elastic.store.folder import Place, StoreError, UnsafeFolderError, open_root
from elastic.store.manifest import StoredVersion
from elastic.store.writer_lock import InUseError, OwnerNote

KEEP_STATE_S = 86400.0
"""The checkpoint of a trainer that has ended well is often wanted once more: a day to notice."""

_WHEN = "%Y%m%dT%H%M%SZ"
_NAME = re.compile(r"([A-Za-z0-9][\w.-]*?)(?:@([\w.-]+?))?(?:\.(ended-until|earlier)-(\d{8}T\d{6}Z))?", re.ASCII)
_REMOVING = ".removing-"
_OWN = {owners.LOCK, owners.NOTE, "script", shards.INNER, shards.NOTE}
"""The files and folders that a driver puts in a trainer's folder beside checkpoints and uploads."""

_LATER = (errno.ENOENT, errno.ENOTEMPTY, errno.EBUSY)
"""Another process removes the same, or a file server keeps an open file, such as a lock, under another name."""

_FAILURES = (OSError, UnsafeFolderError)


@dataclass(frozen=True)
class Name:
    """A folder's name: `ID[@CLUSTER]`, with a mark if its trainer has ended well, or had the id before.

    `mark` is "", "ended-until" or "earlier"; `at_s` is until when it is kept, or when it was found, in unix seconds.
    """

    id: str
    cluster: str = ""
    mark: str = ""
    at_s: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Name | None:
        """Returns the name of a folder, None for one that is no trainer's."""
        found = _NAME.fullmatch(text)
        if found is None:
            return None
        id_, cluster, mark, when = found.groups()
        try:
            at_s = datetime.strptime(when, _WHEN).replace(tzinfo=timezone.utc).timestamp() if when else 0.0
        except ValueError:
            return None
        return cls(id_, cluster or "", mark or "", at_s)

    def __str__(self) -> str:
        when = datetime.fromtimestamp(self.at_s, timezone.utc).strftime(_WHEN)
        return f"{self.shown}.{self.mark}-{when}" if self.mark else self.shown

    @property
    def shown(self) -> str:
        """The name for users: without the mark."""
        return f"{self.id}@{self.cluster}" if self.cluster else self.id

    def means(self, text: str) -> bool:
        """Whether this is the folder that a user has named; the user may leave out the cluster, and the mark."""
        return text in (self.id, self.shown, str(self))

    def marked(self, mark: str, at_s: float) -> Name:
        """Returns the name of the same trainer with a mark."""
        return replace(self, mark=mark, at_s=float(int(at_s)))


@dataclass(frozen=True)
class Entry:
    """One folder; `newest` is None if it holds no whole checkpoint, `problem` says why it could not be read.

    `home` is the folder of the files of a distributed checkpoint, "" if there is none; `aside` counts broken
    checkpoints.
    """

    name: Name
    owner: OwnerNote = field(default_factory=OwnerNote)
    newest: CheckpointFile | StoredVersion | None = None
    size_bytes: int = 0
    changed_s: float = 0.0
    running: bool = False
    problem: str = ""
    home: str = ""
    aside: int = 0

    @property
    def state(self) -> str:
        """The state of its trainer, in a word."""
        if self.problem:
            return "unreadable"
        if self.running:
            return "running"
        return {"": "stopped", "ended-until": "ended", "earlier": "earlier"}[self.name.mark]


def root_of(environ: Mapping[str, str]) -> Path:
    """Returns the folder of all the user's checkpoints: $BFT_STATE_DIR, or below $XDG_STATE_HOME or the home.

    A relative $XDG_STATE_HOME is ignored (XDG Base Directory Specification). Raises UsageError if HOME is not set.
    """
    given = environ.get("BFT_STATE_DIR")
    if given:
        return Path(given)
    xdg = environ.get("XDG_STATE_HOME", "")
    if xdg.startswith("/"):
        return Path(xdg) / "bft"
    home = environ.get("HOME") or os.path.expanduser("~")
    if not home.startswith("/"):
        raise UsageError("HOME is not set; set BFT_STATE_DIR to a folder of your own that the pool's nodes can read")
    return Path(home) / ".local" / "state" / "bft"


def keep_state_s(environ: Mapping[str, str]) -> float:
    """Returns the seconds that checkpoints of what ended well are kept: $BFT_KEEP_STATE_S; raises UsageError."""
    text = environ.get("BFT_KEEP_STATE_S", "")
    try:
        seconds = float(text) if text else KEEP_STATE_S
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise UsageError(f"BFT_KEEP_STATE_S={text}: give seconds, 0 to keep nothing of what has ended well")
    return seconds


def entries(root: Path) -> list[Entry]:
    """Lists the trainers' folders by name; raises StoreError, or UnsafeFolderError, if they cannot be read."""
    try:
        folder = open_root(root)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _unreadable(root, error) from None
    try:
        names = [name for name in sorted(os.listdir(folder)) if not _is_file(folder, name)]
    except OSError as error:
        raise _unreadable(root, error) from None
    finally:
        os.close(folder)
    known = (_entry(root, name) for text in names if (name := Name.parse(text)) is not None)
    return [entry for entry in known if entry is not None]


def _is_file(folder: int, name: str) -> bool:
    """Whether this is an ordinary file, which no trainer has put there."""
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _unreadable(root: Path, error: OSError) -> StoreError:
    return StoreError(
        f"cannot read {root}: {text_of(error)}; mend that, or set BFT_STATE_DIR to where your checkpoints are"
    )


def _entry(root: Path, name: Name) -> Entry | None:
    """Returns a folder's entry; None if the user's folder is no trainer's: checkpoints may lie in their home."""
    try:
        with Place(root / str(name)).opened(close=False) as folder:
            found, owner, distributed = contents(folder), _owner(folder), manifest.manifests(folder)
            any_ = found.checkpoints or found.broken or found.aside or distributed.kept
            if not (any_ or _is_made(name, set(os.listdir(folder)))):
                return None
            newest = newest_of(folder)
            changed_s = (os.stat(newest.name, dir_fd=folder) if newest else os.fstat(folder)).st_mtime
            size_bytes = sum(checkpoint.size_bytes for checkpoint in found.checkpoints)
            size_bytes += sum(one.size_bytes for one in (*distributed.kept, *distributed.aside))
            home = str(shards.home_of(folder, root / str(name)).path) if distributed.kept or distributed.aside else ""
            aside = len(found.aside) + len(found.broken)
            return Entry(name, owner, newest, size_bytes, changed_s, is_running(folder), home=home, aside=aside)
    except (*_FAILURES, ValueError) as error:
        return Entry(name, problem=text_of(error))


def newest_of(folder: int) -> CheckpointFile | StoredVersion | None:
    """Returns the newest whole checkpoint of an open folder, of either kind; raises OSError."""
    both = (contents(folder).newest, manifest.manifests(folder).newest)
    # Of two checkpoints of one step, the distributed one: it is the kind that its script saves now.
    return max((one for one in both if one), key=lambda one: (one.step, isinstance(one, StoredVersion)), default=None)


def _is_made(name: Name, inside: set[str]) -> bool:
    """Whether a driver has made this folder, though nothing was saved in it yet."""
    called = bool(name.cluster) or name.id.startswith("run-")
    return {owners.LOCK, owners.NOTE} <= inside or (called and inside <= _OWN)


def _owner(folder: int) -> OwnerNote:
    try:
        return owners.read_owner(folder)
    except ValueError:  # torn: it hides no checkpoint
        return OwnerNote()


def is_running(folder: int) -> bool:
    """Whether a driver has the lock of an open folder; raises OSError."""
    try:
        lock = owners.lock(folder, make=False)
    except InUseError:
        return True
    except FileNotFoundError:
        return False
    if lock is not None:
        os.close(lock)
    return False


def remove(root: Path, entry: Entry, *, force: bool = False) -> str:
    """Removes a folder whose trainer does not run; raises UsageError, or StoreError if only a part could be removed.

    Returns the folder of files that are left, on a file system that this host does not see; "" if there are none.

    `force`: also remove a folder whose driver, on another host, has never said that it ends: its lock may not be
    visible from here.
    """
    lock: int | None = None
    try:
        with Place(root / str(entry.name)).opened() as folder:
            lock = owners.lock(folder)
            owner = _owner(folder)
            if owner.elsewhere and not force:
                raise UsageError(
                    f"{entry.name}: its driver, on {owner.host}, has not said that it ended; if it does not run any "
                    "more, add --force"
                )
            return _take_away(root, str(entry.name))
    except InUseError:
        raise UsageError(f"{entry.name} is running: end it first, with scancel") from None
    except _FAILURES as error:
        raise StoreError(f"cannot remove {root / str(entry.name)}: {text_of(error)}") from None
    finally:
        if lock is not None:
            os.close(lock)


def _take_away(root: Path, name: str) -> str:
    """Removes a folder; renames it first, so that others find all of it or nothing. Returns what `remove` does."""
    folder = open_root(root)
    try:
        doomed = f"{_REMOVING}{secrets.token_hex(8)}"
        os.rename(name, doomed, src_dir_fd=folder, dst_dir_fd=folder)
        try:
            return _remove_doomed(root, folder, doomed)
        except OSError as error:
            if error.errno not in _LATER:
                raise
        return ""
    finally:
        os.close(folder)


def _remove_doomed(root: Path, folder: int, name: str) -> str:
    """Removes a trainer's folder, but first its checkpoint versions, which only the folder leads to."""
    with Place(root / name).opened() as doomed:
        home = shards.home_of(doomed, root / name)
    gone = shards.remove_home(home)
    _remove_any(folder, name)
    return "" if gone else str(home.path)


def sweep(root: Path, now_s: float) -> list[Entry]:
    """Removes checkpoints whose time is over, and leftovers of interrupted removals; returns the entries of the former.

    Failed removals are tried again the next time.
    """
    gone = []
    for entry in entries(root):
        if entry.name.mark == "ended-until" and entry.name.at_s <= now_s:
            try:
                remove(root, entry, force=True)
            except (StoreError, UsageError):
                continue
            gone.append(entry)
    _sweep_removals(root)
    return gone


def _sweep_removals(root: Path) -> None:
    try:
        folder = open_root(root)
    except OSError:
        return
    try:
        for name in os.listdir(folder):
            if name.startswith(_REMOVING):
                with contextlib.suppress(*_FAILURES):  # a failed removal must not stop the others
                    _remove_doomed(root, folder, name)
    except OSError:
        return
    finally:
        os.close(folder)


def put_away(root: Path, name: Name, keep_s: float) -> Name | None:
    """Renames the folder of a trainer that ended well, to keep its checkpoint a while; returns None if nothing is kept.

    Called by the folder's owner, who has its lock. Raises OSError.
    """
    with Place(root / str(name)).opened() as folder:
        newest = newest_of(folder)
        if newest is not None and keep_s > 0:
            kept = {owners.LOCK, owners.NOTE, newest.name}
            home = shards.home_of(folder, root / str(name))
            if isinstance(newest, StoredVersion):
                kept |= {shards.INNER, shards.NOTE}
                _keep_alone(home, newest)
            else:
                shards.remove_home(home)
            for other in os.listdir(folder):
                if other not in kept:
                    _remove_any(folder, other)
            return _renamed(root, name, lambda tried: name.marked("ended-until", time.time() + keep_s + tried))
    _take_away(root, str(name))
    return None


def _keep_alone(home: shards.Home, newest: StoredVersion) -> None:
    """Removes all checkpoint versions but one; if this host does not see them, they stay."""
    with contextlib.suppress(*_FAILURES), home.opened() as folder:
        for other in shards.leftovers(folder, but={newest.folder}):
            shards.remove(folder, other)


def drop_if_empty(root: Path, name: Name) -> bool:
    """Removes the folder of a trainer that has saved nothing; returns whether it did. Raises OSError."""
    with Place(root / str(name)).opened() as folder:
        found = contents(folder)
        some = found.checkpoints or found.broken or found.aside or manifest.manifests(folder).kept
        if some or not set(os.listdir(folder)) <= _OWN | set(found.parts):
            return False
    _take_away(root, str(name))
    return True


def set_earlier_aside(root: Path, name: Name) -> Name:
    """Renames the checkpoint of an earlier trainer with this id so that its name says so; raises OSError."""
    return _renamed(root, name, lambda tried: name.marked("earlier", time.time() + tried))


def _renamed(root: Path, name: Name, to: Callable[[int], Name]) -> Name:
    """Renames a folder to the first free name: a folder with something in it is never replaced."""
    folder = open_root(root)
    try:
        tried = 0
        while True:
            new = to(tried)
            try:
                os.rename(str(name), str(new), src_dir_fd=folder, dst_dir_fd=folder)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                tried += 1
                continue
            os.fsync(folder)
            return new
    finally:
        os.close(folder)


def _remove_any(folder: int, name: str) -> None:
    if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        shutil.rmtree(f"/proc/self/fd/{folder}/{name}")  # Python 3.10 takes no dir_fd
    else:
        os.unlink(name, dir_fd=folder)
