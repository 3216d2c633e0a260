"""Stages profiled one by one on this machine's GPU, beside real steps of the whole model on it.

    python -m benchmarks.gpu.cells [--only WORD ...] [--rounds N] [--json]

Needs this tree, a Python with a CUDA build of torch, and one GPU that nothing else uses. Each model (transformers, a
mixture of experts, wide ResNets) is cut into 1, 2 and 4 stages, whose slices are timed one after another as `bft size
profile` times them; added up over stages and micro-batches, with the optimizer's steps, that should be what a step of
the whole model takes. The same for memory: one stage's peak beside torch.cuda.max_memory_allocated of real steps. No
collective is in it: of several GPUs it says nothing. Every case is reported, and one that fails counts as 0.

Without a GPU it says so and ends; `--device cpu` tries the benchmark out there, and is no evidence of anything.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import itertools
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.gpu.steps import has_gpu
from sizing.model.config import parse
from sizing.model.wide_resnet import parse as parse_wide_resnet
from sizing.profiles.profile import sizes_of

STAGES = (1, 2, 4)
OPTIMIZER = "adamw"


@dataclass(frozen=True)
class Case:
    """A model by its sizes, the samples of a micro-batch, and how many micro-batches a step has."""

    name: str
    config: str
    batch: int
    micro_batches: int = 1
    precision: str = "bf16"


CASES = (
    Case("GPT-2 medium", "gpt:h=1024,l=24,a=16,s=1024,V=50257", 8),
    Case("GPT-2 medium, 4 micro-batches", "gpt:h=1024,l=24,a=16,s=1024,V=50257", 8, 4),
    Case("GPT-2 medium, fp32", "gpt:h=1024,l=24,a=16,s=1024,V=50257", 4, precision="fp32"),
    Case("GPT 1.3B", "gpt:h=2048,l=24,a=32,s=1024,V=50257", 4),
    Case("LLaMA-like 1.1B", "llama:h=2048,l=22,a=32,kv=4,ffn=5632,s=2048,V=32000", 2),
    Case("mixture of 8 experts", "gpt:h=1024,l=12,a=16,s=1024,V=50257,experts=8,topk=2", 8),
    Case("wide ResNet-28-10", "wresnet:k=10,n=4,s=32", 256),
)
TINY = (
    Case("tiny GPT", "gpt:h=64,l=4,a=4,s=32,V=256", 4, 2, precision="fp32"),
    Case("tiny wide ResNet", "wresnet:k=2,n=1,s=16", 8, precision="fp32"),
)
"""For a trial on a CPU."""


@dataclass(frozen=True)
class Row:
    """A case cut into `stages`: what its slices add up to and what a real step took; `why` says what failed."""

    name: str
    stages: int
    device: str = ""
    estimated_s: float = 0.0
    real_s: float = 0.0
    peak_bytes: int = 0
    real_peak_bytes: int = 0
    why: str = ""

    @property
    def accuracy(self) -> float:
        """Of the time: 1 - |e - r| / r."""
        return max(0.0, 1 - abs(self.estimated_s - self.real_s) / self.real_s) if self.real_s else 0.0

    @property
    def of_peak(self) -> float | None:
        """Of the memory, where one stage is the whole model and the GPU's allocator counted."""
        if self.stages > 1 or not self.real_peak_bytes:
            return None
        return max(0.0, 1 - abs(self.peak_bytes - self.real_peak_bytes) / self.real_peak_bytes)


def sizes(case: Case) -> dict[str, Any]:
    """What the child's families build the model of."""
    wide = case.config.startswith("wresnet:")
    return sizes_of(parse_wide_resnet(case.config) if wide else parse(case.config))


