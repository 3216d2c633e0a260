"""The checkpoint versions of one trainer: those that workers report are published once complete, and two are kept.

Publishing puts the manifest on the disk, under the same lock and epoch as a checkpoint that comes through the driver: a
driver that was taken over publishes nothing. A version is unlisted before it is removed, so that a manifest never
names missing files. Files are checked and removed in a thread of its own: a file server may be slow, or hang, and
nothing waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from elastic.link.wire import Message
from elastic.store import manifest, shards
from elastic.store.error_latch import FILE_SYSTEMS, ErrorLatch, text_of
from elastic.store.folder import StoreError, UnsafeFolderError
from elastic.store.manifest import KEPT, CheckpointVersion, StoredVersion
from elastic.store.shards import WrongShardError
from elastic.store.store import CheckpointStore
from elastic.store.writer_lock import FencedError

_TRIES, _PAUSE_S = 3, 1.0
"""A file server may show the files of other hosts a moment later."""

_LINE_BYTES = 768 << 10
"""The longest list of files that fits a line beside another one; longer ones are read from beside the shards."""

_UNSEEN = (errno.ENOENT, errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.EHOSTDOWN, errno.ETIMEDOUT)
"""A host's errors for a file system that it has not mounted, or cannot reach: the nodes may have it."""

_FAILURES = (OSError, UnsafeFolderError)

T = TypeVar("T")


