"""Traced peaks of training steps beside what the same steps really take, on a CPU.

    python -m benchmarks.sizing.memory [--models] [--only NAME ...] [--quick] [--jobs N] [--json]

Each case of `benchmarks.sizing.cases` runs three steps for real (`benchmarks/sizing/real_step.py` says what counts),
and is traced for a CPU's kernels. A case of two ranks runs in two processes joined by gloo and is traced as rank 0 of
two.

The accuracy is 1 - |estimate - real| / real. Beside it stands that of MARP, as printed in Frenzy, where
the model is a language model of one precision or another: MARP knows mixed precision alone. A case that fails counts as
0; those that the trace refuses are counted apart, and so are those of which it says no more than an upper bound.

--models takes 60 real models instead: of torchvision, timm, transformers and diffusers (the extra `models`), and ten
steps that are written oddly. Those of a package that is not there are told as left out.

Else, first of all, a trace of a GPT-2 of 350 million parameters, alone: its time, and the most memory that its process
has at once.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import markdown
from benchmarks.evidence.model import Benchmark, Figure
from benchmarks.sizing.cases import CASES, MODELS, QUICK, Case, case_of
from sizing.base.errors import SizingError, Untraceable
from sizing.base.parallel import Parallel
from sizing.child import tracing
from sizing.memory import formula
from sizing.model import config
from slurm_plugin.sandbox.ports import reserved_ports

LEAST_MEAN, LEAST_WORST, LEAST_WORST_MODEL = 0.99, 0.97, 0.95
MOST_REFUSED = 0.05
MOST_S, MOST_BYTES = 5.0, 2 * 2**30
"""What is asked for: the accuracy of traces, how many may be refused, and what the large one may take."""

RIGHT = 0.99995
"""A trace of at least this accuracy counts as right."""
LARGE = Case("gpt.py:gpt2_350m", 8)
_REAL = Path(__file__).with_name("real_step.py")
_LIMIT_S = 300.0


@dataclass(frozen=True)
class Row:
    """A case and what came out; `why` says what failed, `refused` that the trace did, `bound` that it says no more."""

    name: str
    batch: int
    ranks: str
    real_bytes: int = 0
    traced_bytes: int = 0
    marp_bytes: int | None = None
    trace_s: float = 0.0
    why: str = ""
    refused: bool = False
    bound: bool = False

    @property
    def accuracy(self) -> float:
        """Of the trace; 0 where there is none."""
        return accuracy(self.traced_bytes, self.real_bytes) if self.traced_bytes and self.real_bytes else 0.0


def accuracy(estimate: float, real: float) -> float:
    """1 where both are the same; below 0 where the estimate is more than twice the real value."""
    return 1 - abs(estimate - real) / real


def ranks_of(parallel: Parallel) -> str:
    """What a table shows: "tp=2", or "" for one rank."""
    sizes = (("dp", parallel.dp), ("tp", parallel.tp), ("fsdp", parallel.fsdp))
    return ",".join(f"{name}={size}" for name, size in sizes if size > 1)


def real_peak(path: str, batch: int, parallel: Parallel, steps: int = 3) -> dict[str, Any]:
    """What rank 0 of a real run on the CPU says; raises RuntimeError with the last words of one that fails."""
    with reserved_ports(1) as (port,):
        return _real_peak(port, path, batch, parallel, steps)


def _real_peak(port: int, path: str, batch: int, parallel: Parallel, steps: int) -> dict[str, Any]:
    words = [sys.executable, str(_REAL), path, f"--batch={batch}", f"--steps={steps}", f"--dp={parallel.dp}"]
    words += [f"--tp={parallel.tp}", f"--fsdp={parallel.fsdp}"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    env |= {"WORLD_SIZE": str(parallel.gpus), "HF_HUB_OFFLINE": "1", "KINETO_LOG_LEVEL": "5"}
    env["CUDA_VISIBLE_DEVICES"] = ""
    ranks: list[subprocess.Popen[str]] = []
    try:
        for number in range(parallel.gpus):
            of_rank = env | {"RANK": str(number), "LOCAL_RANK": str(number)}
            pipe = subprocess.PIPE
            ranks.append(subprocess.Popen(words, env=of_rank, stdout=pipe, stderr=subprocess.STDOUT, text=True))
        ends_s = time.monotonic() + _LIMIT_S
        said = [rank.communicate(timeout=max(1.0, ends_s - time.monotonic()))[0] for rank in ranks]
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no end of the real run after {_LIMIT_S:.0f} s") from None
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for rank, text in zip(ranks, said, strict=True):
        if rank.returncode:
            raise RuntimeError(f"the real run failed: {(text.strip().splitlines() or ['silent'])[-1][:200]}")
    found: dict[str, Any] = json.loads(next(line for line in said[0].splitlines() if line.startswith("{")))
    return found


def marp_of(case: Case) -> int | None:
    """MARP's number, for what a case says of its sizes."""
    if not case.config:
        return None
    sizes = case.parallel
    spread = f"dp={sizes.dp},tp={sizes.tp},fsdp={sizes.fsdp}"
    return formula.marp_bytes_of(config.parse(f"gpt:{case.config},b={case.batch},{spread}"))


