"""Nodes kept free for waiting jobs, from one snapshot to the next. Pure.

A job that Slurm could start now if no pilot were there has nodes *earmarked* for it by name: pilots leave them and none
comes to them, so that Slurm's next backfill cycle starts the job in that very cycle instead of preempting for it. The
earmark is made anew at every snapshot, and is kept until the job has started, is gone or no longer fits. A job that has
not started within two cycles does not start for reasons that cannot be seen from here. It is *backed off*: it is
ignored for a time that doubles with each backoff, the first three times only until a node is ready that was not then.
So is a job that *flaps*, fits and does not fit in turns: pilots would leave and come back for it for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from bftd.core.model.domain import Earmark, EarmarkEnd, EarmarkOver
from bftd.pool.backfill.model import Numbering, union
from bftd.pool.governor import EarmarkAllowance, EarmarkCost, EndedEarmark, Governor
from bftd.pool.user_backoff import UserBackoff
from slurm_plugin.read.types import Job, Scheduler

# Two cycles are enough for Slurm to start what it can start; these seconds are for its rounding and for our polls.
_CYCLES = 2
_SLACK_S = 5.0
# However long cycles last, nodes are wasted no longer than this.
_WAIT_MOST_S = 600.0
# Times that another node lets a job be tried again that is backed off, and the longest backoff.
_WOKEN_MOST = 3
_BACKOFF_MOST_S = 3600.0
# Plans move, and with them which jobs fit. A job whose earmark is over this often for that reason, each time soon after
# the last, flaps: it costs the trainers a resize each time and has not been started by any cycle in between.
_FLAPS_MOST = 4
# If the next cycle is sooner than this, pilots leave at once: the end of a step may take as long.
_DUE_LEAST_S = 3.0
# If it is later than this, pilots train on until then: time for the end of a step, and for what goes wrong.
_LINGER_S = 10.0
# A cycle uses what it saw when it began. One that takes longer than this may start a job that no longer fits.
_LONG_CYCLE_S = 2.0
_STALE_MOST_S = 30.0


@dataclass(frozen=True, slots=True)
class ExpectedStart:
    """A job that could start now: its nodes, and all nodes that it may use.

    A job that is `first` in line for its nodes may be started by Slurm's main scheduler at any moment.
    """

    nodes: int
    allowed: int
    first: bool = True


@dataclass(frozen=True, slots=True)
class Prediction:
    """The jobs that would start at one snapshot if no pilot were there, by `key`; masks are those of the `numbering`.

    `ours` are the nodes under lease and `harvested` those that pilots may have; an ended job has yet to leave those of
    `ready` that are `clearing`. The site has `size` harvested nodes. `cut` says why not all jobs were looked at, "" if
    all were.
    """

    numbering: Numbering
    ready: int = 0
    clearing: int = 0
    ours: int = 0
    harvested: int = 0
    size: int = 0
    starts: Mapping[str, ExpectedStart] = field(default_factory=dict)
    cut: str = ""


@dataclass(frozen=True, slots=True)
class EarmarkState:
    """An earmark, and all `nodes` that its job would start on: those outside the earmark are not harvested.

    `begun` are the tasks of an array that run already, `user` is the job's, and `proved` says whether the user's jobs
    used to start on their earmarks. The job last fitted at `fitted_s`. So far the earmark cost `node_s` and the pilots
    of the nodes `left`.
    """

    earmark: Earmark
    nodes: tuple[str, ...]
    begun: frozenset[str] = frozenset()
    user: str = ""
    fitted_s: float = float("-inf")
    proved: bool = False
    node_s: float = 0.0
    left: frozenset[str] = frozenset()

    @property
    def cost(self) -> EarmarkCost:
        """The cost of the earmark so far."""
        return EarmarkCost(self.node_s, len(self.left))

    def worst(self, wait_s: float) -> EarmarkCost:
        """Return the cost of the earmark if its job does not start."""
        nodes = self.left.union(self.earmark.leaving)
        return self.cost.at_least(EarmarkCost(len(self.earmark.nodes) * wait_s, len(nodes)))


@dataclass(frozen=True, slots=True)
class JobBackoff:
    """A job that did not start though nodes were earmarked `count` times; any node of `lacks` lets it try again.

    `lacks` is a mask of the `numbering`: hundreds of jobs may each lack thousands of nodes.
    """

    until_s: float
    count: int
    lacks: int = 0
    numbering: Numbering = field(default_factory=lambda: Numbering.of(()))


@dataclass(frozen=True, slots=True)
class FlapCount:
    """The number of times in a row that a job's earmark ended because it no longer fitted, and the time of the last."""

    last_s: float
    count: int = 1


