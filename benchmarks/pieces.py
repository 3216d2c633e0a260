"""The cost of weights that do not depend on the number of workers: pieces of elastic.batches beside DDP's exchange.

    python -m benchmarks.pieces [--json]

Each worker is a process with one thread, all on this machine; both ways of a size run in turn, step by step, in the
same processes. `share` is by how much longer the median step takes with pieces.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.evidence.model import Benchmark
from benchmarks.markdown import signed

PIECES, GLOBAL_BATCH, STEPS, WIDTH = 4, 512, 40, 1024
SIZES = (1, 2, 4)
_WARM = 5


def _work(rank: int, size: int, folder: Path, steps: int, width: int) -> None:
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from elastic.script import ranks
    from elastic.script.data import Batches

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=size)
    ranks.use(ranks.World(lambda: rank, lambda: size, lambda: 0))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(GLOBAL_BATCH, width)
    plans = [Batches(GLOBAL_BATCH, global_batch=GLOBAL_BATCH, micro_batch=GLOBAL_BATCH // PIECES)]
    plans.append(Batches(GLOBAL_BATCH, global_batch=GLOBAL_BATCH, pieces=PIECES))
    walks, took_s = [plan.steps(start=0) for plan in plans], [[], []]  # type: tuple[list[Any], list[list[float]]]
    for _ in range(steps + _WARM):
        for walk, times_s in zip(walks, took_s, strict=True):
            torch.distributed.barrier()
            begun_s = time.perf_counter()
            optimizer.zero_grad()
            for part in next(walk):
                with part.sync(model):
                    (model(data[part.data]).square().mean() * part.weight).backward()
            optimizer.step()
            times_s.append(time.perf_counter() - begun_s)
    if rank == 0:
        (folder / "took").write_text(json.dumps([times_s[_WARM:] for times_s in took_s]))
    torch.distributed.destroy_process_group()


def measure(sizes: Sequence[int] = SIZES, steps: int = STEPS, width: int = WIDTH) -> list[dict[str, Any]]:
    """A row for each number of workers; times are medians, and quartiles, of a step."""
    rows = []
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="bft-pieces-") as folder:
            fork = multiprocessing.get_context("fork")
            arguments = [(rank, size, Path(folder), steps, width) for rank in range(size)]
            workers = [fork.Process(target=_work, args=each) for each in arguments]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            if any(worker.exitcode for worker in workers):
                raise SystemExit("pieces: a worker failed; what it said stands above")
            plain_s, pieces_s = json.loads(Path(folder, "took").read_text())
        rows.append(
            {
                "workers": size,
                "parameters": 2 * (width + 1) * width,
                "plain_s": statistics.quantiles(plain_s, n=4),
                "pieces_s": statistics.quantiles(pieces_s, n=4),
                "share": statistics.median(pieces_s) / statistics.median(plain_s) - 1.0,
                "samples_s": {
                    way: [round(each, 4) for each in took_s]
                    for way, took_s in (("plain", plain_s), ("pieces", pieces_s))
                },
            }
        )
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows in Markdown: medians of a step."""
    lines = ["| workers | DDP's own exchange | `pieces=4` | longer by |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {row['workers']} | {row['plain_s'][1]:.3f} s | {row['pieces_s'][1]:.3f} s | {signed(row['share'])} |"
        for row in rows
    ]
    return "\n".join(lines)


EVIDENCE = {"pieces": Benchmark(("benchmarks.pieces",), 1.0, {"table": table})}


def main(words: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pieces", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    rows = measure()
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(table(rows))


if __name__ == "__main__":
    main()
