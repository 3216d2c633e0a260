"""The cost of a large cluster to the daemon: 5,000 nodes and 5,000 jobs, read and decided on once a second.

    python -m benchmarks.scale.cluster [--nodes N] [--jobs N] [--json]
    python -m benchmarks.scale.cluster --many 64 [--json]

The controller is a real one. All nodes but one are stand-ins, for which that one's slurmd answers: they can be
allocated, run nothing, and look to every client like nodes. With --many the nodes are real
(benchmarks/scale/many_nodes.py).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from benchmarks import site_lines
from benchmarks.evidence.model import Benchmark, Figure
from benchmarks.impact.logs import rpc_counts
from benchmarks.markdown import Measured, measured
from benchmarks.scale import many_nodes
from benchmarks.scale.many_drivers import Drivers, Probe, ProcessWatch, request
from bftd.cli.admin.sandbox_site import SandboxSite
from bftd.config.keys import PoolConfig
from bftd.core.model.domain import Settings, State
from bftd.core.model.events import PoolObserved, Registered
from bftd.core.step import step
from bftd.pool import membership
from bftd.pool.harvest import Harvest
from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.read import parse
from slurm_plugin.read.types import Snapshot

RACK = 40
SMALLEST = 2 * RACK + 1  # the node with the slurmd, one busy rack and one spare
TRAINERS = 35
TICKS = 30
TICK_S = 1.0
MOST_BYTES = 300e6
HARVEST = Harvest.of("elastic")
_BUSY_SHARE = 0.7
_PLANNED = 1000  # of the pending jobs, Slurm plans so many in a cycle
# What such a site has of its own; all that bftd asks of it comes from `bft site config`.
_CONF = f"""\
SlurmdTimeout=0
MaxJobCount=100000
SchedulerParameters=bf_max_job_test={_PLANNED},max_rpc_cnt=150,bf_yield_interval=200000,bf_yield_sleep=100000
"""
_DAEMON: dict[str, dict[str, Any]] = {
    "slurm": {"poll_s": 1.0},
    "decide": {"pj_max": TRAINERS, "objective": "throughput"},
    "limits": {"trainers_per_user": 0},
    "log": {"level": "debug"},
}
_OWN_RPCS = 1  # the first of two looks at the controller's counters is among what the second one shows
_TICK = re.compile(r"tick: read in ([0-9.]+) s, taken in within ([0-9.]+) s")


def measure(
    nodes: int = 5000, jobs: int = 5000, ticks: int = TICKS, log: Callable[[str], None] = print
) -> dict[str, Any]:
    """Run the daemon for `ticks` snapshots of a cluster of that size; times are seconds, medians unless named so.

    `tick_s` is from the call of the first command to the end of what follows from the snapshot, as the daemon's log
    tells it, `tick_read_s` the part up to the parsed snapshot, and `tick_loop_s` that in which the event loop serves
    nobody else. `tick_cpu_s` is the daemon's own processor time from tick to tick, answers to drivers and probe
    included and its children's apart. `rss_bytes` is its peak, as the kernel counts it. `site_config` are the lines for
    slurm.conf that `bft site config` printed for this very site, and that it ran with.
    """
    with SandboxSite(_DAEMON, nodes=1, tuned=False, extra_conf=_CONF, stand_ins=stand_ins(nodes - 1)) as site:
        log(f"{nodes} nodes are up")
        fill(site, nodes, jobs)
        log(f"{jobs} jobs are in the queue")
        lines = site_lines.follow(site)
        log("slurm.conf has what bft site config prints: " + "; ".join(lines))
        client = site.cluster.client(timeout_s=30.0)
        parts = _parts(client)
        log("the parts are measured: " + ", ".join(f"{name} {value:.3f}" for name, value in parts.items()))
        return {"nodes": nodes, "jobs": jobs, "site_config": lines, **_ticks(site, nodes, ticks), **parts}


def stand_ins(count: int) -> dict[str, str]:
    """Racks of 40 nodes with GPUs; seven tenths have the feature `busy`, to which regular jobs keep."""
    racks = -(-count // RACK)
    found = {}
    for rack in range(1, racks + 1):
        last = min(RACK, count - (rack - 1) * RACK)
        kind = "busy" if rack <= racks * _BUSY_SHARE else "spare"
        options = f"CPUs=64 RealMemory=512000 Gres=gpu:a100:4 Feature={kind},rack{rack},a100,nvlink,ib-hdr,avx512"
        found[f"rack{rack}-n[001-{last:03}]"] = options
    return found


def fill(site: SandboxSite, nodes: int, jobs: int) -> None:
    """Fill the busy racks with running jobs, and queue others behind them until there are `jobs` in all."""
    rng = random.Random(5)
    client = site.cluster.client(timeout_s=30.0)
    racks = int(-(-(nodes - 1) // RACK) * _BUSY_SHARE)
    site.slurm(
        "scontrol",
        "update",
        "NodeName=rack1-n[001-010]",
        "State=DRAIN",
        "Reason=the lower fan tray fails when the room is above 27 C, ticket 48213, do not use before the vendor came",
    )
    left, running = racks * RACK - 10, 0
    while left and running < jobs:
        size = min(left, max(1, round(rng.paretovariate(0.8))), 8 * RACK)
        minutes = rng.randrange(30, 2880)
        site.slurm("salloc", "--no-shell", *_job(rng, size, minutes, running), timeout_s=60.0)
        left, running = left - size, running + 1
    with ThreadPoolExecutor(4) as pool_:
        list(pool_.map(lambda job: client.submit(job, "#!/bin/sh\nsleep 600\n"), _pending(rng, jobs - running, racks)))


def _pending(rng: random.Random, count: int, racks: int) -> list[list[str]]:
    """Options of jobs that wait: for nodes, for a time, for another job, or because they are held."""
    found = []
    for number in range(count):
        size = min(racks * RACK - 10, max(1, round(rng.paretovariate(0.8))))
        options = _job(rng, size, rng.randrange(5, 2880), number)
        kind = rng.random()
        if kind < 0.1:
            options += [f"--begin=now+{rng.randrange(1, 72)}hours"]
        elif kind < 0.2:
            options += ["--dependency=afterany:1"]
        elif kind < 0.25:
            options += ["--hold"]
        elif kind < 0.3:
            options += [f"--array=1-{rng.randrange(2, 500)}%20"]
        found.append([*options, "--output=/dev/null"])
    return found


def _job(rng: random.Random, size: int, minutes: int, number: int) -> list[str]:
    return [
        "--partition=batch",
        "--constraint=busy",
        f"--nodes={size}",
        f"--time={minutes}",
        f"--job-name={rng.choice(('relax', 'md-prod', 'sweep', 'train_resnet', 'post'))}-{number}",
        f"--comment=project {rng.randrange(90)}, run {number} of the campaign, see /projects/{number % 70}/README",
    ]


# -- the daemon, from the outside ---


def _ticks(site: SandboxSite, nodes: int, ticks: int) -> dict[str, Any]:
    site.start_daemon()
    assert site.daemon_pid is not None
    process = ProcessWatch(site.daemon_pid)
    with Drivers(site, TRAINERS, nodes) as drivers, Probe(site) as probe:
        _wait_for_ticks(site, 2)
        # In this order no request of a poll that begins later is left out, however long the look takes.
        rpcs, before, process_before = _rpcs(site), _logged(site), process.sample()
        begin_s = time.monotonic()
        _wait_for_ticks(site, len(before) + ticks)
        seen, counted, process_after = _logged(site), _rpcs(site) - rpcs - _OWN_RPCS, process.sample()
        seen = seen[len(before) :]
        every_s = (time.monotonic() - begin_s) / len(seen)
        pilots = drivers.working
    whole = [read + taken for read, taken in seen]
    return {
        "ticks": len(seen),
        "samples": [{"read_s": round(read, 3), "taken_s": round(taken, 3)} for read, taken in seen],
        "tick_s": statistics.median(whole),
        "tick_s_p95": sorted(whole)[math.ceil(0.95 * len(whole)) - 1],
        "tick_s_max": max(whole),
        "tick_every_s": every_s,
        "tick_read_s": statistics.median(read for read, _ in seen),
        "tick_loop_s": statistics.median(taken for _, taken in seen),
        "tick_loop_s_max": max(taken for _, taken in seen),
        "tick_cpu_s": (process_after.own_s - process_before.own_s) / len(seen),
        "tick_children_cpu_s": (process_after.children_s - process_before.children_s) / len(seen),
        "rss_bytes": process_after.peak_bytes,
        "rpc_per_poll": counted / len(seen),
        "pilots": pilots,
        "refused": drivers.refused,
        "api": probe.summary(),
    }


def _logged(site: SandboxSite) -> list[tuple[float, float]]:
    return [(float(read), float(taken)) for read, taken in _TICK.findall(site.log_path.read_text())]


def _wait_for_ticks(site: SandboxSite, count: int) -> None:
    deadline_s = time.monotonic() + 60.0 + 5.0 * count
    while len(_logged(site)) < count:
        if time.monotonic() > deadline_s or site.daemon_pid is None:
            raise SystemExit(f"scale.cluster: the daemon does not tick\n{site.log_path.read_text()[-2000:]}")
        time.sleep(0.05)


def _rpcs(site: SandboxSite) -> int:
    """Requests for information, and greetings, that the controller has answered; that of this look comes later."""
    return _asked(site.slurm("sdiag"))


def _asked(sdiag: str) -> int:
    asked = (count for name, count in rpc_counts(sdiag).items() if "INFO" in name or name == "REQUEST_PING")
    return sum(asked)


# -- the parts of a tick, in this process ---


class _Stopwatch:
    """Times what is done under a name."""

    def __init__(self) -> None:
        self._took_s: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start_s = time.perf_counter()
        yield
        self._took_s[name].append(time.perf_counter() - start_s)

    def medians(self) -> dict[str, float]:
        """Seconds by name."""
        return {name: statistics.median(values) for name, values in self._took_s.items()}


def _parts(client: SlurmClient, repeats: int = 7) -> dict[str, float]:
    """Reading, parsing, the pool, and the plan for a pool of all nodes: the states are made idle for the last one."""
    timed, separator = _Stopwatch(), "\x1fscale"
    for repeat in range(repeats):
        with timed("read_s"):
            shown = client.run("scontrol", "show", "nodes", "-o").out
            queued = client.run("squeue", f"--format={parse.job_format(separator)}").out
        with timed("parse_s" if repeat else "parse_first_s"):  # what did not change is not read twice
            nodes, jobs = parse.nodes(shown), parse.jobs(queued, separator)
        snapshot = Snapshot(time.time(), nodes, jobs, ())
        with timed("pool_s"):
            membership.observe(membership.PoolMemory(), snapshot, PoolConfig(), HARVEST, {}, {})
    idle = {name: replace(node, state="IDLE", flags=frozenset()) for name, node in snapshot.nodes.items()}
    for _ in range(repeats):
        _plan(replace(snapshot, nodes=idle, jobs=()), timed)
    return timed.medians()


def _plan(snapshot: Snapshot, timed: _Stopwatch) -> None:
    """The first plan for a pool of all nodes, and the one after a tenth of them has gone."""
    config = PoolConfig(debounce_polls=1)
    shared = {"pj_max": TRAINERS, "trainers_per_user": 0, "objective": "throughput"}
    state = State(settings=Settings().changed(**shared, submit_rate_per_min=len(snapshot.nodes)))
    for number in range(TRAINERS):
        state, _ = step(state, Registered(snapshot.time_s, request(number, len(snapshot.nodes))))
    memory, view = membership.observe(membership.PoolMemory(), snapshot, config, HARVEST, {}, {})
    with timed("plan_first_s"):
        state, _ = step(state, PoolObserved(snapshot.time_s, view))
    names = sorted(snapshot.nodes)
    left = {name: snapshot.nodes[name] for name in names[len(names) // 10 :]}
    later = replace(snapshot, time_s=snapshot.time_s + 1.0, nodes=left)
    _, view = membership.observe(memory, later, config, HARVEST, {}, {})
    with timed("plan_s"):
        step(state, PoolObserved(later.time_s, view))


def table(result: Any) -> str:
    """The rows in Markdown."""
    tick_s, most_s, peak = result["tick_s"], result["tick_s_max"], result["rss_bytes"]
    served_s = max(each["max_s"] for each in result["api"].values())
    cpu = f"{result['tick_cpu_s']:.2f} s, {result['tick_children_cpu_s']:.2f} s"
    held = f"{result['tick_loop_s']:.2f} s, {result['tick_loop_s_max']:.2f} s"
    bound = f"{TICK_S:.0f} s"
    return measured(
        (
            Measured("a tick, from its first command to its end: median", f"{tick_s:.2f} s", bound, tick_s > TICK_S),
            Measured(f"the same, longest of {result['ticks']}", f"{most_s:.2f} s", bound, most_s > TICK_S),
            Measured("processor time a tick: the daemon, the commands that it runs", cpu),
            Measured("the event loop is held: median, most", held),
            Measured(
                "peak memory of the daemon", f"{peak / 1e6:.0f} MB", f"{MOST_BYTES / 1e6:.0f} MB", peak > MOST_BYTES
            ),
            Measured("slowest answer of the API", f"{served_s:.2f} s"),
            Measured("requests to slurmctld a poll", f"{result['rpc_per_poll']:.2f}"),
        )
    )


def _figures(result: Any) -> Mapping[str, Figure]:
    whole_s = [row["read_s"] + row["taken_s"] for row in result["samples"]]
    return {"tick": Figure(f"{result['tick_s']:.2f} s", result["tick_s"], (min(whole_s), max(whole_s)))}


EVIDENCE = {
    "scale_cluster": Benchmark(("benchmarks.scale.cluster",), 4.0, {"table": table}, _figures),
    "scale_many_nodes": Benchmark(("benchmarks.scale.cluster", "--many", "64"), 4.0, {"table": many_nodes.table}),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print a table, or JSON alone with --json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=5000, help="nodes of the cluster (default 5000)")
    parser.add_argument("--jobs", type=int, default=5000, help="jobs in the queue (default 5000)")
    parser.add_argument("--ticks", type=int, default=TICKS, help=f"snapshots to measure (default {TICKS})")
    parser.add_argument("--many", type=int, metavar="N", help="instead harvest N real nodes at once")
    parser.add_argument("--quick", action="store_true", help="a small cluster and few ticks, to see that it runs")
    parser.add_argument("--json", action="store_true", help="print only the JSON")
    options = parser.parse_args(arguments)
    if options.nodes < SMALLEST or options.jobs < 1 or options.ticks < 1 or (options.many or 1) < 1:
        parser.error(f"--nodes is at least {SMALLEST}, and --jobs, --ticks and --many are at least 1")

    def log(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    if options.many:
        result = many_nodes.harvest_many(options.many, log=log)
    else:
        nodes, jobs, ticks = (200, 100, 8) if options.quick else (options.nodes, options.jobs, options.ticks)
        result = measure(nodes, jobs, ticks, log)
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(many_nodes.table(result) if options.many else table(result))


if __name__ == "__main__":
    main()