@dataclass(frozen=True, slots=True)
class EarmarkMemory:
    """The memory of earmarks between two snapshots, by `key`, and by user; the last snapshot was of `looked_s`.

    `completing` has since when each node shows that an ended job has not left it.
    """

    kept: Mapping[str, EarmarkState] = field(default_factory=dict)
    backoffs: Mapping[str, JobBackoff] = field(default_factory=dict)
    flaps: Mapping[str, FlapCount] = field(default_factory=dict)
    users: Mapping[str, UserBackoff] = field(default_factory=dict)
    governor: Governor = field(default_factory=Governor)
    looked_s: float | None = None
    numbering: Numbering = field(default_factory=lambda: Numbering.of(()))
    completing: Mapping[str, float] = field(default_factory=dict)
    # Of the last snapshot alone: why not all jobs were looked at, and the error of the simulation.
    cut: str = ""
    fault: Exception | None = None

    @property
    def earmarks(self) -> dict[str, Earmark]:
        """The earmarks that keep a harvested node, by their jobs."""
        return {key_: kept.earmark for key_, kept in self.kept.items() if kept.earmark.nodes}

    def moved(self, by_s: float) -> EarmarkMemory:
        """Return the memory with its times moved: the clock was set."""
        kept = {
            key_: replace(one, earmark=_moved(one.earmark, by_s), fitted_s=one.fitted_s + by_s)
            for key_, one in self.kept.items()
        }
        backoffs = {key_: replace(one, until_s=one.until_s + by_s) for key_, one in self.backoffs.items()}
        flaps = {key_: replace(one, last_s=one.last_s + by_s) for key_, one in self.flaps.items()}
        looked_s = None if self.looked_s is None else self.looked_s + by_s
        ended = {name: since_s + by_s for name, since_s in self.completing.items()}
        governor = self.governor.moved(by_s)
        return replace(
            self, kept=kept, backoffs=backoffs, flaps=flaps, governor=governor, looked_s=looked_s, completing=ended
        )


def _moved(earmark: Earmark, by_s: float) -> Earmark:
    due_s = None if earmark.due_s is None else earmark.due_s + by_s
    return replace(earmark, since_s=earmark.since_s + by_s, due_s=due_s)


def earmark_wait_s(scheduler: Scheduler) -> float:
    """Return how long a job may take to start once it has an earmark.

    If the length of cycles is not known, one may be at work for as long as bf_max_time lets it, and the next one, which
    sees the earmark from its beginning, as long.
    """
    if scheduler.cycle_s is None:
        cycles_s = scheduler.interval_s + 2.0 * scheduler.max_time_s
    else:
        cycles_s = _CYCLES * (scheduler.interval_s + scheduler.cycle_s)
    return min(cycles_s + _SLACK_S, _WAIT_MOST_S)


def has_time(earmark: Earmark, now_s: float) -> bool:
    """Whether the next cycle is so far away that pilots need not leave yet."""
    return earmark.due_s is not None and earmark.due_s - now_s > _LINGER_S


def key(job_id: str) -> str:
    """Return the key of a waiting job: an array whose tasks start one by one, or a job of parts, has one as a whole."""
    if job_id.isdigit():  # true for nearly all of tens of thousands
        return job_id
    return job_id.partition("_[")[0].partition("+")[0]


