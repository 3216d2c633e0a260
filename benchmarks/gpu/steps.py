"""Estimates of training steps, memory and time, beside what the same steps take on this machine's GPU.

    python -m benchmarks.gpu.steps [--only NAME ...] [--trace-only] [--jobs N] [--json]

Needs this tree, a Python with a CUDA build of torch, and one GPU that nothing else uses; cases of the transformers
package are told as left out where that is not installed. Each case is traced in a process that sees no GPU, and then
runs on it in a process of its own: torch.cuda.max_memory_allocated is what a trace should say, max_memory_reserved
what torch asked the driver for, and "in use" what the device had no more of in the end, with the context. A guard band
holds where the step runs with no more of the GPU than the peak with it, context included. The time of a step is held
against the rule of data sheets, and against that rule as `bft size check` corrects it: its steps run first, none of
them is a case. Every case is reported, and nothing was fitted to them. One that fails counts as 0.

Without a GPU it says so and ends; with --trace-only it prints what the traces say, which needs none.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.sizing.cases import GPU_CASES, Case
from benchmarks.sizing.memory import accuracy
from sizing.base.errors import SizingError
from sizing.base.parallel import Parallel
from sizing.child import stepping, tracing
from sizing.child.stepping import GpuStep
from sizing.inventory.gpus import GpuType
from sizing.memory.peak import guarded_bytes
from sizing.model.trace import StepTrace
from sizing.step_time import checking
from sizing.step_time.checking import ComparedStep, within

LEAST_MEAN, LEAST_WORST, LEAST_INSIDE = 0.97, 0.92, 0.9
_LIMIT_S = 180.0


@dataclass(frozen=True)
class Row:
    """A case and what came out; `why` says what failed."""

    name: str
    batch: int
    trace: StepTrace | None = None
    real: GpuStep | None = None
    why: str = ""

    @property
    def of_allocated(self) -> float:
        """The trace's accuracy; 0 where something failed."""
        return self._accuracy(self.real.allocated_bytes if self.real else 0)

    @property
    def of_reserved(self) -> float:
        """The same beside what torch had reserved."""
        return self._accuracy(self.real.reserved_bytes if self.real else 0)

    def _accuracy(self, real_bytes: int) -> float:
        return accuracy(self.trace.peak_bytes, real_bytes) if self.trace and real_bytes else 0.0

    def compared(self, gpu: GpuType) -> ComparedStep | None:
        """What is told of a type beside what was measured; None where something failed."""
        return ComparedStep(self.name, self.trace, self.real, gpu) if self.trace and self.real else None


def has_gpu() -> bool:
    """Whether torch sees a GPU."""
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def traced(case: Case) -> Row:
    """One case, traced."""
    row = Row(case.name, case.batch)
    try:
        return replace(row, trace=_trace(case.path, case.batch))
    except SizingError as error:
        return replace(row, why=str(error))


def _trace(step: str, batch: int) -> StepTrace:
    return tracing.trace(step, batch, Parallel(), python=sys.executable, timeout_s=_LIMIT_S)


def run(row: Row, case: Case) -> Row:
    """The same case on the GPU."""
    try:
        limit_bytes = guarded_bytes(row.trace.peak_bytes) if row.trace else 0
        real = stepping.run_on_gpu(case.path, case.batch, limit_bytes, python=sys.executable, timeout_s=_LIMIT_S)
        return replace(row, real=real)
    except SizingError as error:
        return replace(row, why="; ".join(filter(None, (row.why, f"on the GPU: {error}"))))


def checked(traces: Mapping[str, StepTrace]) -> tuple[list[ComparedStep], GpuType]:
    """The steps of `bft size check` on this GPU, and its type as they correct it; what failed is told and left out."""
    limits = {name: guarded_bytes(trace.peak_bytes) for name, trace in traces.items()}
    found = dict(checking.measured(limits, sys.executable, _LIMIT_S, lambda name: print(name, file=sys.stderr)))
    steps = {name: step for name, step in found.items() if isinstance(step, GpuStep)}
    for name, step in found.items():
        if not isinstance(step, GpuStep):
            print(f"gpu.steps: {name}: {step or 'larger than the GPU'}", file=sys.stderr)
    if not steps:
        raise SystemExit("gpu.steps: no step of bft size check ran")
    gpu = checking.type_of(next(iter(steps.values())).device, {})
    rows = [ComparedStep(name, traces[name], step, gpu) for name, step in steps.items()]
    for row in rows:
        print(json.dumps(row.to_json()), file=sys.stderr, flush=True)
    return rows, checking.corrected(gpu, rows)


def json_of(row: Row, gpu: GpuType | None) -> dict[str, Any]:
    """A case for programs, its time by the rule and as that was corrected."""
    said: dict[str, Any] = {"name": row.name, "batch": row.batch, "why": row.why}
    if row.trace is not None:
        said |= {"traced_bytes": row.trace.peak_bytes, "trace_s": row.trace.trace_s}
    if gpu is not None:
        said |= {"of_allocated": row.of_allocated, "of_reserved": row.of_reserved}
        if (found := row.compared(gpu)) is not None:
            said |= found.to_json() | {"corrected_s": asdict(found.corrected_s)}
            said |= {"in_range": within(found.real, found.expected_s)}
            said |= {"in_corrected": within(found.real, found.corrected_s)}
    return said


