"""Traces of a user's step for `bft size fit`: two at a time, with a progress bar."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from bftd.base.errors import UsageError
from bftd.cli.progress import progress_bar

if TYPE_CHECKING:
    from bftd.cli.size.shared.model import ModelRequest
    from sizing.base.errors import Untraceable
    from sizing.base.parallel import Parallel
    from sizing.choose.candidates import Spread
    from sizing.choose.sources import RankBatch
    from sizing.model.trace import StepTrace

_PRECISIONS = ("fp32", "tf32", "fp16", "bf16")

_SHOWN = 0.01  # share of the arithmetic from which on a precision is named

BOUNDED = "what masks select is not known and all of it is counted, so memory and time are upper bounds"

T = TypeVar("T")


def refuse_precision(name: str) -> None:
    """Raise UsageError for a precision that no data sheet has; "" stands for the step's own."""
    if name and name not in _PRECISIONS:
        raise UsageError(f"--precision {name}: {', '.join(_PRECISIONS)}")


class Tracer:
    """Traces one step at any point and remembers the results."""

    def __init__(self, step: str, python: str, timeout_s: float, precision: str) -> None:
        from sizing.choose.sources import Traces

        if not timeout_s > 0:
            raise UsageError(f"--timeout {timeout_s:g}: seconds, more than 0")
        self.step = step
        self.traces = Traces(precision)
        self._python = python
        self._timeout_s = timeout_s
        self._seen = 0

    def spread(self) -> Spread:
        """Return the ways in which the step can be split, by the keywords of its function."""
        from sizing.choose.candidates import Spread
        from sizing.model import tracing

        takes = tracing.takes(self.step, self._python)
        return Spread(tensor="tp" in takes, fsdp="fsdp" in takes)

    def measure(self, points: Sequence[RankBatch]) -> list[StepTrace | Untraceable]:
        """Trace points, two at a time; raises UsageError if the step cannot be traced at all."""
        with progress_bar(f"tracing {self.step}", lines=True) as report:
            done = 0

            def one(point: RankBatch) -> StepTrace | Untraceable:
                nonlocal done
                result = self._one(point)
                done += 1
                return result

            results = side_by_side(
                [lambda point=point: one(point) for point in points],  # type: ignore[misc]
                lambda: report(done / len(points)),
            )
        self._seen += len(points)
        return results

    def notes(self) -> list[str]:
        """Return notes on the traces: how many there were, and which failed."""
        failed: dict[tuple[Parallel, str], list[str]] = {}
        for point, why in sorted(self.traces.failed.items()):
            failed.setdefault((point.parallel, why), []).append(str(point.batch))
        failures = [
            f"a batch of {' or '.join(batches)} with {_name(parallel)} could not be traced: {why}"
            for (parallel, why), batches in failed.items()
        ]
        if any(trace.upper_bounds for traces in self.traces.found.values() for trace in traces.values()):
            failures.append(BOUNDED)
        if self.traces.sums_nothing():
            failures.append(
                "the step sums no gradients over replicas: where the script does not either, wrap the model in "
                "DistributedDataParallel, or take a plan of one GPU (--max-gpus 1)"
            )
        summary = f"{self._seen} traces of {self.step}; {self._arithmetic()}"
        return [summary, *failures]

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
        from sizing.base.errors import Untraceable
        from sizing.model import tracing

        try:
            return tracing.trace(self.step, point.batch, point.parallel, python=self._python, timeout_s=self._timeout_s)
        except Untraceable as error:
            return error


def spread_of(asked: ModelRequest, tracer: Tracer | None) -> Spread:
    """Return the ways to split the model: those of the step, or those that the formula supports."""
    from sizing.choose.candidates import Spread

    if tracer is not None:
        found = tracer.spread()
        return found if asked.model is None else replace(found, heads=asked.model.heads)
    assert asked.model is not None
    return Spread(tensor=True, heads=asked.model.heads)


def side_by_side(jobs: Sequence[Callable[[], T]], tick: Callable[[], None], at_once: int = 2) -> list[T]:
    """Return the results of jobs, run `at_once` at a time; the first error ends it.

    The threads are daemons: a user who interrupts the command does not wait for them, and their processes end with it.
    """
    results: dict[int, T] = {}
    errors: list[BaseException] = []
    waiting = list(enumerate(jobs))
    lock = threading.Lock()

    def run() -> None:
        while True:
            with lock:
                if not waiting or errors:
                    return
                at, job = waiting.pop(0)
            try:
                results[at] = job()
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(min(at_once, len(jobs)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.1)
            tick()
    if errors:
        raise errors[0]
    return [results[at] for at in range(len(jobs))]


def _name(parallel: Parallel) -> str:
    more = " or more" if parallel.dp == 2 else ""  # more than two replicas have the same trace
    return f"dp {parallel.dp}{more}, tp {parallel.tp}, fsdp {parallel.fsdp}"
