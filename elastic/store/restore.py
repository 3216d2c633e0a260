"""The start of a trainer: a folder of its own, and the checkpoint of another job that it is to go on from."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from elastic.base.errors import UsageError
from elastic.store import catalogue, files, manifest, shards
from elastic.store import writer_lock as owners
from elastic.store.catalogue import Entry, Name
from elastic.store.error_latch import text_of
from elastic.store.file_names import CheckpointFile
from elastic.store.folder import Place, StoreError, UnsafeFolderError
from elastic.store.writer_lock import InUseError

_FORMER = ".bft"
"""The former checkpoint folder, below the one that a job was submitted from."""


@dataclass(frozen=True)
class Beginning:
    """A trainer that starts: `id` is its own; a requeued job finds its own checkpoint, `resume` names another's.

    `state_path` is the folder of `state=`, None if none was given.
    """

    id: str
    cluster: str = ""
    requeued: bool = False
    resume: str = ""
    state_path: str | None = None

    @classmethod
    def of_job(cls, id_: str, resume: str, environ: Mapping[str, str], state_path: str | None = None) -> Beginning:
        """Reads Slurm's description of a batch job from its environment."""
        cluster = re.sub(r"[^\w.-]", "", environ.get("SLURM_CLUSTER_NAME", ""), flags=re.ASCII)
        return cls(id_, cluster, environ.get("SLURM_RESTART_COUNT", "0") not in ("", "0"), resume, state_path)

    @property
    def name(self) -> Name:
        """The name of its folder: clusters that share a home each number their own jobs."""
        return Name(self.id, self.cluster)


def begin(root: Path, who: Beginning, cwd: Path, tell: Callable[[str], None]) -> Path:
    """Makes the trainer's folder, with the checkpoint in it that it goes on from; returns its path.

    Raises UsageError, with nothing changed, if that checkpoint is missing or cannot be used, and StoreError.
    """
    path = root / str(who.name)
    try:
        if not who.requeued:
            _refuse_running(path)
            source = _source(root, who) if who.resume else None
            _set_earlier_aside(root, who.name, tell)
            with Place(path).opened(make=True) as folder:
                if source is not None:
                    _take_over(root, source, folder, path, who.state_path, tell)
            return path
        with Place(path).opened(make=True) as folder:
            if catalogue.newest_of(folder) is None and not _former(cwd, who.id, folder, tell) and who.resume:
                _take_over(root, _source(root, who), folder, path, who.state_path, tell)
    except OSError as error:
        raise StoreError(
            f"cannot use {path} for checkpoints: {text_of(error)}; mend that, or set BFT_STATE_DIR to a folder of "
            "your own that the pool's nodes can read"
        ) from None
    return path


def keep_script(path: Path, name: str, source: str) -> tuple[Path, str]:
    """Writes the script for the agents to read: Slurm's own copy is on the service node alone.

    Returns its path and its SHA-256 in hexadecimal; raises StoreError.
    """
    inner, content = path / "script", source.encode(errors="surrogateescape")
    try:
        with Place(inner).opened(make=True) as folder:
            files.write(folder, name, content)
    except OSError as error:
        raise StoreError(f"cannot write the script to {inner}: {text_of(error)}; mend that") from None
    return inner / name, hashlib.sha256(content).hexdigest()


def _refuse_running(path: Path) -> None:
    try:
        with Place(path).opened() as folder:
            running = catalogue.is_running(folder)
    except FileNotFoundError:
        return
    if running:
        raise UsageError(f"{path} is in use by a running driver; set BFT_STATE_DIR to another folder of your own")


def _set_earlier_aside(root: Path, name: Name, tell: Callable[[str], None]) -> None:
    """Renames a folder found at a job's first start, or drops an empty one: it is another job's, as ids are reused."""
    try:
        if catalogue.drop_if_empty(root, name):
            return
        new = catalogue.set_earlier_aside(root, name)
    except FileNotFoundError:
        return
    tell(f"an earlier job with this id has left a checkpoint: it is not used, and kept as {root / str(new)}")


