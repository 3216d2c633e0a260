"""The cost of observers to the daemon: 5,000 nodes, 5,000 jobs and 100 trainers, in turns with nobody who looks.

    python -m benchmarks.scale.observers [--nodes N] [--jobs N] [--trainers N] [--tops N] [--pages N] [--rounds N]
                                         [--json]

The cluster is that of `benchmarks.scale.cluster`. In every other round `bft top`, the web page and Prometheus ask as
they do, each screen and page from a process that gives way to the daemon (nice 19), since they would be on other hosts:
they read the answers and draw nothing. A day of history is in the ledger, so that there is something to draw; it is
sampled all the time, also while nobody looks.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import select
import socket
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import site_lines
from benchmarks.evidence.model import Benchmark
from benchmarks.markdown import signed
from benchmarks.scale.cluster import SMALLEST, fill, stand_ins
from benchmarks.scale.many_drivers import Drivers, Probe, ProcessWatch
from bftd.cli.admin.sandbox_site import SandboxSite
from slurm_plugin.sandbox.ports import reserved_ports

BOUND = 0.05
DAY_S = 86_400
_CONF = "SlurmdTimeout=0\nMaxJobCount=100000\nSchedulerParameters=bf_max_job_test=1000,max_rpc_cnt=150\n"
_TICK = re.compile(r"tick: read in ([0-9.]+) s, taken in within ([0-9.]+) s")
_SETTLED = 3  # polls in a row after which as many nodes are lent as before
_MOST = 8  # nodes of a trainer

# The requests of each observer, with their periods in seconds: bftd/ui/live/poller.py, bftd/web/page.js, and
# Prometheus as it is set up in docs/howto/monitoring.md.
ASKED = {
    "top": (
        ("/v1/status?nodes=folded", 1.0),
        ("/v1/trainers/run-scale-1/explain?limit=100", 5.0),
        ("/v1/history", 60.0),
    ),
    "page": (("/", 10.0),),
    "metrics": (("/metrics", 15.0),),
}


@dataclass(frozen=True)
class Round:
    """What some ticks took, in seconds: read and taken in, and how long a light request waited for its answer."""

    ticks: list[tuple[float, float]]
    light: list[float]
    cpu_s: float

    @property
    def whole(self) -> list[float]:
        """Each tick from its first command to the end of what follows from it."""
        return [read + taken for read, taken in self.ticks]


def measure(options: argparse.Namespace, log: Callable[[str], None]) -> dict[str, Any]:
    """All rounds, those without observers and those with them, and what the observers were answered."""
    with reserved_ports(1) as (port,):
        return _measure(port, options, log)


def _measure(port: int, options: argparse.Namespace, log: Callable[[str], None]) -> dict[str, Any]:
    daemon: dict[str, dict[str, Any]] = {
        "decide": {"pj_max": options.trainers, "objective": "throughput"},
        "limits": {"trainers_per_user": 0},
        "web": {"listen": f"127.0.0.1:{port}"},
        "log": {"level": "debug"},
    }
    with SandboxSite(daemon, nodes=1, tuned=False, extra_conf=_CONF, stand_ins=stand_ins(options.nodes - 1)) as site:
        fill(site, options.nodes, options.jobs)
        site_lines.follow(site)
        log(f"{options.nodes} nodes and {options.jobs} jobs are there")
        remember(site.root / "ledger.sqlite", options.nodes, options.trainers)
        site.start_daemon()
        assert site.daemon_pid is not None
        process = ProcessWatch(site.daemon_pid)
        with Drivers(site, options.trainers, 16 * _MOST) as drivers, Probe(site, only="leases") as light:
            _settle(site, drivers, log)
            found: dict[bool, list[Round]] = {False: [], True: []}
            answers: dict[str, list[tuple[float, int, int]]] = defaultdict(list)
            for number in range(2 * options.rounds):
                watched = number % 4 in (1, 2)  # A B B A: what drifts slowly adds to both alike
                with observers(site, port, options if watched else None, answers):
                    _wait(site, 2)
                    light.take("leases")
                    before, begun = process.sample(), len(_logged(site))
                    _wait(site, options.ticks)
                    ticks, after = _logged(site)[begun:], process.sample()
                    cpu_s = (after.own_s - before.own_s) / len(ticks)
                    found[watched].append(Round(ticks, light.take("leases"), cpu_s))
                last = found[watched][-1]
                log(f"{'looked at' if watched else 'alone':10} {statistics.median(last.whole):.3f} s a tick")
            pilots = drivers.working
    return {
        "nodes": options.nodes,
        "jobs": options.jobs,
        "trainers": options.trainers,
        "pilots": pilots,
        "bound": BOUND,
        "alone": _told(found[False]),
        "looked_at": _told(found[True]),
        "growth": compared(found[False], found[True], lambda each: statistics.median(each.whole)),
        "growth_of_processor_time": compared(found[False], found[True], lambda each: each.cpu_s),
        "answers": {name: _answered(rows) for name, rows in sorted(answers.items())},
        "load": os.getloadavg(),
    }


def remember(ledger: Path, nodes: int, trainers: int) -> None:
    """Write a day of history into a ledger that no daemon has opened yet: a record a minute, with all trainers."""
    from bftd.ledger import file as ledgers
    from bftd.ledger.history import table as table

    now_s = int(time.time()) // 60 * 60
    ids = [f"run-scale-{number}" for number in range(trainers)]
    share = max(1, nodes // 4 // trainers)
    kept = ledgers.Ledger(ledger)
    for hour in range(24):
        records = []
        for at_s in range(now_s - DAY_S + 3600 * hour, now_s - DAY_S + 3600 * (hour + 1), 60):
            sizes = [share * (at_s // 1800 + number) % (2 * share + 1) for number in range(trainers)]
            leased = sum(sizes)
            count = {"regular": nodes - leased, "planned": 0, "leased": leased, "idle": 0, "away": 0}
            steps = (at_s - now_s + DAY_S) // 60
            points = tuple(
                table.TrainerRecord(id_, size, size, 90.0 * size, steps * size, 5400.0 * steps, 5400.0, 1.0)
                for id_, size in zip(ids, sizes, strict=True)
            )
            spent_s = 60.0 * leased
            records.append(table.PoolRecord(at_s, 60, count, spent_s, spent_s, 0.9 * spent_s, points))
        named = [table.TrainerIdentity(id_, f"trainer-{id_}", "root", None) for id_ in ids]
        kept.write(lambda db, records=records, named=named: table.add(db, records, named))  # type: ignore[misc]
    kept.close()


@contextmanager
def observers(
    site: SandboxSite, port: int, options: argparse.Namespace | None, answers: dict[str, list[tuple[float, int, int]]]
) -> Iterator[None]:
    """All that looks, while this lasts; what it was answered is added to `answers`: seconds, status, bytes."""
    if options is None:
        yield
        return
    kinds = ["top"] * options.tops + ["page"] * options.pages + ["metrics"]
    command = [sys.executable, "-m", "benchmarks.scale.observers", "--look", str(site.root / "bftd.sock"), str(port)]
    started = [
        subprocess.Popen([*command, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for kind in kinds
    ]
    try:
        yield
    finally:
        for process in started:
            said, _ = process.communicate("stop\n", timeout=120)
            for name, rows in json.loads(said).items():
                answers[name] += rows


class _Unix(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        """See http.client."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self._path)


