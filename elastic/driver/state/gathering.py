"""Which generations are complete: what each rank says of its shards is put together here. Pure.

A generation is complete when each of its ranks has told its files once, all of the same step, samples, number of ranks
and folder, and rank 0's hold DCP's `.metadata`. It never gets complete once a rank could not write, has contradicted
the others, or when too few workers are left that could tell the rest. A name is used once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from elastic.driver.state.manifest import FOLDER, Generation, Shard, shards_of

METADATA = ".metadata"

_OPEN_MOST = 8
"""Workers save one at a time; who begins more is wrong, and must not fill the driver's memory."""

_OVER_MOST = 256
"""Names of generations that have come to their end are remembered: a late word of one begins none anew."""

_SIZE_MOST = 1 << 20


@dataclass(frozen=True)
class Told:
    """What one rank says of its part of a generation."""

    generation: Generation
    rank: int

    @classmethod
    def parse(cls, message: Mapping[str, Any], home: str) -> Told:
        """Reads a `shards` message of a trainer whose generations are in `home`; raises ValueError with one line."""
        name = message.get("name")
        found = FOLDER.fullmatch(name) if isinstance(name, str) else None
        if found is None:
            raise ValueError(f"{str(name)[:200]!r} is no name of a generation")
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
        return cls(Generation(str(name), home, step, samples, size, shards), rank)


@dataclass
class _Open:
    """A generation that is being told; `shape` is what all ranks have to agree on, None while one only could not."""

    shape: Generation | None = None
    ranks: dict[int, tuple[Shard, ...]] = field(default_factory=dict)
    told: dict[Hashable, None] = field(default_factory=dict)
    """Who has said its part, also that it could not write it."""

    failed: bool = False

    def objection(self, worker: Hashable, told: Told) -> str:
        """Why a rank's part cannot belong to the others', "" where it may."""
        if self.shape is not None and self.shape != replace(told.generation, shards=()):
            return "its ranks tell of different steps, samples or numbers of ranks"
        if worker in self.told or told.rank in self.ranks:
            return f"rank {told.rank} is told of twice, or by a worker that is another rank"
        known = {shard.file for shards in self.ranks.values() for shard in shards}
        if both := known & {shard.file for shard in told.generation.shards}:
            return f"two ranks tell of {min(both)}"
        return ""

    @property
    def all_said(self) -> bool:
        return self.shape is not None and len(self.told) >= self.shape.size


@dataclass(frozen=True)
class Over:
    """A generation has come to its end: `complete` is what it is, None for one whose files are to go.

    `told` are the workers that had a part in it; `why` is what was wrong with what they told, "" where nothing was.
    """

    name: str
    told: tuple[Hashable, ...]
    complete: Generation | None = None
    why: str = ""


class Gathering:
    """One trainer's; workers are anything that can be told apart."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._over: OrderedDict[str, None] = OrderedDict()

    def heard(self, worker: Hashable, told: Told) -> Over | None:
        """Takes one rank's part; returns the generation once it is at its end.

        Raises ValueError for one that is at its end already.
        """
        name = told.generation.name
        one = self._opened(name)
        if why := one.objection(worker, told):
            one.failed = True
            one.told[worker] = None
            return self._ended(name, f"{name}: {why}")
        one.shape = replace(told.generation, shards=())
        one.told[worker] = None
        one.ranks[told.rank] = told.generation.shards
        return self._ended(name) if one.all_said else None

    def unwritten(self, worker: Hashable, name: object) -> Over | None:
        """A rank could not write its part; returns the generation once nobody writes it any more.

        Raises ValueError for one that is at its end already.
        """
        if not isinstance(name, str) or not FOLDER.fullmatch(name):
            raise ValueError(f"{str(name)[:200]!r} is no name of a generation")
        one = self._opened(name)
        one.failed = True
        one.told[worker] = None
        return self._ended(name) if one.all_said else None

    def gone(self, present: Collection[Hashable]) -> list[Over]:
        """Some worker has gone, and those are left: the generations that nobody can complete any more."""
        there = set(present)
        doomed = []
        for name, one in self._open.items():
            left = len(there - set(one.told))
            if left == 0 or (one.shape is not None and len(one.told) + left < one.shape.size):
                doomed.append(name)
        return [self._ended(name) for name in doomed]

    def superseded(self, step: int) -> list[Over]:
        """A generation of `step` is complete: those of lower ones, which nobody needs to complete any more."""
        older = [name for name in self._open if int(name.split("-")[1]) < step]
        return [self._ended(name) for name in older]

    @property
    def names(self) -> frozenset[str]:
        """The generations that are being told."""
        return frozenset(self._open)

    def _opened(self, name: str) -> _Open:
        if name in self._over:
            raise ValueError(f"{name} has come to its end already")
        if name not in self._open:
            if len(self._open) >= _OPEN_MOST:
                raise ValueError(f"{name}: {_OPEN_MOST} generations are being written already")
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
