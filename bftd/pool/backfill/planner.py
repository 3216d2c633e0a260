"""A copy of Slurm's backfill planner over one queue: the jobs it would start now if no pilot were there. Pure.

Slurm goes through the queue once. For each job it asks when enough of its nodes are free: first among those without a
plan of an earlier job for the job's limit from now on, then from the next time on at which nodes of its partition
become free, and so on (`bftd/pool/backfill/start_search.py`). A job that can start now starts; a job that starts later
gets a plan, which the jobs behind it must leave free. Facts about Slurm here and in the neighbouring modules were read
in the sources of its sched/backfill and select/cons_tres, and compared with what 22.05 does.

- A job with a minimal time limit (TimeMin) is placed with that limit. If it starts now, it runs as long as it may, in
  whole minutes, without being in the way of a plan.
- A heterogeneous job starts when all its components can. Until then each has a plan of its own.
- A job in several partitions has an entry for each, which all get plans, until one of them starts.
- Tasks of an array start one after another, as many as can; the first few of the others get plans.
- A job that shares nodes may start on nodes in use where it fits, or beside others of its kind. If our pilot
  has a part of a node, one job per cycle is assumed to fit beside it: more jobs may seem to need an earmark than do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import isfinite

from bftd.pool.backfill.model import (
    Booking,
    Component,
    JobEnd,
    Numbering,
    PlannedStart,
    PlannerOutcome,
    QueueEntry,
    rank,
    union,
)
from bftd.pool.backfill.node_choice import NodeNeed
from bftd.pool.backfill.start_search import Calendar, Spot, need_of, place, place_now
from slurm_plugin.read.types import Scheduler

# Work is counted, not timed, so that the same queue has the same answer: a unit is the work of looking at a slot of
# time, about a tenth of a microsecond for thousands of nodes. Beyond the first bound only jobs that could start now are
# found, beyond the second nothing.
_PLANS_WORK = 800_000
_MOST_WORK = 1_200_000
_ENTRY_WORK = 40
_START_WORK = 200
_MINUTE_S = 60.0
# Parts of nodes are compared with this slack: three thirds are a whole.
_SLACK = 1e-6


def simulate(
    queue: Sequence[QueueEntry],
    numbering: Numbering,
    ready: int,
    ours: int,
    ends: Iterable[JobEnd],
    bookings: Sequence[Booking],
    now_s: float,
    scheduler: Scheduler,
    *,
    kept: Mapping[str, int],
    weights: Sequence[int],
    backed_off: Collection[str],
    choice: Callable[[int, NodeNeed], int] | None = None,
    plan_choice: Callable[[int, NodeNeed], int] | None = None,
    go: Callable[[Walk], None] | None = None,
) -> PlannerOutcome:
    """Say which jobs of a queue, in Slurm's order, could start now, and which nodes they are to have.

    `ready` nodes are free now or as soon as our pilots leave. `ours` are those with a pilot: nodes of `ready`, and
    nodes that regular jobs share with it. Other nodes are in use until one of the `ends`, or for ever. A job keeps the
    nodes that are `kept` for it while they suffice. `weights` are the nodes by ascending weight. For jobs that are
    `backed_off` only the shown plan counts. `choice` chooses among the free nodes that would do for a job that starts,
    `plan_choice` among those for a plan, in place of Slurm's choice where no topology decides. `go` takes the walk
    through the queue as far as it wants, now or later; without it the walk goes to the end. All times are unix seconds.
    """
    everything = (1 << len(numbering.names)) - 1
    ready &= everything
    cycle = _Cycle(
        calendar=Calendar.of(now_s, everything, ready, ends, bookings, scheduler, weights, plan_choice),
        ours=ours & everything,
        kept=kept,
        array_most=scheduler.array_most,
        one_plan_a_job=scheduler.one_plan_a_job,
        choice=choice,
    )
    walk = Walk(queue, cycle, backed_off)
    if go is not None:
        go(walk)
    else:
        while walk.step():
            pass
    return walk.outcome


class Walk:
    """Slurm's walk through a queue, an entry a step: what could start `now`, and what is planned for `later`."""

    def __init__(self, queue: Sequence[QueueEntry], cycle: _Cycle, backed_off: Collection[str]) -> None:
        self.calendar = cycle.calendar
        self.now: Mapping[str, int] = cycle.now
        self.later: Mapping[str, PlannedStart] = cycle.later
        self.looked = 0
        self._queue = queue
        self._cycle = cycle
        self._backed_off = backed_off
        self._planless = 0

    def step(self) -> bool:
        """Consider the next entry. Returns whether there was one that could be looked at."""
        calendar = self.calendar
        if self.looked >= len(self._queue) or calendar.work > _MOST_WORK:
            return False
        entry = self._queue[self.looked]
        self.looked += 1
        calendar.work += _ENTRY_WORK
        plans = calendar.work <= _PLANS_WORK
        self._planless += not plans
        if entry.barred or entry.id in self._backed_off:
            self._cycle.keep_plan(entry)
        else:
            self._cycle.consider(entry, plans)
        return True

    @property
    def outcome(self) -> PlannerOutcome:
        """The result of the walk so far."""
        queued = len(self._queue)
        cut = _cut(self.looked, self._planless, queued, self._cycle.left_tasks)
        return PlannerOutcome(self.now, self.later, self.looked, queued, cut)


