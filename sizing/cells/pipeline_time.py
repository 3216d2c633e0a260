"""The formula for the time of one iteration of a pipeline, from the times of its stages.

    sum of T_i + (B - 1) x slowest + tail

T_i is a stage's forward and backward pass of one micro-batch with its collectives and the transfer from the stage
before it; B is the number of micro-batches (Crius, section 5.1; GPipe). If transfers overlap with computation, the
slowest time is the longest work or the longest transfer of any stage. Crius takes the stage with the longest T_i and
subtracts its transfer, so a faster link could make a plan slower. If nothing overlaps, a stage also pays for the
transfer to the next stage.

The tail, which Crius leaves out, is the all-reduce of gradients between replicas and the optimizer's step, once per
iteration. A later stage ends its last backward pass earlier, so its tail hides behind the backward passes of earlier
stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sizing.step_time.datasheet import BACKWARD

Hiding = Literal["all", "buckets", "none"]
"""The communication that overlaps with computation.

all: transfers, and the all-reduce of gradients except its last bucket; buckets: transfers, and as much of the
all-reduce as DistributedDataParallel's buckets allow; none: nothing.
"""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """The times of a stage, in seconds.

    `work_s`: forward and backward pass of a micro-batch with the collectives of tensor parallelism. `transfer_s`:
    activations from the stage before and their gradients back, per micro-batch; 0 for the first stage. `bucket_s`: the
    all-reduce of one of `buckets` equal parts of the gradients; 0 buckets without replicas. `update_s`: the optimizer.
    """

    work_s: float
    transfer_s: float = 0.0
    bucket_s: float = 0.0
    buckets: int = 0
    update_s: float = 0.0


def reduce_s(stage: StageTimes, hiding: Hiding) -> float:
    """Return the seconds that a stage's all-reduce of gradients takes beyond its last backward pass.

    Buckets fill evenly during the backward pass and are sent one after another: n buckets of c seconds during a pass of
    b seconds end max(c, n c - b (n - 1) / n) seconds after it. Earlier micro-batches are not reduced (DDP's no_sync).
    """
    if not stage.buckets:
        return 0.0
    whole_s = stage.buckets * stage.bucket_s
    if hiding == "none":
        return whole_s
    if hiding == "all":
        return stage.bucket_s
    backward_s = BACKWARD * stage.work_s
    return max(stage.bucket_s, whole_s - backward_s * (stage.buckets - 1) / stage.buckets)


def tail_s(stage: StageTimes, behind_s: float, hiding: Hiding) -> float:
    """Return the seconds after a stage's last backward pass until it and all later stages are done.

    `behind_s` is that time of the next stage.
    """
    return max(reduce_s(stage, hiding) + stage.update_s, behind_s - BACKWARD * stage.work_s)


def pace_s(stage: StageTimes, onward_s: float, hiding: Hiding) -> float:
    """Return the seconds between two micro-batches of a stage; `onward_s` is its transfer to the next stage."""
    if hiding == "none":
        return stage.work_s + stage.transfer_s + onward_s
    return max(stage.work_s, stage.transfer_s)


def iteration_s(stages: Sequence[StageTimes], micro_batches: int, hiding: Hiding) -> float:
    """Return the seconds of one iteration of all micro-batches through all stages.

    The result never falls if a time in it grows.
    """
    first_s = sum(stage.work_s + stage.transfer_s for stage in stages)
    onward = [*(stage.transfer_s for stage in stages[1:]), 0.0]
    slowest_s = max(pace_s(stage, after_s, hiding) for stage, after_s in zip(stages, onward, strict=True))
    end_s = 0.0
    for stage in reversed(stages):
        end_s = tail_s(stage, end_s, hiding)
    return first_s + (micro_batches - 1) * slowest_s + end_s
