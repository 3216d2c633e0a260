"""Slurm's planner written down once more, slowly and plainly: no early exits, sets of names instead of masks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf, isfinite

from bftd.pool.backfill.model import Booking, Component, JobEnd, Numbering, QueueEntry, Rank, rank
from slurm_plugin.read.types import Scheduler

Nodes = frozenset[int]


def members(mask: int, count: int) -> Nodes:
    return frozenset(number for number in range(count) if mask >> number & 1)


def enough(free: Nodes, part: Component, count: int) -> bool:
    required = members(part.required, count)
    need = max(1, part.need, len(required))
    if len(free) < need or not required <= free:
        return False
    if not part.contiguous:
        return True
    return bool(windows(free, need, required))


def windows(free: Nodes, need: int, required: Nodes) -> list[Nodes]:
    """All runs of neighbours that would do, the first one first."""
    found = []
    for first in range(max(free) + 1):
        window = frozenset(range(first, first + need))
        if window <= free and required <= window:
            found.append(window)
    return found


def runs(nodes: Nodes) -> list[list[int]]:
    found: list[list[int]] = []
    for number in sorted(nodes):
        if found and found[-1][-1] == number - 1:
            found[-1].append(number)
        else:
            found.append([number])
    return found


def best_fit(nodes: Nodes, need: int) -> Nodes:
    """Node by node as Slurm does: the smallest run that is enough, or the largest one whole, and again."""
    chosen: set[int] = set()
    while len(chosen) < need and nodes - chosen:
        left = need - len(chosen)
        rest = runs(nodes - chosen)
        fits = [run for run in rest if len(run) >= left]
        run = min(fits, key=len) if fits else max(rest, key=len)
        chosen.update(run[:left])
    return frozenset(chosen)


def first_ones(nodes: Nodes, need: int) -> Nodes:
    """What a core that does not mind chooses of leased nodes."""
    return frozenset(sorted(nodes)[:need])


Wish = tuple[Nodes, bool]  # nodes, and whether they are leased


def choose(free: Nodes, part: Component, weights: Sequence[int], count: int) -> Nodes:
    required = members(part.required, count)
    need = max(1, part.need, len(required))
    if part.contiguous:  # up from the first required node, or in the smallest run
        run = min((run for run in runs(free) if len(run) >= need), key=len)
        return windows(free, need, required)[-1] if required else frozenset(run[:need])
    chosen = set(required)
    for weight in (*(members(mask, count) for mask in weights), free):
        left = need - len(chosen)
        if left > 0:
            chosen |= best_fit((free & weight) - chosen, left)
    return frozenset(chosen)


@dataclass
class Slot:
    begin: float
    end: float
    free: Nodes


@dataclass
class Space:
    slots: list[Slot]

    def cut(self, at: float) -> None:
        for index, slot in enumerate(self.slots):
            if slot.begin < at < slot.end:
                self.slots.insert(index + 1, Slot(at, slot.end, slot.free))
                slot.end = at
                return

    def take(self, nodes: Nodes, begin: float, end: float) -> None:
        begin = max(begin, self.slots[0].begin)
        if begin >= end or not nodes:
            return
        self.cut(begin)
        self.cut(end)
        for slot in self.slots:
            if begin <= slot.begin < end:
                slot.free -= nodes
        for at in (begin, end):  # one pair of equal slots becomes one
            for one, two in zip(self.slots, self.slots[1:], strict=False):
                if two.begin == at and one.free == two.free:
                    one.end = two.end
                    self.slots.remove(two)
                    return

    def free(self, nodes: Nodes, begin: float, end: float) -> Nodes:
        for slot in self.slots:
            if slot.end > begin and slot.begin <= end:
                nodes &= slot.free
        return nodes

    def later(self, within: Nodes, begin: float, end: float) -> float | None:
        for slot, following in zip(self.slots, self.slots[1:], strict=False):
            if slot.end <= begin:
                continue
            if (following.free - slot.free) & within:
                return following.begin
            if slot.begin > end:
                return None
        return None

    def overlaps(self, nodes: Nodes, begin: float, end: float) -> bool:
        return any(slot.end > begin and slot.begin < end and not nodes <= slot.free for slot in self.slots)


Leaves = tuple[float, Rank, Nodes]
"""Nodes that a job leaves at a time, and where Slurm lists it."""


def groups(ends: Sequence[Leaves], mask: Nodes, now: float) -> Iterator[tuple[float, Nodes]]:
    """The times at which Slurm tests whether a job fits, and the nodes that running jobs have left by then."""
    jobs = [(end, nodes) for end, _, nodes in sorted(ends, key=lambda one: one[:2]) if isfinite(end)]
    place, window, edge = 0, 30.0, None
    gone: Nodes = frozenset()
    while place < len(jobs):
        last, follower = None, None
        while place < len(jobs):
            end, nodes = jobs[place]
            place += 1
            if not nodes & mask:
                continue
            if edge is None:
                edge = end - end % 30.0 + 30.0
            last, gone = end, gone | nodes
            follower = jobs[place][0] if place < len(jobs) else None
            if follower is not None and follower > edge + window:
                break
        if last is None or edge is None:
            return
        yield max(last, now + 1.0), gone & mask
        window *= 2
        while follower is not None and follower > edge + window:
            window *= 2


@dataclass
class Cycle:
    """One walk through the queue."""

    numbering: Numbering
    now: float
    ready: Nodes
    ours: Nodes
    ends: list[Leaves]
    bookings: Sequence[Booking]
    scheduler: Scheduler
    weights: Sequence[int]
    starts: dict[str, Nodes] = field(default_factory=dict)
    plans: dict[str, tuple[float, Nodes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.count = len(self.numbering.names)
        self.all: Nodes = frozenset(range(self.count))
        self.space = Space([Slot(self.now, inf, self.all)])

    def booked(self, begin: float, end: float) -> Nodes:
        """What reservations have at some time, both ends included."""
        found: Nodes = frozenset()
        for one in self.bookings:
            # a slot of the calendar begins at the start and ends at the end of a reservation
            start = max(one.start_s, self.now)
            if self.now < one.end_s and start < one.end_s and start <= end and one.end_s > begin:
                found |= members(one.mask, self.count)
        return found

    def reserve(self, nodes: Nodes, start: float, limit: float) -> None:
        if start <= self.now + self.scheduler.window_s:
            self.space.take(nodes, *self.steps(start, limit))

    def steps(self, start: float, limit: float) -> tuple[float, float]:
        step = self.scheduler.resolution_s
        begin = start // step * step
        if start + limit >= self.now + self.scheduler.window_s:
            return begin, inf
        whole = ceil((start + limit) / step) if self.scheduler.newer else (start + limit) // step
        return begin, max(whole * step, begin + step)

    def place(self, part: Component, limit: float, begin: float) -> tuple[float, Nodes] | None:
        """When and where; for a start later than now the nodes are chosen already."""
        step = self.scheduler.resolution_s
        allowed = members(part.allowed, self.count)
        later: float | None = begin
        while later is not None and later <= self.now + self.scheduler.window_s:
            begin, end = later, later + limit
            later = self.space.later(members(part.within, self.count), begin, end)
            mask = self.space.free(allowed, begin, end)
            hindered = mask & self.booked(begin, end)
            if hindered:
                freed_s = [
                    at
                    for one in self.bookings
                    if self.now < one.end_s < inf and (at := ceil(one.end_s / step) * step + 1.0) > begin
                ]
                later = min([*freed_s, *([] if later is None else [later])], default=None)
                mask -= hindered
            ends, ready = self.ends, self.ready
            if self.scheduler.newer:
                since = begin if begin > self.now else -inf
                ready = ready.union(*(nodes for at, _, nodes in ends if at <= since))
                until = inf if later is None else later
                ends = [one for one in ends if since < one[0] <= until]
            found: tuple[float, Nodes] | None = None
            for kind in part.either or (-1,):
                some = mask & members(kind, self.count)
                if enough(some & ready, part, self.count):
                    one: tuple[float, Nodes] | None = (self.now, some & ready)
                else:
                    one = next(
                        (
                            (at, some & ready | gone)
                            for at, gone in groups(ends, some, self.now)
                            if enough(some & ready | gone, part, self.count)
                        ),
                        None,
                    )
                if one is not None and (found is None or one[0] < found[0]):
                    found = one
            if found is None:
                continue
            start = max(found[0], begin)
            if start <= self.now:
                return found
            if later is not None and start > later:
                continue
            chosen = choose(found[1], part, self.weights, self.count)
            if start > self.now + self.scheduler.window_s:
                return start, chosen
            if self.space.overlaps(chosen, *self.steps(start, limit)):
                later = start if start > begin else begin + step
                continue
            return start, chosen
        return None

    def earmark(self, part: Component, free: Nodes) -> Nodes:
        """The idle nodes that Slurm would choose, or else those that it would choose without pilots."""
        idle = free - self.ours
        return choose(idle if enough(idle, part, self.count) else free, part, self.weights, self.count)

    def consider(self, entry: QueueEntry, backed_off: Collection[str]) -> None:
        least = entry.least_s if entry.least_s < entry.limit_s else entry.limit_s
        plan = members(entry.plan, self.count)
        shows = entry.plan_s is not None and entry.plan_s > self.now
        if entry.barred or entry.id in backed_off:
            if shows:
                self.reserve(plan, entry.plan_s or 0.0, least)
            return
        begun = self.begun.setdefault(entry.id, 0)
        reserves = entry.reserves and not (self.scheduler.one_plan_a_job and entry.id in self.plans)
        planned = 0
        for _ in range(entry.count - begun):
            found = self.place(entry.parts[0], least, self.now)
            if found is not None and found[0] <= self.now:
                chosen = self.earmark(entry.parts[0], found[1])
                self.begun[entry.id] += 1
                self.starts[entry.id] = self.starts.get(entry.id, frozenset()) | chosen
                self.ready -= chosen
                end = self.now + self.runs(chosen, least, entry.limit_s)
                self.ends.append((end, rank(entry.id), chosen))
                self.reserve(chosen, self.now, end - self.now)
                continue
            if not reserves:
                return
            if found is None:
                if shows:
                    self.reserve(plan, entry.plan_s or 0.0, least)
                return
            start, chosen = found
            self.reserve(chosen, start, least)
            if entry.id not in self.plans or start < self.plans[entry.id][0]:
                self.plans[entry.id] = (start, chosen)
            planned += 1
            if planned >= self.scheduler.array_most:
                return

    def runs(self, chosen: Nodes, least: float, limit: float) -> float:
        if least >= limit:
            return limit
        taken = [slot.begin for slot in self.space.slots[1:] if not chosen <= slot.free]
        taken += [
            one.start_s
            for one in self.bookings
            if one.end_s > one.start_s > self.now and members(one.mask, self.count) & chosen
        ]
        first = min(taken, default=inf)
        return limit if first >= self.now + limit else max(least, (first - self.now) // 60.0 * 60.0)

    begun: dict[str, int] = field(default_factory=dict)


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
    backed_off: Collection[str] = (),
) -> Cycle:
    """As the planner's, for jobs of one part that share with nobody."""
    count = len(numbering.names)
    cycle = Cycle(
        numbering, now_s, members(ready, count), members(ours & ready, count),
        [(end.at_s, end.rank, members(end.mask & ~ready, count)) for end in ends],
        bookings, scheduler, weights,
    )  # fmt: skip
    for entry in queue:
        cycle.consider(entry, backed_off)
    return cycle