def look(path: str, port: str, kind: str) -> None:
    """One observer, until a line comes in: ask as it does, and print what came of it."""
    os.nice(19)
    by_unix = kind == "top"
    api: http.client.HTTPConnection = _Unix(path) if by_unix else http.client.HTTPConnection("127.0.0.1", int(port))
    rows: dict[str, list[tuple[float, int, int]]] = defaultdict(list)
    due = {asked: time.monotonic() for asked, _ in ASKED[kind]}
    every = dict(ASKED[kind])
    while True:
        asked = min(due, key=lambda name: due[name])
        if select.select([sys.stdin], [], [], max(0.0, due[asked] - time.monotonic()))[0]:
            break
        now_s = time.time()
        target = f"{asked}?since={now_s - 3600:.0f}&until={now_s:.0f}&step=60" if asked == "/v1/history" else asked
        begun_s = time.perf_counter()
        try:
            api.request("GET", target, headers={"Accept-Encoding": "" if by_unix else "gzip"})
            answer = api.getresponse()
            size, code = len(answer.read()), answer.status
        except (OSError, http.client.HTTPException):
            size, code = 0, 0
            api.close()
        rows[f"{kind} {asked.partition('?')[0]}"].append((time.perf_counter() - begun_s, code, size))
        due[asked] = max(due[asked] + every[asked], time.monotonic())
    print(json.dumps(rows))


def compared(alone: list[Round], looked_at: list[Round], figure: Callable[[Round], float]) -> dict[str, float]:
    """By how much a figure grows, of each round against the one beside it: median, least and most."""
    pairs = [figure(one) / figure(other) - 1 for one, other in zip(looked_at, alone, strict=True)]
    return {"median": statistics.median(pairs), "least": min(pairs), "most": max(pairs)}


def _told(rounds: list[Round]) -> dict[str, Any]:
    whole = [tick for each in rounds for tick in each.whole]
    taken = [taken for each in rounds for _, taken in each.ticks]
    light = [wait for each in rounds for wait in each.light]
    return {
        "ticks": len(whole),
        "tick_s": _spread(whole),
        "taken_in_s": _spread(taken),
        "light_request_s": _spread(light),
        "cpu_a_tick_s": statistics.median(each.cpu_s for each in rounds),
        "median_tick_by_round_s": [round(statistics.median(each.whole), 4) for each in rounds],
        "cpu_a_tick_by_round_s": [round(each.cpu_s, 4) for each in rounds],
        "samples": [[{"read_s": read, "taken_s": taken} for read, taken in each.ticks] for each in rounds],
    }


