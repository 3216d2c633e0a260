"""The time until a node is given back or taken up, and the cost of a resize: real Slurm, Horovod and torchrun.

    python -m benchmarks.give_back [--json] [--repeats N] [--state-gb N]

Each repetition runs the three cases of the give-back part one after the other, so that they share the machine's mood;
medians are reported, with the spread beside them. With --state-gb a trainer whose every worker has a state of that
size, saved every second, takes turns with one that has next to none: on eight nodes it needs ten times as much memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.evidence.model import Benchmark, Figure
from benchmarks.markdown import Measured, measured, spread
from bftd.cli.admin.sandbox_site import SandboxSite
from examples.regular_jobs import RegularJob, stream

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
COMMIT_EVERY = 5
NODES = 8
FOR_EVER = 1_000_000

# A script whose worker neither ends on SIGTERM nor comes to the end of a step.
IGNORING = """#!{python}
import signal, time
import torch.distributed as dist
import elastic
signal.signal(signal.SIGTERM, signal.SIG_IGN)
dist.init_process_group("gloo")
elastic.step()
while True:
    try:
        time.sleep(1000)
    except BaseException:
        pass
"""

# A script whose state has the given size in GB, saved every second or as soon as the one before has left.
STATEFUL = """#!{python}
import sys, time
import torch
import torch.distributed as dist
import elastic
dist.init_process_group("gloo")
count = max(1, int(float(sys.argv[1]) * 1e9) // (16 << 20))
state = elastic.load() or {{f"layer{{number}}": torch.ones(4 << 20) for number in range(count)}}
value, due_s = torch.ones(1), 0.0
while True:
    dist.all_reduce(value)
    time.sleep(0.05)
    for layer in state.values():
        layer[:64] += 1
    if elastic.step(save_every=1 << 30) or time.monotonic() >= due_s:
        elastic.save(state)
        due_s = time.monotonic() + 1.0
"""
STATE_S = 10.0
"""After this long a trainer has saved, and saves again."""


class Bench:
    """A site with one trainer at a time, and the ledger's events as they come."""

    def __init__(self, site: SandboxSite) -> None:
        self.site = site
        self._seen = 0
        self.events: list[dict[str, Any]] = []

    def refresh(self) -> list[dict[str, Any]]:
        """All events so far."""
        while batch := self.site.client.events(after=self._seen):
            self.events += batch
            self._seen = batch[-1]["rowid"]
        return self.events

    def wait(self, what: str, condition: Callable[[], Any], limit_s: float = 90.0) -> Any:
        """The first true value of `condition()`; ends the benchmark when it does not come."""
        deadline = time.time() + limit_s
        while time.time() < deadline:
            if value := condition():
                return value
            time.sleep(0.1)
        log = "\n".join(path.read_text()[-2000:] for path in self.site.work.glob("*.log"))
        raise SystemExit(f"give_back: {what} did not happen within {limit_s:g} s\n{log}")

    def submit(self, name: str, script: Path, elastic: str, *arguments: str) -> str:
        """Submits a trainer and returns its job id."""
        words = [f"--elastic={elastic}", f"--job-name={name}", f"--output={name}.log", "--parsable"]
        done = self.site.bft("sbatch", *words, str(script), *arguments)
        if done.returncode:
            raise SystemExit(f"give_back: {done.stderr.strip()}")
        return done.stdout.strip()

    def working(self) -> int:
        """How many nodes take part in training."""
        return sum(node["lease_state"] == "working" for node in self.site.client.status()["nodes"])

    def end(self, job: str) -> None:
        """Cancels a trainer and waits until its nodes are idle again."""
        self.site.slurm("scancel", job)
        self.wait("the trainer's end", lambda: not self.site.slurm("squeue", "-h", "-o", "%i"))


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value that `share` of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)] if ordered else None


def _range(values: Sequence[float]) -> dict[str, Any]:
    """Median, range and number of values."""
    if not values:
        return {"median": None, "min": None, "max": None, "n": 0}
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}


# -- give-back and taking up ---


