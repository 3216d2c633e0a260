"""Manifests: the driver's records of distributed checkpoints, one small file a version.

A *checkpoint version* is one checkpoint of all ranks in a folder of its own. Its manifest is written once all of it is
on the disk, in the trainer's own checkpoint folder: a version without a manifest counts for nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from elastic.store import files

KEPT = 2
"""The number of versions that are kept: should a shard of the newest be lost, the one before is there."""

FOLDER = re.compile(r"step-(\d{12,18})-([0-9a-f]{16})", re.ASCII)
"""The name of a checkpoint version, and of its folder."""

FILE = re.compile(r"(?!\.{1,2}$)[\w.+-]{1,200}", re.ASCII)
"""The name of a shard's file, which cannot lead to another folder."""

_NAME = re.compile(r"(set-aside-)?manifest-(\d{1,18})-(\d{1,18})-(\d{1,18})-([0-9a-f]{16})\.json", re.ASCII)
_ASIDE = "set-aside-"
_FIELDS: Mapping[str, type] = {"name": str, "home": str, "step": int, "samples": int, "size": int, "aside": str}
_MOST_BYTES = 1 << 28


@dataclass(frozen=True, order=True)
class StoredVersion:
    """A checkpoint version by the name of its manifest; `size_bytes` is the size of all its files together."""

    step: int
    samples: int
    size_bytes: int
    token: str

    @property
    def name(self) -> str:
        """The name of its manifest."""
        return f"manifest-{self.step}-{self.samples}-{self.size_bytes}-{self.token}.json"

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"step-{self.step:012d}-{self.token}"


@dataclass(frozen=True)
class VersionFile:
    """One file of a checkpoint version, with its xxh3_128 digest in hexadecimal."""

    file: str
    size_bytes: int
    digest: str


@dataclass(frozen=True)
class CheckpointVersion:
    """One version of a distributed checkpoint.

    `home` is the parent of its folder: an absolute path, or one relative to the manifest's folder. `size` is the number
    of ranks that have written it; `aside` says why it is no longer used, "" while it is.
    """

    name: str
    home: str
    step: int
    samples: int
    size: int
    shards: tuple[VersionFile, ...]
    aside: str = ""

    @property
    def kept(self) -> StoredVersion:
        """The version as its manifest's name describes it."""
        return StoredVersion(self.step, self.samples, self.size_bytes, self.name.rpartition("-")[2])

    @property
    def size_bytes(self) -> int:
        """The size of all files together."""
        return sum(shard.size_bytes for shard in self.shards)

    def path(self, state_dir: Path) -> Path:
        """Returns its folder, if the manifest is in `state_dir`."""
        return state_dir / self.home / self.name

    def to_json(self) -> dict[str, Any]:
        """Returns the object that `from_json` reads."""
        told = asdict(self)
        told["files"] = [[shard.file, shard.size_bytes, shard.digest] for shard in self.shards]
        del told["shards"]
        return told

    @classmethod
    def from_json(cls, data: object) -> CheckpointVersion:
        """Reads a manifest; raises ValueError for any other object."""
        wrong = "it is no manifest of a checkpoint version"
        if not isinstance(data, dict) or not all(type(data.get(key)) is kind for key, kind in _FIELDS.items()):
            raise ValueError(wrong)
        found = cls(shards=shards_of(data.get("files")), **{key: data[key] for key in _FIELDS})
        named = FOLDER.fullmatch(found.name)
        if named is None or int(named[1]) != found.step:
            raise ValueError(wrong)
        return found


def shards_of(told: object) -> tuple[VersionFile, ...]:
    """Reads files as [[name, size in bytes, digest], ...]; raises ValueError for others, and for a duplicate name."""
    if not isinstance(told, list):
        raise ValueError("its files are no list")
    shards = []
    for item in told:
        if not (isinstance(item, list) and len(item) == 3):
            raise ValueError("a file has a name, a size and a digest")
        file, size_bytes, digest = item
        if not (isinstance(file, str) and FILE.fullmatch(file)):
            raise ValueError(f"{str(file)[:200]!r} is no file of its folder")
        if type(size_bytes) is not int or not 0 <= size_bytes < 10**18:
            raise ValueError(f"{file} has no size")
        if not (isinstance(digest, str) and re.fullmatch(r"[0-9a-f]{32}", digest, re.ASCII)):
            raise ValueError(f"{file} has no digest")
        shards.append(VersionFile(file, size_bytes, digest))
    if len({shard.file for shard in shards}) < len(shards):
        raise ValueError("a file is named twice")
    return tuple(shards)


@dataclass(frozen=True)
class Manifests:
    """The checkpoint versions of a trainer's folder, the newest last, and those that were set aside."""

    kept: tuple[StoredVersion, ...] = ()
    aside: tuple[StoredVersion, ...] = ()

    @property
    def newest(self) -> StoredVersion | None:
        """The version of the highest step."""
        return self.kept[-1] if self.kept else None


def manifests(folder: int) -> Manifests:
    """Lists a trainer's open folder; raises OSError."""
    kept: list[tuple[int, int, StoredVersion]] = []
    aside: set[StoredVersion] = set()
    for name in os.listdir(folder):
        if (found := _NAME.fullmatch(name)) is None:
            continue
        one = StoredVersion(int(found[2]), int(found[3]), int(found[4]), found[5])
        if found[1]:
            aside.add(one)
            continue
        try:
            kept.append((one.step, os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime_ns, one))
        except FileNotFoundError:  # a newer manifest has just replaced it
            continue
    # Both names exist if a driver was killed between setting it aside and removing the old name.
    return Manifests(tuple(one for *_, one in sorted(kept) if one not in aside), tuple(sorted(aside)))


def read(folder: int, kept: StoredVersion, *, aside: bool = False) -> CheckpointVersion:
    """Reads a version from its manifest; raises OSError, and ValueError for a file that is none."""
    with files.open_old(folder, f"{_ASIDE}{kept.name}" if aside else kept.name) as file:
        found = CheckpointVersion.from_json(files.decoded(file.read(_MOST_BYTES)))
    if found.kept != kept:
        raise ValueError("it is the manifest of another checkpoint version")
    return found


def write(folder: int, version: CheckpointVersion) -> None:
    """Writes a manifest to the disk, whole or not at all; raises OSError."""
    files.write(folder, version.kept.name, json.dumps(version.to_json()).encode())


def set_aside(folder: int, kept: StoredVersion, why: str) -> None:
    """Sets a version aside: it is no longer used, and its files stay. Raises OSError."""
    try:
        told = {**read(folder, kept).to_json(), "aside": why}
    except ValueError:
        told = {"aside": why}
    files.write(folder, f"{_ASIDE}{kept.name}", json.dumps(told).encode())
    os.unlink(kept.name, dir_fd=folder)
    os.fsync(folder)


def why_aside(folder: int, kept: StoredVersion) -> str:
    """Returns why a version was set aside, "" if that is not known."""
    try:
        with files.open_old(folder, f"{_ASIDE}{kept.name}") as file:
            note = files.decoded(file.read(_MOST_BYTES))
        return str(note["aside"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
