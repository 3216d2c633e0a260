"""The jobs that have the harvested nodes, and those that wait for them, in one snapshot. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bftd.pool.harvest import Harvest
from slurm_plugin.pilots.pending_reasons import may_use, waits_for_nodes
from slurm_plugin.read.types import Job, Node, Snapshot

# The states of a job that is at work on its nodes, or about to be.
RUNNING = frozenset({"RUNNING", "CONFIGURING"})
# The states in which a job has CPUs and memory of its own there: a suspended job has only its memory.
_WORKS = RUNNING | {"COMPLETING"}


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The harvested `nodes`, and the jobs of the snapshot sorted by what they mean for them.

    `running` are the running pilots, wherever they are. `pilots` maps nodes to them, and `sharing` the nodes that a
    pilot of ours does not have to itself. `occupied` maps the nodes that any other job is on to that job, even a
    suspended one: Slurm shows its nodes idle, but its memory is on them. Of those, `beside` are the nodes on which all
    other jobs are at work or ending, and so have what Slurm gave them and nothing of a pilot's. `pending` are the
    regular jobs that wait, and `near` those of them that may use a harvested node, as far as is known.
    """

    nodes: Mapping[str, Node]
    running: Sequence[Job]
    pilots: Mapping[str, str]
    sharing: Mapping[str, Job]
    occupied: Mapping[str, str]
    beside: frozenset[str]
    pending: Sequence[Job]
    near: Sequence[Job]


def occupy(snapshot: Snapshot, harvest: Harvest, leased: Mapping[str, str | None] | None = None) -> Occupancy:
    """Sort the jobs of a snapshot; of several pilots on a node the one that it is `leased` to is the pilot there."""
    nodes = harvest.nodes(snapshot)
    # a pilot that is still completing no longer counts
    running = [job for job in snapshot.jobs if job.state in RUNNING and harvest.is_pilot(job)]
    pilots = {node: job.id for job in running for node in job.nodes}
    if leased:
        pilots |= {node: job.id for job in running for node in job.nodes if leased.get(node) == job.id}
    ours = {job.id for job in running if all(pilots[node] == job.id for node in job.nodes)}
    others = [(node, job) for job in snapshot.jobs if job.id not in ours for node in nodes_of(job)]
    pending = [job for job in snapshot.jobs if job.state == "PENDING" and not harvest.is_pilot(job)]
    # the partitions whose jobs may need harvested nodes: looked up once, for thousands of jobs
    open_ = {partition for node in nodes.values() for partition in node.partitions}
    return Occupancy(
        nodes=nodes,
        running=running,
        pilots=pilots,
        sharing={name: job for job in running if job.id in ours for name in job.nodes if shares(job, nodes.get(name))},
        occupied={name: job.id for name, job in others},
        beside=frozenset(name for name, _ in others) - {name for name, job in others if job.state not in _WORKS},
        pending=pending,
        near=[job for job in pending if may_use(job, open_)],
    )


def shares(pilot: Job, node: Node | None) -> bool:
    """Whether a pilot has only some of the CPUs of its node: other jobs there run beside it."""
    return node is not None and 0 < pilot.request.cpus < node.cpus


def nodes_of(job: Job) -> tuple[str, ...]:
    """Return the nodes that a job is on: in any state but PENDING it may use them, whatever the state's name."""
    return () if job.state == "PENDING" else job.nodes


def asked(near: Sequence[Job], snapshot: Snapshot, harvest: Harvest) -> set[str]:
    """Return the partitions for whose nodes regular jobs wait.

    A harvested partition is not among them, even if a job names it beside others, unless regular jobs may use it.
    """
    names = {name for job in near if waits_for_nodes(job) and not job.unreadable for name in job.partition}
    for harvested in names.intersection(harvest.partitions or ()):
        alone = (harvested,)
        if not any(job.partition == alone and not harvest.is_pilot(job) for job in snapshot.jobs):
            names.discard(harvested)
    return names
