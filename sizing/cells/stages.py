"""Cuts a model into pipeline stages and gives each a number of GPUs (Crius, section 4.2, figure 7).

The paper maps GPUs to operators by their share of the FLOPs, cuts where the fewest bytes are sent on, and rounds each
stage's GPUs to a power of two. That alone fails for a network that narrows (ResNet): its smallest cuts all lie at the
end, and one stage would have nearly all the work. So balance comes first, as a bound:

1. L* is the least load of the slowest stage, in FLOPs per GPU, over all cuts. All stages have equally many GPUs, unless
   the slowest then has more than `SLACK` times the load that it can have if some stages have half or twice as many; in
   that case they may.
2. Among all cuts whose slowest stage has at most `SLACK` L*, take those that send the fewest bytes in total;
3. among these, take the cut whose slowest stage has the least load.

In a transformer all cuts of the residual stream send the same, so 3. decides; in a ResNet 2. does, within the bound.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sizing.base.errors import UsageError
from sizing.cells.cell import Cell, Stage
from sizing.model.graph import Graph

SLACK = 6 / 5
"""The factor by which a pipeline may be slower than the best balance in order to have smaller cuts."""

_SLACK = (6, 5)  # the same as a fraction of whole numbers
_EVEN: tuple[int, ...] = (2,)
_UNEVEN: tuple[int, ...] = (2, 1, 4)  # GPUs of a stage in halves of the even share
_UNITS = 4
_LARGEST = 2**58  # the limit for FLOPs in int64, which lets them be multiplied
_MOST_SENT = 2**55
_NEVER = np.int64(2**62)


def cells(graph: Graph, gpus: int, gpu_type: str, stage_counts: Iterable[int] | None = None) -> tuple[Cell, ...]:
    """Return the cells of `gpus` GPUs of a type: one for each count of stages, by default 1, 2, 4, ... up to `gpus`.

    Default counts with more stages than the graph can be cut into are left out. Raises UsageError if a given count is
    too large for the graph, is not a power of two, or is larger than the number of GPUs.
    """
    counts = stage_counts_of(graph, gpus) if stage_counts is None else tuple(dict.fromkeys(stage_counts))
    return tuple(Cell(gpu_type, stages(graph, gpus, count)) for count in counts)


def stage_counts_of(graph: Graph, gpus: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... up to the number of GPUs and of stages that the graph can be cut into."""
    refuse_gpus(gpus)
    most = min(gpus, len(_places(graph).flops) - 1)
    return tuple(2**power for power in range(most.bit_length()))


def refuse_gpus(gpus: int) -> None:
    """Raise UsageError for a number of GPUs that is not a power of two."""
    if gpus < 1 or gpus & (gpus - 1):
        below = 2 ** (gpus.bit_length() - 1) if gpus > 0 else 0
        near = f"{below} or {2 * below}" if below else "1 or more"
        raise UsageError(f"{gpus} GPUs: a cell has 1, 2, 4, 8, ...; take {near}")


def stages(graph: Graph, gpus: int, n_stages: int) -> tuple[Stage, ...]:
    """Cut the graph into `n_stages` stages on `gpus` GPUs in total; each stage has a power of two of them.

    Every stage has some FLOPs. Raises UsageError if the number of GPUs or stages is not a power of two, or if there are
    more stages than GPUs or than the graph can be cut into.
    """
    refuse_gpus(gpus)
    if n_stages < 1 or n_stages & (n_stages - 1):
        raise UsageError(f"{n_stages} stages: a cell has 1, 2, 4, 8, ...")
    if n_stages > gpus:
        raise UsageError(f"{n_stages} stages on {gpus} GPUs: each stage needs one; at most {gpus}")
    places = _places(graph)
    most = len(places.flops) - 1
    if n_stages > most:
        raise UsageError(
            f"{graph.model} cannot be cut into {n_stages} stages: {len(graph.operators)} operators, of which "
            f"{most} have work to do; at most {2 ** (most.bit_length() - 1)}"
        )
    halves, ends = _cut(places, n_stages, gpus > n_stages)
    begins = [0, *(end + 1 for end in ends[:-1])]
    before = graph.flops_before
    return tuple(
        Stage(
            first=first,
            last=last,
            gpus=half * gpus // (2 * n_stages),
            flops=before[last + 1] - before[first],
            across_bytes=0 if last == len(graph.operators) - 1 else graph.operators[last].across_bytes,
            parameters=sum(each.parameters for each in graph.operators[first : last + 1]),
        )
        for first, last, half in zip(begins, ends, halves, strict=True)
    )


