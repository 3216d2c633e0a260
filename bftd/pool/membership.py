"""The node pool: the harvested nodes that bftd may use at one snapshot, and for how long.

Pure: `observe` folds snapshots into a `PoolMemory`, with `snapshot.time_s` as the only clock. A node is offered when it
stayed idle for `debounce_polls` polls and no pending regular job is planned on it within `min_window_s`. A node that
carries one of our pilots stays in the pool until a regular job needs it within `vacate_ahead_s`, and then stays out
until that job has started or gone. If the pilot has a part of its node, regular jobs may run beside it. Nodes are kept
free for jobs that Slurm could start now if no pilot were there, and pilots leave those of them that are not free
(`bftd.pool.earmarks`). A node that has not answered Slurm, like all nodes after a restart of slurmctld, is kept for a
while if its pilot runs. A change of many nodes at once, through no job, is not believed at once, and nothing grows
meanwhile. No pilot comes to a node that a job may count on for which Slurm is just preempting. While regular jobs wait
for nodes, `spare_nodes` idle nodes are not offered. `slurm_plugin.pilots.pending_reasons` says which plans count, here
and in every driver.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from math import inf

from bftd.config.keys import PoolConfig
from bftd.core.model.domain import Earmark, PoolNode, PoolView
from bftd.core.model.foreign_jobs import ElasticJob
from bftd.pool.claims import NO_CLAIMS, SHORTEST_JOB_S, Claims, being_started, claims, counted_on, still_vacated
from bftd.pool.classes import Classified, classify, reclassified
from bftd.pool.earmarks import EarmarkMemory, cycle_due_s, given_up, has_time
from bftd.pool.fitness import BUSY, as_heard, is_unheard, unusable
from bftd.pool.harvest import Harvest
from bftd.pool.occupancy import Occupancy, asked, occupy
from bftd.pool.prediction import earmark_nodes
from bftd.pool.touched import TouchMemory, touched
from bftd.protocol import comment
from slurm_plugin.read.types import Job, Node, Snapshot

RUNS_A_JOB = "runs a job"
SPARED = "is kept free for regular jobs that wait (spare_nodes)"

# Slurm asks a node that did not answer again after a third of SlurmdTimeout, by its default 100 s, and until then does
# not show that it is there. Waiting that long loses nothing: drivers give up a node after 5 s without an answer, and a
# node that Slurm takes for dead it shows DOWN.
UNHEARD_KEPT_S = 120.0
# A change of more than this share of the nodes with our pilots, and of more than one, in one poll and through no job,
# is rather a fault of the controller, or of the network before it.
SUSPECT_SHARE = 0.1
# Then the next polls have to say the same for this long. A controller that starts has heard of its nodes by then, and
# an administrator who drains a rack loses no more than this.
SUSPECT_MOST_S = 10.0


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """The result of earlier polls of one node: idle polls in a row, and whether it last carried our pilot.

    The node has not answered Slurm since `unheard_s`, None if it has.
    """

    idle_polls: int = 0
    ours: bool = False
    unheard_s: float | None = None


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """The memory of `observe` between two snapshots.

    `vacated` maps nodes that were given up to the job that needs them; `spared` are the idle nodes kept free for
    waiting jobs. `classified` has the class of each node, and `earmarks` the nodes kept for jobs. Nothing grows since
    `suspect_s` because of what Slurm shows of many nodes at once, None if it is believed. `starting` has since when
    Slurm preempts for each job, and `touched` what is known of the jobs that pilots delay.
    """

    version: int = 0
    members: frozenset[str] = frozenset()
    nodes: Mapping[str, NodeMemory] = field(default_factory=dict)
    vacated: Mapping[str, str] = field(default_factory=dict)
    spared: frozenset[str] = frozenset()
    classified: Classified = field(default_factory=Classified)
    earmarks: EarmarkMemory = field(default_factory=EarmarkMemory)
    suspect_s: float | None = None
    starting: Mapping[str, float] = field(default_factory=dict)
    touched: TouchMemory = field(default_factory=TouchMemory)

    def moved(self, by_s: float) -> PoolMemory:
        """Return the memory with its times moved by what the clock was set."""
        nodes = {
            name: one if one.unheard_s is None else replace(one, unheard_s=one.unheard_s + by_s)
            for name, one in self.nodes.items()
        }
        return replace(
            self,
            nodes=nodes,
            earmarks=self.earmarks.moved(by_s),
            suspect_s=None if self.suspect_s is None else self.suspect_s + by_s,
            starting={id_: since_s + by_s for id_, since_s in self.starting.items()},
            touched=self.touched.moved(by_s),
        )


def observe(
    memory: PoolMemory,
    snapshot: Snapshot,
    config: PoolConfig,
    harvest: Harvest,
    leased: Mapping[str, str | None],
    quarantined: Mapping[str, float],
) -> tuple[PoolMemory, PoolView]:
    """Fold one snapshot in and return the pool as it shows it.

    `leased` maps nodes under lease to the job id of the pilot if it is known, `quarantined` nodes to the time until
    which they are left alone.
    """
    jobs = occupy(snapshot, harvest, leased)
    vacated = still_vacated(memory.vacated, jobs.pending)
    classified = classify(jobs.nodes, config.class_features, harvest.partitions or (), memory.classified)
    class_of = classified.of_node
    if config.earmark:
        earmarks, earmarks_over = earmark_nodes(memory.earmarks, snapshot, jobs, harvest, leased)
    else:
        earmarks, earmarks_over = given_up(memory.earmarks)
    lately = {name for name, node in memory.nodes.items() if node.ours}
    ours, now_s = leased.keys(), snapshot.time_s
    starting = being_started(memory.starting, jobs.pending, ours, lately, now_s)
    counted = counted_on(starting, jobs.pending, jobs.nodes, ours, earmarks.earmarks, now_s)
    gap_s, began_s = config.stale_after_s, _looked_s(snapshot)
    touch, starts = touched(
        memory.touched, snapshot, jobs, harvest, ours | lately, earmarks.earmarks, starting.keys(), began_s, gap_s
    )
    memory = replace(memory, earmarks=earmarks)
    remembered, seen = _judge_all(memory, jobs, snapshot, config, leased, quarantined, vacated, class_of)
    suspect_s, hold = _suspect(memory, seen, snapshot.time_s)
    free: frozenset[str] = frozenset()
    if config.spare_nodes and (partitions := asked(jobs.near, snapshot, harvest)):
        usable = (seen[name] for name, node in jobs.nodes.items() if not partitions.isdisjoint(node.partitions))
        offered = (node for node in usable if node.in_pool and node.name not in leased)
        free = _spared(offered, memory.spared, config.spare_nodes)
        seen.update((name, replace(seen[name], in_pool=False, why=SPARED)) for name in free)
    members = frozenset(name for name, node in seen.items() if node.in_pool)
    version = memory.version + (members != memory.members or reclassified(memory.classified, classified))
    view = _view(version, snapshot, seen, jobs, classified)
    view = replace(
        view,
        hold=hold,
        earmarks=earmarks.earmarks,
        earmarks_over=earmarks_over,
        wary=earmarks.governor.words,
        counted_on=counted,
        touched=starts,
    )
    after = PoolMemory(
        version, members, remembered, vacated, free, classified, earmarks, suspect_s, starting=starting, touched=touch
    )
    return after, view


def _suspect(memory: PoolMemory, seen: dict[str, PoolNode], now_s: float) -> tuple[float | None, str | None]:
    """Return since when a change of many nodes at once is suspect, and the sentence that forbids growing meanwhile.

    In `seen`, nodes with our pilots that have dropped out of the pool through no job are put back into it for as long
    as the change is not believed.
    """
    ours = [node for node in seen.values() if node.pilot is not None]
    out = [node for node in ours if node.name in memory.members and not (node.in_pool or node.wanted)]
    many = len(out) + sum(node.unheard for node in ours)
    if many <= max(1.0, SUSPECT_SHARE * len(ours)):
        return None, None
    since_s = now_s if memory.suspect_s is None else memory.suspect_s
    if now_s - since_s < SUSPECT_MOST_S:
        seen.update((node.name, replace(node, in_pool=True, why=f"{node.why}, as Slurm says for now")) for node in out)
    why = (out[0] if out else next(node for node in ours if node.unheard)).why
    return since_s, f"{many} of {len(ours)} lent nodes turned unfit at once, and no job has them: {why}"


def without(memory: PoolMemory, view: PoolView, names: Collection[str]) -> tuple[PoolMemory, PoolView]:
    """Return both without nodes that lost their leases, or failed, during the judgement: they wait for the next one."""
    lost = {name: node for name in names if (node := view.nodes.get(name)) is not None and node.in_pool}
    if not lost:
        return memory, view
    # they come back as new members, so that they are planned for
    memory = replace(memory, version=memory.version + 1, members=memory.members - lost.keys())
    seen = {name: replace(node, in_pool=False, why="has just lost its pilot") for name, node in lost.items()}
    return memory, replace(view, version=memory.version, nodes={**view.nodes, **seen})


def _judge_all(
    memory: PoolMemory,
    jobs: Occupancy,
    snapshot: Snapshot,
    config: PoolConfig,
    leased: Mapping[str, str | None],
    quarantined: Mapping[str, float],
    vacated: dict[str, str],
    class_of: Mapping[str, str],
) -> tuple[dict[str, NodeMemory], dict[str, PoolNode]]:
    """Decide on every node, spares aside; nodes that pilots have to leave are added to `vacated`."""
    now_s, before = snapshot.time_s, NodeMemory()
    claimed = claims(jobs.pending, snapshot.reservations, now_s)
    earmarks = {name: earmark for earmark in memory.earmarks.earmarks.values() for name in earmark.nodes}
    remembered: dict[str, NodeMemory] = {}
    seen: dict[str, PoolNode] = {}
    for name, node in jobs.nodes.items():
        pilot, other, claim = jobs.pilots.get(name), jobs.occupied.get(name), claimed.get(name, NO_CLAIMS)
        ours = name in leased and pilot is not None and leased[name] in (None, pilot)
        # Slurm's nodes and jobs are two answers: between them our own pilot may have come or gone.
        kept = ours or (name in leased and pilot is None and other is None and node.state in BUSY)
        taken = other or (None if kept else pilot)
        beside = other if ours and name in jobs.sharing and name in jobs.beside else None
        if ours and claim.job is not None and claim.job.window_s <= config.vacate_ahead_s:
            vacated.setdefault(name, claim.job.id)
        last = memory.nodes.get(name, before)
        remembered[name] = _remember(last, node, kept, taken, config.debounce_polls)
        unheard = ours and is_unheard(node)
        if unheard:
            since_s = now_s if last.unheard_s is None else last.unheard_s
            remembered[name] = replace(remembered[name], unheard_s=since_s)
            unheard = now_s - since_s < UNHEARD_KEPT_S
        earmark = earmarks.get(name)
        lingers = ours and other == beside and earmark is not None and has_time(earmark, now_s)
        left_to = _left_to(vacated.get(name), None if lingers else earmark)
        stranger = taken if beside is None else None
        judged = as_heard(node) if unheard else node
        why, in_pool, wanted = _judge(judged, kept, stranger, claim, left_to, remembered[name], config)
        if lingers and in_pool and earmark is not None:
            why = f"runs a pilot until Slurm's next cycle, in which job {earmark.job} can start there"
        elif beside is not None and in_pool:
            why = f"runs a pilot on a part of it, beside job {beside}"
        elif unheard and in_pool:
            why = f"runs a pilot, though Slurm has heard nothing of it for {now_s - since_s:.0f} s"
        if pilot is not None and why in (RUNS_A_JOB, _has(pilot)):
            why = f"runs job {pilot} of this partition, which no lease stands behind"
        if in_pool and not kept and (until_s := quarantined.get(name, now_s)) > now_s:
            why, in_pool = f"is in quarantine for {until_s - now_s:.0f} s more after failing pilots", False
        seen[name] = PoolNode(
            name=name,
            state="+".join((node.state, *sorted(node.flags))),
            in_pool=in_pool,
            why=why,
            window_s=claim.first.window_s if claim.first else None,
            wanted=wanted,
            pilot=pilot if ours else None,
            gres=node.gres,
            gpus=sum(node.gpus.values()),
            node_class=class_of[name],
            co_located=beside or "",
            unheard=unheard and in_pool,
        )
    return remembered, seen


def _left_to(planned: str | None, earmark: Earmark | None) -> str | None:
    """Return the job that a node is given up for, in words that give the reason; None if it is not given up."""
    if planned is not None:
        return f"job {planned}, which waits for it"
    return None if earmark is None else f"job {earmark.job}, which can start there"


def _remember(before: NodeMemory, node: Node, kept: bool, taken: str | None, debounce_polls: int) -> NodeMemory:
    """Count idle polls; a node that comes straight from our own pilot was not between two jobs of others."""
    if kept:
        return NodeMemory(debounce_polls, ours=True)
    if node.state == "IDLE" and "COMPLETING" not in node.flags and taken is None:
        return NodeMemory(before.idle_polls + 1)
    if before.ours and "COMPLETING" in node.flags:
        return before
    return NodeMemory()


def _judge(
    node: Node,
    kept: bool,
    taken: str | None,
    claim: Claims,
    left_to: str | None,
    memory: NodeMemory,
    config: PoolConfig,
) -> tuple[str, bool, bool]:
    """Decide on one node: why, whether it is in the pool, and whether a regular job has or needs it.

    `kept` says that our pilot has the node, `taken` is another job on it, and `left_to` the job it was given up for.
    """
    # The needs of pending jobs come before all else: they decide whether a pilot leaves at once.
    if left_to is not None:
        return f"is left to {left_to}", False, True
    unfit = unusable(node, node.flags - {"COMPLETING"} if kept else node.flags)
    if unfit is not None:
        return unfit, False, False
    if kept:
        if taken is not None:
            return f"{_has(taken)} beside the pilot", False, True
        if claim.first is not None and claim.first.window_s <= config.vacate_ahead_s:
            return f"is needed by {claim.first.by} in {claim.first.window_s:.0f} s", False, True
        return "runs a pilot", True, False
    if node.state != "IDLE" or taken is not None:
        return RUNS_A_JOB if taken is None or node.state != "IDLE" else _has(taken), False, True
    if (soon := claim.soon(config.min_window_s)) is not None:
        return f"is planned for {soon.by} in {soon.window_s:.0f} s", False, True
    if claim.job is None and "PLANNED" in node.flags:
        return "is planned for a job whose start is not known", False, True
    if memory.idle_polls < config.debounce_polls:
        return _idle_so_far(config.debounce_polls - memory.idle_polls), False, False
    return "is idle", True, False


def _idle_so_far(polls: int) -> str:
    """Say that an idle node may still be between two jobs, for so many polls more."""
    return f"is idle, may be lent {'at the next poll' if polls == 1 else f'in {polls} polls'}"


def _has(job_id: str) -> str:
    """Say why a node that Slurm shows idle is not: the job is suspended, or has just come."""
    return f"has job {job_id} on it"


def _view(
    version: int,
    snapshot: Snapshot,
    seen: dict[str, PoolNode],
    jobs: Occupancy,
    classified: Classified,
) -> PoolView:
    elastic = {job.id: _elastic(job) for job in jobs.running if any(name in jobs.nodes for name in job.nodes)}
    return PoolView(
        version=version,
        time_s=snapshot.time_s,
        looked_s=_looked_s(snapshot),
        cycle_s=_cycle_s(snapshot),
        nodes=seen,
        pilots={job.id: node for job in jobs.running for node in job.nodes if node in jobs.nodes},
        owners=_owners(jobs),
        daemons={job.id: daemon for job in jobs.running if (daemon := comment.daemon_of(job.comment))},
        job_ids=frozenset(job.id for job in snapshot.jobs),
        elastic=elastic,
        elsewhere={job.id: _elastic(job) for job in jobs.running if job.id not in elastic},
        accounts={job.id: (job.user, job.account) for job in snapshot.jobs if job.account},
        classes=classified.classes,
    )


def _looked_s(snapshot: Snapshot) -> float:
    """Return when the reading of a snapshot began, earlier by the lag of a controller whose clock is behind."""
    began_s = snapshot.time_s if snapshot.begun_s is None else min(snapshot.begun_s, snapshot.time_s)
    return began_s - snapshot.scheduler.behind_s


def _cycle_s(snapshot: Snapshot) -> float:
    due_s = cycle_due_s(snapshot.scheduler, snapshot.time_s)
    return -inf if due_s is None else due_s


def _owners(jobs: Occupancy) -> dict[str, str]:
    """Map the job ids of pilots that drivers started to their trainers, by the jobs' comments."""
    named = ((job.id, comment.parse(job.comment)) for job in jobs.running)
    return {id_: words[0] for id_, words in named if words is not None}


def _elastic(job: Job) -> ElasticJob:
    """Return a job that runs in the preemptible partition, whoever started it."""
    return ElasticJob(job.id, job.user, job.account, job.nodes, job.start_s, job.submit_s, job.time_limit_s)


def _spared(free: Iterable[PoolNode], before: Set[str], count: int) -> frozenset[str]:
    """Return `count` of the free nodes that waiting jobs may use, to keep free; those kept `before` stay if possible.

    A backfilled job starts on such a node at once, while preempting takes a second cycle, and by then its slot may be
    gone. The longest windows come first, though a trainer would like them best too: a job starts on a node that is
    planned for another one only if its time limit ends before that, so a short window is of use to nobody.
    """

    def usefulness(node: PoolNode) -> tuple[bool, bool, float, int, str]:
        window_s = inf if node.window_s is None else node.window_s
        return window_s < SHORTEST_JOB_S, node.name not in before, -window_s, len(node.name), node.name

    return frozenset(node.name for node in nsmallest(count, free, key=usefulness))