def _spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values) or [0.0]
    return {"median": ordered[len(ordered) // 2], "p90": ordered[int(0.9 * (len(ordered) - 1))], "most": ordered[-1]}


def _answered(rows: list[tuple[float, int, int]]) -> dict[str, Any]:
    good = [row for row in rows if row[1] == 200]
    times_s = sorted(row[0] for row in good) or [0.0]
    return {
        "asked": len(rows),
        "answered": len(good),
        "statuses": sorted({row[1] for row in rows}),
        "median_s": times_s[len(times_s) // 2],
        "most_s": times_s[-1],
        "bytes": max((row[2] for row in good), default=0),
    }


def _logged(site: SandboxSite) -> list[tuple[float, float]]:
    return [(float(read), float(taken)) for read, taken in _TICK.findall(site.log_path.read_text())]


def _wait(site: SandboxSite, more: int) -> None:
    count = len(_logged(site)) + more
    deadline_s = time.monotonic() + 60.0 + 10.0 * more
    while len(_logged(site)) < count:
        if time.monotonic() > deadline_s or site.daemon_pid is None:
            raise SystemExit(f"scale.observers: the daemon does not tick\n{site.log_path.read_text()[-2000:]}")
        time.sleep(0.1)


def _settle(site: SandboxSite, drivers: Drivers, log: Callable[[str], None]) -> None:
    """Wait until the idle nodes are lent, or three minutes."""
    deadline_s, calm, held = time.monotonic() + 180.0, 0, -1
    while calm < _SETTLED and time.monotonic() < deadline_s:
        _wait(site, 3)
        calm = calm + 1 if drivers.working == held and held else 0
        held = drivers.working
    log(f"{held} nodes are lent")


def table(result: Any) -> str:
    """The rows in Markdown."""
    both = [result[name] for name in ("alone", "looked_at")]
    growth, cpu = result["growth"], result["growth_of_processor_time"]
    rows = [
        ("what", "alone", "observed", "bound"),
        ("---",) * 4,
        (
            "a tick, read and taken in: median, p90",
            *(f"{each['tick_s']['median']:.2f} s, {each['tick_s']['p90']:.2f} s" for each in both),
            "",
        ),
        (
            "growth of a round's median against the round beside it: median, least, most",
            "",
            _growth(growth),
            f"{BOUND:.0%}{', **missed**' if growth['median'] > BOUND else ''}",
        ),
        (
            "taken in: median, most",
            *(f"{each['taken_in_s']['median']:.3f} s, {each['taken_in_s']['most']:.3f} s" for each in both),
            "",
        ),
        ("a light request: median", *(f"{1e3 * each['light_request_s']['median']:.1f} ms" for each in both), ""),
        ("growth of the daemon's processor time a tick: median, least, most", "", _growth(cpu), ""),
        *(
            (
                f"answers to `{name}`: median, size",
                "",
                f"{1e3 * row['median_s']:.0f} ms, {row['bytes'] / 1e3:.0f} kB",
                "",
            )
            for name, row in result["answers"].items()
        ),
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _growth(found: Mapping[str, float]) -> str:
    return ", ".join(signed(found[name], 1) for name in ("median", "least", "most"))


EVIDENCE = {
    "observers": Benchmark(("benchmarks.scale.observers", "--rounds", "4", "--ticks", "12"), 9.0, {"table": table})
}


def main() -> None:
    """Measure, and print a table, or JSON alone with --json."""
    if sys.argv[1:2] == ["--look"]:
        look(*sys.argv[2:5])
        return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--jobs", type=int, default=5_000)
    parser.add_argument("--trainers", type=int, default=100)
    parser.add_argument("--tops", type=int, default=1, help="screens of bft top")
    parser.add_argument("--pages", type=int, default=1, help="browsers on the web page")
    parser.add_argument("--rounds", type=int, default=8, help="rounds of each kind")
    parser.add_argument("--ticks", type=int, default=20, help="polls in a round")
    parser.add_argument("--quick", action="store_true", help="a small cluster and short rounds, to see that it runs")
    parser.add_argument("--json", action="store_true", help="print only the JSON")
    options = parser.parse_args()
    if options.quick:
        options.nodes, options.jobs, options.trainers, options.rounds, options.ticks = 200, 100, 4, 2, 3
    if options.nodes < SMALLEST:
        parser.error(f"--nodes is at least {SMALLEST}")
    result = measure(options, lambda text: print(text, file=sys.stderr, flush=True))
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(table(result))


if __name__ == "__main__":
    main()
