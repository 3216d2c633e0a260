"""Synergy's comparison: orders and packers on the same jobs, and the figures of each run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from sizing.base.errors import SizingError, UsageError
from sizing.cpu.sensitivity.matrix import Matrices, Matrix
from studies.simulation.engine import RESTART_S, simulate_in
from studies.simulation.outcome import Outcome
from studies.simulation.report import quantile
from studies.simulation.world import SimulatedJob
from studies.synergy.job_orders import order
from studies.synergy.packing import priced, proportional
from studies.synergy.packing.packers import packer
from studies.synergy.packing.types import Servers
from studies.synergy.rounds import Rounds
from studies.synergy.servers import ServerWorld
from studies.synergy.stable_assignment import Repacker, sharing, staying

EDGE = 0.25
"""The share of arriving jobs at each end that figures leave out: queues fill there, and empty."""


def repacker(name: str) -> Repacker:
    """Return a packer by name; `priced` itself leaves jobs where they are. Raises UsageError for an unknown name."""
    known = packer(name)
    if known is priced.pack:
        return priced.pack
    return sharing if known is proportional.pack else staying(known)


@dataclass(frozen=True, slots=True)
class Figures:
    """One run, over the middle of the jobs that come after the first moment; times in seconds.

    `throughput` adds up each job's rate over that with its proportional share, per GPU, as a mean over the time in
    which these jobs were submitted, and `busy` is the share of GPUs in use then. `slowest` is the least rate that any
    job ever had over that with its proportional share. `slowdown` is the mean of completion time over the duration with
    its share from submission on, and `packings` the number of packings.
    """

    jobs: int
    mean_jct_s: float
    median_jct_s: float
    p99_jct_s: float
    mean_queue_s: float
    slowdown: float
    restarts: float
    throughput: float
    busy: float
    slowest: float
    packings: int


NAMES = tuple(field.name for field in fields(Figures))


def run(
    order_name: str,
    packer_name: str,
    jobs: Sequence[SimulatedJob],
    servers: Servers,
    matrices: Matrices,
    *,
    told: Mapping[str, Matrix] | None = None,
    restart_s: float = RESTART_S,
) -> Figures:
    """Run one order and packer on jobs with true matrices `matrices`; the packer sees these, or those it is `told`."""
    known = told if told is not None else {name: each.matrix for name, each in matrices.items()}
    name = f"{order_name}-{packer_name}"
    policy = Rounds(order(order_name), repacker(packer_name), servers, known, name=name)
    outcome = simulate_in(ServerWorld(servers, matrices), jobs, policy, restart_s=restart_s, rounds=True)
    return figures(outcome, servers.count * servers.gpus, policy.packings)


def figures(outcome: Outcome, gpus: int, packings: int = 0) -> Figures:
    """Return the figures of a run.

    Raises SizingError if a job never ended, UsageError if too few come after the first. To leave out jobs that never
    run would make a policy that starves jobs look fast.
    """
    for each in outcome.jobs:
        if each.completion_s is None:
            raise SizingError(
                f"{outcome.policy} never finds a place for job {each.job.id[:40]} ({each.job.model[:40]}, "
                f"{each.job.gpus} GPUs): take more servers, or leave it out"
            )
    coming = [each for each in outcome.jobs if each.job.submit_s > outcome.jobs[0].job.submit_s]
    edge = int(len(coming) * EDGE)
    middle = coming[edge : len(coming) - edge]
    if not middle or middle[0].job.submit_s == middle[-1].job.submit_s:
        raise UsageError("too few jobs come one after the other to tell how long they take: simulate more")
    done = sorted(each.completion_s for each in middle if each.completion_s is not None)
    from_s, until_s = middle[0].job.submit_s, middle[-1].job.submit_s
    normalised = busy = 0.0
    slowest = float("inf")
    for each in outcome.jobs:
        for span in each.spans:
            within_s = max(0.0, min(span.until_s, until_s) - max(span.from_s, from_s))
            trains_s = max(0.0, min(span.until_s, until_s) - max(span.ready_s, from_s))
            normalised += trains_s * span.rate / each.reference_rate * span.allocation.gpus
            busy += within_s * span.allocation.gpus
            slowest = min(slowest, span.rate / each.reference_rate)
    whole = gpus * (until_s - from_s)
    return Figures(
        jobs=len(done),
        mean_jct_s=statistics.fmean(done),
        median_jct_s=statistics.median(done),
        p99_jct_s=quantile(done, 0.99),
        mean_queue_s=statistics.fmean(each.queued_s for each in middle if each.queued_s is not None),
        slowdown=statistics.fmean(
            each.completion_s * each.reference_rate / each.job.iterations
            for each in middle
            if each.completion_s is not None
        ),
        restarts=statistics.fmean(each.restarts for each in middle),
        throughput=normalised / whole,
        busy=busy / whole,
        slowest=slowest,
        packings=packings,
    )
