"""How long one iteration of a pipeline takes, out of what its stages take: the formula, and nothing measured here.

    sum of T_i + (B - 1) x slowest + tail

T_i is a stage's forward and backward pass of one micro-batch with its collectives and the transfer from the stage
before it; B is the number of micro-batches (Crius, section 5.1; GPipe). Where transfers run beside arithmetic, the
slowest stage is the one of the longest work or the longest transfer; Crius takes the stage of the longest T_i and
subtracts its transfer, by which a quicker link could make a plan slower. Where nothing runs beside anything, a stage
also pays for the transfer to the one behind it.

The tail is what Crius leaves out: the all-reduce of gradients between replicas and the optimizer's step, once an
iteration. A later stage ends its last backward pass earlier, so its tail hides behind the backward passes of those
before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sizing.cost import BACKWARD

Hiding = Literal["all", "buckets", "none"]
"""How much of the communication runs beside arithmetic.

all: transfers, and the all-reduce of gradients but for its last bucket; buckets: transfers, and of the all-reduce as
much as DistributedDataParallel's buckets allow; none: nothing.
"""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """What a stage takes, in seconds.

    `work_s`: forward and backward pass of a micro-batch with the collectives of tensor parallelism. `transfer_s`:
    activations from the stage before it and their gradients back, of a micro-batch; 0 for the first. `bucket_s`: the
    all-reduce of one of `buckets` equal parts of the gradients; none without replicas. `update_s`: the optimizer.
    """

    work_s: float
    transfer_s: float = 0.0
    bucket_s: float = 0.0
    buckets: int = 0
    update_s: float = 0.0


def reduce_s(stage: StageTimes, hiding: Hiding) -> float:
    """How much longer than its last backward pass a stage's all-reduce of gradients takes.

    Buckets fill evenly through the backward pass and go one after another: n of c seconds beside a pass of b are done
    max(c, n c - b (n - 1) / n) after it. Gradients of earlier micro-batches stay where they are (DDP's no_sync).
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
    """What comes after the last backward pass of a stage, where `behind_s` is that of the stage behind it."""
    return max(reduce_s(stage, hiding) + stage.update_s, behind_s - BACKWARD * stage.work_s)


def pace_s(stage: StageTimes, onward_s: float, hiding: Hiding) -> float:
    """How often a stage can begin a micro-batch; `onward_s` is its transfer to the stage behind it."""
    if hiding == "none":
        return stage.work_s + stage.transfer_s + onward_s
    return max(stage.work_s, stage.transfer_s)


def iteration_s(stages: Sequence[StageTimes], micro_batches: int, hiding: Hiding) -> float:
    """One iteration of all micro-batches through all stages, in seconds.

    Grows with every time in it, and shrinks with none.
    """
    first_s = sum(stage.work_s + stage.transfer_s for stage in stages)
    onward = [*(stage.transfer_s for stage in stages[1:]), 0.0]
    slowest_s = max(pace_s(stage, after_s, hiding) for stage, after_s in zip(stages, onward, strict=True))
    end_s = 0.0
    for stage in reversed(stages):
        end_s = tail_s(stage, end_s, hiding)
    return first_s + (micro_batches - 1) * slowest_s + end_s
