"""The folder of a trainer's checkpoint versions: below `state=PATH`, or in the trainer's checkpoint folder.

It is the trainer's own: below a PATH that several trainers share, each has a folder with a random name. Operations in
it are relative to its descriptor, and no link is followed, so that nothing outside is ever changed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from elastic.store import files, manifest
from elastic.store.error_latch import text_of
from elastic.store.folder import Place, StoreError
from elastic.store.manifest import FOLDER, CheckpointVersion, StoredVersion

INNER, NOTE = "shards", "shards.json"
"""The folder of versions in a trainer's checkpoint folder, and the note there that names the one below a PATH."""

LISTING = "manifest.json"
"""A copy of the manifest beside the shards, for workers whose list of files does not fit a message."""

_OUTER = re.compile(r"bft-[\w.@+-]{1,200}-[0-9a-f]{8}", re.ASCII)
_PROBE = ".bft-probe-"
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class WrongShardError(StoreError):
    """A file of a checkpoint version is missing, or does not have the reported size."""


@dataclass(frozen=True)
class Home:
    """The folder of a trainer's versions; `outer` is one below a `state=PATH`, None if in the checkpoint folder."""

    state_dir: Path
    outer: Path | None = None

    @property
    def path(self) -> Path:
        """The folder itself."""
        return self.outer or self.state_dir / INNER

    @property
    def told(self) -> str:
        """The home as manifests name it: relative in the checkpoint folder, which is renamed when training ends."""
        return str(self.outer) if self.outer else INNER

    @contextmanager
    def opened(self, *, make: bool = False) -> Iterator[int]:
        """Opens the folder; raises UnsafeFolderError, and OSError if this host cannot open it."""
        # Of a PATH only the last folder is created: if the one above is missing, this host does not see the file
        # system.
        if make and self.outer is not None:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.outer.parent, 0o700)
        with Place(self.path, shared=self.outer is not None).opened(make=make) as folder:
            yield folder


def home_of(folder: int, state_dir: Path) -> Home:
    """Returns the home of a trainer whose checkpoint folder is open; raises OSError."""
    try:
        note = files.read_note(folder, NOTE)
    except ValueError:  # torn by a file server: the next driver draws a new one
        note = None
    path = note.get("path") if note else None
    if isinstance(path, str) and path.startswith("/") and _OUTER.fullmatch(path.rpartition("/")[2]):
        return Home(state_dir, Path(path))
    return Home(state_dir)


def settled(folder: int, state_dir: Path, state_path: str | None) -> Home:
    """Returns the home below `state_path`, chosen once, or in the checkpoint folder if that is None; raises OSError."""
    known = home_of(folder, state_dir)
    if state_path is None:
        return Home(state_dir)
    if known.outer is not None and known.outer.parent == Path(state_path):
        return known
    name = re.sub(r"[^\w.@+-]", "-", state_dir.name, flags=re.ASCII)[:200]
    outer = Path(state_path) / f"bft-{name}-{secrets.token_hex(4)}"
    files.write(folder, NOTE, json.dumps({"path": str(outer)}).encode())
    return Home(state_dir, outer)


# -- one checkpoint version ---


def check(home: int, version: CheckpointVersion) -> None:
    """Checks that all files of a version exist with the right sizes, and flushes their names to the disk.

    Raises WrongShardError, and OSError if the folder cannot be read. Each file is opened: only then does the host ask a
    file server for the writes of others.
    """
    folder = _opened(home, version.name)
    try:
        for shard in version.shards:
            size_bytes = _size(folder, shard.file)
            if size_bytes != shard.size_bytes:
                there = "is not there" if size_bytes is None else f"has {size_bytes} bytes, not {shard.size_bytes}"
                raise WrongShardError(f"{version.name}/{shard.file} {there}")
        with contextlib.suppress(OSError):  # some file servers cannot do this for a folder
            os.fsync(folder)
            os.fsync(home)
        with contextlib.suppress(OSError):  # a copy
            files.write(folder, LISTING, json.dumps(version.to_json()).encode())
    finally:
        os.close(folder)


def _opened(home: int, name: str) -> int:
    try:
        return os.open(name, _OPEN, dir_fd=home)
    except (FileNotFoundError, NotADirectoryError):
        raise WrongShardError(f"{name} is not there") from None


