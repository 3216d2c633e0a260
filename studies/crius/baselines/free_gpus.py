"""The GPUs that are free while a policy decides."""

from __future__ import annotations

from studies.simulation.types import Allocation, Moment


class FreeGpus:
    """The allocation of each job, at first those of all running jobs, and the GPUs left of each type."""

    def __init__(self, moment: Moment, *, keep: bool = True) -> None:
        self.given: dict[str, Allocation] = {}
        self.free = dict(moment.capacity)
        if keep:
            for running in moment.running:
                self.given[running.job.id] = running.allocation
                self.free[running.allocation.gpu_type] -= running.allocation.gpus

    def take(self, id: str, allocation: Allocation) -> bool:
        """Give a job this in place of its allocation, if it fits; return whether it does."""
        had = self.given.get(id)
        back = had.gpus if had is not None and had.gpu_type == allocation.gpu_type else 0
        if self.free.get(allocation.gpu_type, 0) + back < allocation.gpus:
            return False
        self.release(id)
        self.given[id] = allocation
        self.free[allocation.gpu_type] -= allocation.gpus
        return True

    def release(self, id: str) -> None:
        """Take away a job's allocation, if it has one."""
        had = self.given.pop(id, None)
        if had is not None:
            self.free[had.gpu_type] += had.gpus
