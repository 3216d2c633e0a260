"""Who has the harvested nodes, and who waits for them, in one snapshot. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from bftd.pool.harvest import Harvest
from slurm_plugin.types import Job, Node, Snapshot
from slurm_plugin.waiting import waits_for_room

_RUNNING = frozenset({"RUNNING", "CONFIGURING"})


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The harvested `nodes`, and the jobs of the snapshot sorted by what they mean for them.

    `running` are the pilots that run, wherever; `pilots` maps nodes to them. `occupied` are the nodes that any job is
    on. `pending` are the regular jobs that wait, and `near` those of them that a harvested node is open to.
    """

    nodes: Mapping[str, Node]
    running: Sequence[Job]
    pilots: Mapping[str, str]
    occupied: Set[str]
    pending: Sequence[Job]
    near: Sequence[Job]


def occupy(snapshot: Snapshot, harvest: Harvest) -> Occupancy:
    """Sort the jobs of a snapshot."""
    nodes = harvest.nodes(snapshot)
    # one that is still completing no longer counts
    running = [job for job in snapshot.jobs if job.state in _RUNNING and harvest.is_pilot(job)]
    pending = [job for job in snapshot.jobs if job.state == "PENDING" and not harvest.is_pilot(job)]
    # the partitions whose jobs may need harvested nodes: looked up once, for thousands of jobs
    open_ = {partition for node in nodes.values() for partition in node.partitions}
    return Occupancy(
        nodes=nodes,
        running=running,
        pilots={node: job.id for job in running for node in job.nodes},
        occupied={node for job in snapshot.jobs for node in job.nodes},
        pending=pending,
        near=[job for job in pending if not open_.isdisjoint(job.partition)],
    )


def asked(near: Sequence[Job], snapshot: Snapshot, harvest: Harvest) -> set[str]:
    """The partitions for whose nodes regular jobs wait.

    A harvested one is none of them, also where a job names it beside others, unless regular jobs have it to use.
    """
    names = {name for job in near if waits_for_room(job) for name in job.partition}
    for harvested in names.intersection(harvest.partitions or ()):
        alone = (harvested,)
        if not any(job.partition == alone and not harvest.is_pilot(job) for job in snapshot.jobs):
            names.discard(harvested)
    return names