def _size(folder: int, file: str) -> int | None:
    """Returns the size of an ordinary file, None if there is none of this name."""
    try:
        fd = os.open(file, _READ, dir_fd=folder)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        return found.st_size if stat.S_ISREG(found.st_mode) else None
    finally:
        os.close(fd)


def free_bytes(home: int) -> int:
    """Returns the bytes that the user may still write there."""
    found = os.fstatvfs(home)
    return found.f_bavail * found.f_frsize


# -- removing ---


def remove(home: int, name: str) -> None:
    """Removes one checkpoint version's folder, if it is there; raises OSError, and ValueError for any other name."""
    if not FOLDER.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a checkpoint version")
    try:
        found = os.stat(name, dir_fd=home, follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(found.st_mode):
        shutil.rmtree(f"/proc/self/fd/{home}/{name}")  # Python 3.10 takes no dir_fd
    else:
        os.unlink(name, dir_fd=home)


def leftovers(home: int, but: Collection[str], below_step: int | None = None) -> list[str]:
    """Returns the versions found there except `but`: those of steps below `below_step`, or all."""
    found = ((name, FOLDER.fullmatch(name)) for name in os.listdir(home))
    # Leftovers of killed drivers and workers are below the newest; versions that are being written are above it.
    lower = (name for name, match in found if match and (below_step is None or int(match[1]) < below_step))
    return [name for name in lower if name not in but]


def remove_home(home: Home) -> bool:
    """Removes all versions of a trainer below a PATH, and their folder; returns whether it is gone. Raises OSError.

    False if this host does not see the PATH. Versions in the trainer's checkpoint folder are removed with that.
    """
    if home.outer is None:
        return True
    if not home.outer.parent.is_dir():
        return False
    try:
        with home.opened() as folder:
            for name in leftovers(folder, but=()):
                remove(folder, name)
            unprobe(folder)
    except FileNotFoundError:
        return True
    with contextlib.suppress(OSError):  # the user has put something there
        os.rmdir(home.outer)
    return True


# -- another trainer's ---


def take_over(theirs: int, their_dir: Path, kept: StoredVersion, ours: int, home: Home) -> bool:
    """Makes another trainer's checkpoint version ours, too, by hard links to its files; raises OSError, ValueError.

    Returns whether that was possible: if not, it is read where it is, and theirs must stay until we have saved our own.
    """
    version = manifest.read(theirs, kept)
    source = version.path(their_dir)
    try:
        with home.opened(make=True) as folder:
            _link(source, folder, version)
        told = home.told
    except OSError:
        told = str(source.parent)
    manifest.write(ours, replace(version, home=told))
    return told == home.told


def _link(source: Path, home: int, version: CheckpointVersion) -> None:
    outer = Home(source.parent.parent, None if source.parent.name == INNER else source.parent)
    with outer.opened() as their_home:
        theirs = os.open(version.name, _OPEN, dir_fd=their_home)
    try:
        os.mkdir(version.name, 0o700, dir_fd=home)
        try:
            ours = os.open(version.name, _OPEN, dir_fd=home)
            try:
                for shard in version.shards:
                    os.link(shard.file, shard.file, src_dir_fd=theirs, dst_dir_fd=ours, follow_symlinks=False)
                files.write(ours, LISTING, json.dumps(version.to_json()).encode())
                os.fsync(ours)
            finally:
                os.close(ours)
            os.fsync(home)
        except OSError:
            remove(home, version.name)
            raise
    finally:
        os.close(theirs)


# -- a probe ---


def probe(home: int, token: str, name: str) -> None:
    """Leaves a file that nodes look for, to check that they see the same folder; raises OSError."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(f"{_PROBE}{token}", 0o700, dir_fd=home)
    folder = os.open(f"{_PROBE}{token}", _OPEN, dir_fd=home)
    try:
        files.write(folder, name, b"bft\n")
    finally:
        os.close(folder)


def unprobe(home: int) -> None:
    """Removes the files of probes."""
    for name in os.listdir(home):
        if re.fullmatch(rf"{re.escape(_PROBE)}[0-9a-f]+", name, re.ASCII):
            with contextlib.suppress(OSError):
                shutil.rmtree(f"/proc/self/fd/{home}/{name}")


def why_not(path: Path, error: BaseException) -> str:
    """Returns why a home cannot be used, and what to do."""
    return f"state={path}: cannot be used for checkpoints: {text_of(error)}; mend that, or give another folder"
