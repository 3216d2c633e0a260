"""Which nodes are idle by the rules of the daemon's own pool, one snapshot after another. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from bftd.keys import PoolConfig
from bftd.pool.judgement import PILOT_COMMENT, PoolMemory, observe
from slurm_plugin.types import Job, Snapshot

# A partition that no site has: the watched nodes are put in it, so that all jobs count as regular ones.
_WATCHED = "\x00watched"
_RUNNING = frozenset({"RUNNING", "CONFIGURING"})


class IdleWatch:
    """Folds snapshots into the set of idle nodes.

    A node with one of bftd's own pilots counts as idle, as it does for the regular queue; every other job counts as
    use, in whatever partition.
    """

    def __init__(self, config: PoolConfig) -> None:
        self._config = config
        self._memory = PoolMemory()
        self._pilots: frozenset[str] = frozenset()
        self.pilots_seen = 0

    @property
    def settling_polls(self) -> int:
        """Snapshots after which the first node can count as idle."""
        return self._config.debounce_polls

    def forget(self) -> None:
        """Start anew: what earlier snapshots said is too long ago."""
        self._memory = PoolMemory()

    def see(self, snapshot: Snapshot, nodes: Collection[str]) -> frozenset[str]:
        """The idle ones of `nodes`."""
        watched = {
            name: replace(node, partitions=(*node.partitions, _WATCHED))
            for name, node in snapshot.nodes.items()
            if name in nodes
        }
        pilots = {job.id: job for job in snapshot.jobs if _is_pilot(job)}
        jobs = tuple(job for job in snapshot.jobs if job.id not in pilots)
        running = [replace(job, partition=(_WATCHED,)) for job in pilots.values() if job.state in _RUNNING]
        leased = {node: job.id for job in running for node in job.nodes if node in watched}
        self.pilots_seen += len(leased.keys() - self._pilots)
        self._pilots = frozenset(leased)
        seen = replace(snapshot, nodes=watched, jobs=(*jobs, *running))
        self._memory, view = observe(self._memory, seen, self._config, _WATCHED, leased, {})
        return frozenset(name for name, node in view.nodes.items() if node.in_pool)


def _is_pilot(job: Job) -> bool:
    """Pilots of drivers have the comment "bft <trainer> <lease>"."""
    words = job.comment.split()
    return len(words) == 3 and words[0] == PILOT_COMMENT