def _cut(looked: int, planless: int, queued: int, left_tasks: bool) -> str:
    """Say which part of the queue was not worked out; "" if all was."""
    if looked < queued or left_tasks:
        tasks = ", at not all of their tasks" if left_tasks else ""
        return f"looks at the first {looked} of {queued} waiting jobs{tasks}: more would take too long"
    if planless:
        return (
            f"plans for the first {queued - planless} of {queued} waiting jobs: of those behind, it only sees which "
            "could start now"
        )
    return ""


class _Cycle:
    """One walk through the queue, with the nodes given away so far."""

    def __init__(
        self,
        calendar: Calendar,
        ours: int,
        kept: Mapping[str, int],
        array_most: int,
        one_plan_a_job: bool,
        choice: Callable[[int, NodeNeed], int] | None,
    ) -> None:
        self.calendar = calendar
        self.now: dict[str, int] = {}
        self.later: dict[str, PlannedStart] = {}
        self.left_tasks = False
        self._ours = ours
        self._kept = kept
        self._array_most = array_most
        self._one_plan_a_job = one_plan_a_job
        self._choice = choice
        self._opened = _PartialNodes()
        self._begun: dict[str, int] = {}
        # Nodes with a pilot beside which a job starts, or that leaves its part of them to a job.
        self._joined = 0

    def keep_plan(self, entry: QueueEntry) -> None:
        """Reserve what Slurm shows as planned for a job of which no more is known."""
        if entry.plan_s is not None and entry.plan_s > self.calendar.now_s:
            self.calendar.reserve(entry.plan, entry.plan_s, _limits(entry)[0])

    def consider(self, entry: QueueEntry, plans: bool) -> None:
        """Start a job, or the tasks of an array, or plan it if `plans`."""
        tasks = entry.count - self._begun.get(entry.id, 0)
        least_s, _ = _limits(entry)
        reserves = entry.reserves and not (self._one_plan_a_job and entry.id in self.later)
        planned = 0
        while tasks > 0 and entry.parts:
            if self.calendar.work > _MOST_WORK and self._begun.get(entry.id, 0) + planned:
                self.left_tasks = True
                return
            found = self._now(entry, least_s)
            if found:
                if not self._start(entry, found):
                    self._begun[entry.id] = entry.count  # if this task found nodes without us, so will the others
                    return
                tasks -= 1
                continue
            if not reserves:
                return
            if not plans or not self._plan(entry, least_s):
                self.keep_plan(entry)
                return
            tasks -= 1
            planned += 1
            if planned >= self._array_most:
                return

    def _now(self, entry: QueueEntry, limit_s: float) -> list[tuple[Component, int]]:
        """Return the nodes on which all parts of a job can start now, each on its own; [] if they cannot."""
        found: list[tuple[Component, int]] = []
        taken = 0
        # parts with the least choice come first: Slurm may find a way, and we must not say that there is none
        for part in sorted(entry.parts, key=_choices):
            extra = self._extra(part)
            spot = place_now(self.calendar, part, limit_s, extra, taken)
            if spot is None:
                return []
            nodes = self._chosen(spot, part, extra, self._kept.get(entry.id, 0))
            found.append((part, nodes))
            taken |= nodes
        return found

    def _extra(self, part: Component) -> int:
        """Return the nodes in use that a part fits on, or will fit on once our pilot leaves."""
        some = (part.shared | part.yields) & ~self._joined | self._opened.fitting(part.together)
        return some & self.calendar.everything & ~self.calendar.ends.ready

    def _beside(self, part: Component) -> int:
        """Return the nodes that a part fits on beside our pilot."""
        return part.shared & self._ours & ~self._joined

    def _start(self, entry: QueueEntry, found: Sequence[tuple[Component, int]]) -> bool:
        """Give a job that starts now its nodes. Returns whether that takes anything from the others."""
        calendar = self.calendar
        given, shares = 0, False
        calendar.work += _START_WORK * len(found)
        runs_s = calendar.longest(union(nodes for _, nodes in found), *_limits(entry))
        for part, nodes in found:
            beside, fresh = nodes & self._beside(part), nodes & calendar.ends.ready
            shares |= self._opened.use(nodes & ~fresh, part.together) or bool(beside)
            calendar.ends.ready &= ~fresh
            calendar.ends.add(fresh, calendar.now_s + runs_s, rank(entry.id))
            yielded = nodes & part.yields & ~fresh
            self._joined |= beside | yielded
            fresh &= ~beside
            self._opened.add(fresh, part.together)
            if part.together <= 1:
                # Slurm takes it for a plan as well, so that no other job is considered there before it ends.
                calendar.reserve(fresh, calendar.now_s, runs_s)
            given |= fresh | yielded
        self.now[entry.id] = self.now.get(entry.id, 0) | given
        self._begun[entry.id] = self._begun.get(entry.id, 0) + 1
        return bool(given) or shares

    def _chosen(self, spot: Spot, part: Component, extra: int, kept: int) -> int:
        """Return the nodes of one part that starts now.

        Those in use that it fits on come first, as no node is earmarked there. If those kept for it suffice,
        or idle ones, which Slurm takes, no other pilot has to leave: a choice that followed every change would have
        pilots leave and come back for ever. Else it gets the nodes that Slurm would choose if no pilot were there.
        """
        need = need_of(part)
        if spot.free.bit_count() == need.count:
            return spot.free
        if self._choice is not None:
            return self._choice(spot.free, need)
        in_use = extra & ~(part.yields & ~self.calendar.ends.ready) | self._beside(part)
        some = (spot.free & (kept | in_use), spot.free & (~self._ours | in_use))
        free = next((nodes for nodes in some if need.met(nodes)), spot.free)
        return self.calendar.chosen(free, need, in_use)

    def _plan(self, entry: QueueEntry, limit_s: float) -> bool:
        """Plan a job for later, each part by itself. Returns whether all parts have a plan."""
        calendar = self.calendar
        start_s, nodes = calendar.now_s, 0
        for part in entry.parts:
            spot = place(calendar, part, limit_s, start_s, self._extra(part))
            if spot is None:
                return False
            start_s = spot.start_s
            chosen = calendar.planned(spot.free, need_of(part))
            nodes |= chosen
            if start_s <= calendar.now_s + calendar.window_s:
                calendar.reserve(chosen, start_s, limit_s)
        before = self.later.get(entry.id)
        if before is None or start_s < before.start_s:
            self.later[entry.id] = PlannedStart(start_s, nodes)
        return True


