"""Completeness of checkpoint versions: puts together the ranks' reports of their shards. Pure.

A version is complete when each of its ranks has reported its files once, all with the same step, samples, number of
ranks and folder, and rank 0's files include DCP's `.metadata`. It can no longer be completed once a rank could not
write or has contradicted the others, or when too few workers are left to report the rest. A name is used once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from elastic.store.manifest import FOLDER, CheckpointVersion, VersionFile, shards_of

METADATA = ".metadata"

_OPEN_MOST = 8
"""Workers save one at a time; a worker that opens more is faulty, and must not fill the driver's memory."""

_OVER_MOST = 256
"""The number of ended versions whose names are remembered: a late report does not open one again."""

_SIZE_MOST = 1 << 20


@dataclass(frozen=True)
class RankReport:
    """One rank's report of its part of a checkpoint version."""

    version: CheckpointVersion
    rank: int

    @classmethod
    def parse(cls, message: Mapping[str, Any], home: str) -> RankReport:
        """Reads a `shards` message of a trainer whose versions are in `home`; raises ValueError with one line."""
        name = message.get("name")
        found = FOLDER.fullmatch(name) if isinstance(name, str) else None
        if found is None:
            raise ValueError(f"{str(name)[:200]!r} is no name of a checkpoint version")
        numbers = [message.get(key) for key in ("step", "samples", "rank", "size")]
        if not all(type(number) is int and 0 <= number < 10**18 for number in numbers):
            raise ValueError(f"{name}: step, samples, rank and size are whole numbers")
        step, samples, rank, size = (int(str(number)) for number in numbers)
        if int(found[1]) != step or not rank < size <= _SIZE_MOST:
            raise ValueError(f"{name} is not the name of step {step}, or rank {rank} is not one of {size}")
        if message.get("path") != f"{home}/{name}":
            raise ValueError(f"{name} is not in {home}")
        try:
            shards = shards_of(message.get("files"))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        if rank == 0 and METADATA not in {shard.file for shard in shards}:
            raise ValueError(f"{name}: rank 0 has written no {METADATA}")
        return cls(CheckpointVersion(str(name), home, step, samples, size, shards), rank)


@dataclass
class _Open:
    """A version that is being reported; ranks have to agree on `shape`, None while they only reported failures."""

    shape: CheckpointVersion | None = None
    ranks: dict[int, tuple[VersionFile, ...]] = field(default_factory=dict)
    told: dict[Hashable, None] = field(default_factory=dict)
    """The workers that have reported their part, or that they could not write it."""

    failed: bool = False

    def objection(self, worker: Hashable, told: RankReport) -> str:
        """Returns why a rank's part contradicts the others, "" if it does not."""
        if self.shape is not None and self.shape != replace(told.version, shards=()):
            return "its ranks tell of different steps, samples or numbers of ranks"
        if worker in self.told or told.rank in self.ranks:
            return f"rank {told.rank} is told of twice, or by a worker that is another rank"
        known = {shard.file for shards in self.ranks.values() for shard in shards}
        if both := known & {shard.file for shard in told.version.shards}:
            return f"two ranks tell of {min(both)}"
        return ""

    @property
    def all_said(self) -> bool:
        return self.shape is not None and len(self.told) >= self.shape.size


@dataclass(frozen=True)
class Over:
    """A version that has ended: `complete` is the version, None if its files are to be removed.

    `told` are the workers that had a part in it; `why` is the fault in their reports, "" for none.
    """

    name: str
    told: tuple[Hashable, ...]
    complete: CheckpointVersion | None = None
    why: str = ""


class Completeness:
    """One trainer's checkpoint versions; workers may be any distinguishable objects."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._over: OrderedDict[str, None] = OrderedDict()

    def heard(self, worker: Hashable, told: RankReport) -> Over | None:
        """Takes one rank's part; returns the version once it has ended.

        Raises ValueError for a version that has ended already, and for one more than _OPEN_MOST.
        """
        name = told.version.name
        one = self._opened(name)
        if why := one.objection(worker, told):
            one.failed = True
            one.told[worker] = None
            return self._ended(name, f"{name}: {why}")
        one.shape = replace(told.version, shards=())
        one.told[worker] = None
        one.ranks[told.rank] = told.version.shards
        return self._ended(name) if one.all_said else None

    def unwritten(self, worker: Hashable, name: object) -> Over | None:
        """Notes that a rank could not write its part; returns the version once nobody writes it any more.

        Raises ValueError as `heard` does, and for a name that is no version's.
        """
        if not isinstance(name, str) or not FOLDER.fullmatch(name):
            raise ValueError(f"{str(name)[:200]!r} is no name of a checkpoint version")
        one = self._opened(name)
        one.failed = True
        one.told[worker] = None
        return self._ended(name) if one.all_said else None

    def gone(self, present: Collection[Hashable]) -> list[Over]:
        """Notes that a worker has gone; returns the versions that the `present` workers can no longer complete."""
        there = set(present)
        doomed = []
        for name, one in self._open.items():
            left = len(there - set(one.told))
            if left == 0 or (one.shape is not None and len(one.told) + left < one.shape.size):
                doomed.append(name)
        return [self._ended(name) for name in doomed]

    def superseded(self, step: int) -> list[Over]:
        """Ends and returns the versions of lower steps, which need no completion as one of `step` is complete."""
        older = [name for name in self._open if int(name.split("-")[1]) < step]
        return [self._ended(name) for name in older]

    @property
    def names(self) -> frozenset[str]:
        """The versions that are being reported."""
        return frozenset(self._open)

    def _opened(self, name: str) -> _Open:
        if name in self._over:
            raise ValueError(f"{name} has come to its end already")
        if name not in self._open:
            if len(self._open) >= _OPEN_MOST:
                raise ValueError(f"{name}: {_OPEN_MOST} checkpoint versions are being written already")
            self._open[name] = _Open()
        return self._open[name]

    def _ended(self, name: str, why: str = "") -> Over:
        one = self._open.pop(name)
        self._over[name] = None
        if len(self._over) > _OVER_MOST:
            self._over.popitem(last=False)
        whole = None
        if one.shape is not None and not one.failed and len(one.ranks) == one.shape.size:
            shards = tuple(shard for rank in sorted(one.ranks) for shard in one.ranks[rank])
            whole = replace(one.shape, shards=shards)
        return Over(name, tuple(one.told), whole, why)
