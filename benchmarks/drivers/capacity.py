"""The number of nodes that one trainer's driver carries: at rest, as half of them vanish, and over many restarts.

    python -m benchmarks.drivers.capacity [--agents N] [--workers N] [--real N] [--repeats N] [--restarts N] [--json]

The driver is a process with the real trainer, hub, pilot manager and back-end, and Horovod's own driver beside it;
Slurm and bftd are stand-ins (`benchmarks.drivers.process`). With `--real` nodes, agents, node processes and workers are
real and train, under both back-ends. With `--agents` they only speak (`benchmarks.drivers.clients`), under Horovod:
they say what real ones say and compute nothing. What gloo asks of the rendezvous is measured apart
(`benchmarks.drivers.gloo_questions`).

All of them share this machine, so times are longer than on a service node of its own; processor time is the driver's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import psutil

from benchmarks import markdown
from benchmarks.drivers import gloo_questions
from benchmarks.drivers.lines import Program
from benchmarks.evidence.model import Benchmark

_REST_S = 10.0
_LIMIT_S = 180.0
_RESTART_AGENTS = 32
_WARM_RESTARTS = 20
_RANKS = (64, 128, 256)
_GLOO = "gloo's questions"

HOROVOD = """
import time
import horovod.torch as hvd
import torch
import elastic.horovod
hvd.init()
model = torch.nn.Linear(1, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
@hvd.elastic.run
def train(state):
    while True:
        optimizer.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        time.sleep(0.05)
        state.commit()
train(elastic.horovod.TorchState(model=model, optimizer=optimizer))
"""

TORCHRUN = """
import time
import torch
import torch.distributed as dist
import elastic
dist.init_process_group("gloo")
elastic.load()
value = torch.ones(1)
while True:
    dist.all_reduce(value)
    time.sleep(0.05)
    if elastic.step(save_every=1):
        elastic.save({})
"""

SCRIPTS = {"horovod": HOROVOD, "torchrun": TORCHRUN}


class Driver:
    """A driver process and what it says."""

    def __init__(
        self,
        folder: Path,
        backend: str,
        spec: str,
        real: Sequence[str] = (),
        workers: int = 1,
        script: Path | None = None,
    ) -> None:
        """`workers`: how many GPUs a real node seems to have; without a `script` one that trains next to nothing."""
        if script is None:
            script = folder / "train.py"
            script.write_text(SCRIPTS[backend])
        self._said = folder / "driver.log"
        self._program = Program("benchmarks.drivers.process", self._said)
        told = {"folder": str(folder), "elastic": spec, "backend": backend, "script": str(script)}
        begun = self._program.ask(do="begin", real=list(real), workers=workers, **told)
        self.address, self.secret = str(begun["address"]), str(begun["secret"])

    def grant(self, nodes: Sequence[str]) -> dict[str, str]:
        """Lends nodes; returns the lease of each."""
        leases: dict[str, str] = self._program.ask(do="grant", nodes=list(nodes))["leases"]
        return leases

    def revoke(self, nodes: Sequence[str]) -> None:
        """Takes nodes back, in order."""
        self._program.ask(do="revoke", nodes=list(nodes))

    def sample(self) -> dict[str, float]:
        """See `benchmarks.drivers.process`."""
        return self._program.ask(do="sample")

    def trains_at(self, size: int, after_s: float) -> float:
        """When training made its first step with so many workers, in unix seconds; waits for it."""
        deadline_s = time.monotonic() + _LIMIT_S
        while time.monotonic() < deadline_s:
            for event in self._program.events:
                if event["event"] == "over":
                    self.fail(f"training ended: {event['reason']}")
                if event["event"] == "world" and event["size"] == size and event["at_s"] > after_s:
                    return float(event["at_s"])
            time.sleep(0.01)
        self.fail(f"no step with {size} workers within {_LIMIT_S:g} s")

    @property
    def agents(self) -> list[psutil.Process]:
        """The real agents."""
        children = psutil.Process(self._program.pid).children()
        return [child for child in children if "elastic.node.agent" in child.cmdline()]

    def end(self) -> None:
        """Ends the trainer, and waits for it."""
        self._program.end(do="end")

    def fail(self, what: str) -> NoReturn:
        """Ends the benchmark with what failed and the end of the driver's log; raises SystemExit."""
        raise SystemExit(f"drivers.capacity: {what}; the driver's last words: {self._said.read_text()[-1000:]}")


class Played:
    """The agents and workers that only speak, in one process, so that a rank's end can break its group."""

    def __init__(self, folder: Path, driver: Driver, leases: Sequence[str], workers: int) -> None:
        self._driver = driver
        self._program = Program("benchmarks.drivers.clients", folder / "clients.log")
        told = {"address": driver.address, "secret": driver.secret, "workers": workers, "began_s": time.time()}
        self._program.ask(do="begin", leases=list(leases), **told)
        self.began_s = time.time()
        self._program.tell(do="ready")

    def vanish(self, leases: Sequence[str]) -> None:
        """These nodes lose power."""
        self._program.tell(do="vanish", leases=list(leases))

    def crash(self, lease: str) -> None:
        """A worker on this node ends."""
        self._program.tell(do="crash", lease=lease)

    def formed(self, size: int, after_s: float) -> float:
        """When the last of `size` workers had its rank, in unix seconds; waits for it."""
        deadline_s = time.monotonic() + _LIMIT_S
        while time.monotonic() < deadline_s:
            answer = self._program.ask(do="formed", size=size, after_s=after_s)
            if answer["count"] == size:
                return float(answer["last_s"])
            time.sleep(0.02)
        self._driver.fail(f"no group of {size} workers within {_LIMIT_S:g} s")

    def end(self) -> None:
        """Ends the process."""
        self._program.end()


@contextlib.contextmanager
def played(agents: int, workers: int, spec: str) -> Iterator[tuple[Driver, Played, list[str], float]]:
    """A driver with so many nodes that only speak, in one group, and how long that group took to form."""
    with tempfile.TemporaryDirectory(prefix="bft-scale-") as name, contextlib.ExitStack() as stack:
        driver = Driver(Path(name), "horovod", spec)
        stack.callback(driver.end)
        leases = list(driver.grant([f"n{number}" for number in range(agents)]).values())
        clients = Played(Path(name), driver, leases, workers)
        stack.callback(clients.end)
        yield driver, clients, leases, clients.formed(agents * workers, clients.began_s) - clients.began_s


def many(agents: int, workers: int) -> dict[str, float]:
    """One driver at rest, and as half of its nodes vanish at once."""
    with played(agents, workers, f"1-{agents}") as (driver, clients, leases, formed_s):
        found = {"first group formed s": formed_s, **_rest(driver)}
        before, began_s = driver.sample(), time.time()
        clients.vanish(leases[::2])
        size = (agents - len(leases[::2])) * workers
        found["burst: ranks given s"] = clients.formed(size, began_s) - began_s
        found["burst: first step s"] = driver.trains_at(size, began_s) - began_s
        return found | _spent(before, driver.sample())


def real(backend: str, agents: int) -> dict[str, float]:
    """The same with real agents, node processes and workers that train."""
    nodes = [f"n{number}" for number in range(agents)]
    with tempfile.TemporaryDirectory(prefix="bft-scale-") as name, contextlib.ExitStack() as stack:
        driver = Driver(Path(name), backend, f"1-{agents}", real=nodes)
        stack.callback(driver.end)
        began_s = time.time()
        driver.grant(nodes)
        found = {"first group formed s": driver.trains_at(agents, began_s) - began_s, **_rest(driver)}
        before, began_s = driver.sample(), time.time()
        for agent in driver.agents[::2]:
            agent.kill()
        found["burst: first step s"] = driver.trains_at(agents // 2, began_s) - began_s
        return found | _spent(before, driver.sample())


def restarts(count: int, workers: int) -> dict[str, float]:
    """What the driver keeps of workers that have ended: one crashes, and all begin anew, again and again."""
    agents = _RESTART_AGENTS
    with played(agents, workers, f"1-{agents}") as (driver, clients, leases, _):
        took_s, samples = [], [driver.sample()]
        for number in range(count + _WARM_RESTARTS):
            if number == _WARM_RESTARTS:
                samples.append(driver.sample())
            began_s = time.time()
            clients.crash(leases[number % agents])
            took_s.append(clients.formed(agents * workers, began_s) - began_s)
        samples.append(driver.sample())
        warm, last = samples[1:]
        return {
            "workers": agents * workers,
            "restarts": count,
            "a restart s": statistics.median(took_s),
            "driver KiB a restart": (last["rss_bytes"] - warm["rss_bytes"]) / 1024 / count,
            "helper KiB a restart": (last["helper_rss_bytes"] - warm["helper_rss_bytes"]) / 1024 / count,
            "driver MiB": last["rss_bytes"] / 2**20,
            "open files more": last["files"] - warm["files"],
            "tasks more": last["tasks"] - warm["tasks"],
        }


def _rest(driver: Driver) -> dict[str, float]:
    before = driver.sample()
    time.sleep(_REST_S)
    after = driver.sample()
    passed_s = after["at_s"] - before["at_s"]
    return {
        "at rest: driver % of a core": (after["cpu_s"] - before["cpu_s"]) / passed_s * 100,
        "at rest: helper % of a core": (after["helper_cpu_s"] - before["helper_cpu_s"]) / passed_s * 100,
        "at rest: longest stall ms": after["longest_stall_s"] * 1000,
        "open files": after["files"],
        "driver MiB": after["rss_bytes"] / 2**20,
        "helper MiB": after["helper_rss_bytes"] / 2**20,
    }


def _spent(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {
        "burst: driver cpu s": after["cpu_s"] - before["cpu_s"],
        "burst: helper cpu s": after["helper_cpu_s"] - before["helper_cpu_s"],
        "burst: longest stall ms": after["longest_stall_s"] * 1000,
    }


def spread(runs: Sequence[dict[str, float]]) -> dict[str, dict[str, Any]]:
    """Of each figure the median, the least and the most."""
    columns = {name: [run[name] for run in runs] for name in runs[0]}
    return {
        name: {"median": statistics.median(column), "least": min(column), "most": max(column)}
        | ({"samples": column} if len(column) > 1 else {})
        for name, column in columns.items()
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All parts that were asked for; see the options."""
    parts: list[tuple[str, Any, int]] = []
    if options.agents:
        what = f"{options.agents} agents of {options.workers} workers that only speak"
        parts.append((what, lambda: many(options.agents, options.workers), options.repeats))
    if options.real:
        for backend in SCRIPTS:
            parts.append((f"{options.real} real nodes, {backend}", lambda of=backend: real(of, options.real), 1))
    if options.restarts:
        parts.append(("restarts", lambda: restarts(options.restarts, options.workers), 1))
    found = {}
    for what, run, repeats in parts:
        runs = []
        for _ in range(repeats):
            runs.append(run())
            print(f"{what}: {json.dumps(runs[-1])}", file=sys.stderr, flush=True)
        found[what] = spread(runs)
    if options.ranks:
        found[_GLOO] = {f"{ranks} ranks": gloo_questions.measure(ranks) for ranks in _RANKS}
    return found


_SPEAKERS = (
    ("{part}, at rest", "driver [at rest: driver % of a core] %, helper [at rest: helper % of a core] % of a core"),
    ("half of these vanish: processor time", "driver [burst: driver cpu s] s, helper [burst: helper cpu s] s"),
    (
        "the same: longest stall of the driver's loop",
        "[burst: longest stall ms] ms; at rest [at rest: longest stall ms] ms",
    ),
    ("the same: all survivors have their new rank", "[burst: ranks given s] s"),
    ("open files, memory of driver and helper", "[open files]; [driver MiB] MiB, [helper MiB] MiB"),
)
_REAL = (
    ("{part}, at rest: driver", "[at rest: driver % of a core] % of a core"),
    ("half of these killed: first step of the others", "[burst: first step s] s"),
)
_RESTARTED = (
    ("a restart of workers, of which 4 are new each time", "[a restart s] s"),
    (
        "the same: memory that stays, driver and helper",
        "[driver KiB a restart] KiB, [helper KiB a restart] KiB a restart",
    ),
)


def table(result: Any) -> str:
    """The rows in Markdown: medians, with least and most of what was repeated."""
    rows = []
    for part, figures in result.items():
        if part == _GLOO:
            for ranks in _RANKS:
                found = figures[f"{ranks} ranks"]
                text = f"{found['in s']:.2f} s, {found['server us each']:.0f} us of the helper for one"
                rows.append((f"{part} of {ranks} ranks answered", text))
            continue
        for what, text in _SPEAKERS if "speak" in part else _REAL if "real" in part else _RESTARTED:
            for name in re.findall(r"\[(.+?)\]", text):
                text = text.replace(f"[{name}]", _of(figures[name]))
            rows.append((what.format(part=part), text))
    return markdown.table(("what", "figure"), rows)


def _of(figure: dict[str, Any]) -> str:
    least, most = (_shown(figure[name]) for name in ("least", "most"))
    return _shown(figure["median"]) + (f" ({least}-{most})" if least != most else "")


def _shown(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


EVIDENCE = {"driver_capacity": Benchmark(("benchmarks.drivers.capacity",), 6.0, {"table": table})}


def main(words: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drivers.capacity", description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=256, help="nodes that only speak (0: leave this part out)")
    parser.add_argument("--workers", type=int, default=4, help="workers on each of them")
    parser.add_argument("--real", type=int, default=8, help="real nodes, one worker each (0: leave this part out)")
    parser.add_argument("--repeats", type=int, default=3, help="bursts of those that only speak, a driver each")
    parser.add_argument("--restarts", type=int, default=300, help="restarts whose memory is counted (0: none)")
    parser.add_argument("--no-ranks", dest="ranks", action="store_false", help="leave gloo's questions out")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    if min(options.workers, options.repeats) < 1 or options.agents == 1 or options.real == 1:
        parser.error("there have to be at least 1 worker and 1 repeat, and 2 nodes of which half can vanish")
    found = measure(options)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(table(found))


if __name__ == "__main__":
    main()
