"""Nodes by their CPUs, memory and GPUs, in total or free. Pure."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

_GPU = re.compile(r"(?:gres[:/])?gpu(?::(?P<kind>[^:,()]*[^:,()\d][^:,()]*))?(?::(?P<count>\d{1,9}))?(?:\(.*\))?$")
_ANY = ""  # a job that asks for GPUs without a type takes any


@dataclass(frozen=True, slots=True)
class NodeDemand:
    """A job's needs on each of its nodes; `gpus` by type, with "" for any type. No memory stands for all of it."""

    cpus: int = 0
    memory_bytes: int = 0
    gpus: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSize:
    """The resources that one node, given as its bit, has or has free."""

    bit: int
    cpus: int
    memory_bytes: int
    gpus: Mapping[str, int]


class AtLeast:
    """The nodes that have at least some amount of something, looked up in a sorted list."""

    def __init__(self, masks: Mapping[int, int]) -> None:
        """`masks` are the nodes by their exact amounts."""
        self._amounts = sorted(masks)
        self._masks: list[int] = []
        mask = 0
        for amount in reversed(self._amounts):
            mask |= masks[amount]
            self._masks.append(mask)
        self._masks.reverse()

    def __call__(self, amount: int) -> int:
        """Return the nodes with `amount` or more."""
        place = bisect_left(self._amounts, amount)
        return self._masks[place] if place < len(self._masks) else 0

    def of_all(self, among: int) -> int:
        """Return the most that each of some nodes has, 0 if one of them has none."""
        places = range(len(self._masks))
        place = bisect_left(places, True, key=lambda place: bool(among & ~self._masks[place]))
        return self._amounts[place - 1] if place else 0


_NOBODY = AtLeast({})


@dataclass(frozen=True, eq=False, slots=True)
class NodeSizes:
    """The nodes by their amounts of each resource; `by_cpus` lists them by their CPUs, most first."""

    cpus: AtLeast
    memory: AtLeast
    gpus: Mapping[str, AtLeast]
    by_cpus: Sequence[tuple[int, int]] = field(default=())

    @classmethod
    def of(cls, sizes: Iterable[NodeSize]) -> NodeSizes:
        """Build the lookup tables of some nodes."""
        cpus: dict[int, int] = {}
        memory: dict[int, int] = {}
        gpus: dict[str, dict[int, int]] = {}
        for size in sizes:
            bit = size.bit
            cpus[size.cpus] = cpus.get(size.cpus, 0) | bit
            memory[size.memory_bytes] = memory.get(size.memory_bytes, 0) | bit
            if size.gpus:
                for kind, count in {**size.gpus, _ANY: sum(size.gpus.values())}.items():
                    of_kind = gpus.setdefault(kind, {})
                    of_kind[count] = of_kind.get(count, 0) | bit
        by_cpus = sorted(cpus.items(), reverse=True)
        return cls(AtLeast(cpus), AtLeast(memory), {kind: AtLeast(found) for kind, found in gpus.items()}, by_cpus)

    def holding(self, ask: NodeDemand) -> int:
        """Return the nodes that have what a job asks of each; memory does not count if it asks for none."""
        mask = self.cpus(ask.cpus)
        if ask.memory_bytes > 0:
            mask &= self.memory(ask.memory_bytes)
        for kind, count in ask.gpus:
            mask &= self.gpus.get(kind, _NOBODY)(count)
        return mask

    def fewest(self, among: int, cpus: int) -> int | None:
        """Return how many of some nodes it takes at least to have `cpus` CPUs; None if all have too few."""
        taken = 0
        for each, mask in self.by_cpus:
            if cpus <= 0:
                break
            there = (mask & among).bit_count()
            if each <= 0 or not there:
                continue
            some = min(there, -(-cpus // each))
            taken += some
            cpus -= some * each
        return taken if cpus <= 0 else None

    def together(self, among: int, ask: NodeDemand) -> int:
        """Return how many jobs that ask for this much fit on each of some nodes; at least 1."""
        asked = [(ask.cpus, self.cpus), (ask.memory_bytes, self.memory)]
        asked += [(count, self.gpus.get(kind, _NOBODY)) for kind, count in ask.gpus]
        return max(1, min((there.of_all(among) // amount for amount, there in asked if amount > 0), default=1))

    def most_cpus(self, among: int) -> int:
        """Return the CPUs of the largest of some nodes."""
        return next((each for each, mask in self.by_cpus if mask & among), 0)


@lru_cache(maxsize=1 << 10)
def gpus_asked(gres: str) -> tuple[tuple[str, int], ...]:
    """Return the GPUs that a job asks of each node, as Slurm writes it: "gres:gpu:a100:2", "gres/gpu:2", "gpu".

    Other generic resources are ignored: nothing is known of the nodes' share of them.
    """
    found: dict[str, int] = {}
    for entry in re.split(r",(?![^(]*\))", gres):
        if match := _GPU.match(entry.strip()):
            kind = match["kind"] or ""
            found[kind] = found.get(kind, 0) + (int(match["count"]) if match["count"] else 1)
    return tuple(sorted((kind, count) for kind, count in found.items() if count))
