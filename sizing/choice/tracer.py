"""Traces of one step at many points: two at a time, and remembered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sizing.base.errors import Untraceable, UsageError
from sizing.base.parallel import Parallel, RankBatch
from sizing.base.progress import Progress, quiet
from sizing.child import tracing
from sizing.child.threads import side_by_side
from sizing.choice.layout import Spread
from sizing.choice.sources import Traces
from sizing.model.request import ModelRequest
from sizing.model.trace import StepTrace

_SHOWN = 0.01  # share of the arithmetic from which on a precision is named

BOUNDED = "what masks select is not known and all of it is counted, so memory and time are upper bounds"


class Tracer:
    """Traces one step at any point and remembers the results."""

    def __init__(self, step: str, python: str, timeout_s: float, precision: str, progress: Progress = quiet) -> None:
        if not timeout_s > 0:
            raise UsageError(f"--timeout {timeout_s:g}: seconds, more than 0")
        self.step = step
        self.traces = Traces(precision)
        self._python = python
        self._timeout_s = timeout_s
        self._progress = progress
        self._seen = 0

    def spread(self) -> Spread:
        """Return the ways in which the step can be split, by the keywords of its function."""
        takes = tracing.takes(self.step, self._python)
        return Spread(tensor="tp" in takes, fsdp="fsdp" in takes)

    def measure(self, points: Sequence[RankBatch]) -> list[StepTrace | Untraceable]:
        """Trace points, two at a time; raises UsageError if the step cannot be traced at all."""
        done, name = 0, f"tracing {self.step}"

        def one(point: RankBatch) -> StepTrace | Untraceable:
            nonlocal done
            result = self._one(point)
            done += 1
            return result

        self._progress(name, 0.0)
        results = side_by_side(
            [lambda point=point: one(point) for point in points],  # type: ignore[misc]
            lambda: self._progress(name, min(0.99, done / len(points))),
        )
        self._progress(name, 1.0)
        self._seen += len(points)
        return results

    def told(self) -> list[str]:
        """Return notes on the traces: how many there were, and which failed."""
        failed: dict[tuple[Parallel, str], list[str]] = {}
        for point, why in sorted(self.traces.failed.items()):
            failed.setdefault((point.parallel, why), []).append(str(point.batch))
        told = [
            f"a batch of {' or '.join(batches)} with {_name(parallel)} could not be traced: {why}"
            for (parallel, why), batches in failed.items()
        ]
        if any(trace.upper_bounds for traces in self.traces.found.values() for trace in traces.values()):
            told.append(BOUNDED)
        if self.traces.sums_nothing():
            told.append(
                "the step sums no gradients over replicas: where the script does not either, wrap the model in "
                "DistributedDataParallel, or take a plan of one GPU (--max-gpus 1)"
            )
        said = f"{self._seen} traces of {self.step}; {self._arithmetic()}"
        return [said, *told]

    def _arithmetic(self) -> str:
        """Name the precisions in which the step computes, or the one chosen by --precision."""
        if self.traces.precision:
            return f"all arithmetic timed in {self.traces.precision} (--precision)"
        flops: dict[str, int] = {}
        for trace in (trace for traces in self.traces.found.values() for trace in traces.values()):
            for each in trace.operators:
                flops[each.precision] = flops.get(each.precision, 0) + each.flops
        shares = {name: count / max(1, sum(flops.values())) for name, count in flops.items()}
        kinds = sorted((name for name, share in shares.items() if share >= _SHOWN), key=lambda name: -shares[name])
        parts = [name if len(kinds) == 1 else f"{shares[name]:.0%} {name}".replace("%", " %") for name in kinds]
        return f"arithmetic in {', '.join(parts) or 'no products'} (traced)"

    def _one(self, point: RankBatch) -> StepTrace | Untraceable:
        try:
            return tracing.trace(self.step, point.batch, point.parallel, python=self._python, timeout_s=self._timeout_s)
        except Untraceable as error:
            return error


def spread_of(asked: ModelRequest, tracer: Tracer | None) -> Spread:
    """Return the ways to split the model: those of the step, or those that the formula supports."""
    if tracer is not None:
        found = tracer.spread()
        return found if asked.model is None else replace(found, heads=asked.model.heads)
    assert asked.model is not None
    return Spread(tensor=True, heads=asked.model.heads)


def _name(parallel: Parallel) -> str:
    more = " or more" if parallel.dp == 2 else ""  # more than two replicas have the same trace
    return f"dp {parallel.dp}{more}, tp {parallel.tp}, fsdp {parallel.fsdp}"
