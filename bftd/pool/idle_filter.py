"""The nodes that are idle by the rules of the daemon's own pool, one snapshot after another. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from bftd.config.keys import PoolConfig
from bftd.pool.fitness import as_heard, is_unheard
from bftd.pool.harvest import Harvest
from bftd.pool.membership import UNHEARD_KEPT_S, PoolMemory, observe
from bftd.pool.occupancy import RUNNING
from bftd.protocol import comment
from slurm_plugin.read.types import Job, Snapshot


class IdleWatch:
    """A fold of snapshots into the set of idle nodes.

    A node with one of bftd's own pilots alone counts as idle, as it does for the regular queue; every other job counts
    as use, in whatever partition. An idle node that has not answered Slurm, like all nodes after a restart of
    slurmctld, stays idle for as long as a pilot would be kept there.
    """

    def __init__(self, config: PoolConfig) -> None:
        # a node that is kept for a job is idle, whoever may use it
        self._config = replace(config, earmark=False)
        self._memory = PoolMemory()
        self._pilots: frozenset[str] = frozenset()
        self._idle: frozenset[str] = frozenset()
        self._unheard_s: dict[str, float] = {}
        self.pilots_seen = 0

    @property
    def settling_polls(self) -> int:
        """The number of snapshots after which the first node can count as idle."""
        return self._config.debounce_polls

    def forget(self) -> None:
        """Start anew: the last snapshots are too long ago."""
        self._memory = PoolMemory()
        self._idle = frozenset()

    def see(self, snapshot: Snapshot, nodes: Collection[str]) -> frozenset[str]:
        """Return the idle ones of `nodes`."""
        watched = {name: node for name, node in snapshot.nodes.items() if name in nodes}
        unheard = [node for name, node in watched.items() if name in self._idle and is_unheard(node)]
        self._unheard_s = {node.name: self._unheard_s.get(node.name, snapshot.time_s) for node in unheard}
        for node in unheard:
            if snapshot.time_s - self._unheard_s[node.name] < UNHEARD_KEPT_S:
                state = "IDLE" if node.state == "UNKNOWN" else node.state
                watched[node.name] = replace(as_heard(node), state=state)
        running = [job for job in snapshot.jobs if job.state in RUNNING and _is_pilot(job)]
        leased = {node: job.id for job in running for node in job.nodes if node in watched}
        self.pilots_seen += len(leased.keys() - self._pilots)
        self._pilots = frozenset(leased)
        seen = replace(snapshot, nodes=watched)
        self._memory, view = observe(self._memory, seen, self._config, Harvest(None, _is_pilot), leased, {})
        self._idle = frozenset(name for name, node in view.nodes.items() if node.in_pool and not node.co_located)
        return self._idle


def _is_pilot(job: Job) -> bool:
    return comment.parse(job.comment) is not None
