"""The cost of a large state: saving beside training, distributed by loads, and at a resize.

    python -m benchmarks.checkpoints.large_states [--json] [--quick] [--only training distributed clients]

All in one run, so that what is compared shares the machine's mood. `training`: a trainer with a real driver, agent,
node process and worker, on this machine alone, beside one copy in memory of the same tensors. `distributed`: processes
with torch, beside plain calls of torch.distributed.checkpoint. `clients`: ranks that only download a checkpoint from a
real driver, those of one node beside those of all. The state lies in memory several times, and on the disk of $TMPDIR.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.checkpoints import by_path, clients, training
from benchmarks.evidence.model import Benchmark
from benchmarks.markdown import Measured, measured

PARTS = ("training", "distributed", "clients")
QUICK = {"gb": 0.1, "saves": 2, "every_s": 3.0, "distributed_gb": 0.03, "mb": 8.0, "nodes": 2, "ranks": 2, "repeats": 1}

BOUNDS: dict[tuple[str, str], tuple[str, float]] = {
    ("training", "stall / memory copy"): ("most", 1.3),
    ("training", "pace while it is uploaded"): ("least", 0.8),
    ("training", "driver's memory, most MB"): ("most", 300.0),
    ("training", "workers killed"): ("most", 0.0),
    ("training", "resumed to the bit"): ("least", 1.0),
    ("distributed", "bit-equal"): ("least", 1.0),
    ("distributed", "saved by 4: distributed / plain"): ("most", 1.1),
    ("distributed", "loaded by 2: distributed / plain"): ("most", 1.1),
    ("distributed", "loaded by 3: distributed / plain"): ("most", 1.1),
    ("distributed", "loaded by 8: distributed / plain"): ("most", 1.1),
    ("clients", "all nodes / one node"): ("most", 3.0),
}
"""What was asked for, by part and figure."""


def table(result: Any) -> str:
    """The rows in Markdown, but for the samples."""
    return measured(
        _row(part, name, value)
        for part, figures in result.items()
        for name, value in figures.items()
        if name != "samples"
    )


def _row(part: str, figure: str, value: Any) -> Measured:
    words = {True: "yes", False: "no", None: "-"}
    text = words[value] if value is None or isinstance(value, bool) else f"{value:.3g}"
    if (part, figure) not in BOUNDS or value is None:
        return Measured(f"{part}: {figure}", text)
    kind, bound = BOUNDS[part, figure]
    kept = value <= bound if kind == "most" else value >= bound
    return Measured(f"{part}: {figure}", text, f"{'at most' if kind == 'most' else 'at least'} {bound:g}", not kept)


EVIDENCE = {"large_states": Benchmark(("benchmarks.checkpoints.large_states",), 9.0, {"table": table})}


def measure(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """All parts that were asked for; see the options."""
    found: dict[str, dict[str, Any]] = {}
    if "training" in options.only:
        size_bytes = int(options.gb * 1e9)
        found["training"] = training.measure(size_bytes, options.saves, options.every_s, options.threads, log)
    if "distributed" in options.only and not by_path.available():
        log("distributed: left out: this version has no elastic.checkpoint.distributed")
    elif "distributed" in options.only:
        size_bytes = int(options.distributed_gb * 1e9)
        found["distributed"] = by_path.measure(size_bytes, 4, (2, 3, 8), options.repeats, log)
    if "clients" in options.only:
        size_bytes = int(options.mb * 1e6)
        found["clients"] = clients.measure(options.nodes, options.ranks, size_bytes, options.repeats, log)
    return found


def log(text: str) -> None:
    """Where the benchmark is."""
    print(text, file=sys.stderr, flush=True)


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options; --quick stands for small ones, of which any can be given all the same."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.checkpoints.large_states", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="these parts (all)")
    parser.add_argument(
        "--gb", type=float, default=4.0, help="the trained state's size; it lies in memory 3 to 4 times"
    )
    parser.add_argument("--saves", type=int, default=5, help="how often it is saved; the first is told apart")
    parser.add_argument("--every-s", type=float, default=30.0, help="from one save to the next, in seconds")
    parser.add_argument("--threads", type=int, default=1, help="the training's: the driver shares this machine")
    parser.add_argument(
        "--distributed-gb", type=float, default=0.5, help="the distributed one: twice in memory in 8 ranks"
    )
    parser.add_argument("--mb", type=float, default=256.0, help="the checkpoint that is only downloaded")
    parser.add_argument("--nodes", type=int, default=8, help="nodes that download it")
    parser.add_argument("--ranks", type=int, default=8, help="ranks on each of them")
    parser.add_argument("--repeats", type=int, default=3, help="of the second and third part")
    parser.add_argument("--quick", action="store_true", help="small sizes: to see that it works, for no figures")
    parser.add_argument("--json", action="store_true", help="print only the JSON")
    if "--quick" in (sys.argv[1:] if words is None else words):
        parser.set_defaults(**QUICK)
    options = parser.parse_args(words)
    if (
        min(options.gb, options.distributed_gb, options.mb) <= 0
        or min(options.saves, options.repeats, options.nodes) < 1
    ):
        parser.error("sizes have to be above 0, and there has to be one save, one repeat and one node at least")
    return options


def main(words: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    options = parsed(words)
    found = measure(options)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(table(found))


if __name__ == "__main__":
    main()