def give_back(repeats: int, log: Callable[[str], None], state_gb: float = 0.0) -> dict[str, Any]:
    """A regular 4-node job on an idle cluster, and on one filled by workers that leave or that ignore SIGTERM.

    With `state_gb` also on one filled by workers with a state of that size, and by such without.
    """
    delays: dict[str, list[float]] = {"baseline": [], "cooperative": [], "ignoring": []}
    stateful = {"without_state": 0.0, "with_state": state_gb} if state_gb else {}
    delays |= {case: [] for case in stateful}
    to_pilot: list[float] = []
    to_used: list[float] = []
    with SandboxSite(nodes=NODES, tuned=True) as site:
        script = site.work / "ignoring.py"
        script.write_text(IGNORING.format(python=sys.executable))
        large = site.work / "stateful.py"
        large.write_text(STATEFUL.format(python=sys.executable))
        site.start_daemon()
        bench = Bench(site)
        for repeat in range(repeats):
            delays["baseline"] += _delays(bench)
            job = bench.submit("cooperative", EXAMPLES / "train_horovod.py", f"1-{NODES}", f"--steps={FOR_EVER}")
            _warm(bench)
            freed_s = time.time()
            delays["cooperative"] += _delays(bench)
            _warm(bench)
            pilots, used = _taken_up(bench, freed_s)
            to_pilot += pilots
            to_used += used
            bench.end(job)
            job = bench.submit("ignoring", script, f"1-{NODES},backend=torchrun")
            _warm(bench)
            delays["ignoring"] += _delays(bench)
            bench.end(job)
            for case, size_gb in stateful.items():
                job = bench.submit(case, large, f"1-{NODES},backend=torchrun", str(size_gb))
                _warm(bench)
                time.sleep(STATE_S)
                delays[case] += _delays(bench)
                bench.end(job)
            log(f"repetition {repeat + 1} of {repeats}: " + _recent(delays))
    return {
        **{f"{case}_delay_s": statistics.median(values) for case, values in delays.items()},
        "idle_to_used_s": {"p50": percentile(to_used, 0.5), "p95": percentile(to_used, 0.95)},
        "idle_to_pilot_s": {"p50": percentile(to_pilot, 0.5), "p95": percentile(to_pilot, 0.95)},
        "spread": {case: _range(values) for case, values in delays.items()} | {"idle_to_used": _range(to_used)},
        "samples_s": {
            name: [round(value, 3) for value in values]
            for name, values in (delays | {"idle_to_pilot": to_pilot, "idle_to_used": to_used}).items()
        },
    }


def _warm(bench: Bench) -> None:
    bench.wait("all nodes training", lambda: bench.working() == NODES)


def _delays(bench: Bench) -> list[float]:
    rows = stream(bench.site, [RegularJob(0.0, 4, 3.0)], lambda: None)
    return [row["delay_s"] for row in rows if row["delay_s"] is not None]


def _taken_up(bench: Bench, since_s: float) -> tuple[list[float], list[float]]:
    """Seconds from a node's becoming idle to its pilot, and to its worker's first step, for nodes freed since then."""
    ends = [path.stat().st_mtime for path in bench.site.work.glob("ended-*")]
    freed_s = max((end for end in ends if end >= since_s), default=None)
    if freed_s is None:
        return [], []
    leases = [event for event in bench.refresh() if event["kind"] == "lease" and event["data"]["at_s"] > freed_s]
    pilots = {e["node"]: e["data"]["at_s"] - freed_s for e in leases if e["data"]["state"] == "placed"}
    used = {
        e["node"]: e["data"]["at_s"] - freed_s
        for e in leases
        if e["data"]["state"] == "working" and e["node"] in pilots
    }
    return list(pilots.values()), list(used.values())


def _recent(delays: dict[str, list[float]]) -> str:
    return ", ".join(f"{case} {values[-1]:.2f} s" for case, values in delays.items() if values)


# -- what a resize costs ---


def resizes(backend: str, repeats: int, log: Callable[[str], None]) -> dict[str, Any]:
    """Two of four nodes leave in order (drained) and come back, then one worker is killed; again and again."""
    with SandboxSite(nodes=4, tuned=True) as site:
        site.start_daemon()
        bench = Bench(site)
        arguments = [f"--steps={FOR_EVER}", f"--{'commit' if backend == 'horovod' else 'save'}-every={COMMIT_EVERY}"]
        job = bench.submit(backend, EXAMPLES / f"train_{backend}.py", f"1-4,backend={backend}", *arguments)
        bench.wait("all nodes training", lambda: bench.working() == 4)
        found: dict[str, list[dict[str, Any]]] = {"down": [], "up": [], "crash": []}
        for repeat in range(repeats):
            for kind, act in (("down", _drain), ("up", _resume), ("crash", _kill_a_worker)):
                time.sleep(2.0)  # steps of the present size, against which a stall is measured
                before = len(_resizes(bench, kind))
                act(bench)
                bench.wait(f"a resize ({kind})", lambda kind=kind, before=before: len(_resizes(bench, kind)) > before)  # type: ignore[misc]
                found[kind] += _resizes(bench, kind)[before:]
                nodes = 2 if kind == "down" else 4
                bench.wait("the nodes' work", lambda nodes=nodes: bench.working() == nodes)  # type: ignore[misc]
            log(f"{backend}: repetition {repeat + 1} of {repeats}: " + _stalls(found))
        bench.end(job)
    graceful = [row["steps_lost"] for kind in ("up", "down") for row in found[kind]]
    return {
        "grow_stall_s": statistics.median(row["stall_s"] for row in found["up"]),
        "shrink_stall_s": statistics.median(row["stall_s"] for row in found["down"]),
        "graceful_steps_lost": max(graceful),
        "kill_steps_lost": max(row["steps_lost"] for row in found["crash"]),
        "commit_every_steps": COMMIT_EVERY,
        "spread": {kind: _range([row["stall_s"] for row in rows]) for kind, rows in found.items()},
        "samples": {
            kind: [{"stall_s": round(row["stall_s"], 3), "steps_lost": row["steps_lost"]} for row in rows]
            for kind, rows in found.items()
        },
    }


