"""The node pool: which nodes of the harvested partition bftd may use at one snapshot, and for how long.

Pure: `observe` folds snapshots into a `PoolMemory`, with `snapshot.time_s` as the only clock. A node is offered when
it stayed idle for `debounce_polls` polls and no pending regular job is planned on it within `min_window_s`; a node
that carries one of our pilots stays in the pool until a regular job needs it within `vacate_ahead_s`, and then stays
out until that job has started or gone. While regular jobs wait for room, `spare_nodes` idle nodes are not offered: a
backfilled job starts there at once, while to preempt takes it a second cycle, and by then its slot may be gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from math import inf

from bftd.core.domain import ElasticJob, PoolNode, PoolView
from bftd.keys import PoolConfig
from slurm_plugin.types import Job, Node, Snapshot

# The first word of the comment of every pilot.
PILOT_COMMENT = "bft"
RUNS_A_JOB = "runs a job"
SPARED = "is kept free for regular jobs that wait (spare_nodes)"
# Reasons with which Slurm would start a pending job if there were room: only these wait for a plan.
_SCHEDULABLE = frozenset({"", "None", "Resources", "Priority"})
# Reasons with which a pending job starts by no passing of time: its old plan binds nobody.
_HELD = ("JobHeld", "Dependency")
_RUNNING = frozenset({"RUNNING", "CONFIGURING"})
_BUSY = frozenset({"ALLOCATED", "MIXED"})
# Flags that leave an idle node usable; every other flag, also one that a later Slurm invents, keeps it out.
HARMLESS_FLAGS = frozenset({"PLANNED", "CLOUD", "DYNAMIC_NORM", "DYNAMIC_FUTURE"})
_FLAG_SENTENCES = (
    ("NOT_RESPONDING", "does not respond"),
    ("POWER", "is powered down or changes power"),
    ("DRAIN", "is draining"),
    ("DOWN", "is down"),
    ("FAIL", "is failing"),
    ("REBOOT", "is rebooting"),
    ("MAINT", "is in maintenance"),
    ("RESERVED", "is reserved"),
    ("COMPLETING", "is between two jobs"),
)


# Slurm grants nothing that reaches into a reservation, and no time limit is shorter than a minute.
_SHORTEST_JOB_S = 60.0


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """What earlier polls said of one node: idle polls in a row, and whether our pilot was what it last carried."""

    idle_polls: int = 0
    ours: bool = False


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """What `observe` remembers between two snapshots.

    `planless` maps pending jobs without a plan to when they were first seen so; `vacated` maps nodes that were given
    up to the job that needs them; `spared` are the idle nodes kept free for the jobs that wait.
    """

    version: int = 0
    members: frozenset[str] = frozenset()
    nodes: Mapping[str, NodeMemory] = field(default_factory=dict)
    planless: Mapping[str, float] = field(default_factory=dict)
    vacated: Mapping[str, str] = field(default_factory=dict)
    spared: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Claim:
    """The soonest planned use of a node: who, and in how many seconds."""

    by: str
    window_s: float
    job: str | None


def observe(
    memory: PoolMemory,
    snapshot: Snapshot,
    config: PoolConfig,
    partition: str,
    leased: Mapping[str, str | None],
    quarantined: Mapping[str, float],
) -> tuple[PoolMemory, PoolView]:
    """Fold one snapshot in and return the pool as it shows it.

    `leased` maps nodes under lease to the job id of the pilot where it is known, `quarantined` nodes to the time
    until which they are left alone.
    """
    now = snapshot.time_s
    nodes = {name: node for name, node in snapshot.nodes.items() if partition in node.partitions}
    pilots = _running_on(snapshot.jobs, partition)
    occupied = {node for job in snapshot.jobs for node in job.nodes}
    # the partitions whose jobs may need harvested nodes: looked up once, for thousands of jobs
    regular = {other for node in nodes.values() for other in node.partitions} - {partition}
    pending = [job for job in snapshot.jobs if job.state == "PENDING" and not regular.isdisjoint(job.partition)]
    claims = _claims(pending, snapshot, now)
    vacated = _vacated(memory.vacated, pending)
    planless = _planless(memory.planless, pending, config, now)

    seen: dict[str, PoolNode] = {}
    remembered: dict[str, NodeMemory] = {}
    for name, node in nodes.items():
        pilot = pilots.get(name)
        ours = name in leased and pilot is not None and leased[name] in (None, pilot)
        # Slurm's nodes and jobs are two answers: between them our own pilot may have come or gone.
        kept = ours or (name in leased and name not in occupied and node.state in _BUSY)
        claim = claims.get(name)
        if ours and claim is not None and claim.job is not None and claim.window_s <= config.vacate_ahead_s:
            vacated.setdefault(name, claim.job)
        remembered[name] = _remember(memory.nodes.get(name, NodeMemory()), node, kept, config.debounce_polls)
        why, in_pool, wanted = _judge(node, kept, claim, vacated.get(name), remembered[name], config)
        if why == RUNS_A_JOB and pilot is not None:
            why = f"runs job {pilot} of this partition, which no lease stands behind"
        if in_pool and not kept and (until_s := quarantined.get(name, now)) > now:
            why, in_pool = f"is in quarantine for {until_s - now:.0f} s more after failing pilots", False
        seen[name] = PoolNode(
            name=name,
            state="+".join((node.state, *sorted(node.flags))),
            in_pool=in_pool,
            why=why,
            window_s=claim.window_s if claim else None,
            wanted=wanted,
            pilot=pilot if ours else None,
            gres=node.gres,
            gpus=sum(node.gpus.values()),
        )
    spared: frozenset[str] = frozenset()
    if config.spare_nodes:
        asked = regular.intersection(name for job in pending if job.reason in _SCHEDULABLE for name in job.partition)
        usable = (seen[name] for name, node in nodes.items() if not asked.isdisjoint(node.partitions))
        free = (node for node in usable if node.in_pool and node.name not in leased)
        spared = _spared(free, memory.spared, config.spare_nodes)
        seen.update((name, replace(seen[name], in_pool=False, why=SPARED)) for name in spared)
    members = frozenset(name for name, node in seen.items() if node.in_pool)
    version = memory.version + (members != memory.members)
    view = PoolView(
        version=version,
        time_s=now,
        hold=_hold(planless, config, now),
        nodes=seen,
        pilots={job: node for node, job in pilots.items() if node in nodes},
        owners=_owners(snapshot.jobs, partition),
        job_ids=frozenset(job.id for job in snapshot.jobs),
        elastic=_elastic(snapshot.jobs, nodes, partition),
        accounts={job.id: (job.user, job.account) for job in snapshot.jobs if job.account},
    )
    return PoolMemory(version, members, remembered, planless, vacated, spared), view


def _running_on(jobs: Iterable[Job], partition: str) -> dict[str, str]:
    """Node to running job of the preemptible partition; one that is still completing no longer counts."""
    running = (job for job in jobs if job.state in _RUNNING and partition in job.partition)
    return {node: job.id for job in running for node in job.nodes}


def _elastic(jobs: Iterable[Job], nodes: Mapping[str, Node], partition: str) -> dict[str, ElasticJob]:
    """The jobs that run in the preemptible partition, whoever started them."""
    running = (job for job in jobs if job.state in _RUNNING and partition in job.partition)
    return {
        job.id: ElasticJob(job.id, job.user, job.account, job.nodes, job.start_s)
        for job in running
        if any(name in nodes for name in job.nodes)
    }


def _owners(jobs: Iterable[Job], partition: str) -> dict[str, str]:
    """Job id to trainer of the pilots that drivers started: their comment is "bft <trainer> <lease>"."""
    owners = {}
    for job in jobs:
        words = job.comment.split()
        if job.state in _RUNNING and partition in job.partition and len(words) == 3 and words[0] == PILOT_COMMENT:
            owners[job.id] = words[1]
    return owners


def _claims(pending: Iterable[Job], snapshot: Snapshot, now: float) -> dict[str, Claim]:
    """The soonest claim on each node: planned starts of pending jobs, and reservations still to come or active."""
    claims: dict[str, Claim] = {}

    def claim(node: str, by: str, start_s: float, job: str | None) -> None:
        window_s = max(0.0, start_s - now)
        if node not in claims or window_s < claims[node].window_s:
            claims[node] = Claim(by, window_s, job)

    for job in pending:
        if job.start_s is not None and not job.reason.startswith(_HELD):
            for node in job.sched_nodes:
                claim(node, f"job {job.id}", job.start_s, job.id)
    for reservation in snapshot.reservations:
        if reservation.end_s > now:
            for node in reservation.nodes:
                claim(node, f"reservation {reservation.name}", reservation.start_s, None)
    return claims


def _vacated(before: Mapping[str, str], pending: Iterable[Job]) -> dict[str, str]:
    """Nodes that stay given up: those whose job still waits and has not been held back since."""
    waiting = {job.id for job in pending if not job.reason.startswith(_HELD)}
    return {node: job for node, job in before.items() if job in waiting}


def _planless(before: Mapping[str, float], pending: Iterable[Job], config: PoolConfig, now: float) -> dict[str, float]:
    """Pending jobs that Slurm would start but has not planned, or about to start on nodes it does not name."""
    planless = {}
    for job in pending:
        no_plan = job.start_s is None or (not job.sched_nodes and job.start_s - now < config.min_window_s)
        if no_plan and job.reason in _SCHEDULABLE:
            planless[job.id] = before.get(job.id, now)
    return planless


def _hold(planless: Mapping[str, float], config: PoolConfig, now: float) -> str | None:
    """The sentence that forbids growing, of the job that may forbid it longest; None when growing is fine."""
    waiting = {job: since for job, since in planless.items() if now - since < config.plan_wait_s}
    if not waiting:
        return None
    job, since = max(waiting.items(), key=lambda item: item[1])
    left_s = config.plan_wait_s - (now - since)
    others = f" and {len(waiting) - 1} more wait" if len(waiting) > 1 else " waits"
    return f"job {job}{others} without a plan: nothing grows before Slurm has planned it, {left_s:.0f} s at most"


def _remember(before: NodeMemory, node: Node, kept: bool, debounce_polls: int) -> NodeMemory:
    """Count idle polls; a node that comes straight from our own pilot was between no two jobs of others."""
    if kept:
        return NodeMemory(debounce_polls, ours=True)
    if node.state == "IDLE" and "COMPLETING" not in node.flags:
        return NodeMemory(before.idle_polls + 1)
    if before.ours and "COMPLETING" in node.flags:
        return before
    return NodeMemory()


def _judge(
    node: Node, kept: bool, claim: Claim | None, vacated_for: str | None, memory: NodeMemory, config: PoolConfig
) -> tuple[str, bool, bool]:
    """Decide on one node: why, whether it is in the pool, and whether a regular job has or needs it.

    `kept` says that our pilot has the node.
    """
    # The plan of a pending job comes before all else: it decides whether a pilot leaves at once.
    if vacated_for is not None:
        return f"is left to job {vacated_for}, which waits for it", False, True
    unusable = _unusable(node, node.flags - {"COMPLETING"} if kept else node.flags)
    if unusable is not None:
        return unusable, False, False
    if kept:
        if claim is not None and claim.window_s <= config.vacate_ahead_s:
            return f"is needed by {claim.by} in {claim.window_s:.0f} s", False, True
        return "runs a pilot", True, False
    if node.state != "IDLE":
        return RUNS_A_JOB, False, True
    if claim is not None and claim.window_s < _shortest_window_s(claim, config):
        return f"is planned for {claim.by} in {claim.window_s:.0f} s", False, True
    if claim is None and "PLANNED" in node.flags:
        return "is planned for a job whose start is not known", False, True
    if memory.idle_polls < config.debounce_polls:
        return f"is idle for {memory.idle_polls} of {config.debounce_polls} polls", False, False
    return "is idle", True, False


def _shortest_window_s(claim: Claim, config: PoolConfig) -> float:
    return config.min_window_s if claim.job is not None else max(config.min_window_s, _SHORTEST_JOB_S)


def _spared(free: Iterable[PoolNode], before: Set[str], count: int) -> frozenset[str]:
    """Of the free nodes that waiting jobs may use, the `count` to keep free; those kept `before` stay where they may.

    The longest windows first, though a trainer would like them best too: a job starts on a node that is planned for
    another one only if its time limit ends before that, so a short window is kept free for nobody.
    """

    def usefulness(node: PoolNode) -> tuple[bool, bool, float, int, str]:
        window_s = inf if node.window_s is None else node.window_s
        return window_s < _SHORTEST_JOB_S, node.name not in before, -window_s, len(node.name), node.name

    return frozenset(node.name for node in nsmallest(count, free, key=usefulness))


def _unusable(node: Node, flags: frozenset[str]) -> str | None:
    """Why a node is not to be used whatever it runs, or None."""
    if node.state != "IDLE" and node.state not in _BUSY:
        return f"is {node.state.lower()}"
    flags = flags - HARMLESS_FLAGS
    if not flags:  # as nearly all of thousands of nodes
        return None
    for part, sentence in _FLAG_SENTENCES:
        if any(part in flag for flag in flags):
            return f"{sentence}: {node.reason}" if node.reason and part in ("DRAIN", "DOWN", "FAIL") else sentence
    return f"has the flag {min(flags)}"