@dataclass(frozen=True)
class _Places:
    """The possible cuts: after operator `after[i]`, with `flops[i]` before the cut and `sent[i]` bytes over it.

    The first place is the beginning and the last is the end; neither sends anything.
    """

    after: list[int]
    flops: list[int]
    sent: list[int]


def _places(graph: Graph) -> _Places:
    """Return the possible cuts; of places with equal FLOPs before them, only the first that sends the least is kept."""
    total = graph.flops
    if not total:
        raise UsageError(f"{graph.model} has no operator with floating point operations, so it cannot be cut by them")
    best: dict[int, tuple[int, int]] = {}
    for at, each in enumerate(graph.operators):
        before = graph.flops_before[at + 1]
        if 0 < before < total and (before not in best or each.across_bytes < best[before][0]):
            best[before] = (each.across_bytes, at)
    ordered = sorted(best)
    return _Places(
        after=[-1, *(best[flops][1] for flops in ordered), len(graph.operators) - 1],
        flops=[0, *ordered, total],
        sent=[0, *(best[flops][0] for flops in ordered), 0],
    )


def _cut(places: _Places, n_stages: int, uneven: bool) -> tuple[list[int], list[int]]:
    """Return each stage's GPUs, in halves of the even share, and its last operator."""
    shift = max(0, places.flops[-1].bit_length() - _LARGEST.bit_length())
    flops = [each >> shift for each in places.flops]
    load, shares = _least_even(flops, n_stages), _EVEN
    if uneven:
        other = _least_uneven(flops, n_stages, (load * _SLACK[1] - 1) // _SLACK[0])
        if other is not None:
            load, shares = other, _UNEVEN
    cutter = _Cutter(flops, places.sent, n_stages, shares)
    high = load * _SLACK[0] // _SLACK[1]
    best = cutter.cut(high)
    low, high = load, best.load
    while low < high:
        middle = (low + high) // 2
        found = cutter.cut(middle)
        if found.sent == best.sent:
            best, high = found, found.load
        else:
            low = middle + 1
    return best.halves, [places.after[end] for end in best.ends]


def _least(fits: Callable[[int], bool], low: int, high: int) -> int:
    """Return the least number from `low` to `high` that fits, given that `high` fits."""
    while low < high:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _least_even(flops: Sequence[int], n_stages: int) -> int:
    """Return the least load of the slowest stage if all have equally many GPUs: 4 x FLOPs / GPUs in halves."""
    end = len(flops) - 1

    def fits(load: int) -> bool:
        at = 0
        for left in reversed(range(n_stages)):  # each goes as far as it can, but leaves a place for each later one
            to = min(end - left, bisect_right(flops, flops[at] + load * _EVEN[0] // _UNITS) - 1)
            if to == at:
                return False
            at = to
        return at == end

    return _least(fits, 0, flops[-1] * _UNITS)


def _least_uneven(flops: Sequence[int], n_stages: int, most: int) -> int | None:
    """Return the same load if stages may also have half or twice as many GPUs; None if it is more than `most`."""
    places, index = np.array(flops, dtype=np.int64), np.arange(len(flops))
    ideal, whole = -(-flops[-1] * _UNITS // (2 * n_stages)), 2 * n_stages

    def fits(load: int) -> bool:
        begins = _begins(places, load, _UNEVEN)
        # By the number of GPUs used so far: the places where stages can end. Going as far as possible is not always
        # best here, because a stage with few GPUs may need a small operator that an earlier stage would take.
        reached = {0: index == 0}
        for left in reversed(range(n_stages)):
            ways: dict[int, Any] = {}
            for used, ends in reached.items():
                count = np.concatenate(([0], np.cumsum(ends)))
                for share in _UNEVEN:
                    now = used + share
                    if _can_use(whole - now, left, _UNEVEN):
                        there = count[index] > count[begins[share]]
                        ways[now] = ways[now] | there if now in ways else there
            reached = {used: ends for used, ends in ways.items() if ends.any()}
        return whole in reached and bool(reached[whole][-1])

    return _least(fits, ideal, most) if ideal <= most and fits(most) else None


def _begins(places: Any, load: int, shares: Sequence[int]) -> dict[int, Any]:
    """Return, by a stage's share: for each place the first place from which a stage of at most that load reaches it."""
    return {share: np.searchsorted(places, places - load * share // _UNITS, side="left") for share in shares}


def _can_use(halves: int, stages_left: int, shares: Sequence[int]) -> bool:
    return stages_left * min(shares) <= halves <= stages_left * max(shares)


@dataclass(frozen=True)
class _Found:
    """A cut: the total bytes sent, the slowest stage's load, and GPUs and last places by stage."""

    sent: int
    load: int
    halves: list[int]
    ends: list[int]


class _Cutter:
    """A search for the cuts of least bytes under a bound of the load: dynamic programming over stages, GPUs, places."""

    def __init__(self, flops: Sequence[int], sent: Sequence[int], n_stages: int, shares: Sequence[int]) -> None:
        self.flops = np.array(flops, dtype=np.int64)
        self.sent = np.minimum(np.array(sent, dtype=np.int64), _MOST_SENT)
        self.n_stages, self.shares = n_stages, shares
        self.index = np.arange(len(flops), dtype=np.int64)

    def cut(self, load: int) -> _Found:
        """Return the cuts; some exist, because `load` is at least the least possible one."""
        begins = _begins(self.flops, load, self.shares)
        whole = 2 * self.n_stages
        start = np.full(len(self.flops), _NEVER, dtype=np.int64)
        start[0] = 0
        tables: list[dict[int, Any]] = [{0: start}]
        for stage in range(1, self.n_stages + 1):
            left = self.n_stages - stage
            reached: dict[int, Any] = {}
            for used, costs in tables[-1].items():
                minima = _Minima(costs)
                for share in self.shares:
                    now = used + share
                    if _can_use(whole - now, left, self.shares):
                        best = minima.over(begins[share], self.index)
                        reached[now] = best if now not in reached else np.minimum(reached[now], best)
            tables.append({used: np.where(best < _NEVER, best + self.sent, _NEVER) for used, best in reached.items()})
        return self._walked(tables, begins)

    def _walked(self, tables: list[dict[int, Any]], begins: dict[int, Any]) -> _Found:
        """Trace the cuts with the least bytes back from the end."""
        at, used = len(self.flops) - 1, 2 * self.n_stages
        total, load, halves, ends = int(tables[-1][used][at]), 0, [], []
        for stage in range(self.n_stages, 0, -1):
            wanted = tables[stage][used][at] - self.sent[at]
            for share in self.shares:
                costs = tables[stage - 1].get(used - share)
                if costs is None:
                    continue
                begin = int(begins[share][at])
                hits = np.flatnonzero(costs[begin:at] == wanted)
                if len(hits):
                    break
            # of equally good places, the one that divides the work before it most evenly
            even = int(self.flops[at]) * (used - share) // max(used, 1)
            came = begin + int(hits[np.argmin(np.abs(self.flops[begin + hits] - even))])
            load = max(load, -(-int(self.flops[at] - self.flops[came]) * _UNITS // share))
            halves.append(share)
            ends.append(at)
            at, used = came, used - share
        return _Found(total, load, halves[::-1], ends[::-1])


class _Minima:
    """The minimum of any range of a row, from the minima of all ranges of length 1, 2, 4, ... (a sparse table)."""

    def __init__(self, row: Any) -> None:
        self.levels = [row]
        width = 1
        while 2 * width <= len(row):
            last = self.levels[-1]
            longer = last.copy()
            longer[: len(row) - width] = np.minimum(last[: len(row) - width], last[width:])
            self.levels.append(longer)
            width *= 2
        self.table = np.stack(self.levels)

    def over(self, begins: Any, ends: Any) -> Any:
        """Return, for each i, the minimum from begins[i] to ends[i] (exclusive); `_NEVER` for an empty range."""
        lengths = ends - begins
        powers = np.maximum(np.frexp(np.maximum(lengths, 1))[1] - 1, 0)
        right = np.maximum(ends - (1 << powers), 0)
        least = np.minimum(self.table[powers, np.minimum(begins, len(ends) - 1)], self.table[powers, right])
        return np.where(lengths > 0, least, _NEVER)