# -- going on from another job's checkpoint ---


def _source(root: Path, who: Beginning) -> Entry:
    """Returns the entry that `resume` names, preferring this cluster and trainers that have not ended."""
    known = [entry for entry in catalogue.entries(root) if entry.name.means(who.resume) and entry.name != who.name]
    if broken := next((entry for entry in known if entry.problem), None):
        raise UsageError(f"resume={who.resume}: {root / str(broken.name)} cannot be read: {broken.problem}")
    found = [entry for entry in known if entry.newest is not None]
    own = [entry for entry in found if entry.name.cluster == who.cluster] or found
    if len({entry.name.cluster for entry in own}) > 1:
        names = " or ".join(f"resume={shown}" for shown in sorted({entry.name.shown for entry in own}))
        raise UsageError(f"resume={who.resume}: there is more than one job of this id; give {names}")
    if not own:
        raise UsageError(f"resume={who.resume}: no checkpoint of it in {root}; `bft checkpoints ls` shows yours")
    chosen = max(own, key=lambda entry: (not entry.name.mark, entry.name.mark == "ended-until", entry.name.at_s))
    if chosen.running:
        raise UsageError(f"resume={who.resume}: it is running; end it first, with scancel {chosen.name.id}")
    return chosen


def _take_over(
    root: Path, source: Entry, folder: int, path: Path, state_path: str | None, tell: Callable[[str], None]
) -> None:
    """Shares the newest checkpoint of `source`; of a distributed one also the version before it.

    The source's own files stay as they are; nobody writes or removes them meanwhile.
    """
    their_dir, note = root / str(source.name), ""
    lock: int | None = None
    try:
        with Place(their_dir).opened() as theirs:
            lock = owners.lock(theirs)
            newest = catalogue.newest_of(theirs)
            if newest is None:
                raise FileNotFoundError(2, f"the checkpoint of {source.name} has just been removed")
            if isinstance(newest, CheckpointFile):
                files.share(theirs, newest.name, folder, newest.name)
            else:
                home = shards.settled(folder, path, state_path)
                if not shards.take_over(theirs, their_dir, newest, folder, home):
                    note = (
                        "; its files are read where they are: keep it until this job has saved a checkpoint of its own"
                    )
                for older in manifest.manifests(theirs).kept:
                    if older != newest:  # in case a shard of the newest turns out to be lost
                        with contextlib.suppress(OSError, ValueError):
                            shards.take_over(theirs, their_dir, older, folder, home)
    except ValueError as error:
        raise UsageError(f"resume={source.name.id}: its newest checkpoint cannot be read: {error}") from None
    except InUseError:
        raise UsageError(f"resume={source.name.id}: it is running; end it first, with scancel") from None
    finally:
        if lock is not None:
            os.close(lock)
    tell(f"goes on from the checkpoint of {source.name}, of step {newest.step}{note}")


def _former(cwd: Path, id_: str, folder: int, tell: Callable[[str], None]) -> bool:
    """Takes this job's checkpoint from a release before this one, if nobody else could have put it there."""
    path = cwd / _FORMER / id_
    try:
        if not (path / "state.pt").exists():
            return False
        with Place(path).opened() as theirs:
            note = files.read_note(theirs, "state.json") or {}
            size_bytes = os.stat("state.pt", dir_fd=theirs, follow_symlinks=False).st_size
            checkpoint = CheckpointFile(int(note["step"]), int(note["samples"]), size_bytes)
            files.share(theirs, "state.pt", folder, checkpoint.name)
    except (OSError, UnsafeFolderError, ValueError, KeyError, TypeError) as error:
        why = "its note cannot be read" if isinstance(error, (ValueError, KeyError, TypeError)) else text_of(error)
        tell(f"{path}/state.pt is not used: {why}")
        return False
    tell(f"goes on from {path}, of step {checkpoint.step}")
    return True