def _choices(part: Component) -> int:
    """Count the nodes that would do for a part."""
    return part.allowed.bit_count()


def _limits(entry: QueueEntry) -> tuple[float, float]:
    """Return the limit that a job is placed with, and the longest that it may run; an invalid limit is a minute."""
    limit_s = entry.limit_s if entry.limit_s > 0.0 else _MINUTE_S
    least_s = entry.least_s if isfinite(entry.least_s) and 0.0 < entry.least_s < limit_s else limit_s
    return least_s, limit_s


class _PartialNodes:
    """Nodes on which a job that shares is to start, by the part of them, from 0 to 1, that its like may still have."""

    def __init__(self) -> None:
        self._left: dict[float, int] = {}

    def fitting(self, together: int) -> int:
        """Return the nodes that one more job fits on, if `together` such jobs fit on a node."""
        found = 0
        if together > 1:
            for left, mask in self._left.items():
                if left + _SLACK >= 1.0 / together:
                    found |= mask
        return found

    def add(self, mask: int, together: int) -> None:
        """Note that nodes that were whole get their first job."""
        if together > 1 and mask:
            self._put(1.0 - 1.0 / together, mask)

    def use(self, mask: int, together: int) -> bool:
        """Note that nodes get one more job. Returns whether any of them was opened here."""
        share = 1.0 / together if together > 1 else 0.0
        before, self._left = self._left, {}
        found = False
        for left, nodes in before.items():
            taken = nodes & mask
            found = found or bool(taken and share)
            self._put(left, nodes & ~taken)
            self._put(left - share, taken)
        return found

    def _put(self, left: float, mask: int) -> None:
        if mask:
            left = round(left, 6)
            self._left[left] = self._left.get(left, 0) | mask
