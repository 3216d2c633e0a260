"""How long `bft status` takes from a cold shell, with a daemon of 5,000 nodes and 100 trainers.

    python -m benchmarks.status [--repeats N] [--nodes N] [--trainers N] [--json]

Each repetition is a process of its own. The daemon is that of `benchmarks.hostile_daemon`, with all nodes lent.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.hostile import serving
from bftd.http.client import Client

BOUND_MS = 150.0


def measure(nodes: int, trainers: int, repeats: int) -> dict[str, Any]:
    """Times in milliseconds: by the clock, and of the processor; `python` is an interpreter that does nothing."""
    with tempfile.TemporaryDirectory(prefix="bft-status-") as name:
        folder = Path(name)
        with serving(folder, trainers, nodes) as daemon:
            bft = str(Path(sys.executable).with_name("bft"))
            environ = os.environ | {"BFTD_SOCKET": str(folder / "socket")}
            if not shutil.which(bft):
                raise SystemExit(f"{bft} is not there: make venv")
            shown = _run([bft, "status"], environ, repeats)
            client = Client(str(folder / "socket"))
            asked_ms, sizes = {}, {}
            for form in ("folded", "full"):
                begun_s = time.perf_counter()
                answer = client.status(folded=form == "folded")
                asked_ms[form] = 1e3 * (time.perf_counter() - begun_s)
                sizes[form] = len(json.dumps(answer))
                time.sleep(1.1)  # the daemon keeps an answer for a second
            daemon.terminate()
            loop = json.loads(daemon.communicate(timeout=60)[0])["turn_ms"]
    return {
        "nodes": nodes,
        "trainers": trainers,
        "bound_ms": BOUND_MS,
        "bft_status": shown,
        "python": _run([sys.executable, "-c", "pass"], dict(os.environ), repeats),
        "answer_ms": asked_ms,
        "answer_bytes": sizes,
        "longest_turn_of_the_loop_cpu_ms": loop["max_cpu"],
    }


def _run(command: list[str], environ: dict[str, str], repeats: int) -> dict[str, float]:
    walls_ms, cpus_ms = [], []
    for _ in range(repeats):
        before, begun_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        walls_ms.append(1e3 * (time.perf_counter() - begun_s))
        cpus_ms.append(1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return {"median_ms": statistics.median(walls_ms), "fastest_ms": min(walls_ms), "slowest_ms": max(walls_ms)} | {
        "median_cpu_ms": statistics.median(cpus_ms)
    }


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--trainers", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.nodes, options.trainers, options.repeats)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for name in ("bft_status", "python"):
        times = found[name]
        span = f"{times['fastest_ms']:.0f}-{times['slowest_ms']:.0f}"
        print(f"{name}: median {times['median_ms']:.0f} ms ({span}), of processor {times['median_cpu_ms']:.0f} ms")
    print(f"bound {BOUND_MS:.0f} ms; answers: {found['answer_ms']} ms, {found['answer_bytes']} bytes")


if __name__ == "__main__":
    main()