def awake(memory: EarmarkMemory, numbering: Numbering, ready: int, now_s: float) -> EarmarkMemory:
    """Return the memory with the backoffs ended whose jobs find a node that was not ready before."""

    def woken(backoff: JobBackoff) -> JobBackoff:
        if not backoff.lacks or backoff.until_s <= now_s:
            return backoff
        if backoff.numbering is not numbering:
            lacks = numbering.mask(backoff.numbering.of_mask(backoff.lacks))
            backoff = replace(backoff, lacks=lacks, numbering=numbering)
        return JobBackoff(now_s, backoff.count) if backoff.lacks & ready else backoff

    return replace(memory, backoffs={key_: woken(backoff) for key_, backoff in memory.backoffs.items()})


def backed_off(memory: EarmarkMemory, now_s: float) -> frozenset[str]:
    """Return the jobs for which no node is earmarked."""
    return frozenset(key_ for key_, backoff in memory.backoffs.items() if now_s < backoff.until_s)


def follow(
    memory: EarmarkMemory, foreseen: Prediction | None, jobs: Collection[Job], scheduler: Scheduler, now_s: float
) -> tuple[EarmarkMemory, tuple[EarmarkOver, ...]]:
    """Carry the earmarks on by one snapshot. Returns the new memory and the earmarks that are over.

    `jobs` are all of the snapshot. If nothing could be `foreseen`, no node is earmarked, and existing earmarks stay
    until their job has started or gone or their time is over.
    """
    wait_s = earmark_wait_s(scheduler)
    memory = _costed(memory, foreseen, wait_s, now_s)
    starts = foreseen.starts if foreseen is not None else {}
    waiting = _waiting(jobs, memory.kept.keys() | memory.backoffs.keys() | memory.flaps.keys() | starts.keys())
    begun = _begun(jobs, memory.kept.keys() | starts.keys()) if memory.kept or starts else {}
    started = {key_ for key_, one in memory.kept.items() if begun.get(key_, one.begun) - one.begun}
    backoffs = {key_: backoff for key_, backoff in memory.backoffs.items() if key_ in waiting}
    kept: dict[str, EarmarkState] = {}
    taken = union(start.nodes for start in starts.values())
    for key_, before in memory.kept.items():
        if key_ not in waiting or key_ in started or key_ in starts:
            continue
        fits_no_more = foreseen is not None and not _outlives(before, foreseen, taken, scheduler, now_s)
        if fits_no_more and not waiting[key_].unreadable:
            continue
        if now_s - before.earmark.since_s <= wait_s:
            kept[key_] = before
        else:
            backoffs[key_] = _backoff(backoffs.get(key_), 0, memory.numbering, wait_s, now_s)
    allowance = EarmarkAllowance(memory.governor, foreseen.size if foreseen is not None else 0)
    for key_, before in memory.kept.items():
        if key_ in kept or (key_ in starts and key_ not in started):
            allowance.spend(before.proved, before.worst(wait_s))
    for key_, start in starts.items():
        assert foreseen is not None
        last = None if key_ in started else memory.kept.get(key_)
        if last is not None and (now_s - last.earmark.since_s > wait_s or allowance.is_over(last.proved, last.cost)):
            lacks = start.allowed & ~(foreseen.ready & ~foreseen.clearing)
            backoffs[key_] = _backoff(backoffs.get(key_), lacks, foreseen.numbering, wait_s, now_s)
            continue
        nodes, fitted_s = foreseen.numbering.of_mask(start.nodes), now_s
        others = taken & ~start.nodes
        if last is not None and last.nodes != nodes and _outlives(last, foreseen, others, scheduler, now_s):
            # The cycle at work may start it where it fitted before, or where it fits now; no pilot leaves for that.
            both = foreseen.numbering.mask(last.nodes) | start.nodes & ~foreseen.ours
            nodes, fitted_s = foreseen.numbering.of_mask(both), last.fitted_s
        earmark = _earmark(key_, start, nodes, last, foreseen, scheduler, now_s)
        user = waiting[key_].user if key_ in waiting else ""
        proved = user in memory.governor.proved or key_ in started if last is None else last.proved
        made = replace(
            last or EarmarkState(earmark, ()), earmark=earmark, nodes=nodes, user=user, fitted_s=fitted_s, proved=proved
        )
        if last is not None or allowance.takes(proved, made.worst(wait_s)):
            kept[key_] = replace(made, begun=begun.get(key_, frozenset()))
    unfit = waiting.keys() - kept.keys() - starts.keys() - started
    flaps = _flaps(memory, unfit, started, waiting, wait_s, now_s)
    for key_, flap in list(flaps.items()):
        if flap.count >= _FLAPS_MOST:
            backoffs[key_] = _backoff(backoffs.get(key_), 0, memory.numbering, wait_s, now_s)
            del flaps[key_]
    after = replace(memory, kept=kept, backoffs=backoffs, flaps=flaps, fault=None)
    if foreseen is not None:
        after = replace(after, numbering=foreseen.numbering, cut=foreseen.cut)
    newly = {key_ for key_, one in backoffs.items() if one.until_s > now_s and one is not memory.backoffs.get(key_)}
    over = tuple(_over(memory, after, waiting.keys(), started, newly))
    size = foreseen.size if foreseen is not None else len(memory.numbering.names)
    return replace(after, governor=memory.governor.after(_ended(memory, over), size, now_s)), over


