"""One snapshot on its way from Slurm into the state, judged beside the loop that serves drivers. Pure.

Judging is of the memory and the state as they were when it began, which are immutable, so that it may be done in any
thread. What the loop does to leases meanwhile is nothing new, since it also did while Slurm was read. A lease that came
is younger than the snapshot, which says nothing of its pilot; where its node was kept free for a job, it is asked back.
What a snapshot that knew less must not have lent is left out (`Judged.by_now`). Plans are made when the snapshot is
taken in, for the state as it is then (S5), and how old it is by then counts for growth (S9).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bftd.core import leaving
from bftd.core.domain import PoolView, State
from bftd.keys import PoolConfig
from bftd.pool import judgement
from bftd.pool.harvest import Harvest
from slurm_plugin.types import Snapshot


@dataclass(frozen=True, slots=True)
class Judged:
    """What comes of a snapshot, for a memory `before` it and a state `core`; `users` has whose each job is."""

    before: judgement.PoolMemory
    core: State
    memory: judgement.PoolMemory
    view: PoolView
    users: Mapping[str, str]

    def by_now(self, core: State) -> tuple[judgement.PoolMemory, PoolView]:
        """Memory and view less the nodes that lost their leases, or failed, since."""
        held = {lease.node for lease in core.leases.values()}
        ended = {lease.node for lease in self.core.leases.values()} - held
        failed = core.quarantined.keys() - self.core.quarantined.keys() - held
        return judgement.without(self.memory, self.view, ended | failed)


@dataclass(frozen=True, slots=True)
class Judging:
    """What a snapshot is judged by."""

    memory: judgement.PoolMemory
    snapshot: Snapshot
    config: PoolConfig
    harvest: Harvest
    core: State

    def judged(self) -> Judged:
        """Judge it."""
        leased = {lease.node: lease.job_id for lease in self.core.leases.values()}
        quarantined, loss = self.core.quarantined, leaving.of(self.core)
        memory, view = judgement.observe(
            self.memory, self.snapshot, self.config, self.harvest, leased, quarantined, loss
        )
        users = {job.id: job.user for job in self.snapshot.jobs}
        return Judged(self.memory, self.core, memory, view, users)
