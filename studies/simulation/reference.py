"""The reference for a job's throughput, so that the rates of different models can be added up."""

from __future__ import annotations

from studies.simulation.types import Allocation, SimulatedJob, Speeds


def powers(most: int) -> list[int]:
    """Return 1, 2, 4 and so on up to `most`."""
    return [1 << exponent for exponent in range(most.bit_length())] if most > 0 else []


def power_of_two(number: int) -> bool:
    """Whether a cell can have this number of GPUs."""
    return number > 0 and number & (number - 1) == 0


def fastest(speeds: Speeds, model: str, gpu_type: str, gpus: int) -> tuple[Allocation, float]:
    """Return the allocation with the fastest stage count (a power of two), the fewest of equals, with its rate.

    The rate is 0 if the model does not fit `gpus` GPUs of the type.
    """
    best, rate = Allocation(gpu_type, gpus), 0.0
    for stages in powers(gpus):
        allocation = Allocation(gpu_type, gpus, stages)
        if (found := speeds.rate(model, allocation)) > rate:
            best, rate = allocation, found
    return best, rate


def reference_rate(speeds: Speeds, job: SimulatedJob, types: tuple[str, ...] = ()) -> float:
    """Return the iterations a second of a job as requested: its own GPU type and count, the best stages.

    If it does not fit that, take the fastest of its count on one of `types`, then of half and of twice the count; 0 if
    it fits none of them.
    """
    rate = fastest(speeds, job.model, job.gpu_type, job.gpus)[1]
    for gpus in (job.gpus, job.gpus // 2, 2 * job.gpus):
        if rate > 0:
            break
        rate = max((fastest(speeds, job.model, each, gpus)[1] for each in types), default=0.0)
    return rate