def real(case: Case, device: str, rounds: int) -> tuple[float, int]:
    """The median time of a step of the whole model, and its peak on a GPU."""
    import torch

    from sizing.tracer import families
    from sizing.tracer.runs.measure import CallClock, autocast, optimizer_of

    chain = families.chain(sizes(case), 1)
    with torch.device(device):
        model = families.Whole(chain)
        x, targets = chain.first(case.batch), chain.targets(case.batch)
    optimizer = optimizer_of(OPTIMIZER, list(model.parameters()))
    context = autocast(case.precision, device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        for _ in range(case.micro_batches):
            with context():
                loss = model(x, targets)
            loss.backward()
        optimizer.step()

    clock = CallClock(device, 1)
    for _ in range(3):
        step()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    took_s = statistics.median(clock.of(step) for _ in range(rounds))
    return took_s, torch.cuda.max_memory_allocated() if device == "cuda" else 0


def profiled(case: Case, stages: int, device: str, rounds: int) -> tuple[float, int]:
    """What a step takes by its stages' slices, and the peak of one stage that is all."""
    from sizing.tracer import families
    from sizing.tracer.graphs import stage_module
    from sizing.tracer.runs.measure import measured

    whole = sizes(case)
    count = len(families.chain(whole, 1).parts)
    total_s, peak = 0.0, 0
    for first, end in itertools.pairwise(round(at * count / stages) for at in range(stages + 1)):
        piece = stage_module.of_chain(whole, (first, end - 1, case.batch, 1), device, case.precision)
        found = measured(piece, device, 1, rounds, OPTIMIZER)
        total_s += case.micro_batches * found["compute_s"][0] + found["update_s"][0]
        peak = max(peak, found["peak_bytes"])
        del piece
        empty(device)
    return total_s, peak


def empty(device: str) -> None:
    """Give back what the last model held."""
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()


def measure(case: Case, device: str, rounds: int) -> list[Row]:
    """All cuts of one case."""
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # as the profiler does
    rows = []
    try:
        real_s, real_peak = real(case, device, rounds)
        empty(device)
        for stages in STAGES:
            estimated_s, peak = profiled(case, stages, device, rounds)
            rows.append(Row(case.name, stages, name, estimated_s, real_s, peak, real_peak))
    except (RuntimeError, MemoryError) as error:
        rows.append(Row(case.name, 0, name, why=str(error).splitlines()[0][:200]))
        empty(device)
    return rows


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Of all rows, failed ones among them."""
    each = [row.accuracy for row in rows]
    peaks = [row.of_peak for row in rows if row.of_peak is not None]
    return {
        "cases": len(rows),
        "mean": statistics.fmean(each),
        "worst": min(each),
        "mean_of_peak": statistics.fmean(peaks) if peaks else None,
        "worst_of_peak": min(peaks, default=None),
    }


def show(rows: Sequence[Row]) -> None:
    """As a table, and the summary."""
    print("| model | stages | by slices, ms | real step, ms | accuracy | peak by profile, GiB | real peak, GiB |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        if row.why:
            print(f"| {row.name} | | | | 0 | {row.why} | |")
            continue
        said = ["", ""]
        if row.of_peak is not None:
            said = [f"{row.peak_bytes / 2**30:.2f}", f"{row.real_peak_bytes / 2**30:.2f} ({row.of_peak:.1%})"]
        print(
            f"| {row.name} | {row.stages} | {1e3 * row.estimated_s:.1f} | {1e3 * row.real_s:.1f} | {row.accuracy:.1%} "
            f"| {' | '.join(said)} |"
        )
    found = summary(rows)
    print(f"\n{rows[0].device}: mean {found['mean']:.1%}, worst {found['worst']:.1%} of {len(rows)}")


def main(words: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.cells", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="WORD", help="cases whose name has one of these words in it")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    known = CASES if options.device == "cuda" else TINY
    chosen = [case for case in known if not options.only or any(word in case.name for word in options.only)]
    if not chosen:
        parser.error(f"no case has {options.only[0]!r} in its name; there are {', '.join(case.name for case in known)}")
    if importlib.util.find_spec("torch") is None or (options.device == "cuda" and not has_gpu()):
        print("gpu.cells: torch finds no GPU here, so nothing was measured; --device cpu tries the benchmark out")
        return
    if options.device == "cpu":
        print("gpu.cells: on a CPU, to try the benchmark out: no evidence on GPUs", file=sys.stderr)
    rows = [row for case in chosen for row in measure(case, options.device, options.rounds)]
    if options.json:
        each = [asdict(row) | {"accuracy": row.accuracy, "of_peak": row.of_peak} for row in rows]
        print(json.dumps({"accuracy": summary(rows), "rows": each}, indent=2))
    else:
        show(rows)


if __name__ == "__main__":
    main()
