"""The cluster as Slurm would show it if imaginary pilots ran on it. Pure.

A node with an imaginary pilot is idle to Slurm. It is shown as allocated to the pilot, with all its flags, for as long
as no job has it: so it is drained, reserved or planned for a job like the node of any pilot, and lost to a job as soon
as Slurm has started one there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from bftd.core.model.domain import Lease
from bftd.pool.fitness import BUSY, HARMLESS_FLAGS
from bftd.pool.harvest import Harvest
from bftd.pool.occupancy import nodes_of
from bftd.protocol import comment
from slurm_plugin.read.types import Job, Node, Snapshot

# No job id of Slurm's and no name of a real trainer has a colon: an imaginary id can never be taken for a real one.
PREFIX = "shadow:"


def harvest(partitions: tuple[str, ...]) -> Harvest:
    """Return the harvest of partitions that regular jobs may use too: only imaginary jobs are pilots there."""
    return Harvest(partitions, lambda job: job.id.startswith(PREFIX))


def idle_nodes(snapshot: Snapshot, partitions: tuple[str, ...]) -> frozenset[str]:
    """Return the nodes of the partitions that Slurm shows idle and fit for a job, planned ones included.

    Nodes with a suspended job on them are left out; Slurm shows them idle as well.
    """
    taken = {node for job in snapshot.jobs for node in nodes_of(job)}
    harvested = harvest(partitions).nodes(snapshot)
    return frozenset(
        name
        for name, node in harvested.items()
        if node.state == "IDLE" and node.flags <= HARMLESS_FLAGS and name not in taken
    )


def with_pilots(
    snapshot: Snapshot, partitions: tuple[str, ...], leases: Iterable[Lease], trainers: Iterable[str]
) -> tuple[Snapshot, dict[str, str | None]]:
    """Return the snapshot with the pilots of placed `leases` and the drivers of `trainers`.

    Also return the nodes that are still lent, with their pilots.
    """
    occupied = {node for job in snapshot.jobs for node in nodes_of(job)}
    nodes = dict(snapshot.nodes)
    for name in occupied & nodes.keys():
        if nodes[name].state == "IDLE":  # the jobs are the younger answer: a pilot would be refused there
            nodes[name] = replace(nodes[name], state="ALLOCATED")
    pilots: list[Job] = []
    lent: dict[str, str | None] = {}
    for lease in leases:
        node = nodes.get(lease.node)
        if lease.job_id is None or node is None or _has_job(node):
            continue
        if node.state == "IDLE":
            nodes[lease.node] = replace(node, state="ALLOCATED")
        lent[lease.node] = lease.job_id
        text = comment.make(lease.trainer, lease.id)
        pilots.append(_running(lease.job_id, lease.trainer, lease.partition or partitions[0], text, (lease.node,)))
    drivers = [_running(trainer, trainer, "", "", ()) for trainer in trainers]
    return replace(snapshot, nodes=nodes, jobs=(*snapshot.jobs, *drivers, *pilots)), lent


def _has_job(node: Node) -> bool:
    """Whether a job is on the node, or has just been."""
    return node.state in BUSY or "COMPLETING" in node.flags


@lru_cache(maxsize=1 << 14)  # most pilots and drivers are those of the snapshot before
def _running(id_: str, user: str, partition: str, text: str, nodes: tuple[str, ...]) -> Job:
    return Job(
        id=id_,
        user=user,
        partition=(partition,),
        state="RUNNING",
        name="imaginary",
        nodes=nodes,
        sched_nodes=(),
        start_s=None,
        submit_s=0.0,
        time_limit_s=None,
        reason="None",
        node_count=len(nodes),
        comment=text,
        dependency="",
        priority=0,
        reservation="",
    )