def _resizes(bench: Bench, kind: str) -> list[dict[str, Any]]:
    return [e["data"] for e in bench.refresh() if e["kind"] == "resize" and e["data"]["kind"] == kind]


def _drain(bench: Bench) -> None:
    bench.site.slurm("scontrol", "update", "NodeName=n[3-4]", "State=DRAIN", "Reason=benchmark")


def _resume(bench: Bench) -> None:
    bench.site.slurm("scontrol", "update", "NodeName=n[3-4]", "State=RESUME")


def _kill_a_worker(bench: Bench) -> None:
    """Kills one worker: a fork of a node process, so both carry the same command line."""
    root = str(bench.site.root)
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if "elastic.node" not in process.cmdline():
                continue
            parent, of_site = process.parent(), process.environ().get("SLURM_CONF", "").startswith(root)
            if of_site and parent is not None and "elastic.node" in parent.cmdline():
                process.kill()
                return
    raise SystemExit("give_back: no worker to kill")


def _stalls(found: dict[str, list[dict[str, Any]]]) -> str:
    return ", ".join(
        f"{kind} {rows[-1]['stall_s']:.2f} s ({rows[-1]['steps_lost']} lost)" for kind, rows in found.items()
    )


# -- figures ---

_MORE_S, _IGNORING_S, _PILOT_S, _USED_S, _GROW_S, _SHRINK_S = 1.0, 3.0, 5.0, 15.0, 2.0, 1.0
_BACKENDS = {"horovod": "Horovod", "torchrun": "torchrun"}
_CASES = {
    "baseline": "start of a regular 4-node job after its submission, cluster idle",
    "cooperative": "the same, all 8 nodes harvested",
    "ignoring": "the same, workers ignore SIGTERM",
    "without_state": "the same, workers without a state",
    "with_state": "the same, workers with a large state",
}


def table(result: Any) -> str:
    """The rows in Markdown."""
    samples, backends = result["samples_s"], {name: of for name, of in _BACKENDS.items() if name in result}
    idle_s = result["baseline_delay_s"]
    bounds = {
        "cooperative": (f"{_MORE_S:.1f} s more", idle_s + _MORE_S),
        "ignoring": (f"{_IGNORING_S:.0f} s", _IGNORING_S),
        "with_state": ("not later", result.get("without_state_delay_s")),
    }
    rows = []
    for case, what in _CASES.items():
        if case in samples:
            bound, most_s = bounds.get(case, ("", math.inf))
            rows.append(Measured(what, spread(samples[case], "s"), bound, statistics.median(samples[case]) > most_s))
    for what, name, most_s in (
        ("idle node to running pilot", "idle_to_pilot", _PILOT_S),
        ("idle node to taking part in training", "idle_to_used", _USED_S),
    ):
        p95_s = result[f"{name}_s"]["p95"]
        text = f"{result[f'{name}_s']['p50']:.1f} s, p95 {p95_s:.1f} s"
        rows.append(Measured(what, text, f"p95 {most_s:.0f} s", p95_s > most_s))
    for backend, of in backends.items():
        found, bounded = result[backend], backend == "horovod"
        for what, kind, most_s in (("grow", "up", _GROW_S), ("shrink", "down", _SHRINK_S)):
            stalls_s = [row["stall_s"] for row in found["samples"][kind]]
            missed = bounded and statistics.median(stalls_s) > most_s
            bound = f"{most_s:.0f} s" if bounded else ""
            rows.append(Measured(f"{of}: stall at a {what}", spread(stalls_s, "s"), bound, missed))
        every, killed = found["commit_every_steps"], found["kill_steps_lost"]
        what = f"{of}: steps lost at resizes, when a worker is killed (saved every {every}), most"
        text, missed = f"{found['graceful_steps_lost']}, {killed}", found["graceful_steps_lost"] > 0 or killed > every
        rows.append(Measured(what, text, f"0, {every}", missed))
    return measured(rows)


def _figures(result: Any) -> Mapping[str, Figure]:
    samples = {"idle": result["samples_s"]["baseline"], "harvested": result["samples_s"]["cooperative"]}
    for backend in _BACKENDS:
        samples |= {f"{backend}.grow": [row["stall_s"] for row in result[backend]["samples"]["up"]]}
    return {
        name: Figure(f"{statistics.median(values):.2f} s", statistics.median(values), (min(values), max(values)))
        for name, values in samples.items()
    }


EVIDENCE = {"give_back": Benchmark(("benchmarks.give_back", "--repeats", "3"), 9.0, {"table": table}, _figures)}


def main() -> None:
    """Runs all parts and prints a table, or JSON alone with --json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print only the JSON")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--state-gb", type=float, default=0.0, help="also trainers with a state of that size (0: none)")
    parser.add_argument("--no-resizes", dest="resizes", action="store_false", help="leave out what a resize costs")
    options = parser.parse_args()

    def log(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    result = give_back(options.repeats, log, options.state_gb)
    backends = ("horovod", "torchrun") if options.resizes else ()
    for backend in backends:
        result[backend] = resizes(backend, options.repeats, log)
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(table(result))


if __name__ == "__main__":
    main()
