"""bftd on a simulated cluster: the real earmarks, the pool's rules about idle nodes, and simulated pilots.

Every node that may be lent is, as if trainers took any number. Sets of nodes are masks, so that a poll of thousands of
nodes costs no more than its earmarks; that `bftd.pool.membership.observe` decides the same is a test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

from bftd.config.keys import PoolConfig
from bftd.pool.backfill.model import QueueEntry, lowest
from bftd.pool.backfill.planner import Walk, simulate
from bftd.pool.claims import COUNTED_ON_S, SHORTEST_JOB_S
from bftd.pool.earmarks import EarmarkMemory, Prediction, awake, earmark_wait_s, follow, has_time
from bftd.pool.prediction import expected_starts, unlikely, with_users
from bftd.simulation.slurm.controller import Controller
from bftd.simulation.slurm.lines import WaitingJob
from bftd.simulation.slurm.nodes import bits
from bftd.simulation.slurm.plans import Ahead
from slurm_plugin.read.types import Job

# bftd looks this often for what time alone changes.
_LOOK_MOST_S = 60.0
_EARMARKS_MOST_S = 5.0


@dataclass(frozen=True, slots=True)
class HarvestSettings:
    """The pool's settings, how often bftd looks at Slurm, and the part of the nodes that trainers want.

    With `only_s` there is no bftd, only an allocation on each idle node at the beginning, in an order by chance, that
    ends after so many seconds unless Slurm preempts it.
    """

    pool: PoolConfig = field(default_factory=PoolConfig)
    poll_s: float = 1.0
    wanted: float = 1.0
    only_s: float | None = None


class Harvester:
    """bftd's side of the simulation."""

    def __init__(self, controller: Controller, settings: HarvestSettings | None = None) -> None:
        self._settings = settings or HarvestSettings()
        self._controller = controller
        self._memory = EarmarkMemory(numbering=controller.site.numbering)
        self._before = 0
        self._vacated: dict[int, int] = {}
        self.earmarked = self._lingering = 0
        self._next_s = self._earmark_s = -inf
        self._polled_s = -inf
        self._due_s = inf
        self._since_s: dict[int, float] = {}
        self._changes = -1
        self._waiting: list[WaitingJob] = []
        self._seen: dict[int, WaitingJob] = {}
        self._shown: dict[int, Job] = {}
        self.earmarks = self.useful = 0
        self.node_s = 0.0
        controller.left = self._left

    def begin(self, at_s: float) -> None:
        """Have pilots on all idle nodes at a time, and look at Slurm from then on."""
        self._controller.at(at_s, self._begin)

    def _begin(self, _: object) -> None:
        controller, settings = self._controller, self._settings
        self._grant(controller.idle)
        if settings.only_s is not None:
            controller.at(controller.now_s + settings.only_s, self._expire)
        else:
            controller.woken = self._woken
            self._due_s = controller.now_s + settings.poll_s * controller.random.random()
            controller.at(self._due_s, self._poll, self._due_s)

    def _expire(self, _: object) -> None:
        self._controller.leave(self._controller.pilots, 0.05)

    def _grant(self, mask: int) -> None:
        controller, wanted = self._controller, self._settings.wanted
        if wanted < 1.0:  # the core lends the nodes first that Slurm takes last
            most = int(wanted * controller.everything.bit_count())
            spare = mask.bit_count() - max(0, most - controller.pilots.bit_count())
            mask &= ~lowest(mask, max(0, spare))
        before = controller.pilots
        controller.lend(mask)
        for bit in bits(controller.pilots & ~before):
            self._since_s[bit] = controller.now_s

    def _left(self, mask: int) -> None:
        for bit in bits(mask):
            self.node_s += self._controller.now_s - self._since_s.pop(bit)

    def held_node_s(self) -> float:
        """Return the time that pilots have had nodes so far, with those that have them now."""
        now_s = self._controller.now_s
        return self.node_s + sum(now_s - since_s for since_s in self._since_s.values())

    def _poll_at(self, least_s: float) -> None:
        """Poll at the first time from `least_s` on; those before find nothing to do."""
        due_s = self._polled_s + self._settings.poll_s
        while due_s < least_s:
            due_s += self._settings.poll_s
        self._due_s = due_s
        self._controller.at(due_s, self._poll, due_s)

    def _woken(self) -> None:
        """Poll as soon as that is due: there is news."""
        now_s = self._controller.now_s
        if self._due_s > now_s + self._settings.poll_s:
            self._poll_at(now_s)

    def _poll(self, due_s: float) -> None:
        if due_s != self._due_s:
            return
        controller, delays = self._controller, self._controller.site.delays
        self._polled_s = due_s
        given_up, lent = self.look()
        self._poll_at(due_s if controller.news_for_pool else self._next_s)
        if given_up:
            controller.leave(given_up, controller.drawn(delays.vacate_s))
        if lent:
            controller.at(controller.now_s + controller.drawn(delays.grant_s), self._grant, lent)

    def look(self) -> tuple[int, int]:
        """Return the lent nodes that pilots are to leave, and the idle ones that are lent, by what Slurm shows now."""
        controller, now_s = self._controller, self._controller.now_s
        if controller.news_for_pool or now_s >= self._earmark_s:
            controller.news_for_pool = False
            self._earmark()
            self._earmark_s = now_s + (_EARMARKS_MOST_S if self._memory.kept else _LOOK_MOST_S)
        soon, needed, next_s = self._claimed(now_s, max(now_s, self._earmark_s))
        given_up = controller.pilots & (self.earmarked & ~self._lingering | needed)
        idle = controller.idle
        offered = idle & ~(self.earmarked | soon | needed | self._counted_on(now_s))
        lent, self._before = offered & self._before, idle | controller.pilots | controller.leaving
        # a node that is idle for the first time is offered at the next look
        settled = not offered and not controller.leaving
        self._next_s = min(next_s, self._earmark_s) if settled else now_s
        return given_up, lent

    def _claimed(self, now_s: float, until_s: float) -> tuple[int, int, float]:
        """Return the nodes that are planned too soon to be lent, those to be given up, and when that changes next.

        The last is told if it is before `until_s`.
        """
        pool, waiting, plans = self._settings.pool, self._controller.queue, self._controller.plans
        before_s = until_s + max(pool.vacate_ahead_s, pool.min_window_s)
        if plans is not None:
            plans.tell(before_s)
        soon = needed = 0
        next_s = inf
        still: dict[int, int] = {}
        for one in waiting:
            if one.plans is not None and one.plans is not plans:
                one.plans.tell(before_s)
            if one.known_s is not None and one.known:
                window_s = one.known_s - now_s
                now = one.known & self._controller.pilots if window_s <= pool.vacate_ahead_s else 0
                if now or one.job.number in self._vacated:
                    still[one.job.number] = self._vacated.get(one.job.number, 0) | now
                if window_s < pool.min_window_s:
                    soon |= one.known
                for ahead_s in (pool.vacate_ahead_s, pool.min_window_s):
                    if window_s > ahead_s:
                        next_s = min(next_s, one.known_s - ahead_s)
            elif one.job.number in self._vacated:
                still[one.job.number] = self._vacated[one.job.number]
        self._vacated = still
        for mask in still.values():
            needed |= mask
        for booking in self._controller.site.bookings:
            if booking.end_s > now_s:
                window_s = booking.start_s - now_s
                if window_s < max(pool.min_window_s, SHORTEST_JOB_S):
                    soon |= booking.mask
                else:
                    next_s = min(next_s, booking.start_s - max(pool.min_window_s, SHORTEST_JOB_S))
                if window_s <= pool.vacate_ahead_s:
                    needed |= booking.mask
                else:
                    next_s = min(next_s, booking.start_s - pool.vacate_ahead_s)
        return soon, needed, next_s

    def _counted_on(self, now_s: float) -> int:
        """Return the nodes that jobs may count on for which Slurm is just preempting."""
        found, controller = 0, self._controller
        for one in controller.queue:
            if one.locked_s > now_s and now_s - (one.locked_s - controller.site.lock_out_s) <= COUNTED_ON_S:
                found |= one.part.allowed
        return found

    def _earmark(self) -> None:
        """Carry the earmarks on."""
        controller = self._controller
        now_s, site = controller.now_s, controller.site
        scheduler = replace(site.scheduler, read=True, cycle_s=site.cycle_s, cycled_s=controller.cycled_s)
        jobs = self._jobs()
        if not self._settings.pool.earmark:
            return
        ready = controller.everything & ~(controller.busy | controller.down)
        memory = self._memory = awake(self._memory, site.numbering, ready, now_s)
        foreseen = self._foreseen(jobs, ready, now_s)
        if not (foreseen.starts or memory.kept or memory.backoffs or memory.flaps):
            self.earmarked = self._lingering = 0
            return
        after, over = follow(memory, foreseen, jobs, scheduler, now_s)
        self._memory, over = with_users(memory, after, over, now_s, earmark_wait_s(scheduler))
        self.earmarks += len(over)
        self.useful += sum(one.end == "started" for one in over)
        self.earmarked = self._lingering = 0
        for earmark in self._memory.earmarks.values():
            mask = site.numbering.mask(earmark.nodes)
            self.earmarked |= mask
            if has_time(earmark, now_s):
                self._lingering |= mask

    def _foreseen(self, jobs: list[Job], ready: int, now_s: float) -> Prediction:
        controller = self._controller
        site, memory = controller.site, self._memory
        ours = controller.pilots | controller.leaving
        everything, size = controller.everything, len(site.numbering.names)
        count, waiting = ready.bit_count(), self._waiting
        few = [place for place, one in enumerate(waiting) if one.need.count <= count]
        while few and not waiting[few[-1]].need.met(waiting[few[-1]].part.allowed & ready):
            few.pop()
        if not few:
            return Prediction(site.numbering, ready, 0, ours, everything, size)
        # a job behind cannot start, nor be in the way of those before it
        entries = [one.entry for one in waiting[: few[-1] + 1]]
        out = unlikely(memory, jobs, now_s)
        walks: list[Walk] = []
        simulate(
            entries,
            site.numbering,
            ready,
            ours,
            controller.ends(),
            site.bookings,
            now_s,
            replace(site.scheduler, read=True),
            kept={key_: site.numbering.mask(one.nodes) for key_, one in memory.kept.items()},
            weights=site.weights,
            backed_off=out,
            go=walks.append,
        )
        (walk,) = walks
        _Foreseen(waiting, walk, [place for place in few if entries[place].id not in out], entries).go(now_s)
        last = max((place for place, one in enumerate(entries) if one.id in walk.now), default=-1) if walk.now else -1
        starts = expected_starts(entries[: last + 1], walk.outcome, ready)
        return Prediction(site.numbering, ready, 0, ours, everything, size, starts)

    def _jobs(self) -> list[Job]:
        """Return the jobs as Slurm shows them: those that wait, and those that have begun since the last look."""
        controller = self._controller
        if self._changes == controller.changes:
            return list(self._shown.values())
        self._changes = controller.changes
        self._waiting = [one for one in controller.queue if one.job.booked is None]
        there = {one.job.number: one for one in self._waiting}
        begun = [one for number, one in self._seen.items() if number not in there and one.run.start_s < inf]
        self._seen = there
        self._shown = {number: self._shown.get(number) or _job(one, "PENDING") for number, one in there.items()}
        return [*self._shown.values(), *(_job(one, "RUNNING") for one in begun)]


class _Foreseen(Ahead):
    """A walk through `entries`, which get the plans that Slurm shows as the walk comes to them."""

    def __init__(
        self, lines: Sequence[WaitingJob], walk: Walk, places: Sequence[int], entries: list[QueueEntry]
    ) -> None:
        super().__init__(lines, walk, places)
        self._entries = entries

    def step(self) -> bool:
        """Consider the next entry."""
        walk = self._walk
        if walk.looked < len(self._entries):
            line = self._lines[walk.looked]
            plan_s = line.plan_s
            if plan_s is not None and plan_s > walk.calendar.now_s:
                self._entries[walk.looked] = replace(line.entry, plan_s=plan_s, plan=line.plan)
        return walk.step()


def _job(one: WaitingJob, state: str) -> Job:
    job = one.job
    return Job(
        id=one.entry.id,
        user=job.user,
        partition=("batch",),
        state=state,
        name="",
        nodes=(),
        sched_nodes=(),
        start_s=None,
        submit_s=job.submit_s,
        time_limit_s=job.limit_s,
        reason="Resources",
        node_count=one.need.count,
        comment="",
        dependency="",
        priority=1,
        reservation="",
    )
