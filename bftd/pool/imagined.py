"""The cluster as Slurm would show it if imaginary pilots ran on it. Pure.

A node with an imaginary pilot is idle to Slurm. It is shown as allocated to the pilot, with all its flags, for as long
as no job has it: so it is drained, reserved or planned for a job like the node of any pilot, and lost to a job as soon
as Slurm has started one there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from bftd.core.domain import Lease
from bftd.pool.judgement import HARMLESS_FLAGS, PILOT_COMMENT
from slurm_plugin.types import Job, Node, Snapshot

# No job id of Slurm's and no name of a real trainer holds a colon: what is imaginary can never be taken for real.
PREFIX = "shadow:"
# A partition that no site has, for the nodes of one that regular jobs use too.
_HARVESTED = "\x00harvested"


def pilot_id(lease: Lease) -> str:
    """The job id of the imaginary pilot of a lease."""
    return PREFIX + lease.id


def idle_nodes(snapshot: Snapshot, partition: str) -> frozenset[str]:
    """The nodes of the partition that Slurm shows idle and fit for a job, planned ones included."""
    return frozenset(
        name
        for name, node in snapshot.nodes.items()
        if partition in node.partitions and node.state == "IDLE" and node.flags <= HARMLESS_FLAGS
    )


def with_pilots(
    snapshot: Snapshot, partition: str, leases: Iterable[Lease], trainers: Iterable[str]
) -> tuple[Snapshot, str, dict[str, str | None]]:
    """The snapshot with the pilots of placed `leases` and the drivers of `trainers`.

    Returned with it are the partition that is harvested in it, and the nodes that are still lent with their pilots.
    """
    occupied = {node for job in snapshot.jobs for node in job.nodes}
    nodes, harvested = _own_partition(snapshot, partition)
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
        comment = f"{PILOT_COMMENT} {lease.trainer} {lease.id}"
        pilots.append(_running(lease.job_id, lease.trainer, harvested, comment, (lease.node,)))
    drivers = [_running(trainer, trainer, "", "", ()) for trainer in trainers]
    return replace(snapshot, nodes=nodes, jobs=(*snapshot.jobs, *drivers, *pilots)), harvested, lent


def _has_job(node: Node) -> bool:
    """Whether a job is on the node, or has just been."""
    return node.state in ("ALLOCATED", "MIXED") or "COMPLETING" in node.flags


def _own_partition(snapshot: Snapshot, partition: str) -> tuple[dict[str, Node], str]:
    """The nodes, and a partition that pilots have for themselves.

    Where jobs wait or run in the partition itself, as at a site that has made none for pilots yet, they are regular
    jobs: there its nodes are put into a partition of their own as well.
    """
    if not any(job.partition == (partition,) for job in snapshot.jobs):
        return dict(snapshot.nodes), partition
    nodes = {
        name: replace(node, partitions=(*node.partitions, _HARVESTED)) if partition in node.partitions else node
        for name, node in snapshot.nodes.items()
    }
    return nodes, _HARVESTED


@lru_cache(maxsize=1 << 14)  # most pilots and drivers are those of the snapshot before
def _running(id_: str, user: str, partition: str, comment: str, nodes: tuple[str, ...]) -> Job:
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
        comment=comment,
        dependency="",
        priority=0,
        reservation="",
    )