def summary(rows: Sequence[Row], gpu: GpuType) -> dict[str, Any]:
    """Of all rows, failed ones among them: accuracies, guard bands, and the times over those that were told."""
    found: dict[str, Any] = {"cases": len(rows), "failed": sum(bool(row.why) for row in rows)}
    for kind, accuracies in (
        ("allocated", [row.of_allocated for row in rows]),
        ("reserved", [row.of_reserved for row in rows]),
    ):
        found[kind] = {"mean": statistics.fmean(accuracies), "worst": min(accuracies)}
    ran = [each for row in rows if (each := row.compared(gpu)) is not None]
    found["within the guard band"] = sum(each.real.within_guard for each in ran)
    for kind, told in (
        ("assumed", [each.expected_s for each in ran]),
        ("corrected", [each.corrected_s for each in ran]),
    ):
        ratios = [each.real.step_s.value / time.value for each, time in zip(ran, told, strict=True)]
        inside = sum(within(each.real, time) for each, time in zip(ran, told, strict=True))
        found[kind] = {
            "median ratio": statistics.median(ratios),
            "least": min(ratios),
            "most": max(ratios),
            "median error": statistics.median(abs(ratio - 1) for ratio in ratios),
            "in range": inside,
            "share in range": inside / len(rows),
        }
    return found


def show(rows: Sequence[Row], gpu: GpuType | None) -> None:
    """The table and the summary for people."""
    for row in rows:
        peak = f"traced {row.trace.peak_bytes / 2**30:7.2f} GiB" if row.trace else ""
        said = f"{row.name:46} {row.batch:4} {peak}"
        if gpu is not None and row.real and (found := row.compared(gpu)) is not None:
            told, assumed = found.corrected_s, found.expected_s
            said += (
                f"  allocated {row.real.allocated_bytes / 2**30:7.2f} ({row.of_allocated:7.2%})"
                f"  reserved {row.real.reserved_bytes / 2**30:7.2f} ({row.of_reserved:7.2%})"
                f"  in use {row.real.in_use_bytes / 2**30:7.2f}"
                f" ({'within' if row.real.within_guard else 'BEYOND'} the guard band)"
                f"  {row.real.step_s.value:.4f} s, assumed {assumed.value:.4f}"
                f" ({'inside' if within(row.real, assumed) else 'OUTSIDE'}), corrected {told.value:.4f}"
                f" ({'inside' if within(row.real, told) else 'OUTSIDE'})"
            )
        print(f"{said} {row.why}".rstrip())
    if gpu is None:
        return
    all_rows = summary(rows, gpu)
    for kind in ("allocated", "reserved"):
        print(f"{kind}: mean {all_rows[kind]['mean']:.2%}, worst {all_rows[kind]['worst']:.2%} of {len(rows)} cases")
    print(f"within the guard band: {all_rows['within the guard band']} of {len(rows)}")
    missed = all_rows["allocated"]["mean"] < LEAST_MEAN or all_rows["allocated"]["worst"] < LEAST_WORST
    print(f"asked for: mean {LEAST_MEAN:.0%}, worst {LEAST_WORST:.0%} of allocated: {'missed' if missed else 'met'}")
    for kind in ("assumed", "corrected"):
        each = all_rows[kind]
        print(
            f"time over what is {kind}: {each['median ratio']:.2f} at the median ({each['least']:.2f}-"
            f"{each['most']:.2f}), {each['in range']} of {len(rows)} in the range (asked for {LEAST_INSIDE:.0%}: "
            f"{'met' if each['share in range'] >= LEAST_INSIDE else 'missed'})"
        )


def main(words: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.steps", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases by name, or by the file that they stand in")
    parser.add_argument("--trace-only", action="store_true", help="print what the traces say; needs no GPU")
    parser.add_argument("--jobs", type=int, default=2, help="traces at the same time, before anything runs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    chosen = list(GPU_CASES)
    if options.only:
        chosen = [case for case in GPU_CASES if {case.name, case.name.partition(":")[0]} & set(options.only)]
        if not chosen:
            names = ", ".join(dict.fromkeys(case.name for case in GPU_CASES))
            parser.error(f"no case is called {options.only[0]!r}; there are {names}")
    if not options.trace_only and not has_gpu():
        print("gpu.steps: torch finds no GPU here, so nothing was measured; --trace-only prints what the traces say")
        return
    left_out: list[str] = []
    if importlib.util.find_spec("transformers") is None:
        left_out = [case.name for case in chosen if "huggingface" in case.step]
        chosen = [case for case in chosen if case.name not in left_out]
        print(f"gpu.steps: left out, for want of transformers: {', '.join(left_out)}", file=sys.stderr)
    with ThreadPoolExecutor(options.jobs) as pool:
        rows = list(pool.map(traced, chosen))
        checks = {} if options.trace_only else checking.BATCHES
        traces = dict(
            zip(checks, pool.map(lambda name: _trace(f"{checking.STEPS}:{name}", checks[name]), checks), strict=True)
        )
    gpu: GpuType | None = None
    against: list[ComparedStep] = []
    if not options.trace_only:
        against, gpu = checked(traces)
        for at, case in enumerate(chosen):
            rows[at] = run(rows[at], case)
            print(json.dumps(json_of(rows[at], gpu)), file=sys.stderr, flush=True)
    if options.json:
        said: dict[str, Any] = {"left_out": left_out, "rows": [json_of(row, gpu) for row in rows]}
        if gpu is not None and rows:
            said |= {"gpu": gpu.name, "checked": {kind: asdict(each) for kind, each in gpu.checked.items()}}
            said["checks"] = [row.to_json() for row in against]
            said["accuracy"] = summary(rows, gpu)
        print(json.dumps(said, indent=2))
    elif rows:
        show(rows, gpu)


if __name__ == "__main__":
    main()
