"""Room at one snapshot: the waiting jobs put through the copy of Slurm's planner, and what is kept for them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Protocol

from bftd.core.domain import RoomOver
from bftd.pool.backfill.wanted import Outcome, Wanted
from bftd.pool.ground import Ground, survey
from bftd.pool.harvest import Harvest
from bftd.pool.leaving import Leaving
from bftd.pool.occupancy import Occupancy
from bftd.pool.rooms import Foreseen, RoomMemory, Start, awake, doubted, follow, key
from slurm_plugin.types import Snapshot


class Copy(Protocol):
    """A copy of Slurm's planner: which of the jobs that wait on some ground could start now."""

    def __call__(
        self,
        snapshot: Snapshot,
        jobs: Occupancy,
        ground: Ground,
        *,
        kept: Mapping[str, Collection[str]],
        doubted: Collection[str],
        leaving: Leaving,
    ) -> tuple[Sequence[Wanted], Outcome]:
        """The queue in the order of the planner, and what comes of it; `kept` and `doubted` are by `rooms.key`."""


def nothing(
    snapshot: Snapshot,
    jobs: Occupancy,
    ground: Ground,
    *,
    kept: Mapping[str, Collection[str]],
    doubted: Collection[str],
    leaving: Leaving,
) -> tuple[Sequence[Wanted], Outcome]:
    """Stands where the copy will be."""
    return (), Outcome()


def make_room(
    memory: RoomMemory,
    snapshot: Snapshot,
    jobs: Occupancy,
    harvest: Harvest,
    leased: Mapping[str, str | None],
    leaving: Leaving,
    copy: Copy = nothing,
) -> tuple[RoomMemory, tuple[RoomOver, ...]]:
    """Say for which jobs which nodes are kept, and which of the rooms of the snapshot before are over.

    Whatever breaks the copy breaks nothing else: it is the memory's `fault`, and no room is made at this snapshot.
    """
    now_s, scheduler = snapshot.time_s, snapshot.scheduler
    try:
        if jobs.near:
            kept = {name for one in memory.kept.values() for name in one.nodes}
            ground = survey(snapshot, jobs, harvest, leased, kept, memory.numbering)
            memory = awake(memory, ground.numbering, ground.ready, now_s)
            foreseen = _foresee(memory, snapshot, jobs, ground, leaving, copy)
        else:  # nobody waits for a harvested node
            foreseen = Foreseen(memory.numbering)
        return follow(memory, foreseen, snapshot.jobs, scheduler, now_s)
    except Exception as error:
        after, over = follow(memory, None, snapshot.jobs, scheduler, now_s)
        return replace(after, fault=error), over


def _foresee(
    memory: RoomMemory, snapshot: Snapshot, jobs: Occupancy, ground: Ground, leaving: Leaving, copy: Copy
) -> Foreseen:
    kept = {key_: one.nodes for key_, one in memory.kept.items()}
    entries, outcome = copy(
        snapshot, jobs, ground, kept=kept, doubted=doubted(memory, snapshot.time_s), leaving=leaving
    )
    return Foreseen(
        numbering=ground.numbering,
        ready=ground.ready,
        ours=ground.ours,
        harvested=ground.numbering.mask(jobs.nodes),
        starts=_starts(entries, outcome),
        cut=outcome.cut,
    )


def _starts(entries: Sequence[Wanted], outcome: Outcome) -> Mapping[str, Start]:
    """What could start now, with how each stands in line for the nodes that are open to it."""
    starts: dict[str, Start] = {}
    if not outcome.now:
        return starts
    awaited = 0  # the nodes for which somebody before waits and cannot start: the main scheduler passes none of these
    for entry in entries:
        if entry.barred:
            continue
        allowed = reduce(or_, (part.allowed for part in entry.parts), 0)
        nodes = outcome.now.get(entry.id)
        if nodes is None:
            awaited |= allowed
            continue
        before = starts.get(key(entry.id), Start(0, 0, first=False))
        first = before.first or not allowed & awaited
        starts[key(entry.id)] = Start(before.nodes | nodes, before.allowed | allowed, first)
    return starts
