"""One snapshot on its way from Slurm into the state, judged beside the loop that serves drivers. Pure.

A snapshot is judged with the memory and the state at that moment, which are immutable, so that any thread may do it.
The loop changes leases meanwhile, just as it does while Slurm is read. A lease granted in that time is younger than the
snapshot, which says nothing about its pilot; if its node was kept free for a job, it is asked back. Nodes that have
lost their leases or failed since are left out of the pool (`Judged.by_now`). Plans are made when the snapshot is taken
in, for the state at that time (S5), and the snapshot's age by then counts for growth (S9).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bftd.config.keys import PoolConfig
from bftd.core.model.domain import PoolView, State
from bftd.pool import membership
from bftd.pool.harvest import Harvest
from slurm_plugin.read.types import Snapshot


@dataclass(frozen=True, slots=True)
class Judged:
    """The result of a snapshot, for a memory `before` it and a state `core`; `users` maps each job to its user."""

    before: membership.PoolMemory
    core: State
    memory: membership.PoolMemory
    view: PoolView
    users: Mapping[str, str]

    def by_now(self, core: State) -> tuple[membership.PoolMemory, PoolView]:
        """Return memory and view without the nodes that have lost their leases, or failed, since."""
        held = {lease.node for lease in core.leases.values()}
        ended = {lease.node for lease in self.core.leases.values()} - held
        failed = core.quarantined.keys() - self.core.quarantined.keys() - held
        return membership.without(self.memory, self.view, ended | failed)


@dataclass(frozen=True, slots=True)
class Judging:
    """The inputs to judging a snapshot."""

    memory: membership.PoolMemory
    snapshot: Snapshot
    config: PoolConfig
    harvest: Harvest
    core: State

    def judged(self) -> Judged:
        """Judge the snapshot."""
        leased = {lease.node: lease.job_id for lease in self.core.leases.values()}
        memory, view = membership.observe(
            self.memory, self.snapshot, self.config, self.harvest, leased, self.core.quarantined
        )
        users = {job.id: job.user for job in self.snapshot.jobs}
        return Judged(self.memory, self.core, memory, view, users)
