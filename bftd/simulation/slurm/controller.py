"""A simulated slurmctld: main scheduler, backfill, choice of nodes and preemption, event by event in simulated time.

Backfill is the pool's own copy of Slurm's planner. The queue has a line for each job in each of its partitions. The
main scheduler goes through it in order and starts what fits; a job that does not fit closes its partition's nodes, or
only those that it names, to the jobs behind it. One that its limits hold back, or whose nodes are reserved or down,
closes none. Nodes with an epilog (COMPLETING) are taken by backfill, which then waits. Where a job fits only without
pilots, Slurm takes pilots one after another, by age, until the job fits, and chooses among the idle nodes and those.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import ceil, exp, floor, inf
from operator import attrgetter
from random import Random

from bftd.pool.backfill.model import JobEnd, rank, union
from bftd.pool.backfill.planner import Walk, simulate
from bftd.simulation.slurm.limits import Running
from bftd.simulation.slurm.lines import Priorities, WaitingJob, lines_of
from bftd.simulation.slurm.looks import RESERVATIONS_S, Looks, Phases
from bftd.simulation.slurm.model import JobRun, Outage, SimulatedJob, SimulatedSite
from bftd.simulation.slurm.nodes import NodeChoice, Nodes, bits
from bftd.simulation.slurm.plans import Plans

# With nothing changed no job can start, except for what time alone brings: backfill looks at least so often.
_LOOK_MOST_S = 600.0
_PLACE = attrgetter("place")
# A job whose node failed is eligible again after this, when its credential has expired.
_REQUEUE_S = 121.0


class Controller(Nodes):
    """The state of one simulated cluster, and its events in the order of time."""

    def __init__(
        self, site: SimulatedSite, jobs: Sequence[SimulatedJob], seed: int, choice: NodeChoice | None = None
    ) -> None:
        super().__init__(site, choice)
        self.random = Random(seed)
        self.queue: list[WaitingJob] = []
        self.running: dict[int, WaitingJob] = {}
        self.runs: list[JobRun] = []
        self.cycled_s: float | None = None
        # The plans of the last cycle, and how often the queue has changed.
        self.plans: Plans | None = None
        self.changes = 0
        # Whether anything changed since the last look of backfill, and since the last look of bftd.
        self.news = self.news_for_pool = True
        self.left: Callable[[int], None] = lambda mask: None
        self.woken: Callable[[], None] = lambda: None
        self.late = self.preemptions = 0
        self._counts = Running()
        self._priorities = Priorities(site.priority, site) if site.priority is not None else None
        self._open = self._to_come = len(jobs)
        self._changed_s = -inf
        self._over: set[int] = set()
        self._held: dict[int, list[WaitingJob]] = {}
        self._planned = False
        self._backfilled_s = -inf
        self._looks = Looks(site, self.random, lambda time_s: self.at(time_s, self._tick, time_s))
        for job in jobs:
            waiting = lines_of(site, job)[0]
            self.runs.append(waiting.run)
            self.at(job.submit_s, self._submit, waiting)

    def drawn(self, mean_s: float) -> float:
        """Draw a delay."""
        spread = self.site.delays.spread
        return mean_s * exp(self.random.gauss(-spread * spread / 2.0, spread)) if mean_s > 0.0 and spread else mean_s

    def run(
        self, backfill_phase_s: float | None = None, until_s: float = inf, phases: Phases | None = None
    ) -> list[JobRun]:
        """Go on until every job has ended, or to a time; a job that can never start keeps its infinite times.

        The first backfill cycle begins `backfill_phase_s` after the first submission; drawn if it is not given.
        """
        if not self.runs:
            return []
        self.begin(backfill_phase_s, phases)
        while self._open and (time_s := self.next_s) <= until_s and time_s < inf and not self._is_stuck(time_s):
            self.step()
        return self.runs

    def begin(self, backfill_phase_s: float | None = None, phases: Phases | None = None) -> None:
        """Set the clocks of the schedulers; `step` then goes on from the first submission."""
        begin_s = min(run.job.submit_s for run in self.runs)
        self.at(begin_s + self._looks.phase(backfill_phase_s, self.site.scheduler.interval_s), self._backfill)
        self._looks.begin(begin_s, phases or Phases())
        for booking in self.site.bookings:
            if booking.start_s >= begin_s:
                self.at(booking.start_s + RESERVATIONS_S * self.random.random(), self._booked, True)
            if begin_s <= booking.end_s < inf:
                self.at(booking.end_s + self.random.random(), self._booked, False)
        for outage in self.site.outages:
            if outage.end_s > begin_s:
                self.at(outage.start_s, self._outage, outage)
                if outage.end_s < inf:
                    self.at(outage.end_s, self._outage, outage)
        if self._priorities is not None:
            self.at(begin_s, self._calculate, self._priorities)

    def _is_stuck(self, time_s: float) -> bool:
        """Whether nothing can change any more: what waits then waits for ever."""
        if self.running or self._to_come or time_s - self._changed_s < 3.0 * _LOOK_MOST_S:
            return False
        if any(self.now_s < outage.end_s < inf for outage in self.site.outages):
            return False
        return all(booking.end_s <= self.now_s for booking in self.site.bookings)

    def lend(self, mask: int) -> None:
        """Let pilots have those of some nodes that are idle; drivers start them at once, so their order is chance."""
        mask &= self.idle
        if not mask:
            return
        self.pilots |= mask
        granted = bits(mask)
        self.random.shuffle(granted)
        for place, bit in enumerate(granted):
            self.pilot_age[bit] = self.now_s + 1e-6 * place
        self._tell_pool()

    def leave(self, mask: int, within_s: float) -> None:
        """Let the pilots of some nodes leave; the nodes are idle after a while."""
        mask &= self.pilots
        if not mask:
            return
        self.pilots &= ~mask
        self.leaving |= mask
        self.left(mask)
        self._tell()
        self.at(self.now_s + within_s, self._gone, mask)

    # What happens ------------------------------------------------------------------------------------------------

    def _submit(self, waiting: WaitingJob) -> None:
        self._arrive(waiting)
        self.news = True
        self._looks.ask(self.now_s)

    def _arrive(self, waiting: WaitingJob) -> None:
        """Queue a job up whose time has come; nobody has the main scheduler look for it."""
        self._to_come -= 1
        self._changed_s = self.now_s
        self._queue_up(waiting)

    def _queue_up(self, waiting: WaitingJob) -> None:
        missing = [number for number in waiting.job.after if number not in self._over]
        if missing:
            self._held.setdefault(missing[0], []).append(waiting)
            return
        if waiting.eligible_s > self.now_s:
            self._to_come += 1
            self.at(waiting.eligible_s, self._arrive, waiting)
            return
        for line in waiting.lines:
            line.eligible_s = self.now_s
            if self._priorities is not None:
                self._priorities.rank(line, self.now_s)
            insort(self.queue, line, key=_PLACE)
        self.changes += 1
        self.news |= self._planned
        self._tell_pool()
        self._looks.wait(self.now_s)

    def _begin(self, waiting: WaitingJob, mask: int, by: str) -> None:
        now_s, run, delays = self.now_s, waiting.run, self.site.delays
        run.nodes, run.start_s, run.by = mask, now_s, by
        run.first_line_s = now_s + self.drawn(delays.first_line_s)
        run.end_s = self._over_s(waiting) + self.drawn(delays.idle_s)
        self.busy |= mask
        for line in waiting.lines:
            line.planned(None, 0)
            self.queue.remove(line)
            self.changes += 1
        if waiting.bounds:
            self._counts.add(waiting.bounds, mask.bit_count())
        self.running[waiting.job.number] = waiting
        self._tell()
        self.at(run.end_s, self._end, waiting)

    def _over_s(self, waiting: WaitingJob) -> float:
        """Return when a job ends; Slurm ends one that runs on for too long beyond its limit when it looks next."""
        run, job = waiting.run, waiting.job
        over_s = run.start_s + job.limit_s + self.site.over_time_limit_s
        end_s = run.first_line_s + job.run_s
        return end_s if end_s <= over_s else min(end_s, self._looks.over_s(over_s))

    def _end(self, waiting: WaitingJob) -> None:
        if waiting.run.end_s != self.now_s:
            return  # it was requeued meanwhile
        self._open -= 1
        self._release(waiting)
        if waiting.job.epilog_s > 0.0:
            self.completing |= waiting.run.nodes
            self._to_come += 1
            self.at(self.now_s + waiting.job.epilog_s, self._cleaned, waiting)
        else:
            self._over_with(waiting)

    def _release(self, waiting: WaitingJob) -> None:
        """Take a job from its nodes."""
        self._change()
        self.busy &= ~waiting.run.nodes
        del self.running[waiting.job.number]
        if waiting.bounds:
            self._counts.add(waiting.bounds, -waiting.run.nodes.bit_count(), -1)
        if self._priorities is not None:
            self._priorities.use(waiting, self.now_s)

    def _cleaned(self, waiting: WaitingJob) -> None:
        self._to_come -= 1
        self.completing &= ~waiting.run.nodes
        self._over_with(waiting)

    def _over_with(self, waiting: WaitingJob) -> None:
        self._over.add(waiting.job.number)
        for held in self._held.pop(waiting.job.number, ()):
            self._queue_up(held)
        self._change()
        if waiting.job.epilog_s > 0.0:
            self.at(self.now_s + self.drawn(self.site.delays.look_after_epilog_s), self._look)
        else:
            self._looks.ask(self.now_s)

    def _booked(self, begins: bool) -> None:
        """A reservation begins or ends."""
        self._change()
        if begins:
            self._looks.ask(self.now_s)

    def _tell(self) -> None:
        self.news = True
        self._tell_pool()

    def _tell_pool(self) -> None:
        """Note that something changed since the last look of bftd, which is `woken` by that."""
        self.news_for_pool = True
        self.woken()

    def _change(self) -> None:
        self._changed_s = self.now_s
        self._tell()

    def _outage(self, outage: Outage) -> None:
        """Begin or end an outage: jobs on nodes that go down wait again, or end."""
        begun = [one for one in self.site.outages if one.start_s <= self.now_s < one.end_s]
        self.down = union(one.mask for one in begun)
        self.leave(self.down, 0.0)
        self._change()
        if outage in begun and not outage.drained:
            for waiting in [one for one in self.running.values() if one.run.nodes & outage.mask]:
                self._fail(waiting)
        self._looks.ask(self.now_s)

    def _fail(self, waiting: WaitingJob) -> None:
        run = waiting.run
        if not waiting.job.requeue:
            run.end_s = self.now_s
            self._end(waiting)
            return
        self._release(waiting)
        run.nodes, run.start_s, run.first_line_s, run.end_s, run.by = 0, inf, inf, inf, ""
        waiting.eligible_s = self.now_s + _REQUEUE_S
        self._queue_up(waiting)

    def _calculate(self, priorities: Priorities) -> None:
        """Give all waiting jobs their priority anew."""
        priorities.calculate(self.running.values(), self.queue, self.now_s)
        self.queue.sort(key=_PLACE)
        self.changes += 1
        if self.queue:
            self._tell()
        self.at(self.now_s + priorities.period_s, self._calculate, priorities)

    def _gone(self, mask: int) -> None:
        self.leaving &= ~mask
        self._tell()
        if self.queue:
            self.at(self.now_s + self.drawn(self.site.delays.look_after_pilot_s), self._look)

    # The main scheduler ------------------------------------------------------------------------------------------

    def _tick(self, due_s: float) -> None:
        if due_s != self._looks.due_s:
            return
        if self._looks.looks(self.now_s):
            self._look(None)
        if self._looks.asked or self.queue:
            self._looks.wait(self.now_s)

    def _look(self, _: object) -> None:
        """Go through the queue once."""
        open_ = self.everything & ~self.down
        for waiting in list(self.queue):
            if not open_:
                break
            part = waiting.part
            if waiting.run.start_s < inf or not self._allowed(waiting):
                continue
            if waiting.job.booked is not None:
                self._look_in_reservation(waiting)
                continue
            mask = part.allowed & open_ & ~self.soon_reserved(waiting.job.limit_s)
            free = mask & self.idle
            if free.bit_count() >= waiting.need.count and waiting.need.met(free):
                self._begin(waiting, self.choice(free, waiting.need), "main")
                continue
            if self.pilots & mask and waiting.locked_s <= self.now_s:
                self._preempt(waiting, self.with_pilots(mask, waiting.need))
            named = part.required if part.required.bit_count() >= part.need else 0
            if named or self.holds(part, waiting.need, waiting.job.limit_s, open_):
                open_ &= ~(named or part.within)

    def _look_in_reservation(self, waiting: WaitingJob) -> None:
        booking = self.site.bookings[waiting.job.booked or 0]
        if not booking.start_s <= self.now_s < booking.end_s:
            return
        free = waiting.part.allowed & booking.mask & self.idle
        if waiting.need.met(free):
            self._begin(waiting, self.choice(free, waiting.need), "main")
        elif waiting.locked_s <= self.now_s:
            self._preempt(waiting, self.with_pilots(booking.mask, waiting.need))

    def _allowed(self, waiting: WaitingJob) -> bool:
        """Whether the limits let a job start now."""
        return not waiting.bounds or self._counts.allows(waiting.bounds, waiting.need.count)

    # Preemption --------------------------------------------------------------------------------------------------

    def _preempt(self, waiting: WaitingJob, chosen: int) -> None:
        """Have the pilots leave that are on the chosen nodes; a job that fits meanwhile starts with the next look."""
        mask = chosen & self.pilots
        if not mask:
            return
        for line in waiting.lines:
            line.locked_s = self.now_s + self.site.lock_out_s
            line.planned(self.now_s, chosen)
        if waiting.run.preempted_s is None:
            waiting.run.preempted_s = self.now_s
        self.preemptions += 1
        self.leave(mask, self.drawn(self.site.delays.give_back_s))

    # Backfill ----------------------------------------------------------------------------------------------------

    def _backfill(self, _: object) -> None:
        """One cycle: start what fits, preempt for what fits without pilots, and plan the rest.

        A plan is a change for Slurm. Where the last cycle made none and nothing else has changed, slurmctld asks every
        second whether something has.
        """
        site, now_s = self.site, self.now_s
        if self.news or now_s - self._backfilled_s >= _LOOK_MOST_S:
            self.news, self._backfilled_s = False, now_s
            while self._cycle():
                pass
            self._tell_pool()
        elif not self._planned:
            ahead_s = self.next_s - now_s if self.next_s < inf else _LOOK_MOST_S
            self.at(now_s + max(1, ceil(ahead_s)), self._backfill)
            return
        self.cycled_s = now_s + site.cycle_s
        self.at(self.cycled_s + site.scheduler.interval_s, self._backfill)

    def _cycle(self) -> bool:
        """Go through the queue once. Returns whether to go again, since a start has brought others to their limits."""
        site, now_s = self.site, self.now_s
        queued = list(self._queued())
        walks: list[Walk] = []
        simulate(
            [one.entry for one in queued],
            site.numbering,
            self.everything & ~(self.busy | self.down),
            0,
            self.ends(),
            # Slurm's time is whole seconds, and a job may end in the one in which a reservation begins.
            [replace(one, start_s=one.start_s + 0.5) for one in site.bookings],
            floor(now_s),
            site.scheduler,
            kept={},
            weights=site.weights,
            backed_off=(),
            choice=self.backfilled,
            plan_choice=self.plan_choice,
            go=walks.append,
        )
        (walk,) = walks
        self.plans = Plans(queued, walk)
        self.plans.go(now_s)
        self._planned = len(walk.now) < len(queued)
        for one in queued if walk.now else ():
            mask = walk.now.get(one.entry.id)
            if mask is None or one.run.start_s < inf:
                continue
            if not self._allowed(one):
                return True
            if mask & self.completing:
                one.planned(now_s + 1.0, mask)
            elif not mask & ~self.idle:
                self._begin(one, mask, "backfill")
            else:
                self.late += 1
                one.planned(now_s, mask)
                if one.locked_s <= now_s:
                    self._preempt(one, mask)
        return False

    def _queued(self) -> Iterator[WaitingJob]:
        able = (one for one in self.queue if one.job.booked is None and self._allowed(one))
        return islice(able, self.site.scheduler.depth)

    def ends(self) -> list[JobEnd]:
        """Return the ends of the running jobs by their limits; Slurm's start times are whole seconds."""
        return [
            JobEnd(floor(one.run.start_s) + one.job.limit_s, one.run.nodes & ~self.down, rank(one.entry.id))
            for one in self.running.values()
        ]
