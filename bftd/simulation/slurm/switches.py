"""The choice of nodes by topology/tree: a job on as few leaf switches as possible. Pure.

Nodes of the least weight come first. Where there is a choice, Slurm takes leaf switches one after another: the one with
the fewest free nodes that suffice; if none does, it goes by the switches above them, and by the most free nodes. Once
the job has nodes on a switch, nearer ones that suffice come first. Within a switch it goes from the first node on.
(Read in select/cons_tres of 22.05 and topology/tree of 26.05, for whole nodes below one root switch.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bftd.pool.backfill.model import lowest
from bftd.pool.backfill.node_choice import NodeNeed, for_plan


@dataclass(frozen=True, slots=True)
class Switch:
    """All nodes below a switch, and the place of the switch above it among all switches; None for the root."""

    mask: int
    above: int | None = None


class Tree:
    """The switches of a cluster in the order of topology.conf."""

    def __init__(self, switches: Sequence[Switch]) -> None:
        self._switches = switches
        self._above = [self._path(place) for place in range(len(switches))]
        inner = {one.above for one in switches}
        self._leaves = [place for place in range(len(switches)) if place not in inner]

    def chosen(self, free: int, need: NodeNeed, weights: Iterable[int], *, one_by_order: bool = False) -> int:
        """Return the nodes that Slurm would choose. `free` meets the need."""
        if need.contiguous or (one_by_order and need.count == 1):
            return for_plan(free, need, weights, one_by_order=one_by_order)
        chosen, some = need.required, 0
        for weight in weights:
            some = free & weight & ~chosen
            if chosen.bit_count() + some.bit_count() >= need.count:
                break
            chosen |= some
        begun = [place for place, one in enumerate(self._switches) if one.mask & chosen]
        for place in begun:
            if place in self._leaves:
                chosen = self._extended(chosen, some, place, need.count)
        distances = [sum(self._apart(place, other) for other in begun) for place in range(len(self._switches))]
        counts = [(one.mask & some & ~chosen).bit_count() for one in self._switches]
        left = [place for place in self._leaves if place not in begun and counts[place]]
        while chosen.bit_count() < need.count and left:
            best = left[0]
            for place in left[1:]:
                best = self._better(place, best, need.count - chosen.bit_count(), counts, distances)
            left.remove(best)
            chosen = self._extended(chosen, some, best, need.count)
            counts = [(one.mask & some & ~chosen).bit_count() for one in self._switches]
            distances = [each + self._apart(place, best) for place, each in enumerate(distances)]
        missing = need.count - chosen.bit_count()
        return chosen | lowest(free & ~chosen, missing) if missing > 0 else chosen

    def _extended(self, chosen: int, some: int, place: int, count: int) -> int:
        here = some & self._switches[place].mask & ~chosen
        return chosen | lowest(here, min(here.bit_count(), max(0, count - chosen.bit_count())))

    def _better(self, one: int, best: int, missing: int, counts: Sequence[int], distances: Sequence[int]) -> int:
        nearer = distances[one] - distances[best]
        tighter, fits = self._tighter(one, best, missing, counts)
        return one if (nearer < 0 and fits) or (nearer == 0 and tighter) else best

    def _tighter(self, one: int, other: int, missing: int, counts: Sequence[int]) -> tuple[bool, bool]:
        """Whether a switch is the better fit, and whether it, or the last switch above it looked at, suffices."""
        while True:
            fits, other_fits = counts[one] >= missing, counts[other] >= missing
            if fits and other_fits and counts[one] != counts[other]:
                return counts[one] < counts[other], True
            if fits != other_fits:
                return fits, fits
            above, other_above = self._switches[one].above, self._switches[other].above
            if fits or above is None or other_above is None or above == other_above:
                break
            one, other = above, other_above
        if counts[one] != counts[other]:
            return counts[one] > counts[other], fits
        return len(self._above[one]) > len(self._above[other]), fits

    def _path(self, place: int) -> list[int]:
        path: list[int] = []
        above = self._switches[place].above
        while above is not None and above not in path:
            path.append(above)
            above = self._switches[above].above
        return path

    def _apart(self, one: int, other: int) -> int:
        """Count the links between two switches."""
        up, down = [one, *self._above[one]], [other, *self._above[other]]
        common = next(place for place in up if place in down)
        return up.index(common) + down.index(common)
