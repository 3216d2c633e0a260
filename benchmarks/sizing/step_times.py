"""The share of published step times that lie within the range that is told of such a step.

    python -m benchmarks.sizing.step_times [--data DIR] [--dispatch] [--json]

Nothing is fitted to these cases. `megatron`: GPT models on A100s, from the TFLOP/s a GPU of Narayanan et al. (SC 2021),
table 1, by the paper's own equation 3. `alpa`: GPT on one and two nodes of 8 V100s, the seconds of an iteration in
Alpa's search logs. `summit`: torchvision's networks, traced, 32 samples a GPU in fp32, on nodes of six V100s, from
BFTrainer's table 2; what loading images and Horovod's hooks took is in those measurements, and in no estimate.
`dispatch`: how many operators PyTorch starts in a second here, on tensors that are too small to take time themselves.
Bound: 90 % of the cases.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import markdown
from benchmarks.evidence.model import Benchmark
from benchmarks.sizing import cases
from bftd.simulation.drivers.networks import TABLE_2, TABLE_2_NODES
from sizing.base.errors import DoesNotFit
from sizing.base.estimate import Estimate
from sizing.base.parallel import Parallel
from sizing.child import tracing
from sizing.choice.by_formula import Formula
from sizing.choice.layout import Spread
from sizing.choice.timers.datasheet_time import Assumed, StagePart
from sizing.inventory.gpus import CATALOGUE, GpuType
from sizing.inventory.inventory import GpuNodes
from sizing.inventory.pools import GpuPool
from sizing.inventory.shapes import GpuShape
from sizing.model import config
from sizing.step_time import datasheet

INSIDE_WANTED = 0.9
TABLES = {
    "megatron": "Megatron-LM (SC 2021, table 1): GPT of 1.7 to 1,008 billion parameters on 32 to 3,072 A100s",
    "alpa": "Alpa's search logs: GPT of 2.6 and 6.7 billion on 8 and 16 V100s",
    "summit": "BFTrainer's table 2: torchvision's networks on 6 to 384 V100s with Horovod",
}
DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "sizing" / "alpa-search"

MEGATRON = (
    # heads, hidden, layers, tensor-parallel, stages, GPUs, batch, TFLOP/s a GPU
    (24, 2304, 24, 1, 1, 32, 512, 137),
    (32, 3072, 30, 2, 1, 64, 512, 138),
    (32, 4096, 36, 4, 1, 128, 512, 142),
    (48, 6144, 40, 8, 1, 256, 1024, 135),
    (64, 8192, 48, 8, 2, 512, 1536, 138),
    (80, 10240, 60, 8, 4, 1024, 1792, 140),
    (96, 12288, 80, 8, 8, 1536, 2304, 148),
    (128, 16384, 96, 8, 16, 1920, 2160, 155),
    (128, 20480, 105, 8, 35, 2520, 2520, 163),
    (160, 25600, 128, 8, 64, 3072, 3072, 163),
)
_SEQ, _VOCAB = 2048, 51200
_SELENE_BYTES_S = 8 * 2.5e10  # eight HDR InfiniBand adapters a node
_P3_BYTES_S = 25e9 / 8
_SUMMIT_BYTES_S = 2 * 1.25e10  # two EDR InfiniBand adapters a node

ALPA = {8: "h=2560,l=32,a=32", 16: "h=4096,l=32,a=32"}
_ALPA_BATCH = 1024

SUMMIT = {
    "alexnet": "AlexNet",
    "resnet18": "ResNet18",
    "mnasnet1_0": "MnasNet",
    "mobilenet_v2": "MobileNets",
    "shufflenet_v2_x1_0": "ShuffleNet",
    "vgg16": "VGG-16",
    "densenet121": "DenseNet",
}
"""torchvision's names of the networks of BFTrainer's table 2."""
_SUMMIT_BATCH = 32


@dataclass(frozen=True)
class _As(Assumed):
    """As a run was: so many tensor-parallel GPUs."""

    tensor: int = 1

    def _tensor(self, shape: GpuShape, parts: Sequence[StagePart]) -> Iterator[int]:
        yield self.tensor


@dataclass(frozen=True)
class _Even:
    """Stages of as many layers each, which send on what is between two layers."""

    sent_bytes: float

    def parts(self, gpus: int, stages: int) -> tuple[StagePart, ...]:
        """The stages of a pipeline."""
        return (StagePart(gpus // stages, 1 / stages, 1 / stages, self.sent_bytes),) * stages


def megatron() -> list[dict[str, Any]]:
    """A row a case."""
    rows = []
    for heads, hidden, layers, tensor, stages, gpus, batch, tflops in MEGATRON:
        said = f"gpt:h={hidden},l={layers},a={heads},s={_SEQ},V={_VOCAB},precision=fp16,recompute=full"
        model = config.parse(said)
        pool = _pool(CATALOGUE["a100-sxm-80gb"], gpus // 8, 8, _SELENE_BYTES_S)
        timer = _As(
            Formula(model, 1),
            Formula(replace(model, accumulation=1)),
            batch,
            Spread(True, False, heads),
            _Even(2.0 * _SEQ * hidden),
            tensor,
        )
        told = timer.time(GpuShape(replace(pool, gpu_bytes=2**60), gpus // 8, 8), stages).step_s
        words = 1 + _SEQ / (6 * hidden) + _VOCAB / (16 * layers * hidden)
        flops = 96 * batch * _SEQ * layers * hidden**2 * words
        rows.append(_row("megatron", f"{gpus} GPUs", flops / (gpus * tflops * 1e12), told))
    return rows


def alpa(data: Path) -> list[dict[str, Any]]:
    """A row a log; as Alpa looks for the best plan, each end of the range is that of the plan that has it first."""
    rows = []
    for path in sorted(data.glob("grid_*.csv")):
        head, first, *_ = path.read_text().splitlines()
        found = re.match(r"grid_(\d+)-", path.name)
        assert found is not None
        gpus = int(found[1])
        model = config.parse(f"gpt:{ALPA[gpus]},s=1024,V=51200,precision=fp16,recompute=full")
        pool = _pool(CATALOGUE["v100-sxm-32gb"], gpus // 8, 8, _P3_BYTES_S)
        timer = Assumed(
            Formula(model, 1),
            Formula(replace(model, accumulation=1)),
            _ALPA_BATCH,
            Spread(True, False, model.heads),
            _Even(2.0 * 1024 * model.hidden),
        )
        steps = []
        for stages in (1, 2, 4, 8):
            try:
                steps.append(timer.time(GpuShape(pool, gpus // 8, 8), stages).step_s)
            except DoesNotFit:
                continue
        measured_s = float(first.split(",")[head.split(",").index("measured_e2e_s")])
        low, value, high = (min(getattr(each, end) for each in steps) for end in ("low", "value", "high"))
        rows.append(_row("alpa", path.stem, measured_s, Estimate(value, low, high, "assumed")))
    return rows


def summit() -> list[dict[str, Any]]:
    """A row a network and number of nodes; none without torchvision."""
    if find_spec("torchvision") is None:
        print("without Summit's table: torchvision is not installed", file=sys.stderr)
        return []
    gpu, rows = CATALOGUE["v100-sxm-16gb"], []
    for name, network in SUMMIT.items():
        os.environ["SIZING_NETWORK"] = name
        step = f"{Path(cases.__file__).parent / 'vision.py'}:make_step"
        work = datasheet.traced(tracing.trace(step, _SUMMIT_BATCH, Parallel(2), python=sys.executable))
        for nodes, rate in zip(TABLE_2_NODES, TABLE_2[network], strict=True):
            told = datasheet.step_s(work, Parallel(6 * nodes), gpu, nodes, _SUMMIT_BYTES_S, "")
            rows.append(_row("summit", f"{name}, {nodes} nodes", _SUMMIT_BATCH * 6 * nodes / (rate * 1e3), told))
    return rows


def _pool(gpu: GpuType, nodes: int, per_node: int, network_bytes_s: float) -> GpuPool:
    names = tuple(f"n{at}" for at in range(nodes))
    group = GpuNodes(names, gpu.name, per_node, 8 * per_node, 10**12, gpu.name, (), network_bytes_s=network_bytes_s)
    return GpuPool("gpus", gpu, (group,), gpu.memory_bytes)


def _row(table: str, case: str, measured_s: float, told: Estimate) -> dict[str, Any]:
    return {
        "table": table,
        "case": case,
        "measured_s": measured_s,
        "value_s": told.value,
        "low_s": told.low,
        "high_s": told.high,
        "inside": told.low <= measured_s <= told.high,
    }


def dispatch(steps: int = 30) -> list[dict[str, Any]]:
    """A row a model: operators of a step, and how many are started in a second of processor time at best."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        """Counts operators."""

        calls = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls += 1
            return func(*args, **(kwargs or {}))

    torch.set_num_threads(1)
    layers = [layer for _ in range(50) for layer in (torch.nn.Linear(4, 4), torch.nn.ReLU())]
    encoder = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    models = {
        "50 linear layers": (torch.nn.Sequential(*layers), torch.randn(2, 4)),
        "6 encoder layers": (torch.nn.TransformerEncoder(encoder, 6), torch.randn(2, 4, 8)),
        "20 convolutions": (
            torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Conv2d(2, 2, 1), torch.nn.BatchNorm2d(2)),) * 20),
            torch.randn(2, 2, 2, 2),
        ),
    }
    rows = []
    for name, (model, given) in models.items():
        optimizer = torch.optim.AdamW(model.parameters())

        def step(model: Any = model, given: Any = given, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            model(given).sum().backward()
            optimizer.step()

        step()
        with Counting() as counting:
            step()
        took = []
        for _ in range(steps):
            began_s = time.process_time()
            step()
            took.append(time.process_time() - began_s)
        each = [round(counting.calls / took_s) for took_s in took]
        rows.append({"model": name, "operators": counting.calls, "per_s": max(each), "each_per_s": each})
    return rows


def measure(data: Path) -> dict[str, Any]:
    """All tables that are there, and the share of the cases that are inside their range."""
    rows = megatron() + (alpa(data) if data.is_dir() else []) + summit()
    tables = sorted({row["table"] for row in rows})
    shares = {
        table: sum(row["inside"] for row in of) / len(of)
        for table in tables
        for of in [[row for row in rows if row["table"] == table]]
    }
    return {"cases": rows, "inside": sum(row["inside"] for row in rows) / len(rows), "inside_by_table": shares}


def overall(found: Mapping[str, Any]) -> str:
    """A row a table of published times, in Markdown, of what `--json` prints."""
    rows = []
    for name, what in TABLES.items():
        of = [row["inside"] for row in found["cases"] if row["table"] == name]
        if of:
            rows.append((what, len(of), _inside(sum(of) / len(of))))
    rows.append(("all rows together", len(found["cases"]), _inside(found["inside"])))
    return markdown.table(("table", "rows", f"inside (bound: {markdown.percent(INSIDE_WANTED, 0)})"), rows)


def _inside(share: float) -> str:
    return markdown.bounded(markdown.percent(share, 0), share >= INSIDE_WANTED)


def cases_of(found: Mapping[str, Any]) -> str:
    """A row a published time, in Markdown."""
    return markdown.table(
        ("case", "measured, s", "estimated, s", "range", ""),
        (
            (
                f"{row['table']}: {row['case']}",
                f"{row['measured_s']:.4g}",
                f"{row['value_s']:.4g}",
                f"{row['low_s']:.4g} to {row['high_s']:.4g}",
                "" if row["inside"] else "outside",
            )
            for row in found["cases"]
        ),
    )


def dispatched(found: Mapping[str, Any]) -> str:
    """A row a model, in Markdown: how many of its operators are started in a second."""
    return markdown.table(
        ("model", "operators", "started a second of processor time"),
        (
            (row["model"], row["operators"], f"{row['per_s']:,.0f} ({min(row['each_per_s']):,.0f} in the slowest step)")
            for row in found.get("dispatch", [])
        ),
    )


EVIDENCE = {
    "sizing_step_times": Benchmark(
        ("benchmarks.sizing.step_times", "--dispatch"),
        2.0,
        {"overall": overall, "dispatch": dispatched, "cases": cases_of},
    )
}


def main(words: Sequence[str] | None = None) -> None:
    """Prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizing.step_times", description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="where Alpa's search logs are")
    parser.add_argument("--dispatch", action="store_true", help="also measure how quickly operators are started here")
    parser.add_argument("--json", action="store_true", help="print only the JSON")
    options = parser.parse_args(words)
    found = measure(options.data)
    if options.dispatch:
        found["dispatch"] = dispatch()
    print(json.dumps(found, indent=2) if options.json else EVIDENCE["sizing_step_times"].markdown(found))


if __name__ == "__main__":
    main()
