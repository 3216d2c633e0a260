"""The nodes that regular jobs find at one snapshot: those free now or soon, and when the others will be. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from bftd.pool.backfill.model import Booking, JobEnd, Numbering, Rank, rank
from bftd.pool.fitness import BUSY, unusable
from bftd.pool.harvest import Harvest
from bftd.pool.occupancy import Occupancy
from slurm_plugin.read.types import Job, Node, Reservation, Snapshot

# A job past its limit ends at any moment.
_OVERDUE_S = 1.0
# A node with these flags beside idle is still one that Slurm gives to the next job: it is cleared in a moment, or only
# the jobs of its reservation may have it, which the bookings say.
_READY_FLAGS = frozenset({"COMPLETING", "RESERVED"})
# An epilog of minutes or a process that cannot be killed keeps a node COMPLETING; most nodes are cleared by then.
_CLEARED_S = 5.0
_NO_RANK: Rank = (0, 0, 0)
# A job in one of these states has no nodes yet, or none any more.
_WITHOUT_NODES = frozenset({"PENDING", "COMPLETING"})


@dataclass(frozen=True, slots=True)
class Availability:
    """The nodes that the waiting regular jobs may use, in Slurm's order, and sets of them by the `numbering`.

    `ready` are free now, or as soon as our pilots leave, and `ours` those of them under lease. `ends` are the nodes
    that regular jobs leave, by their limits. `weights` are all nodes, those first that Slurm takes first. `lent` are
    the leased nodes on which a regular job runs beside our pilot, as they will be once the pilot has left. `clearing`
    are those of `ready` that an ended job has not left yet.
    """

    nodes: Mapping[str, Node] = field(default_factory=dict)
    numbering: Numbering = field(default_factory=lambda: Numbering.of(()))
    ready: int = 0
    ours: int = 0
    ends: tuple[JobEnd, ...] = ()
    bookings: tuple[Booking, ...] = ()
    weights: tuple[int, ...] = ()
    lent: Mapping[str, Node] = field(default_factory=dict)
    clearing: int = 0

    @property
    def leased(self) -> int:
        """All nodes under lease that a waiting job can have, or share, once our pilot leaves."""
        return self.ours | self.numbering.mask(self.lent)


def survey(
    snapshot: Snapshot,
    jobs: Occupancy,
    harvest: Harvest,
    leased: Mapping[str, str | None],
    kept: Collection[str],
    before: Numbering,
    slow: Collection[str] = (),
) -> Availability:
    """Return the nodes that waiting regular jobs find.

    `leased` maps nodes under lease to their pilot if it is known. `kept` are the nodes that were kept for a job: if one
    is busy while Slurm names no job there, just that job is taking it at this moment. The numbering `before` is used
    again if the nodes are the same. The `slow` nodes are free at any moment, but not now.
    """
    open_ = {partition for job in jobs.pending for partition in job.partition}
    nodes = {name: node for name, node in snapshot.nodes.items() if not open_.isdisjoint(node.partitions)}
    numbering = before if before.names == tuple(nodes) else Numbering.of(nodes)
    last = _last_ends(snapshot, jobs, harvest)
    # Nodes are read before jobs: if a job has ended in between, the jobs are the younger answer.
    free = {name for job in snapshot.jobs if job.state == "COMPLETING" for name in job.nodes}.union(kept)
    ready, ours, clearing = [], [], []
    lent: dict[str, Node] = {}
    # Ends in other partitions are there without nodes: Slurm goes through all running jobs.
    ending: dict[tuple[float, Rank], list[str]] = {end: [] for end in last.values() if end[0] < inf}
    for name, node in nodes.items():
        if unusable(node, node.flags - _READY_FLAGS) is not None:
            continue
        if (end := last.get(name)) is not None:
            if end[0] < inf:
                ending[end].append(name)
            pilot = jobs.sharing.get(name) if name in jobs.beside else None
            if pilot is not None and _is_ours(name, pilot.id, leased):
                lent[name] = _without(node, pilot)
        elif name in slow and name not in jobs.pilots:
            ending.setdefault((snapshot.time_s + _OVERDUE_S, _NO_RANK), []).append(name)
        elif _is_ready(node, jobs.pilots.get(name), leased, free):
            ready.append(name)
            if "COMPLETING" in node.flags:
                clearing.append(name)
            if name in leased:
                ours.append(name)
    return Availability(
        nodes=nodes,
        numbering=numbering,
        ready=numbering.mask(ready),
        ours=numbering.mask(ours),
        ends=tuple(JobEnd(end_s, numbering.mask(names), rank_) for (end_s, rank_), names in ending.items()),
        bookings=_bookings(snapshot.reservations, numbering, snapshot.time_s),
        weights=_weights(nodes, numbering),
        lent=lent,
        clearing=numbering.mask(clearing),
    )


def completing(before: Mapping[str, float], snapshot: Snapshot) -> dict[str, float]:
    """Return since when the nodes of a snapshot show that an ended job has not left them yet."""
    return {
        name: before.get(name, snapshot.time_s) for name, node in snapshot.nodes.items() if "COMPLETING" in node.flags
    }


def slow(since_s: Mapping[str, float], snapshot: Snapshot, harvest: Harvest, kept: Collection[str]) -> Collection[str]:
    """Return the nodes that an ended job has not left for so long that no job is to be kept waiting for them.

    A node that was kept for a job is given the time of its earmark if our pilot has not left it yet: another pilot
    would have to leave instead, and be as slow.
    """
    found = {name for name, one_s in since_s.items() if snapshot.time_s - one_s > _CLEARED_S}
    if found:
        ended = (job for job in snapshot.jobs if job.state == "COMPLETING" and harvest.is_pilot(job))
        found -= {name for job in ended for name in job.nodes}.intersection(kept)
    return found


def _last_ends(snapshot: Snapshot, jobs: Occupancy, harvest: Harvest) -> dict[str, tuple[float, Rank]]:
    """Return the end of the last job on each node, our running pilots aside, inf if unknown; and its rank."""
    pilots = {job.id for job in jobs.running}
    last: dict[str, tuple[float, Rank]] = {}
    for job in snapshot.jobs:
        if job.state in _WITHOUT_NODES or job.id in pilots or not job.nodes:
            continue
        end_s = inf
        if job.time_limit_s is not None and not harvest.is_pilot(job):
            begun_s = snapshot.time_s if job.start_s is None else job.start_s
            end_s = max(begun_s + job.time_limit_s, snapshot.time_s + _OVERDUE_S)
        end = end_s, rank(job.id)
        for name in job.nodes:
            last[name] = max(end, last.get(name, end))
    return last


def _is_ready(node: Node, pilot: str | None, leased: Mapping[str, str | None], free: Collection[str]) -> bool:
    """Whether a node without a job of others is free, or will be once our pilot leaves."""
    if pilot is not None:  # a pilot without a lease is not ours to move
        return _is_ours(node.name, pilot, leased)
    return node.state == "IDLE" or (node.state in BUSY and (node.name in leased or node.name in free))


def _is_ours(name: str, pilot: str, leased: Mapping[str, str | None]) -> bool:
    return name in leased and leased[name] in (None, pilot)


def _without(node: Node, pilot: Job) -> Node:
    """Return a node in use as it is once a pilot has given back its part."""
    asked = pilot.request
    memory_bytes = asked.memory_bytes * (max(1, asked.cpus) if asked.memory_per_cpu else 1)
    return replace(
        node,
        state="MIXED",
        cpus_used=max(0, node.cpus_used - asked.cpus),
        memory_used_bytes=max(0, node.memory_used_bytes - memory_bytes),
        gpus_used={} if asked.gres else node.gpus_used,
    )


def _bookings(reservations: Collection[Reservation], numbering: Numbering, now_s: float) -> tuple[Booking, ...]:
    made = (Booking(numbering.mask(one.nodes), one.start_s, one.end_s) for one in reservations if one.end_s > now_s)
    return tuple(booking for booking in made if booking.mask)


def _weights(nodes: Mapping[str, Node], numbering: Numbering) -> tuple[int, ...]:
    if len({node.weight for node in nodes.values()}) < 2:
        return ((1 << len(numbering.names)) - 1,)
    by_weight: dict[int, list[str]] = {}
    for name, node in nodes.items():
        by_weight.setdefault(node.weight, []).append(name)
    return tuple(numbering.mask(by_weight[weight]) for weight in sorted(by_weight))