def compare(case: Case) -> Row:
    """Runs and traces one case."""
    row = Row(case.name, case.batch, ranks_of(case.parallel))
    why = []
    try:
        row = replace(row, real_bytes=real_peak(case.path, case.batch, case.parallel)["peak_bytes"])
    except RuntimeError as error:
        why.append(str(error))
    try:
        traced = tracing.trace(
            case.path, case.batch, case.parallel, target="cpu", python=sys.executable, timeout_s=_LIMIT_S
        )
        row = replace(row, traced_bytes=traced.peak_bytes, trace_s=traced.trace_s, bound=traced.upper_bounds > 0)
    except SizingError as error:
        why.append(str(error))
        row = replace(row, refused=isinstance(error, Untraceable))
    return replace(row, marp_bytes=marp_of(case), why="; ".join(why))


def large() -> dict[str, Any]:
    """The time and memory of one large trace. Nothing else must run beside it."""
    began_s = time.monotonic()
    try:
        traced = tracing.trace(LARGE.path, LARGE.batch, LARGE.parallel, target="cuda", python=sys.executable)
    except SizingError as error:
        return {"why": str(error)}
    took_s = time.monotonic() - began_s
    return {
        "parameters": traced.parameters,
        "peak_bytes": traced.peak_bytes,
        "took_s": took_s,
        # Of the largest child that has ended, which is this one where it ran first.
        "child_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
    }


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Mean and worst of all rows, failed ones among them, and what the others' numbers are worth.

    Rows that the trace refuses, and those of which it tells an upper bound, are apart.
    """
    found: dict[str, Any] = {"cases": len(rows), "failed": sum(bool(row.why) and not row.refused for row in rows)}
    found["refused"] = sum(row.refused for row in rows)
    bounds = [row.traced_bytes / row.real_bytes for row in rows if row.bound and row.real_bytes]
    if bounds:
        found["bounds"] = {"cases": len(bounds), "least": min(bounds), "most": max(bounds)}
    kinds = {
        "traced": [row for row in rows if not (row.refused or (row.bound and row.real_bytes))],
        "marp": [row for row in rows if row.marp_bytes and row.real_bytes],
    }
    for kind, chosen in kinds.items():
        if chosen:
            each = [
                row.accuracy if kind == "traced" else accuracy(row.marp_bytes or 0, row.real_bytes) for row in chosen
            ]
            found[kind] = {"cases": len(each), "mean": statistics.fmean(each), "worst": min(each)}
    return found


def overall(result: Mapping[str, Any], least_worst: float = LEAST_WORST) -> str:
    """The summary beside its bounds, in Markdown, of what `--json` prints."""
    figures = result["accuracy"]
    rows: list[tuple[str, str, str]] = []
    if traced := figures.get("traced"):
        right = sum(row["accuracy"] >= RIGHT for row in result["rows"])
        for name, bound in (("mean", LEAST_MEAN), ("worst", least_worst)):
            text = markdown.bounded(markdown.percent(traced[name], 2), traced[name] >= bound)
            rows.append((f"traced, {name} of {traced['cases']}", text, markdown.percent(bound, 0)))
        rows.append((f"right to {markdown.percent(1 - RIGHT, 3)}", f"{right} of {figures['cases']}", ""))
    if bounds := figures.get("bounds"):
        text = f"{markdown.percent(bounds['least'])} to {markdown.percent(bounds['most'])} of the real peak"
        rows.append((f"reported as an upper bound: {bounds['cases']}", text, ""))
    met = figures["refused"] <= MOST_REFUSED * figures["cases"]
    refused = markdown.bounded(f"{figures['refused']} of {figures['cases']}", met)
    rows.append(("refused", refused, markdown.percent(MOST_REFUSED, 0)))
    if marp := figures.get("marp"):
        text = f"{markdown.percent(marp['mean'], 0)}, {markdown.percent(marp['worst'], 0)}"
        rows.append((f"MARP as printed, mean and worst of {marp['cases']} language models", text, ""))
    if took_s := result.get("large", {}).get("took_s"):
        parameters, bytes_ = result["large"]["parameters"], result["large"]["child_bytes"]
        text = markdown.bounded(f"{took_s:.1f} s", took_s <= MOST_S)
        rows.append((f"a trace of {parameters / 1e6:.0f} million parameters", text, f"{MOST_S:.0f} s"))
        text = markdown.bounded(f"{bytes_ / 2**30:.2f} GiB", bytes_ <= MOST_BYTES)
        rows.append(("its memory", text, f"{MOST_BYTES / 2**30:.0f} GiB"))
    return markdown.table(("what", "measured", "bound"), rows)


def cases(result: Mapping[str, Any], below: float = math.inf) -> str:
    """A row a case whose accuracy is below a limit, in Markdown."""
    return markdown.table(
        ("case", "ranks", "real, MB", "traced, MB", "accuracy", "why"),
        (
            (
                f"`{row['name']}`",
                row["ranks"],
                f"{row['real_bytes'] / 1e6:.1f}",
                f"{row['traced_bytes'] / 1e6:.1f}" if row["traced_bytes"] else "refused" if row["refused"] else "",
                markdown.percent(row["accuracy"], 2) if row["accuracy"] else "",
                "reported as an upper bound" if row["bound"] else row["why"].replace("|", "/"),
            )
            for row in result["rows"]
            if row["accuracy"] < below
        ),
    )


def _figures(result: Any) -> Mapping[str, Figure]:
    figures = result["accuracy"]
    shares = {name: figures["traced"][name] for name in ("mean", "worst")}
    return {name: Figure(markdown.percent(share, 2), share) for name, share in shares.items()} | {
        "refused": Figure(f"{figures['refused']} of {figures['cases']}", figures["refused"])
    }


EVIDENCE = {
    "sizing_memory": Benchmark(("benchmarks.sizing.memory",), 10.0, {"overall": overall, "cases": cases}, _figures),
    "sizing_models": Benchmark(
        ("benchmarks.sizing.memory", "--models", "--jobs", "2"),
        20.0,
        {
            "overall": partial(overall, least_worst=LEAST_WORST_MODEL),
            "off": partial(cases, below=LEAST_MEAN),
            "cases": cases,
        },
        _figures,
    ),
}


def main(words: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizing.memory", description=__doc__.splitlines()[0])
    parser.add_argument("--models", action="store_true", help="60 real models instead")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases by name, or by the file that they stand in")
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("--jobs", type=int, default=1, help="cases at the same time; peaks do not depend on it")
    parser.add_argument("--no-large", action="store_true", help="leave out the trace whose time is taken")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    table = MODELS if options.models else CASES
    chosen = [case_of(name) for name in QUICK] if options.quick else list(table)
    if options.only:
        chosen = [case for case in table if {case.name, case.name.partition(":")[0]} & set(options.only)]
        if not chosen:
            parser.error(f"no case is called {options.only[0]!r}; there are {', '.join(case.name for case in table)}")
    if options.jobs < 1:
        parser.error("at least one at a time")
    found: dict[str, Any] = {"machine": platform.machine(), "python": platform.python_version()}
    if not (options.no_large or options.models):
        found["large"] = large()
    packages = {case.package for case in chosen} - {""}
    absent = {package for package in packages if importlib.util.find_spec(package) is None}
    if absent:
        found["left_out"] = [case.name for case in chosen if case.package in absent]
        chosen = [case for case in chosen if case.package not in absent]
        wanted, left_out = ", ".join(sorted(absent)), ", ".join(found["left_out"])
        print(f"sizing.memory: left out, for want of {wanted}: {left_out}", file=sys.stderr)
    rows: list[Row] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(compare, chosen):
            rows.append(row)
            print(f"{row.name}: {row.accuracy:.2%} {row.why}", file=sys.stderr, flush=True)
    found["accuracy"] = summary(rows)
    found["rows"] = [asdict(row) | {"accuracy": row.accuracy} for row in rows]
    benchmark = EVIDENCE["sizing_models" if options.models else "sizing_memory"]
    print(json.dumps(found) if options.json else benchmark.markdown(found))


if __name__ == "__main__":
    main()