def _costed(memory: EarmarkMemory, foreseen: Prediction | None, wait_s: float, now_s: float) -> EarmarkMemory:
    """Add the cost of earmarks since the snapshot before; pilots that have time until the next cycle cost nothing."""
    if not memory.kept or memory.looked_s is None:
        return memory
    passed_s = min(max(0.0, now_s - memory.looked_s), wait_s)
    kept = {}
    for key_, one in memory.kept.items():
        lingers: frozenset[str] = frozenset()
        if foreseen is not None and has_time(one.earmark, memory.looked_s):
            bit = foreseen.numbering.bit
            lingers = frozenset(name for name in one.earmark.nodes if bit.get(name, 0) & foreseen.ours)
        node_s = one.node_s + passed_s * (len(one.earmark.nodes) - len(lingers))
        left = one.left.union(one.earmark.leaving).difference(lingers) if one.earmark.leaving else one.left
        kept[key_] = replace(one, node_s=node_s, left=left)
    return replace(memory, kept=kept)


def _ended(memory: EarmarkMemory, over: Iterable[EarmarkOver]) -> Iterable[EndedEarmark]:
    """Yield the results of the earmarks that are over, for the governor."""
    for one in over:
        kept = memory.kept[one.earmark.job]
        yield EndedEarmark(kept.user, kept.proved, one.end == "started", len(kept.earmark.nodes), kept.cost)


def _outlives(before: EarmarkState, foreseen: Prediction, taken: int, scheduler: Scheduler, now_s: float) -> bool:
    """Whether a cycle may be at work that began while the job of an earmark still fitted, on nodes that are still free.

    Slurm's cycles on a large machine take many seconds, and changes meanwhile affect the one at work little.
    """
    cycle_s = scheduler.cycle_s or 0.0
    if cycle_s < _LONG_CYCLE_S or now_s - before.fitted_s > min(cycle_s, _STALE_MOST_S):
        return False
    due_s = cycle_due_s(scheduler, now_s)
    nodes = foreseen.numbering.mask(before.nodes)
    return (due_s is None or due_s <= now_s) and not nodes & (taken | ~foreseen.ready)


def given_up(memory: EarmarkMemory) -> tuple[EarmarkMemory, tuple[EarmarkOver, ...]]:
    """Drop all earmarks: they are switched off."""
    return EarmarkMemory(), tuple(EarmarkOver(earmark, "no longer fits") for earmark in memory.earmarks.values())


