"""The time of a step on a cell without profiles: the rule on data sheets, for each stage of a pipeline.

A stage has its share of the model's work and memory. A pipeline of stages that take T_i over the whole batch in B
micro-batches takes sum T_i / B + (B - 1) / B x max T_i (GPipe), at best with one sample per micro-batch, and reduces
the gradients of its largest stage. All micro-batches' activations are kept until their backward pass. Every time is
`assumed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sizing.base.errors import DoesNotFit
from sizing.base.estimate import Estimate
from sizing.base.parallel import Parallel
from sizing.choice.layout import Spread, TimedLayout
from sizing.choice.sources import Source
from sizing.inventory.gpus import GIB
from sizing.inventory.shapes import GpuShape
from sizing.memory.peak import guarded_bytes
from sizing.step_time import datasheet

MICRO_BATCHES = 4
"""Micro-batches of a pipeline per stage: they keep the stages busy four fifths of the time or more.

Source: Huang et al. 2019 (GPipe).
"""


@dataclass(frozen=True, slots=True)
class StagePart:
    """One stage: its GPUs, its share of the model's FLOPs and of its weights, and the bytes it sends on per sample."""

    gpus: int
    flops: float
    weights: float
    sent_bytes: float


class StageCut(Protocol):
    """The division of a model into stages."""

    def parts(self, gpus: int, stages: int) -> Sequence[StagePart]:
        """Return the stages in order, at least two; raise DoesNotFit if the model cannot be cut so."""
        ...


@dataclass(frozen=True)
class Assumed:
    """A Timer by data sheets. `source` knows memory and work of one GPU, `whole` the same without micro-batches.

    `cut` is None if the model's division into stages is unknown; it is then one stage.
    """

    source: Source
    whole: Source
    global_batch: int
    spread: Spread
    cut: StageCut | None = None

    def time(self, shape: GpuShape, stages: int) -> TimedLayout:
        """Return the fastest split that fits; raise DoesNotFit."""
        if stages == 1:
            parts: Sequence[StagePart] = (StagePart(shape.gpus, 1.0, 1.0, 0.0),)
        elif self.cut is None:
            raise DoesNotFit("how the model would be cut into stages is not known")
        else:
            parts = self.cut.parts(shape.gpus, stages)
        found = [timed for tp in self._tensor(shape, parts) if (timed := self._timed(shape, parts, tp)) is not None]
        if not found:
            raise DoesNotFit(f"a global batch of {self.global_batch} cannot be cut over it")
        fitting = [timed for timed in found if timed.fits]
        if fitting:
            return min(fitting, key=lambda timed: timed.step_s.value)
        least = min(found, key=lambda timed: timed.peak.high).peak
        raise DoesNotFit(
            f"a GPU would need {least.high / GIB:.1f} GiB with the guard band ({least.origin}) and has "
            f"{shape.pool.gpu_bytes / GIB:.1f}",
            least.high / shape.pool.gpu_bytes,
        )

    def _tensor(self, shape: GpuShape, parts: Sequence[StagePart]) -> Iterator[int]:
        """Return the sizes of tensor-parallel groups that fit a node, a stage and the heads."""
        return self.spread.tensor_groups(min(shape.per_node, *(part.gpus for part in parts)))

    def _timed(self, shape: GpuShape, parts: Sequence[StagePart], tp: int) -> TimedLayout | None:
        parallels = [Parallel(part.gpus // tp, tp) for part in parts]
        if any(self.global_batch % parallel.dp for parallel in parallels):
            return None
        smallest = self.global_batch // max(parallel.dp for parallel in parallels)
        source, micro_batches = self.source, 1
        if len(parts) == 1:
            micro_batches = smallest // source.micro_batch(parallels[0], smallest)
        else:
            source, micro_batches = self.whole, _divisor(smallest, MICRO_BATCHES * len(parts))
        stages = []
        for part, parallel in zip(parts, parallels, strict=True):
            stage = self._stage(shape, part, parallel, source, micro_batches if len(parts) > 1 else 1)
            if stage is None:
                return None
            stages.append(stage)
        peaks, times, reduced = zip(*stages, strict=True)
        low = _pipeline([each.low for each in times], smallest if len(parts) > 1 else micro_batches)
        usual, high = (_pipeline([getattr(each, end) for each in times], micro_batches) for end in ("value", "high"))
        last = max(reduced, key=lambda each: each.value)
        step = datasheet.beside(Estimate(usual, low, high, "assumed"), last, micro_batches)
        peak = max(peaks, key=lambda each: each.high)
        return TimedLayout(shape, tuple(parallels), self.global_batch, micro_batches, step_s=step, peak=peak)

    def _stage(
        self, shape: GpuShape, part: StagePart, parallel: Parallel, source: Source, cut: int
    ) -> tuple[Estimate, Estimate, Estimate] | None:
        """Return a stage's (peak, time of all micro-batches, time to reduce gradients); the batch is `cut` further."""
        batch = self.global_batch // parallel.dp
        peak, work = source.peak(parallel, batch), source.work(parallel, batch)
        if peak is None or work is None:
            return None
        gpu, nodes = shape.pool.gpu, max(1, part.gpus // shape.per_node)
        reduced_bytes = {kind: size * part.weights for kind, size in work.data.items()}
        reducing = replace(work, operators={}, tensor={}, data=reduced_bytes, calls=0.0)
        starts = part.flops * cut
        computing = replace(
            work.scaled(part.flops), data={}, calls=work.calls * starts, tensor_calls=work.tensor_calls * starts
        )
        time, reduced = (
            datasheet.step_s(each, parallel, gpu, nodes, shape.network_bytes_s, source.precision)
            for each in (computing, reducing)
        )
        if part.sent_bytes:
            time = _plus(time, 2 * part.sent_bytes * batch / _way_bytes_s(shape, part, parallel))
        return _share(peak, max(part.flops, part.weights)), time, reduced


def _pipeline(times: Sequence[float], micro_batches: int) -> float:
    return (sum(times) + (micro_batches - 1) * max(times)) / micro_batches


def _share(peak: Estimate, share: float) -> Estimate:
    if share >= 1:
        return peak
    value = peak.value * share
    return Estimate(value, peak.low * share, guarded_bytes(value, peak.origin), "assumed")


def _plus(time: Estimate, sending_s: float) -> Estimate:
    """Add the time to send to the next stage and back, at a link's full bandwidth: at best it hides."""
    usual_s, worst_s = sending_s / datasheet.LINKS.usual, sending_s / datasheet.LINKS.least
    return Estimate(time.value + usual_s, time.low, time.high + worst_s, "assumed")


def _way_bytes_s(shape: GpuShape, part: StagePart, parallel: Parallel) -> float:
    """Return one replica's bandwidth to the next stage, which is on another node if there are several."""
    if shape.nodes == 1:
        return shape.pool.gpu.link_bytes_s
    replicas = max(1, min(shape.per_node, part.gpus) // parallel.tp)
    return min(shape.pool.gpu.link_bytes_s, shape.network_bytes_s / replicas)


def _divisor(batch: int, most: int) -> int:
    """Return the largest divisor of a batch up to `most`."""
    return next(count for count in range(min(batch, most), 0, -1) if batch % count == 0)
