"""Traced peaks of training steps beside what the same steps take on this machine's GPU.

    python -m benchmarks.gpu_memory [--only NAME ...] [--trace-only] [--json]

Needs this tree, a Python with a CUDA build of torch, and one GPU that nothing else uses; cases of the transformers
package are told as left out where that is not installed. Each case is traced in a process that sees no GPU, and then
runs three steps on it, in a process of its own: torch.cuda.max_memory_allocated is what a trace should say,
max_memory_reserved what torch asked the driver for, and "in use" what the device had no more of in the end, with the
context. A guard band holds where what was in use is within the trace's peak and its reserve. Every case is reported,
and nothing in the tracer was fitted to them. One that fails counts as 0.

Without a GPU it says so and ends; with --trace-only it prints what the traces say, which needs none.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.sizing_cases import GPU_CASES, Case
from benchmarks.sizing_memory import accuracy, real_peak
from sizing.errors import SizingError
from sizing.memory.peak import guarded_bytes
from sizing.model import tracing

LEAST_MEAN, LEAST_WORST = 0.97, 0.92
_LIMIT_S = 180.0


@dataclass(frozen=True)
class Row:
    """A case and what came out; `why` says what failed."""

    name: str
    batch: int
    traced_bytes: int = 0
    trace_s: float = 0.0
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    in_use_bytes: int = 0
    device: str = ""
    why: str = ""

    @property
    def of_allocated(self) -> float:
        """The trace's accuracy; 0 where something failed."""
        return accuracy(self.traced_bytes, self.allocated_bytes) if self.traced_bytes and self.allocated_bytes else 0.0

    @property
    def of_reserved(self) -> float:
        """The same beside what torch had reserved."""
        return accuracy(self.traced_bytes, self.reserved_bytes) if self.traced_bytes and self.reserved_bytes else 0.0

    @property
    def guarded(self) -> bool:
        """Whether a GPU of the size that would be asked for had been enough."""
        return 0 < self.in_use_bytes <= guarded_bytes(self.traced_bytes)


def has_gpu() -> bool:
    """Whether torch sees a GPU."""
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def measure(case: Case, trace_only: bool) -> Row:
    """One case, traced and run."""
    row = Row(case.name, case.batch)
    why = []
    try:
        traced = tracing.trace(
            case.path, case.batch, case.parallel, target="cuda", python=sys.executable, timeout_s=_LIMIT_S
        )
        row = replace(row, traced_bytes=traced.peak_bytes, trace_s=traced.trace_s)
    except SizingError as error:
        why.append(str(error))
    if not trace_only:
        try:
            real = real_peak(case.path, case.batch, case.parallel, gpu=True)
            row = replace(
                row,
                allocated_bytes=real["peak_bytes"],
                reserved_bytes=real["reserved_bytes"],
                in_use_bytes=real["device_bytes"],
                device=real["device"],
            )
        except (RuntimeError, KeyError) as error:
            why.append(f"no peak of a GPU: {error}")
    return replace(row, why="; ".join(why))


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Of all rows, failed ones among them."""
    found: dict[str, Any] = {"cases": len(rows), "failed": sum(bool(row.why) for row in rows)}
    for kind, each in (
        ("allocated", [row.of_allocated for row in rows]),
        ("reserved", [row.of_reserved for row in rows]),
    ):
        found[kind] = {"mean": statistics.fmean(each), "worst": min(each)}
    return found | {"within the guard band": sum(row.guarded for row in rows)}


def show(rows: Sequence[Row], trace_only: bool) -> None:
    """The table and the summary for people."""
    for row in rows:
        said = f"{row.name:46} {row.batch:4} traced {row.traced_bytes / 2**30:7.2f} GiB in {row.trace_s:5.1f} s"
        if not trace_only:
            said += (
                f"  allocated {row.allocated_bytes / 2**30:7.2f} ({row.of_allocated:7.2%})"
                f"  reserved {row.reserved_bytes / 2**30:7.2f} ({row.of_reserved:7.2%})"
                f"  in use {row.in_use_bytes / 2**30:7.2f} ({'within' if row.guarded else 'BEYOND'} the guard band)"
            )
        print(f"{said} {row.why}".rstrip())
    if trace_only:
        return
    found = summary(rows)
    for kind in ("allocated", "reserved"):
        print(f"{kind}: mean {found[kind]['mean']:.2%}, worst {found[kind]['worst']:.2%} of {len(rows)} cases")
    print(f"within the guard band: {found['within the guard band']} of {len(rows)}")
    missed = found["allocated"]["mean"] < LEAST_MEAN or found["allocated"]["worst"] < LEAST_WORST
    print(f"asked for: mean {LEAST_MEAN:.0%}, worst {LEAST_WORST:.0%} of allocated: {'missed' if missed else 'met'}")


def main(words: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_memory", description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases by name, or by the file that they stand in")
    parser.add_argument("--trace-only", action="store_true", help="print what the traces say; needs no GPU")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    chosen = list(GPU_CASES)
    if options.only:
        chosen = [case for case in GPU_CASES if {case.name, case.name.partition(":")[0]} & set(options.only)]
        if not chosen:
            names = ", ".join(dict.fromkeys(case.name for case in GPU_CASES))
            parser.error(f"no case is called {options.only[0]!r}; there are {names}")
    if not options.trace_only and not has_gpu():
        print("gpu_memory: torch finds no GPU here, so nothing was measured; --trace-only prints what the traces say")
        return
    left_out: list[str] = []
    if importlib.util.find_spec("transformers") is None:
        left_out = [case.name for case in chosen if "huggingface" in case.step]
        chosen = [case for case in chosen if case.name not in left_out]
        print(f"gpu_memory: left out, for want of transformers: {', '.join(left_out)}", file=sys.stderr)
    rows = []
    for case in chosen:
        rows.append(measure(case, options.trace_only))
        said = (
            f"traced {rows[-1].traced_bytes / 2**30:.2f} GiB" if options.trace_only else f"{rows[-1].of_allocated:.2%}"
        )
        print(f"{case.name}: {said} {rows[-1].why}".rstrip(), file=sys.stderr, flush=True)
    if options.json:
        each = [
            asdict(row) | {"of_allocated": row.of_allocated, "of_reserved": row.of_reserved, "guarded": row.guarded}
            for row in rows
        ]
        figures = {} if options.trace_only or not rows else summary(rows)
        print(json.dumps({"accuracy": figures, "left_out": left_out, "rows": each}, indent=2))
    elif rows:
        show(rows, options.trace_only)


if __name__ == "__main__":
    main()
