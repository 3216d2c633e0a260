"""Shared memory that ended workers leave in /dev/shm: their own deaths do not free it, so it would stay until a reboot.

A file there is a worker's when the worker or a process below it was seen with it mapped or open, when it is this
user's, and when it was not there before the pilot. It is removed once all that were seen with it have ended and no
other process of the user has it. What is known is kept in the pilot's folder for temporary files, so that the agent
goes by it, and where it is killed, the next one. Not covered: a segment that its worker had neither mapped nor open
when it was looked for (every `SAMPLE_S`, and before a worker is killed), and one that another user's process shares.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from elastic.node.leftovers import below, parents

SHM = "/dev/shm"
RECORD = ".bft-segments"

_Key = tuple[int, int]


class Segments:
    """The shared memory of a node process's workers; `folder` is where it is noted."""

    def __init__(self, folder: str) -> None:
        self._record = Path(folder, RECORD)
        # Never touched: it was there before, or was seen while no worker had it.
        self._foreign = {key for key, _ in _ours()}
        self._of: dict[_Key, set[int]] = {}
        self._paths: dict[_Key, str] = {}

    def sample(self, workers: Iterable[int]) -> None:
        """Looks which of them, with all below them, has what is new; costs a listing where there is nothing new."""
        fresh = {key: path for key, path in _ours() if key not in self._foreign and key not in self._of}
        if not fresh:
            return
        parent_of = parents()
        for worker in workers:
            for pid in [worker, *below([worker], parent_of)]:
                for key in _held_by(pid, fresh):
                    self._of.setdefault(key, set()).add(worker)
                    self._paths[key] = fresh[key]
        self._foreign |= fresh.keys() - self._of.keys()
        self._note()

    def ended(self, living: Iterable[int]) -> None:
        """Removes what only workers had that are not among the living ones."""
        if not self._of:
            return
        alive = set(living)
        for key in self._of:
            self._of[key] &= alive
        orphaned = {key: self._paths[key] for key, workers in self._of.items() if not workers}
        there = {key for key, _ in _ours()}
        for key in remove_unheld(orphaned) | {key for key in self._of if key not in there}:
            del self._of[key], self._paths[key]
        self._note()

    def _note(self) -> None:
        # A script may have removed the folder: then there is nobody to tell.
        with contextlib.suppress(OSError):
            draft = self._record.with_suffix(".new")
            draft.write_text(json.dumps([[*key, path] for key, path in self._paths.items()]))
            draft.replace(self._record)


def remove_noted(folder: str, deadline_s: float | None = None, but: Collection[int] = ()) -> None:
    """Removes the segments that a dead pilot's folder names, those that nobody has (processes `but` do not count)."""
    try:
        noted = json.loads(Path(folder, RECORD).read_text())
        segments = {(int(device), int(inode)): str(path) for device, inode, path in noted}
    except (OSError, ValueError, TypeError):
        return
    remove_unheld(segments, deadline_s, but)


def remove_unheld(segments: dict[_Key, str], deadline_s: float | None = None, but: Collection[int] = ()) -> set[_Key]:
    """Unlinks those of some segments that no living process of this user has; returns those that are gone.

    Past `deadline_s` (of the monotonic clock) it gives up, since who has them is no longer known.
    """
    if not segments:
        return set()
    unheld = dict(segments)
    for pid in parents():
        if deadline_s is not None and time.monotonic() > deadline_s:
            return set()
        if pid not in but:
            for key in _held_by(pid, unheld):
                del unheld[key]
    gone = set()
    for key, path in unheld.items():
        # By its name only while that is still the same file, and only ever in /dev/shm.
        if os.path.dirname(path) == SHM and _key(path) in (key, None):
            with contextlib.suppress(OSError):
                os.unlink(path)
            gone.add(key)
    return gone


def _ours() -> list[tuple[_Key, str]]:
    """This user's files in /dev/shm."""
    found = []
    with contextlib.suppress(OSError), os.scandir(SHM) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                seen = entry.stat(follow_symlinks=False)
                if entry.is_file(follow_symlinks=False) and seen.st_uid == os.getuid():
                    found.append(((seen.st_dev, seen.st_ino), entry.path))
    return found


def _key(path: str) -> _Key | None:
    try:
        seen = os.lstat(path)
    except OSError:
        return None
    return seen.st_dev, seen.st_ino


def _held_by(pid: int, segments: dict[_Key, str]) -> set[_Key]:
    """Which of the segments a process has mapped or open; none of those of a process that is not this user's."""
    held = set()
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            if SHM in line:
                _, _, _, device, inode, *_ = line.split(maxsplit=5)
                major, _, minor = device.partition(":")
                held.add((os.makedev(int(major, 16), int(minor, 16)), int(inode)))
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{fd}").startswith(SHM):
                    seen = os.stat(f"/proc/{pid}/fd/{fd}")
                    held.add((seen.st_dev, seen.st_ino))
    return held & segments.keys()
