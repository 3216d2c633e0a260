"""A step's memory and work at a spread and a batch: from traces, or by formula."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from sizing.base.estimate import Estimate
from sizing.base.parallel import Parallel, RankBatch
from sizing.memory.peak import guarded_bytes
from sizing.model.trace import Category, StepTrace
from sizing.step_time import datasheet
from sizing.step_time.datasheet import StepWork

STATE: tuple[Category, ...] = ("parameters", "gradients", "optimizer")
"""The memory that does not grow with the batch, and that FSDP shares among GPUs."""


_WHOLE = (Parallel(), Parallel(2))
"""Traces of a whole model on each GPU."""


class Source(Protocol):
    """The source of a plan's numbers."""

    @property
    def precision(self) -> str:
        """The precision in which all of the step's arithmetic is timed; "" for each operator's own."""
        ...

    def peak(self, parallel: Parallel, batch: int) -> Estimate | None:
        """Return the bytes of one GPU, `high` with the guard band; None if unknown."""
        ...

    def work(self, parallel: Parallel, batch: int) -> StepWork | None:
        """Return the work of one rank in a step; None if unknown."""
        ...

    def micro_batch(self, parallel: Parallel, batch: int) -> int:
        """Return the part of a rank's batch that is processed at once."""
        ...


@dataclass
class Traces:
    """Traces of one step, and the figures that follow from them for batches in between.

    The peak is a maximum of sums which each grow linearly with the batch, hence convex in it: a straight line between
    two traces is never too low, and a step never takes less than one of a smaller batch. Figures between two traces are
    `interpolated`; beyond the last one there are none.
    """

    precision: str = ""
    found: dict[Parallel, dict[int, StepTrace]] = field(default_factory=dict)
    failed: dict[RankBatch, str] = field(default_factory=dict)

    def add(self, point: RankBatch, trace: StepTrace) -> None:
        """Add a trace."""
        self.found.setdefault(point.key, {})[point.batch] = trace

    def fail(self, point: RankBatch, reason: str) -> None:
        """Note that a point cannot be traced."""
        self.failed[RankBatch(point.key, point.batch)] = reason

    def is_known(self, point: RankBatch) -> bool:
        """Whether the point was traced, or tried."""
        return point.batch in self.found.get(point.key, {}) or RankBatch(point.key, point.batch) in self.failed

    def is_out(self, point: RankBatch) -> bool:
        """Whether the point could not be traced, itself or at all in this spread."""
        tried = [each for each in self.failed if each.parallel == point.key]
        return any(each.batch == point.batch for each in tried) or (bool(tried) and point.key not in self.found)

    def least_bytes(self, parallel: Parallel, batch: int) -> int:
        """Return a lower bound of the step's memory, 0 if unknown.

        It is the peak at the nearest smaller batch, or, from what one GPU or a replica holds, its weights and optimizer
        state divided among the GPUs of a replica, and its activations among tensor-parallel ones: no spread does
        better. Gradients and temporary tensors are left out, as replicas have buckets among them.
        """
        traces = self.found.get(RankBatch(parallel, batch).key, {})
        own = max((trace.peak_bytes for at, trace in traces.items() if at <= batch), default=0)
        whole = [trace for key in _WHOLE for at, trace in self.found.get(key, {}).items() if at <= batch]
        return max([own, *(_cut_bytes(trace, parallel) for trace in whole)])

    def categories(self, parallel: Parallel, batch: int) -> dict[Category, int]:
        """Return the parts of the nearest trace's peak; nothing if there is none."""
        traces = self.found.get(RankBatch(parallel, batch).key, {})
        near = min(traces, key=lambda at: abs(at - batch), default=None)
        return {} if near is None else dict(traces[near].by_category)

    def peak(self, parallel: Parallel, batch: int) -> Estimate | None:
        """Return the peak traced at this very batch, or interpolated between the two nearest."""
        point = RankBatch(parallel, batch)
        if self.is_out(point):
            return None
        traces = self.found.get(point.key, {})
        if batch in traces:
            exact = traces[batch].peak_bytes
            return Estimate(exact, exact, guarded_bytes(exact), "traced")
        sides = _sides(traces, batch)
        if sides is None:
            return None
        low, high = sides
        part = (batch - low) / (high - low)
        value = traces[low].peak_bytes + part * (traces[high].peak_bytes - traces[low].peak_bytes)
        return Estimate(value, min(value, traces[low].peak_bytes), guarded_bytes(value), "interpolated")

    def work(self, parallel: Parallel, batch: int) -> StepWork | None:
        """Return the work from traces in this spread, else that of one GPU cut into equal parts."""
        point = RankBatch(parallel, batch)
        if traces := self.found.get(point.key):
            return _work(traces, batch)
        for key in _WHOLE:
            if traces := self.found.get(key):
                weights = max(trace.parameters for trace in traces.values())
                return _work(traces, batch).cut(parallel, weights)
        return None

    def sums_nothing(self) -> bool:
        """Whether no trace of replicas sums as much as one byte of each gradient over them."""
        replicas = [trace for key, traces in self.found.items() if key.dp > 1 for trace in traces.values()]
        return bool(replicas) and all(trace.collectives.get("all_reduce", 0) < trace.parameters for trace in replicas)

    def micro_batch(self, parallel: Parallel, batch: int) -> int:
        """Return the whole batch: the step decides itself how to cut it."""
        return batch


def _cut_bytes(trace: StepTrace, parallel: Parallel) -> int:
    state = trace.by_category.get("parameters", 0) + trace.by_category.get("optimizer", 0)
    return state // (parallel.tp * parallel.fsdp) + trace.by_category.get("activations", 0) // parallel.tp


def _sides(traces: Iterable[int], batch: int) -> tuple[int, int] | None:
    low = max((at for at in traces if at < batch), default=None)
    high = min((at for at in traces if at > batch), default=None)
    return None if low is None or high is None else (low, high)


def _work(traces: dict[int, StepTrace], batch: int) -> StepWork:
    if batch in traces:
        return datasheet.traced(traces[batch])
    if (sides := _sides(traces, batch)) is not None:
        low, high = sides
        return datasheet.between(
            datasheet.traced(traces[low]), datasheet.traced(traces[high]), (batch - low) / (high - low)
        )
    near = min(traces, key=lambda at: abs(at - batch))
    return datasheet.traced(traces[near]).scaled(batch / near)


def ends(points: Iterable[RankBatch]) -> Iterator[RankBatch]:
    """Yield, for each key among the points, those with the smallest and the largest batch."""
    by_key: dict[Parallel, list[RankBatch]] = {}
    for point in points:
        by_key.setdefault(point.key, []).append(point)
    for same in by_key.values():
        batches = sorted(same, key=lambda point: point.batch)
        yield batches[0]
        if batches[-1].batch != batches[0].batch:
            yield batches[-1]
