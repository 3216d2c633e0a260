"""First come, first served (simplified): what Slurm and Kubernetes do for jobs of fixed size."""

from __future__ import annotations

from sizing.simulate.policies.profiled import Profiled
from sizing.simulate.policies.room import Room
from sizing.simulate.types import Decision, Moment


class Fcfs:
    """Jobs get the GPUs that they ask for, in strict order among those that ask for the same type, and keep them.

    Each type is a queue of its own, as a partition is: a job never waits for GPUs that it would not use. Left out:
    priorities, limits, backfilling.
    """

    name = "fcfs"
    interval_s: float | None = None

    def __init__(self, known: Profiled) -> None:
        self._known = known

    def decide(self, moment: Moment) -> Decision:
        """Starts the heads of all queues while they fit."""
        room = Room(moment)
        blocked = set()
        for waiting in moment.waiting:
            job = waiting.job
            if job.gpu_type in blocked or (cell := self._known.cell(job, job.gpu_type, job.gpus)) is None:
                continue  # what never runs as it is asked for blocks nobody
            if not room.take(job.id, cell):
                blocked.add(job.gpu_type)
        return Decision(room.given)
