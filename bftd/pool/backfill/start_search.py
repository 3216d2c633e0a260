"""The time and nodes at which one job may start: the part of Slurm's planner that looks ahead.

Nodes reserved for others are checked with both ends of the job's time included, so a job never starts where its limit
ends just as a plan begins. A plan itself is reserved in whole steps of bf_resolution, at least one, and may begin where
another one ends. The ends of Slurm's reservations count up to the next step, and a second.

Releases differ, as recorded clusters show: 22.05 rounds both ends of a plan down; 24.11 rounds the end up, takes nodes
of jobs that end before the time in question for free, and looks at the ends of jobs only until the next time in
question. 26.05 chooses the node of a job of one node otherwise (`node_choice`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf, isfinite

from bftd.pool.backfill.job_ends import JobEnds
from bftd.pool.backfill.model import Booking, Component, JobEnd
from bftd.pool.backfill.node_choice import NodeNeed, for_plan
from bftd.pool.backfill.timeline import Timeline
from slurm_plugin.read.types import Scheduler

_DEFAULTS = Scheduler()
_MINUTE_S = 60.0
# The work of looking at one time, of finding when enough nodes are free, and of choosing among nodes, in slots.
_TRY_WORK = 30
_FIND_WORK = 250
_CHOICE_WORK = 400


@dataclass(frozen=True, slots=True)
class Spot:
    """A time at which a part may start, and the nodes that are free for it then."""

    start_s: float
    free: int


@dataclass(slots=True)
class Calendar:
    """The future: plans (`space`), reservations (`booked`, and when they end: `freed`), and the ends of jobs.

    `work` counts the slots that were looked at.
    """

    now_s: float
    everything: int
    ends: JobEnds
    space: Timeline
    booked: Timeline
    freed: Sequence[float]
    weights: Sequence[int]
    step_s: float
    window_s: float
    newer: bool = False
    by_chosen_ends: bool = False
    one_by_order: bool = False
    choice: Callable[[int, NodeNeed], int] | None = None
    work: int = field(default=0)

    @classmethod
    def of(
        cls,
        now_s: float,
        everything: int,
        ready: int,
        ends: Iterable[JobEnd],
        bookings: Sequence[Booking],
        scheduler: Scheduler,
        weights: Sequence[int],
        choice: Callable[[int, NodeNeed], int] | None = None,
    ) -> Calendar:
        """Return the calendar before anything is planned. Slurm's defaults replace invalid steps and windows.

        `choice` chooses the nodes of plans, in place of that of clusters without a topology.
        """
        step_s = _time(scheduler.resolution_s, _DEFAULTS.resolution_s)
        used = everything & ~ready
        booked = Timeline(now_s, everything)
        freed = []
        for booking in bookings:
            if booking.end_s > now_s:
                booked.take(booking.mask & everything, booking.start_s, booking.end_s)
                if isfinite(booking.end_s):
                    freed.append(ceil(booking.end_s / step_s) * step_s + 1.0)
        return cls(
            now_s=now_s,
            everything=everything,
            ends=JobEnds(
                ready, (replace(end, mask=end.mask & used) if end.mask & ~used else end for end in ends), now_s
            ),
            space=Timeline(now_s, everything),
            booked=booked,
            freed=sorted(freed),
            weights=weights,
            step_s=step_s,
            window_s=_time(scheduler.window_s, _DEFAULTS.window_s),
            newer=scheduler.newer,
            by_chosen_ends=scheduler.by_chosen_ends,
            one_by_order=scheduler.one_by_order,
            choice=choice,
        )

    def steps(self, start_s: float, limit_s: float) -> tuple[float, float]:
        """Return from when to when a plan is reserved. A plan that reaches beyond bf_window is reserved for ever."""
        begin_s = start_s // self.step_s * self.step_s
        end_s = start_s + limit_s
        if end_s >= self.now_s + self.window_s:
            return begin_s, inf
        steps = ceil(end_s / self.step_s) if self.newer else end_s // self.step_s
        return begin_s, max(steps * self.step_s, begin_s + self.step_s)

    def reserve(self, mask: int, start_s: float, limit_s: float) -> None:
        """Reserve nodes for a plan, if it begins within bf_window."""
        if start_s <= self.now_s + self.window_s:
            begin_s, end_s = self.steps(start_s, limit_s)
            self.space.take(mask & self.everything, begin_s, end_s)
            self.work += len(self.space.begins)

    def planned(self, free: int, need: NodeNeed) -> int:
        """Return the nodes that Slurm would plan a part on."""
        self.work += _CHOICE_WORK
        return self.chosen(free, need) if self.choice is None else self.choice(free, need)

    def chosen(self, free: int, need: NodeNeed, first: int = 0) -> int:
        """Return the nodes that Slurm would choose without a topology, after as many of the `first` as there are."""
        return for_plan(free, need, self.weights, first, one_by_order=self.one_by_order)

    def longest(self, mask: int, least_s: float, limit_s: float) -> float:
        """Return how long a job that starts now may run: its limit, or whole minutes until its nodes are reserved."""
        if not least_s < limit_s:
            return limit_s
        end_s = self.now_s + limit_s
        taken_s = min(self.space.until(mask, end_s), self.booked.until(mask, end_s))
        if taken_s >= end_s:
            return limit_s
        return max(least_s, (taken_s - self.now_s) // _MINUTE_S * _MINUTE_S)


def need_of(part: Component) -> NodeNeed:
    """Return the need of a part: one node at least, and as many as it requires by name."""
    return NodeNeed(max(1, part.need, part.required.bit_count()), part.required, part.contiguous)


def place_now(calendar: Calendar, part: Component, limit_s: float, extra: int, taken: int) -> Spot | None:
    """Return where a part may start now; None if it cannot.

    `extra` are nodes in use that count as ready for it, `taken` nodes that it cannot have.
    """
    need = need_of(part)
    mask = part.allowed & (calendar.ends.ready | extra) & ~taken
    if mask.bit_count() < need.count or need.required & ~mask:
        return None
    end_s = calendar.now_s + limit_s
    slots = calendar.space.slots(calendar.now_s, end_s)
    calendar.work += slots[1]
    mask = calendar.space.free(mask, slots)
    mask = calendar.booked.free(mask, calendar.booked.slots(calendar.now_s, end_s))
    for kind in part.either or (-1,):
        if need.met(mask & kind):
            return Spot(calendar.now_s, mask & kind)
    return None


def place(calendar: Calendar, part: Component, limit_s: float, begin_s: float, extra: int) -> Spot | None:
    """Return when and where a part may start, from `begin_s` on, by Slurm's rules; None if it gets no plan.

    `extra` are nodes in use that count as ready for it.
    """
    need = need_of(part)
    allowed = part.allowed & calendar.everything
    if allowed.bit_count() < need.count or need.required & ~allowed:
        return None
    earliest_s = calendar.ends.earliest(allowed, extra, need.met)
    if earliest_s == inf:
        return None
    later_s: float | None = begin_s
    while later_s is not None and later_s <= calendar.now_s + calendar.window_s:
        begin_s = later_s
        spot, later_s = _try(calendar, part, need, allowed, extra, limit_s, begin_s, earliest_s)
        if spot is not None:
            return spot
    return None


def _try(
    calendar: Calendar,
    part: Component,
    need: NodeNeed,
    allowed: int,
    extra: int,
    limit_s: float,
    begin_s: float,
    earliest_s: float,
) -> tuple[Spot | None, float | None]:
    """Look as Slurm does at nodes without a plan from `begin_s` for `limit_s`; else return when to look next."""
    space, booked = calendar.space, calendar.booked
    slots = space.slots(begin_s, begin_s + limit_s)
    later_s = space.grown(part.within, slots)
    calendar.work += _TRY_WORK
    held = booked.slots(begin_s, begin_s + limit_s)
    hindered = len(booked.begins) > 1 and booked.free(allowed, held) != allowed
    by_s = -inf if later_s is None or hindered else max(later_s, calendar.now_s + 1.0)
    # a start after the next look need not be found here
    if by_s < earliest_s and by_s > -inf:
        return None, later_s
    if by_s > -inf and not need.met(calendar.ends.by(allowed & space.sample(slots), extra, by_s)):
        return None, later_s
    mask = space.free(allowed, slots)
    calendar.work += slots[1] - slots[0]
    if by_s > -inf and not need.met(calendar.ends.by(mask, extra, by_s)):
        return None, later_s
    if hindered and (free := booked.free(mask, held)) != mask:
        mask = free
        index = bisect_right(calendar.freed, begin_s)
        if index < len(calendar.freed) and (later_s is None or calendar.freed[index] < later_s):
            later_s = calendar.freed[index]
    found = _earliest(calendar, part, need, mask, extra, (begin_s, inf if later_s is None else later_s))
    if found is None:
        return None, later_s
    start_s = max(found.start_s, begin_s)
    if start_s <= calendar.now_s:
        return found, later_s
    if later_s is not None and start_s > later_s:
        return None, later_s
    spot = Spot(start_s, found.free)
    if start_s > calendar.now_s + calendar.window_s:
        return spot, later_s
    chosen = calendar.planned(spot.free, need)
    if not space.leaves(chosen, *calendar.steps(start_s, limit_s)):
        return None, start_s if start_s > begin_s else begin_s + calendar.step_s
    return Spot(start_s, chosen), later_s


def _earliest(
    calendar: Calendar, part: Component, need: NodeNeed, mask: int, extra: int, within_s: tuple[float, float]
) -> Spot | None:
    """Return when and where enough nodes are free, all of one of the part's kinds; the first of equally early kinds."""

    def chosen(free: int) -> int:
        return calendar.planned(free, need)

    best: Spot | None = None
    calendar.work += _FIND_WORK
    rules = (*within_s, chosen if calendar.by_chosen_ends else None) if calendar.newer else ()
    for kind in part.either or (-1,):
        some = mask & kind
        if some.bit_count() < need.count:
            continue
        found = calendar.ends.start(some, extra, need.met, *rules)
        if found is not None and (best is None or found[0] < best.start_s):
            best = Spot(*found)
    return best


def _time(given_s: float, otherwise_s: float) -> float:
    """Return the given time, or the other if it makes no sense."""
    return given_s if isfinite(given_s) and given_s >= 1.0 else otherwise_s
