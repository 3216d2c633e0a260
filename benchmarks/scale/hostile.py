"""Ten hostile users of the daemon's host against its API, while one user trains: who is served, and what it costs.

    python -m benchmarks.scale.hostile [--seconds N] [--trainers N] [--leases N] [--json]

As root: each user is a process with a uid of its own, on the daemon's unix socket. The daemon is a process with the
real API, core and ledger (`benchmarks.scale.daemon`), what the users do is `benchmarks.scale.users`.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.evidence.model import Benchmark
from benchmarks.markdown import Measured, measured, percent
from benchmarks.scale.daemon import spread
from benchmarks.scale.users import WAYS
from bftd.ledger.history.quota import BYTES_A_DAY

FIRST_UID = 61_000
BOUND_MS = 20.0
# What a row of the ledger takes beside its data, about.
_ROW_BYTES = 120
_DAY_S = 86_400.0


def measure(seconds: float, trainers: int, leases: int) -> dict[str, Any]:
    """Run all users at once; times are milliseconds."""
    with tempfile.TemporaryDirectory(prefix="bft-hostile-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with serving(folder, trainers, leases) as daemon:
            quiet = _run(folder, ["training"], min(seconds, 5.0))["training"]
            answered = _run(folder, list(WAYS), seconds)
            daemon.terminate()
            measured = json.loads(daemon.communicate(timeout=60)[0])
        written = _written(folder / "ledger")
    good = answered.pop("training")
    return {
        "seconds": seconds,
        "bound_ms": BOUND_MS,
        "daemon": measured,
        "training": {"alone": _served(quiet), "flooded": _served(good)},
        "hostile": {way: Counter(told["statuses"]) for way, told in answered.items()},
        "ledger_bytes": written,
        # a rate of the first seconds, in which budgets are full: nobody can keep it up for a day
        "ledger_bytes_a_day_extrapolated": {
            way: written.get(str(_uid(way)), 0) / seconds * _DAY_S for way in WAYS if way != "training"
        },
        "ledger_bytes_a_day_most": 2 * BYTES_A_DAY,
    }


@contextmanager
def serving(folder: Path, trainers: int, leases: int) -> Iterator[subprocess.Popen[str]]:
    """A daemon on `folder`/socket that is ended by SIGTERM, and then prints what it has measured."""
    command = [sys.executable, "-m", "benchmarks.scale.daemon", str(folder)]
    sizes = [f"--trainers={trainers}", f"--leases={leases}"]
    with subprocess.Popen(command + sizes, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise SystemExit("the daemon did not come up")
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def _run(folder: Path, ways: list[str], seconds: float) -> dict[str, Any]:
    """What each user was answered."""
    command = [sys.executable, "-m", "benchmarks.scale.users"]
    users = {
        way: subprocess.Popen(
            [*command, way, str(folder / "socket"), str(_uid(way)), str(seconds)], stdout=subprocess.PIPE, text=True
        )
        for way in ways
    }
    try:
        return {way: json.loads(user.communicate(timeout=seconds + 60)[0]) for way, user in users.items()}
    finally:
        for user in users.values():
            if user.poll() is None:
                user.kill()
                user.wait()


def _uid(way: str) -> int:
    return FIRST_UID + list(WAYS).index(way)


def _served(told: dict[str, Any]) -> dict[str, Any]:
    statuses = Counter(told["statuses"])
    return {"asked": statuses.total(), "served": statuses["200"] / statuses.total(), "ms": spread(told["took_s"])}


def _written(ledger: Path) -> dict[str, int]:
    """Bytes of events by the uid in the ids of the trainers that they are about."""
    found: Counter[str] = Counter()
    with closing(sqlite3.connect(ledger)) as db:
        for trainer, count, size in db.execute(
            "SELECT trainer, count(*), sum(length(data)) FROM events WHERE trainer IS NOT NULL GROUP BY trainer"
        ):
            found[trainer.split("-")[1]] += size + count * _ROW_BYTES
    return dict(found)


def table(result: Any) -> str:
    """The rows in Markdown."""
    daemon, good = result["daemon"], result["training"]["flooded"]
    lag, turn, bound = daemon["loop_lag_ms"], daemon["turn_ms"], f"{BOUND_MS:.0f} ms"
    asked = sum(sum(statuses.values()) for statuses in result["hostile"].values())
    return measured(
        (
            Measured(
                "longest turn of the loop, in processor time",
                f"{turn['max_cpu']:.0f} ms",
                bound,
                turn["max_cpu"] > BOUND_MS,
            ),
            Measured("longest turn of the loop, by the clock", f"{turn['max']:.0f} ms", bound, turn["max"] > BOUND_MS),
            Measured(
                "lag of the loop: median, p99",
                f"{lag['p50']:.1f} ms, {lag['p99']:.0f} ms",
                bound,
                lag["p99"] > BOUND_MS,
            ),
            Measured("longest lag of the loop", f"{lag['max']:.0f} ms", bound, lag["max"] > BOUND_MS),
            Measured("a snapshot holds the loop: median", f"{daemon['tick_ms']['p50'] / 1e3:.2f} s"),
            Measured("answers to hostile requests", f"{asked / result['seconds']:,.0f} a second"),
            Measured(
                "requests of the user who trains that are served",
                percent(good["served"]),
                "100 %",
                good["served"] < 1.0,
            ),
            Measured("wait of that user: median, p99", f"{good['ms']['p50']:.0f} ms, {good['ms']['p99'] / 1e3:.2f} s"),
            Measured(
                "the ledger's history, a day and hostile user, at most",
                f"{result['ledger_bytes_a_day_most'] / 2**20:.0f} MiB, by its share",
            ),
            Measured("peak of the daemon's memory", f"{daemon['peak_bytes'] / 1e6:.0f} MB"),
        )
    )


EVIDENCE = {"hostile": Benchmark(("benchmarks.scale.hostile",), 2.0, {"table": table})}


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--trainers", type=int, default=1_000)
    parser.add_argument("--leases", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("run this as root: each user is a uid of its own")
    found = measure(options.seconds, options.trainers, options.leases)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(table(found))


if __name__ == "__main__":
    main()