def _earmark(
    key_: str,
    start: ExpectedStart,
    nodes: tuple[str, ...],
    last: EarmarkState | None,
    foreseen: Prediction,
    scheduler: Scheduler,
    now_s: float,
) -> Earmark:
    """Return the earmark of a job: as it was, on those of its `nodes` now that are harvested."""
    bit = foreseen.numbering.bit
    mine = tuple(name for name in nodes if bit[name] & foreseen.harvested)
    due_s = _due_s(start, scheduler, now_s)
    had: tuple[str, ...] = ()
    since_s = now_s
    if last is not None:
        since_s, had = last.earmark.since_s, last.earmark.leaving
        if any(bit.get(name, 0) & foreseen.ours for name in had):
            # those pilots were told a time, which may be moved earlier and never later
            due_s = None if due_s is None and start.first else _sooner(last.earmark.due_s, due_s)
    leaving = tuple(name for name in mine if bit[name] & foreseen.ours or name in had)
    return Earmark(key_, mine, since_s, leaving, due_s)


def cycle_due_s(scheduler: Scheduler, now_s: float) -> float | None:
    """Return when the next backfill cycle begins at the earliest; None if unknown, or if one may be at work."""
    if scheduler.cycled_s is None or scheduler.cycled_s > now_s:  # or the clock was set back
        return None
    return scheduler.due_s


def _due_s(start: ExpectedStart, scheduler: Scheduler, now_s: float) -> float | None:
    """Return the expected next backfill cycle; None if unknown or too near, or if the job may start without it."""
    due_s = None if start.first else cycle_due_s(scheduler, now_s)
    return due_s if due_s is not None and due_s - now_s > _DUE_LEAST_S else None


def _sooner(told_s: float | None, due_s: float | None) -> float | None:
    if told_s is None or due_s is None:
        return told_s
    return min(told_s, due_s)


def _flaps(
    memory: EarmarkMemory,
    unfit: Collection[str],
    started: Collection[str],
    waiting: Collection[str],
    wait_s: float,
    now_s: float,
) -> dict[str, FlapCount]:
    """Return the flaps that still count, with those of the earmarks whose jobs are `unfit` now."""
    before = {
        key_: one
        for key_, one in memory.flaps.items()
        if key_ in waiting and key_ not in started and now_s - one.last_s <= wait_s
    }
    new = {
        key_: FlapCount(now_s, 1 + (before[key_].count if key_ in before else 0))
        for key_ in memory.earmarks
        if key_ in unfit and now_s - memory.kept[key_].earmark.since_s <= wait_s
    }
    return before | new


def _backoff(before: JobBackoff | None, lacks: int, numbering: Numbering, wait_s: float, now_s: float) -> JobBackoff:
    count = 1 + (before.count if before is not None else 0)
    while_s = min(wait_s * 2.0 ** min(count, 10), _BACKOFF_MOST_S)
    return JobBackoff(now_s + while_s, count, lacks if count <= _WOKEN_MOST else 0, numbering)


def _waiting(jobs: Iterable[Job], keys: Collection[str]) -> dict[str, Job]:
    """Return the waiting jobs of these keys."""
    if not keys:
        return {}
    pending = ((key(job.id), job) for job in jobs if job.state == "PENDING")
    return {one: job for one, job in pending if one in keys}


def _begun(jobs: Iterable[Job], keys: Collection[str]) -> dict[str, frozenset[str]]:
    """Return by key the jobs of these keys that wait no longer, an array's tasks under the array's key."""
    found: dict[str, set[str]] = {}
    for job in jobs:
        if job.state != "PENDING":
            for one in {key(job.id), job.id.partition("_")[0]}.intersection(keys):
                found.setdefault(one, set()).add(job.id)
    return {one: frozenset(ids) for one, ids in found.items()}


def _over(
    before: EarmarkMemory,
    after: EarmarkMemory,
    waiting: Collection[str],
    started: Collection[str],
    newly: Collection[str],
) -> Iterable[EarmarkOver]:
    earmarks = after.earmarks
    for key_, earmark in before.earmarks.items():
        end: EarmarkEnd | None = None
        if key_ in started:
            end = "started"
        elif key_ not in waiting:
            end = "gone"
        elif key_ in newly:
            end = "backed off"
        elif key_ not in earmarks:
            end = "no longer fits"
        if end is not None:
            yield EarmarkOver(earmark, end)