class CheckpointVersions:
    """Manifests in the trainer's checkpoint folder, which is `store`'s; files are in `home`.

    `seen`: whether this host can look at the files; else workers' reports are trusted, and workers remove the files.
    """

    def __init__(self, store: CheckpointStore, state_dir: Path, state_path: str | None, tell: Callable[[str], None]):
        """Lists the folder; `tell` gets messages for the user. Raises UnsafeFolderError and StoreError."""
        self._store = store
        self._state_dir = state_dir
        self._tell = tell
        self._writing = ErrorLatch(tell, "checkpoints are saved again")
        self._space = ErrorLatch(tell, "there is space for checkpoints again")
        self._threads = ThreadPoolExecutor(1, "bft-shards")
        self._lock = asyncio.Lock()
        self._kept: tuple[CheckpointVersion, ...] = ()
        self._aside: dict[str, str] = {}
        self.seen = True
        try:
            with store.opened_by_owner() as folder:
                self.home = shards.settled(folder, state_dir, state_path)
                self._read(folder)
        except OSError as error:
            raise StoreError(f"cannot use {state_dir} for checkpoints: {text_of(error)}; mend that") from None
        self._make_home()

    @property
    def newest(self) -> CheckpointVersion | None:
        """The version of the highest step."""
        return self._kept[-1] if self._kept else None

    @property
    def failing(self) -> bool:
        """Whether the last version that was written does not count."""
        return self._writing.present

    @property
    def step(self) -> int:
        """The newest version's step, -1 while there is none."""
        return self._kept[-1].step if self._kept else -1

    @property
    def samples(self) -> int:
        """The number of samples seen until then."""
        return self._kept[-1].samples if self._kept else 0

    def _make_home(self) -> None:
        try:
            with self.home.opened(make=True):
                pass
        except OSError as error:
            if self.home.outer is not None and error.errno in FILE_SYSTEMS:
                return  # the folder is made once nodes can write there: they wait for that
            if self.home.outer is None or error.errno not in _UNSEEN:
                raise StoreError(shards.why_not(self.home.path.parent, error)) from None
            self._not_seen(error)

    def _not_seen(self, error: Exception) -> None:
        if self.seen:
            self.seen = False
            self._tell(
                f"{self.home.path.parent} is not seen from the driver's host ({text_of(error)}): what workers say of "
                "the files there is believed, and older checkpoint versions are yours to remove"
            )

    def _read(self, folder: int) -> None:
        """Reads the manifests; sets aside those that cannot be read. Raises OSError."""
        found, kept = manifest.manifests(folder), []
        self._aside = {one.folder: manifest.why_aside(folder, one) for one in found.aside}
        for one in found.kept:
            try:
                kept.append(manifest.read(folder, one))
            except ValueError as error:
                self._tell(f"{one.name} is not used: {error}")
                manifest.set_aside(folder, one, str(error))
                self._aside[one.folder] = str(error)
        self._kept = tuple(kept)

    # -- a worker begins ---

    async def answer(self, other_step: int) -> Message | None:
        """Returns the answer to a starting worker; None if it gets the checkpoint of `other_step`, or none at all."""
        async with self._lock:
            usable = [one for one in reversed(self._kept) if one.step >= other_step]
            if usable:
                return {"op": "fetched", "generations": _listed(usable, self._state_dir)}
            if other_step < 0 and self._aside:
                name = max(self._aside)
                number = f"{len(self._aside)} of its checkpoint versions were set aside"
                why = f"{number}, the newest, {name}, because {self._aside[name]}"
                return {"op": "fetched", "error": f"{why}; bft checkpoints rm removes all of it"}
            return None

    # -- a checkpoint version ends ---

    async def publish(self, version: CheckpointVersion, busy: Callable[[], Collection[str]]) -> tuple[str, ...] | None:
        """Publishes a complete version; returns the names of those dropped for it, None if it is not used.

        `busy` returns the names of those that workers are writing.
        """
        async with self._lock:
            try:
                await self._checked(version)
                dropped = await self._in_thread(self._publish, version)
            except FencedError as error:
                self._store.taken_over(str(error))
                return None
            except (*_FAILURES, StoreError) as error:
                self.failed(
                    f"the checkpoint of step {version.step} in {self.home.path} does not count: {text_of(error)}"
                )
                return None
            if dropped is None:
                return None
            self._writing.went()
            names = await self._in_thread(self._clear, dropped, busy())
            self._look_at_space(await self._in_thread(self._free_bytes))
            return tuple(names)

    async def _checked(self, version: CheckpointVersion) -> None:
        for left in reversed(range(_TRIES)):
            try:
                return await self._in_thread(self._check, version)
            except WrongShardError:
                if not left:
                    raise
            await asyncio.sleep(_PAUSE_S)

    def _check(self, version: CheckpointVersion) -> None:
        try:
            with self.home.opened() as home:
                shards.check(home, version)
        except OSError as error:
            if self.home.outer is None:
                raise
            self._not_seen(error)
            return
        except (WrongShardError, UnsafeFolderError):
            if self.seen:
                raise
            return  # another file system than the nodes'
        if not self.seen:  # a node has made the folder, or the file server is back
            self.seen = True
            self._tell(
                f"{self.home.path.parent} is seen from the driver's host now: older checkpoint versions are removed"
            )

    def _publish(self, version: CheckpointVersion) -> list[CheckpointVersion] | None:
        """Writes the manifest and drops the oldest versions; reads the folder again first."""
        version = replace(version, home=self.home.told)
        with self._store.opened_by_owner() as folder:
            self._read(folder)
            if self.step > version.step:
                return None
            if version.name in self._aside:
                raise WrongShardError(f"{version.name} was set aside")
            manifest.write(folder, version)
            older = [one for one in self._kept if one.name != version.name]
            left = [one for one in older if one.step < version.step][-(KEPT - 1) :]
            dropped = [one for one in older if one not in left]
            self._kept = (*left, version)
            for one in dropped:
                _unlist(folder, one.kept)
        return dropped

    def _clear(self, dropped: Collection[CheckpointVersion], busy: Collection[str]) -> list[str]:
        """Removes files of versions in our own home; those that cannot be removed now are tried after the next."""
        names = [one.name for one in dropped if one.home == self.home.told]
        if not self.seen:
            return names
        try:
            with self.home.opened() as home:
                but = {one.name for one in self._kept} | set(self._aside) | set(busy)
                gone = {*names, *shards.leftovers(home, but, self.step)} - but
                for name in sorted(gone):
                    shards.remove(home, name)
        except _FAILURES as error:
            self._tell(f"what is used no more in {self.home.path} cannot be removed: {text_of(error)}")
        return names

    async def drop(self, name: str) -> None:
        """Removes a version that will never be complete."""
        with contextlib.suppress(OSError):  # the driver is at its end
            await self._in_thread(self._drop, name)

    def _drop(self, name: str) -> None:
        known = {one.name for one in self._kept} | set(self._aside)
        if not self.seen or name in known:
            return
        try:
            with self._store.opened_by_owner(), self.home.opened() as home:
                shards.remove(home, name)
        except (*_FAILURES, FencedError):
            pass  # ending workers may be in the way: it is removed after a later one

    def failed(self, text: str) -> None:
        """Notes that a version will not count: reported once, until one does."""
        kept = f"; the one of step {self.step} is kept" if self.newest else ""
        self._writing.came(f"{text}{kept}; training goes on, and it is tried again")

    # -- a damaged checkpoint version ---

    async def set_aside(self, name: object, why: str) -> bool:
        """Sets aside a version whose files a worker found wrong; returns whether it did.

        Not if it is the only checkpoint: a node that has lost its file system would take the whole training along, and
        a worker that begins finds out by itself.
        """
        async with self._lock:
            bad = next((one for one in self._kept if one.name == name), None)
            if bad is None:
                return False
            if len(self._kept) == 1 and self._store.step < 0:
                self._tell(f"the checkpoint of step {bad.step} is not whole, and there is no other: it is kept: {why}")
                return False
            try:
                await self._in_thread(self._set_aside, bad, why)
            except FencedError as error:
                self._store.taken_over(str(error))
                return False
            except _FAILURES as error:
                self._tell(f"the note that {bad.name} is not whole cannot be written: {text_of(error)}")
            self._aside[bad.name] = why
            self._kept = tuple(one for one in self._kept if one is not bad)
        where, on = bad.path(self._state_dir), max(self.step, self._store.step)
        self._tell(f"the checkpoint of step {bad.step} is not used, and kept in {where}: {why}; goes on from step {on}")
        return True

    def _set_aside(self, bad: CheckpointVersion, why: str) -> None:
        with self._store.opened_by_owner() as folder:
            manifest.set_aside(folder, bad.kept, why)

    # -- space ---

    def _free_bytes(self) -> int | None:
        if not self.seen:
            return None
        try:
            with self.home.opened() as home:
                return shards.free_bytes(home)
        except _FAILURES:
            return None

    def look_at_space(self, free_bytes: object) -> None:
        """Takes a node's report of the free space."""
        if type(free_bytes) is int and free_bytes >= 0:
            self._look_at_space(free_bytes)

    def _look_at_space(self, free_bytes: int | None) -> None:
        """Reports a lack of space: a checkpoint is written before the oldest kept one is removed."""
        if free_bytes is None or self.newest is None:
            return
        size_bytes = self.newest.size_bytes
        need_bytes = size_bytes * (1 + KEPT - len(self._kept))
        if free_bytes < need_bytes:
            self._space.came(
                f"{self.home.path.parent}: {free_bytes / 1e9:.3g} GB are free, and checkpoints of "
                f"{size_bytes / 1e9:.3g} GB need {need_bytes / 1e9:.3g} GB more, as {KEPT} are kept beside one that is "
                "written: free space there"
            )
        else:
            self._space.went()

    # -- probes, and the end ---

    async def probe(self, token: str, name: str) -> bool:
        """Leaves a file in the home that nodes look for; returns whether this host can."""
        return await self._in_thread(self._probe, token, name)

    def _probe(self, token: str, name: str) -> bool:
        if self.seen:
            try:
                with self.home.opened(make=True) as home:
                    shards.probe(home, token, name)
            except OSError as error:
                if error.errno in FILE_SYSTEMS:
                    return False
                self._not_seen(error)
        return self.seen

    async def close(self) -> None:
        """Removes files of probes, and saves that were cut off; waits for nothing that hangs."""
        if self.seen:
            with contextlib.suppress(asyncio.TimeoutError, OSError):
                await asyncio.wait_for(asyncio.shield(self._in_thread(self._tidy)), _PAUSE_S)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _tidy(self) -> None:
        try:
            with self._store.opened_by_owner(), self.home.opened() as home:
                shards.unprobe(home)
                but = {one.name for one in self._kept} | set(self._aside)
                for name in shards.leftovers(home, but):
                    shards.remove(home, name)
        except (*_FAILURES, FencedError):
            pass

    async def _in_thread(self, work: Callable[..., T], *args: Any) -> T:
        try:
            working = asyncio.get_running_loop().run_in_executor(self._threads, work, *args)
        except RuntimeError:
            raise OSError(errno.ECANCELED, "the driver ends") from None
        return await working


def _unlist(folder: int, kept: StoredVersion) -> None:
    os.unlink(kept.name, dir_fd=folder)
    os.fsync(folder)


def _listed(versions: Collection[CheckpointVersion], state_dir: Path) -> list[Message]:
    """Returns versions as a worker reads them; without their files if those do not fit a line."""
    listed = []
    free_bytes = _LINE_BYTES
    for one in versions:
        told: Message = {
            "name": one.name,
            "path": str(one.path(state_dir)),
            "step": one.step,
            "samples": one.samples,
            "size": one.size,
        }
        need_bytes = sum(len(shard.file) + 64 for shard in one.shards)
        if need_bytes <= free_bytes:
            free_bytes -= need_bytes
            told["files"] = [[shard.file, shard.size_bytes, shard.digest] for shard in one.shards]
        listed.append(told)
    return listed
