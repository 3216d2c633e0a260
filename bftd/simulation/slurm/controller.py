"""A simulated slurmctld: main scheduler, backfill, choice of nodes and preemption, event by event in simulated time.

Backfill is the pool's own copy of Slurm's planner. The main scheduler goes through the queue in order and starts what
fits; a job that does not fit closes its partition's nodes, or only those that it names, to the jobs behind it. Where a
job fits only without pilots, Slurm takes pilots one after another, by age, until the job fits; it then chooses among
the idle nodes and those. (Read in slurmctld's job_scheduler.c, select/cons_tres and sched/backfill, and held against
recorded clusters by benchmarks.twin.)
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from math import exp, floor, inf
from random import Random
from typing import Any

from bftd.pool.backfill.model import JobEnd, QueueEntry, rank
from bftd.pool.backfill.node_choice import NodeNeed, for_plan
from bftd.pool.backfill.planner import simulate
from bftd.pool.victims import AnyNode
from bftd.simulation.slurm.model import JobRun, SimulatedJob, SimulatedSite

NodeChoice = Callable[[int, NodeNeed], int]
"""Picks the nodes of a job that starts: arguments are the idle nodes that would do, and the need."""

# With nothing changed no job can start, except for what time alone brings: backfill looks at least so often.
_LOOK_MOST_S = 600.0
_ANY = AnyNode()


class WaitingJob:
    """A job in the simulation, from its submission on."""

    __slots__ = ("entry", "job", "locked_s", "need", "plan", "plan_s", "run")

    def __init__(self, job: SimulatedJob) -> None:
        part = job.component
        self.job = job
        self.run = JobRun(job)
        self.need = NodeNeed(max(1, part.need, part.required.bit_count()), part.required, part.contiguous)
        self.entry = QueueEntry(str(job.number), (part,), job.limit_s, job.limit_s)
        self.plan_s: float | None = None
        self.plan = 0
        self.locked_s = -inf


class Controller:
    """The state of one simulated cluster, and its events in the order of time."""

    def __init__(
        self, site: SimulatedSite, jobs: Sequence[SimulatedJob], seed: int, choice: NodeChoice | None = None
    ) -> None:
        self.site = site
        self.random = Random(seed)
        self.everything = site.everything
        self.now_s = -inf
        self.busy = self.pilots = self.leaving = 0
        self.pilot_age: dict[int, float] = {}
        self.queue: list[WaitingJob] = []
        self.running: dict[int, WaitingJob] = {}
        self.runs: list[JobRun] = []
        self.cycled_s: float | None = None
        # Whether anything changed since the last look of backfill, and since the last look of bftd.
        self.news = self.news_for_pool = True
        self.preempted: Callable[[int], None] = lambda mask: None
        self.left: Callable[[int], None] = lambda mask: None
        self.late = self.preemptions = 0
        self._choice = choice or (lambda free, need: for_plan(free, need, site.weights))
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._count = 0
        self._open = self._to_come = len(jobs)
        self._changed_s = -inf
        self._over: set[int] = set()
        self._held: dict[int, list[WaitingJob]] = {}
        self._asked = False
        self._looked_s = self._backfilled_s = -inf
        self._tick_s: float | None = None
        self._tick_phase = self.random.random()
        self._full_phase = site.sched_interval_s * self.random.random()
        for job in jobs:
            waiting = WaitingJob(job)
            self.runs.append(waiting.run)
            self.at(job.submit_s, self._submit, waiting)

    @property
    def idle(self) -> int:
        """The nodes without a job or pilot."""
        return self.everything & ~(self.busy | self.pilots | self.leaving)

    def at(self, time_s: float, act: Callable[[Any], None], what: Any = None) -> None:
        """Do something at a time."""
        self._count += 1
        heappush(self._events, (time_s, self._count, act, what))

    def drawn(self, mean_s: float) -> float:
        """Draw a delay."""
        spread = self.site.delays.spread
        return mean_s * exp(self.random.gauss(-spread * spread / 2.0, spread)) if mean_s > 0.0 and spread else mean_s

    def run(self, backfill_phase_s: float | None = None, until_s: float = inf) -> list[JobRun]:
        """Go on until every job has ended, or to a time; a job that can never start keeps its infinite times.

        The first backfill cycle begins `backfill_phase_s` after the first submission; drawn if it is not given.
        """
        if not self.runs:
            return []
        begin_s = min(run.job.submit_s for run in self.runs)
        phase_s = (
            self.site.scheduler.interval_s * self.random.random() if backfill_phase_s is None else backfill_phase_s
        )
        self.at(begin_s + phase_s, self._backfill)
        for booking in self.site.bookings:
            for time_s in (booking.start_s, booking.end_s):
                if begin_s <= time_s < inf:
                    self.at(time_s + self._tick_phase, self._look)
        while self._events and self._open:
            time_s, _, act, what = heappop(self._events)
            if time_s > until_s or self._is_stuck(time_s):
                break
            self.now_s = time_s
            act(what)
        return self.runs

    def _is_stuck(self, time_s: float) -> bool:
        """Whether nothing can change any more: what waits then waits for ever."""
        if self.running or self._to_come or time_s - self._changed_s < 3.0 * _LOOK_MOST_S:
            return False
        return all(booking.end_s <= self.now_s for booking in self.site.bookings)

    def lend(self, mask: int, ages: Sequence[int] = ()) -> None:
        """Let pilots have those of some nodes that are idle; `ages` are their bits in the order of their start."""
        mask &= self.idle
        if not mask:
            return
        self.pilots |= mask
        for place, bit in enumerate(ages or bits(mask)):
            if bit & mask:
                self.pilot_age[bit] = self.now_s + 1e-6 * place
        self.news_for_pool = True

    def leave(self, mask: int, within_s: float) -> None:
        """Let the pilots of some nodes leave; the nodes are idle after a while."""
        mask &= self.pilots
        if not mask:
            return
        self.pilots &= ~mask
        self.leaving |= mask
        self.left(mask)
        self.news = self.news_for_pool = True
        self.at(self.now_s + within_s, self._gone, mask)

    def waits_for_reservation(self, waiting: WaitingJob) -> bool:
        """Whether a job has a reservation to itself, and so takes part in no plan."""
        return waiting.job.booked is not None

    # What happens ------------------------------------------------------------------------------------------------

    def _submit(self, waiting: WaitingJob) -> None:
        self._to_come -= 1
        self._changed_s = self.now_s
        self._queue_up(waiting)

    def _queue_up(self, waiting: WaitingJob) -> None:
        missing = [number for number in waiting.job.after if number not in self._over]
        if missing:
            self._held.setdefault(missing[0], []).append(waiting)
            return
        if waiting.job.eligible_s > self.now_s:
            self._to_come += 1
            self.at(waiting.job.eligible_s, self._submit, waiting)
            return
        insort(self.queue, waiting, key=_place)
        self.news = self.news_for_pool = True
        self._ask()

    def _begin(self, waiting: WaitingJob, mask: int, by: str) -> None:
        now_s, run, delays = self.now_s, waiting.run, self.site.delays
        run.nodes, run.start_s, run.by = mask, now_s, by
        run.first_line_s = now_s + self.drawn(delays.first_line_s)
        run.end_s = run.first_line_s + waiting.job.run_s + self.drawn(delays.idle_s)
        waiting.plan_s, waiting.plan = None, 0
        self.busy |= mask
        self.queue.remove(waiting)
        self.running[waiting.job.number] = waiting
        self.news = self.news_for_pool = True
        self.at(run.end_s, self._end, waiting)

    def _end(self, waiting: WaitingJob) -> None:
        self._open -= 1
        self._changed_s = self.now_s
        self.busy &= ~waiting.run.nodes
        del self.running[waiting.job.number]
        self._over.add(waiting.job.number)
        for held in self._held.pop(waiting.job.number, ()):
            self._queue_up(held)
        self.news = self.news_for_pool = True
        self.at(self.now_s + self.drawn(self.site.delays.look_after_job_s), self._look)

    def _gone(self, mask: int) -> None:
        self.leaving &= ~mask
        self.news = self.news_for_pool = True
        if self.queue:
            self.at(self.now_s + self.drawn(self.site.delays.look_after_pilot_s), self._look)

    # The main scheduler ------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Have the main scheduler look at the next whole second that it may."""
        self._asked = True
        if self._tick_s is None or self._tick_s > self.now_s + 1.0:
            self._tick_at(self.now_s)

    def _tick_at(self, after_s: float) -> None:
        self._tick_s = floor(after_s - self._tick_phase + 1e-6) + 1 + self._tick_phase
        self.at(self._tick_s, self._tick, self._tick_s)

    def _tick(self, due_s: float) -> None:
        if due_s != self._tick_s:
            return
        self._tick_s = None
        now_s, interval_s = self.now_s, self.site.sched_interval_s
        full_s = floor((now_s - self._full_phase) / interval_s) * interval_s + self._full_phase
        if full_s > self._looked_s or (self._asked and now_s - self._looked_s >= self.site.batch_delay_s):
            self._asked = False
            self._looked_s = now_s
            self._look(None)
        if self._asked:
            self._tick_at(now_s)
        elif self.queue:
            # the next look at the whole queue
            self._tick_at(max(full_s + interval_s - 1.0, now_s))

    def _look(self, _: object) -> None:
        """Go through the queue once."""
        open_ = self.everything
        for waiting in list(self.queue):
            if not open_:
                break
            if waiting.job.booked is not None:
                self._look_in_reservation(waiting)
                continue
            mask = waiting.job.component.allowed & open_ & ~self._soon_reserved(waiting.job.limit_s)
            free = mask & self.idle
            if free.bit_count() >= waiting.need.count and waiting.need.met(free):
                self._begin(waiting, self._choice(free, waiting.need), "main")
                continue
            if self.pilots & mask and waiting.locked_s <= self.now_s:
                self._preempt(waiting, self._with_pilots(mask, waiting.need))
            part = waiting.job.component
            named = part.required if part.required.bit_count() >= part.need else 0
            open_ &= ~(named or part.within)

    def _look_in_reservation(self, waiting: WaitingJob) -> None:
        booking = self.site.bookings[waiting.job.booked or 0]
        if not booking.start_s <= self.now_s < booking.end_s:
            return
        free = waiting.job.component.allowed & booking.mask & self.idle
        if waiting.need.met(free):
            self._begin(waiting, self._choice(free, waiting.need), "main")
        elif waiting.locked_s <= self.now_s:
            self._preempt(waiting, self._with_pilots(booking.mask, waiting.need))

    def _soon_reserved(self, limit_s: float) -> int:
        """Return the nodes of reservations that a job of this limit would reach into."""
        found, now_s = 0, self.now_s
        for booking in self.site.bookings:
            if booking.end_s > now_s and now_s + limit_s > booking.start_s:
                found |= booking.mask
        return found

    # Preemption --------------------------------------------------------------------------------------------------

    def _with_pilots(self, mask: int, need: NodeNeed) -> int:
        """Return the nodes that Slurm chooses where pilots have to go; 0 if the job does not fit even so."""
        free, lent = mask & self.idle, mask & self.pilots
        if not need.met(free | lent):
            return 0
        for bit in sorted(bits(lent), key=self.pilot_age.__getitem__, reverse=self.site.youngest_first):
            free |= bit
            if free.bit_count() >= need.count and need.met(free):
                break
        return self._choice(free, need)

    def _preempt(self, waiting: WaitingJob, chosen: int) -> None:
        """Have the pilots leave that are on the chosen nodes; a job that fits meanwhile starts with the next look."""
        mask = chosen & self.pilots
        if not mask:
            return
        waiting.locked_s = self.now_s + self.site.lock_out_s
        waiting.plan_s, waiting.plan = self.now_s, chosen
        if waiting.run.preempted_s is None:
            waiting.run.preempted_s = self.now_s
        self.preemptions += 1
        self.leave(mask, self.drawn(self.site.delays.give_back_s))
        self.preempted(mask)

    # Backfill ----------------------------------------------------------------------------------------------------

    def _backfill(self, _: object) -> None:
        """One cycle: start what fits, preempt for what fits without pilots, and plan the rest."""
        site, now_s = self.site, self.now_s
        if self.queue and (self.news or now_s - self._backfilled_s >= _LOOK_MOST_S):
            self.news, self._backfilled_s = False, now_s
            waiting = {one.entry.id: one for one in self._queued()}
            outcome = simulate(
                [one.entry for one in waiting.values()],
                site.numbering,
                self.everything & ~self.busy,
                0,
                self.ends(),
                site.bookings,
                now_s,
                site.scheduler,
                kept={},
                weights=site.weights,
                leaving=_ANY,
                backed_off=(),
                choice=self._chosen,
            )
            for id_, one in waiting.items():
                mask = outcome.now.get(id_)
                plan = outcome.later.get(id_)
                one.plan_s, one.plan = (plan.start_s, plan.mask) if plan is not None else (None, 0)
                if mask is None:
                    continue
                if not mask & ~self.idle:
                    self._begin(one, mask, "backfill")
                    continue
                self.late += 1
                one.plan_s, one.plan = now_s, mask
                if one.locked_s <= now_s:
                    self._preempt(one, mask)
            self.news_for_pool = True
        self.cycled_s = now_s + site.cycle_s
        self.at(self.cycled_s + site.scheduler.interval_s, self._backfill)

    def _queued(self) -> Iterator[WaitingJob]:
        left = self.site.scheduler.depth
        for waiting in self.queue:
            if not self.waits_for_reservation(waiting):
                left -= 1
                if left < 0:
                    return
                yield waiting

    def _chosen(self, free: int, need: NodeNeed) -> int:
        """Return the nodes of a job that backfill starts, pilots or not."""
        idle = free & self.idle
        if idle.bit_count() >= need.count and need.met(idle):
            return self._choice(idle, need)
        return self._with_pilots(free, need) or for_plan(free, need, self.site.weights)

    def ends(self) -> list[JobEnd]:
        """Return the ends of the running jobs by their limits; Slurm's start times are whole seconds."""
        soon_s = self.now_s + 1.0
        return [
            JobEnd(max(floor(one.run.start_s) + one.job.limit_s, soon_s), one.run.nodes, rank(one.entry.id))
            for one in self.running.values()
        ]


def bits(mask: int) -> list[int]:
    """Return the nodes of a set, each by itself, from the first on."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low)
        mask ^= low
    return found


def _place(waiting: WaitingJob) -> tuple[bool, int]:
    return waiting.job.booked is None, waiting.job.number
