"""Finds the best combination of the stages' sampled splits, without enumerating all k^stages of them.

Stages depend on each other through the slowest one, the transfers between neighbours, and tails that hide behind other
stages. So for each possible time of the slowest stage, in rising order, the search minimises the rest from the last
stage to the first. For each split it keeps the ways that no other beats in all of (time, tail, transfer onward). It
ends when a slower slowest stage can no longer help. The result is exact: the same as by enumeration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sizing.cells.pipeline_time import Hiding, StageTimes, iteration_s, pace_s, tail_s

Transfer = Callable[[int, int, int], float]
"""(stage, option of the stage before it, its own option) -> seconds of a micro-batch's transfer, both directions."""

_SLACK = 1 + 1e-12
"""A tolerance, so that rounding of sums does not exclude the plan that a limit comes from."""


@dataclass(frozen=True, slots=True)
class _Way:
    """A choice of options from a stage to the last: seconds of all passes, of the tail, and of the transfer onward.

    `onward_s` is the transfer from the first of these stages to the next.
    """

    passes_s: float
    tail_s: float
    onward_s: float
    options: tuple[int, ...]

    def beats(self, other: _Way) -> bool:
        """Whether it is at least as good in all three times."""
        return self.passes_s <= other.passes_s and self.tail_s <= other.tail_s and self.onward_s <= other.onward_s


def best(
    options: Sequence[Sequence[StageTimes]], transfer: Transfer, micro_batches: int, hiding: Hiding
) -> tuple[int, ...]:
    """Return the option of each stage in the fastest plan; the options' own `transfer_s` are ignored."""
    found: tuple[float, tuple[int, ...]] | None = None
    free = _quickest(options, transfer, hiding, float("inf"))
    assert free is not None
    least_s = free.passes_s + free.tail_s
    for limit_s in _limits(options, transfer, hiding):
        if found is not None and least_s + (micro_batches - 1) * limit_s >= found[0]:
            break
        way = _quickest(options, transfer, hiding, limit_s)
        if way is not None:
            took_s = iteration_s(timed(options, transfer, way.options), micro_batches, hiding)
            found = min(found or (took_s, way.options), (took_s, way.options))
    return found[1] if found is not None else free.options


def timed(options: Sequence[Sequence[StageTimes]], transfer: Transfer, chosen: Sequence[int]) -> tuple[StageTimes, ...]:
    """Return the stages of one plan, with the transfers between them."""
    return tuple(
        replace(of_stage[own], transfer_s=transfer(stage, chosen[stage - 1], own) if stage else 0.0)
        for stage, (of_stage, own) in enumerate(zip(options, chosen, strict=True))
    )


def _limits(options: Sequence[Sequence[StageTimes]], transfer: Transfer, hiding: Hiding) -> list[float]:
    """Return all possible times of a plan's slowest stage, sorted."""
    found = set()
    for stage, of_stage in enumerate(options):
        for own, times in enumerate(of_stage):
            into = [transfer(stage, before, own) for before in range(len(options[stage - 1]))] if stage else [0.0]
            last = stage == len(options) - 1
            onward = [0.0] if last else [transfer(stage + 1, own, after) for after in range(len(options[stage + 1]))]
            for into_s in into:
                for onward_s in onward:
                    found.add(pace_s(replace(times, transfer_s=into_s), onward_s, hiding))
    return sorted(found)


def _quickest(
    options: Sequence[Sequence[StageTimes]], transfer: Transfer, hiding: Hiding, limit_s: float
) -> _Way | None:
    """Return the way of least passes and tail with no stage slower than the limit, or None if there is none."""
    last = len(options) - 1
    ways: list[list[_Way]] = [
        [_Way(0.0, tail_s(times, 0.0, hiding), 0.0, (own,))] for own, times in enumerate(options[last])
    ]
    for stage in range(last, 0, -1):
        before: list[list[_Way]] = []
        for other, of_other in enumerate(options[stage - 1]):
            fresh = []
            for own, times in enumerate(options[stage]):
                into_s = transfer(stage, other, own)
                here = replace(times, transfer_s=into_s)
                for way in ways[own]:
                    if pace_s(here, way.onward_s, hiding) <= limit_s * _SLACK:
                        passes_s = way.passes_s + here.work_s + into_s
                        ends_s = tail_s(of_other, way.tail_s, hiding)
                        fresh.append(_Way(passes_s, ends_s, into_s, (other, *way.options)))
            before.append(_unbeaten(fresh))
        ways = before
    ends = [
        replace(way, passes_s=way.passes_s + times.work_s)
        for times, of_stage in zip(options[0], ways, strict=True)
        for way in of_stage
        if pace_s(times, way.onward_s, hiding) <= limit_s * _SLACK
    ]
    return min(ends, key=lambda way: (way.passes_s + way.tail_s, way.options), default=None)


def _unbeaten(ways: Sequence[_Way]) -> list[_Way]:
    kept: list[_Way] = []
    for way in sorted(ways, key=lambda each: (each.passes_s, each.tail_s, each.onward_s, each.options)):
        if not any(other.beats(way) for other in kept):
            kept.append(way)
    return kept
