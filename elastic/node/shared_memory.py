"""Shared memory that ended workers leave in /dev/shm: their deaths do not free it, so it would stay until a reboot.

A file there belongs to a worker if the worker or a process below it was seen with it mapped or open, if it is this
user's, and if it did not exist before the pilot. It is removed once all workers seen with it have ended and no other
process of the user has it. The record is kept in the pilot's temporary folder, for the agent and, if that is killed,
for the next one. Not covered: a segment that its worker had neither mapped nor open at any look (every `SAMPLE_S`, and
before a worker is killed), and a segment that another user's process shares.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from elastic.node.orphans import below, parents

SHM = "/dev/shm"
RECORD = ".bft-segments"

_Key = tuple[int, int]


class Segments:
    """The shared memory of a node process's workers, noted in `folder`."""

    def __init__(self, folder: str) -> None:
        self._record = Path(folder, RECORD)
        # Never touched: it existed before, or was seen while no worker had it.
        self._foreign = {key for key, _ in _ours()}
        self._of: dict[_Key, set[int]] = {}
        self._paths: dict[_Key, str] = {}

    def sample(self, workers: Iterable[int]) -> None:
        """Find new segments of the workers and all processes below them; costs one listing if there are none."""
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
        """Remove the segments that no living worker has."""
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
        # A script may have removed the folder: then there is no place to note it.
        with contextlib.suppress(OSError):
            draft = self._record.with_suffix(".new")
            draft.write_text(json.dumps([[*key, path] for key, path in self._paths.items()]))
            draft.replace(self._record)


def remove_noted(folder: str, deadline_s: float | None = None, but: Collection[int] = ()) -> None:
    """Remove the segments noted in a dead pilot's folder that no process has (processes in `but` do not count)."""
    try:
        noted = json.loads(Path(folder, RECORD).read_text())
        segments = {(int(device), int(inode)): str(path) for device, inode, path in noted}
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):
        return
    remove_unheld(segments, deadline_s, but)


def remove_unheld(segments: dict[_Key, str], deadline_s: float | None = None, but: Collection[int] = ()) -> set[_Key]:
    """Unlink the segments that no living process of this user has; returns the removed ones.

    Past `deadline_s` (of the monotonic clock) it gives up: not all processes have been checked by then.
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
        # Unlink by name only while it is still the same file, and only in /dev/shm.
        if os.path.dirname(path) == SHM and _key(path) in (key, None):
            with contextlib.suppress(OSError):
                os.unlink(path)
            gone.add(key)
    return gone


def _ours() -> list[tuple[_Key, str]]:
    """Return this user's files in /dev/shm."""
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
    """Return the segments that a process has mapped or open; none for another user's process."""
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
