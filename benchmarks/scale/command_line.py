"""The time of commands from a cold shell, with a daemon of 5,000 nodes and 100 trainers.

    python -m benchmarks.scale.command_line [--repeats N] [--nodes N] [--trainers N] [--json]

Each repetition is a process of its own. `bft --version` and `python -c "import click"` take turns, so that what else
the machine does falls on both. The daemon is that of `benchmarks.scale.daemon`, with all nodes lent, and is found as
on a login node, by a configuration file. It keeps an answer for a second: questions are further apart, so that each
is answered anew.
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
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.evidence.model import Benchmark
from benchmarks.scale.hostile import serving
from bftd.api_client import ApiClient

STATUS_BOUND_MS = 150.0
VERSION_BOUND = 2.5
# The daemon keeps an answer of a large cluster for a second.
APART_S = 1.1
CLICK = (sys.executable, "-c", "import click")


def measure(nodes: int, trainers: int, repeats: int) -> dict[str, Any]:
    """Times in milliseconds: by the clock, and of the processor."""
    bft = str(Path(sys.executable).with_name("bft"))
    if not shutil.which(bft):
        raise SystemExit(f"{bft} is not there: make venv")
    idle = dict(os.environ)
    version, click = _in_turns([(bft, "--version"), CLICK], idle, repeats)
    found: dict[str, Any] = {
        "nodes": nodes,
        "trainers": trainers,
        "repeats": repeats,
        "version": version,
        "import_click": click,
        "version_ratio": version["median_ms"] / click["median_ms"],
        "version_bound": VERSION_BOUND,
        "status_bound_ms": STATUS_BOUND_MS,
        "load": os.getloadavg()[0],
    }
    with tempfile.TemporaryDirectory(prefix="bft-commands-") as name:
        folder = Path(name)
        config = folder / "bftd.toml"
        config.write_text(f'[api]\nsocket = "{folder}/socket"\n')
        with serving(folder, trainers, nodes) as daemon:
            environ = {key: value for key, value in os.environ.items() if key != "BFTD_SOCKET"}
            environ |= {"BFTD_CONFIG": str(config)}
            node, trainer = "n0", "run-site-0"
            asked = [("status",), ("trainers",), ("explain", trainer), ("explain", node)]
            times = _in_turns([(bft, *words) for words in asked], environ, repeats, APART_S / len(asked))
            found |= dict(zip(("status", "trainers", "explain", "explain_node"), times, strict=True))
            found["answer"] = _answers(ApiClient(str(folder / "socket")))
            daemon.terminate()
            found["longest_turn_of_the_loop_cpu_ms"] = json.loads(daemon.communicate(timeout=60)[0])["turn_ms"][
                "max_cpu"
            ]
    return found


def _answers(client: ApiClient) -> dict[str, dict[str, Any]]:
    """How long the daemon takes for an answer that it has not kept, and its bytes."""
    found = {}
    forms: dict[str, Callable[[], Any]] = {"folded": partial(client.status, folded=True), "full": client.status}
    for form, ask in forms.items():
        took_ms = []
        for _ in range(5):
            time.sleep(APART_S)
            begun_s = time.perf_counter()
            answer = ask()
            took_ms.append(1e3 * (time.perf_counter() - begun_s))
        found[form] = {
            "median_ms": statistics.median(took_ms),
            "bytes": len(json.dumps(answer)),
            "samples_ms": [round(each, 1) for each in took_ms],
        }
    return found


def _in_turns(
    commands: Sequence[Sequence[str]], environ: Mapping[str, str], repeats: int, apart_s: float = 0.0
) -> list[dict[str, Any]]:
    """The times of several commands, each run `repeats` times, one after the other."""
    walls_ms: list[list[float]] = [[] for _ in commands]
    cpus_ms: list[list[float]] = [[] for _ in commands]
    for _ in range(repeats):
        for at, command in enumerate(commands):
            time.sleep(apart_s)
            before, begun_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            walls_ms[at].append(1e3 * (time.perf_counter() - begun_s))
            cpus_ms[at].append(1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return [
        {
            "median_ms": statistics.median(walls),
            "fastest_ms": min(walls),
            "slowest_ms": max(walls),
            "median_cpu_ms": statistics.median(cpus),
            "samples_ms": [round(each, 1) for each in walls],
            "samples_cpu_ms": [round(each, 1) for each in cpus],
        }
        for walls, cpus in zip(walls_ms, cpus_ms, strict=True)
    ]


_ASKED = {
    "import_click": '`python -c "import click"`',
    "version": "`bft --version`",
    "status": "`bft status`",
    "trainers": "`bft trainers`",
    "explain": "`bft explain JOB`",
    "explain_node": "`bft explain NODE`",
}


def table(result: Any) -> str:
    """The rows in Markdown."""
    status_ms, ratio = result["status"]["median_ms"], result["version_ratio"]
    bounds = {
        "version": (f"{VERSION_BOUND:g} times the first", ratio > VERSION_BOUND),
        "status": (f"{STATUS_BOUND_MS:.0f} ms", status_ms > STATUS_BOUND_MS),
    }
    lines = ["| what | median (range), ms | of the processor, ms | bound |", "| --- | --- | --- | --- |"]
    for name, what in _ASKED.items():
        times = result[name]
        bound, missed = bounds.get(name, ("", False))
        span = f"{times['median_ms']:.0f} ({times['fastest_ms']:.0f}-{times['slowest_ms']:.0f})"
        more = f", {ratio:.2f} times the first" if name == "version" else ""
        cells = (what, f"{span}{more}", f"{times['median_cpu_ms']:.0f}", f"{bound}, **missed**" if missed else bound)
        lines.append("| " + " | ".join(cells) + " |")
    for form, what in (("folded", "the daemon's answer to `bft status`"), ("full", "the whole status")):
        answer = result["answer"][form]
        lines.append(f"| {what}, {answer['bytes'] / 1e3:,.0f} kB | {answer['median_ms']:.0f} | | |")
    return "\n".join(lines)


EVIDENCE = {"command_line": Benchmark(("benchmarks.scale.command_line",), 3.0, {"table": table})}


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
    print(table(found))


if __name__ == "__main__":
    main()
