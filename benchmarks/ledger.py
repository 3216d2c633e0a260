"""The ledger after months of uptime: its size, the time of a step and of its upkeep, and the time of a start.

    python -m benchmarks.ledger [--months N] [--trainers N] [--step S] [--folder DIR] [--json]
    python -m benchmarks.ledger --migrate ROWS [--folder DIR] [--json]

The real ledger is written in simulated time: each trainer reports progress, its node-seconds are charged, every two
minutes one of them is resized, and every minute the pool changes. A step stands for --step seconds, in which a ledger
thins what drivers report every second to one row; an hour at its end is written second by second, to see that it does.
With --migrate, a ledger of the version before is made with so many reports of progress, and opened.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.evidence.model import Benchmark
from benchmarks.markdown import Measured, measured
from bftd.config.keys import Config
from bftd.core.model.decisions import Noted
from bftd.core.model.domain import (
    Action,
    Charged,
    Decided,
    Happened,
    Lease,
    LeaseChanged,
    NodeUsage,
    State,
    Trainer,
    UsageShare,
)
from bftd.core.scaling.learning import given
from bftd.ledger.file import Ledger
from bftd.protocol.registration import Registration
from bftd.protocol.reports import ProgressReport, ResizeReport
from bftd.protocol.sizes import Sizes
from bftd.service.service import Service

MONTH_S = 30 * 86400.0
DAY_S = 86400.0
BEGIN_S = 1_700_000_000.0
NODES_EACH = 8
POOL_EVERY_S = 60.0
RESIZE_EVERY_S = 120.0
ROWS_AN_HOUR, START_S, MIGRATION_S = 60, 5.0, 90.0
# The tables of the version before this one, for --migrate.
_BEFORE = Path(__file__).parents[1] / "tests" / "bftd" / "ledger" / "assets" / "ledger-3.sql"


class Site:
    """Trainers that report, and the steps that follow from it; each is written to the ledger."""

    def __init__(self, ledger: Ledger, trainers: int) -> None:
        self.ledger = ledger
        requests = [
            Registration(str(number), f"train-{number}", "torchrun", Sizes(1, 64), f"user{number % 4}", "elastic")
            for number in range(trainers)
        ]
        made = {item.id: Trainer(item, BEGIN_S, given(item), state="running", account="acc") for item in requests}
        leases = {
            f"n{number}.{number}": Lease(
                f"n{number}.{number}", f"n{number}", str(number // NODES_EACH), BEGIN_S, 3600.0, "benchmark", "", 4,
                "working", str(number), BEGIN_S, observed=True,
            )
            for number in range(trainers * NODES_EACH)
        }  # fmt: skip
        self.state = State(time_s=BEGIN_S, trainers=made, leases=leases)
        self.took_s: dict[str, list[float]] = {"step": [], "upkeep": []}
        self.ledger.save(State(), self.state, [])

    def step(self, passed_s: float) -> None:
        """All that happens in so many seconds, as one step, and the upkeep behind it."""
        now_s = self.state.time_s + passed_s
        number = int(now_s - BEGIN_S)
        trainers, actions = {}, list(self._elsewhere(now_s, passed_s))
        for id_, trainer in self.state.trainers.items():
            report = ProgressReport(now_s, number, 64.0 * number, 1234.5678, NODES_EACH, 32, 2.345678, 0, 1.0)
            trainers[id_] = replace(trainer, step=report.step, samples=report.samples, heard_s=now_s)
            actions.append(Happened("progress", id_, None, report.about))
        used_s = passed_s * len(self.state.leases)
        users = sorted({trainer.user for trainer in trainers.values()})
        actions.append(Charged(tuple(UsageShare(user, "acc", used_s / len(users), 0.0, 0.0) for user in users)))
        usage = NodeUsage(*(value + used_s for value in (self.state.usage.used_node_seconds,) * 3))
        after = replace(self.state, time_s=now_s, trainers=trainers, usage=usage)
        with self._timed("step"):
            self.ledger.save(self.state, after, actions)
        self.state = after
        with self._timed("upkeep"):
            self.ledger.maintain(now_s)

    def _elsewhere(self, now_s: float, passed_s: float) -> Iterator[Action]:
        """A change of the pool, and a resize of one trainer with all that is written down about it."""
        before_s = now_s - passed_s
        if now_s // POOL_EVERY_S > before_s // POOL_EVERY_S:
            yield Happened("pool", None, None, {"version": int(now_s), "joined": ["n1", "n2"], "left": ["n3"]})
        if now_s // RESIZE_EVERY_S > before_s // RESIZE_EVERY_S:
            turn = int(now_s // RESIZE_EVERY_S)
            lease = list(self.state.leases.values())[turn % len(self.state.leases)]
            for kind in ("revoked", "ended", "granted"):
                yield LeaseChanged(kind, lease, "its node is needed elsewhere")
            yield Happened("resize", lease.trainer, None, ResizeReport(now_s, 7, 8, "up", 3.21).about)
            yield Decided(lease.trainer, Noted("train", "it grows by one node, n17: 10 % more samples/s expected"))

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        begun_s = time.perf_counter()
        yield
        self.took_s[what].append(time.perf_counter() - begun_s)


def files_bytes(path: Path) -> int:
    """The ledger with all that is beside it."""
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


def started_s(path: Path, now_s: float) -> float:
    """How long a daemon takes from opening the ledger to its first answer."""
    begun_s = time.perf_counter()
    service = Service(Config(), Ledger(path), lambda job_ids: None, lambda: now_s)
    service.overview("benchmark")
    took_s = time.perf_counter() - begun_s
    service.ledger.close()
    return took_s


def months(path: Path, count: float, trainers: int, step_s: float) -> dict[str, Any]:
    """Run for so many months; returns sizes, times and what a start takes after a stop and after a kill."""
    begun_s, sizes = time.perf_counter(), []
    with closing(Ledger(path)) as ledger:
        site = Site(ledger, trainers)
        for number in range(round(count * MONTH_S / step_s)):
            site.step(step_s)
            if number * step_s // DAY_S < (number + 1) * step_s // DAY_S:
                sizes.append(files_bytes(path))
        events = len(ledger.events(0, 10**9))
        last = ledger.events(0, 10**9)[-1]["rowid"]
        for _ in range(3600):
            site.step(1.0)
        hour = [event for event in ledger.events(last, 10**6) if event["kind"] == "progress"]
        killed = path.with_name("killed")
        for name in ("", "-wal"):
            shutil.copy(f"{path}{name}", f"{killed}{name}")
        now_s = site.state.time_s
    return {
        "months": count,
        "trainers": trainers,
        "events": events,
        "bytes_most": max(sizes, default=0),
        "bytes_last": files_bytes(path),
        "bytes_by_day": sizes,
        "progress_rows_per_trainer_in_an_hour_of_seconds": len(hour) / trainers,
        "step_ms": _spread(site.took_s["step"]),
        "upkeep_ms": _spread(site.took_s["upkeep"]),
        "start_s": started_s(path, now_s),
        "start_after_kill_s": started_s(killed, now_s),
        "took_s": time.perf_counter() - begun_s,
    }


def migrate(path: Path, rows: int) -> dict[str, Any]:
    """Open a ledger of the version before with so many reports, one a second each of ten trainers."""
    report = ProgressReport(BEGIN_S, 123456, 7901184.0, 1234.5678, 8, 32, 2.345678, 0, 1.0)
    data = json.dumps(report.about)
    with closing(sqlite3.connect(path)) as database:
        database.executescript(_BEFORE.read_text())
        with database:
            database.executemany(
                "INSERT INTO events (at_s, kind, trainer, data) VALUES (?, 'progress', ?, ?)",
                ((BEGIN_S + row / 10, str(row % 10), data) for row in range(rows)),
            )
    before = files_bytes(path)
    took_s = started_s(path, BEGIN_S + rows / 10)
    with closing(sqlite3.connect(path)) as database:
        (kept,) = database.execute("SELECT count(*) FROM events").fetchone()
    return {"rows": rows, "bytes": before, "start_s": took_s, "rows_after": kept, "bytes_after": files_bytes(path)}


def _spread(took_s: Sequence[float]) -> Mapping[str, float]:
    ordered = sorted(took_s)
    return {
        "p50": 1e3 * ordered[len(ordered) // 2],
        "p99": 1e3 * ordered[int(0.99 * (len(ordered) - 1))],
        "max": 1e3 * ordered[-1],
    }


def table(result: Any) -> str:
    """The rows in Markdown."""
    return _migration_table(result) if "rows" in result else _months_table(result)


def _months_table(result: Mapping[str, Any]) -> str:
    sizes = result["bytes_by_day"]
    step, upkeep = result["step_ms"], result["upkeep_ms"]
    rows_an_hour = result["progress_rows_per_trainer_in_an_hour_of_seconds"]
    starts_s = (result["start_s"], result["start_after_kill_s"])
    return measured(
        (
            Measured(
                f"size on day 30, on the last of {len(sizes)}",
                f"{sizes[29] / 1e6:.1f} MB, {sizes[-1] / 1e6:.1f} MB" if len(sizes) > 29 else "-",
                "bounded",
            ),
            Measured("events", f"{result['events']:,}"),
            Measured(
                "rows of progress that a trainer leaves in an hour of seconds",
                f"{rows_an_hour:.0f}",
                f"{ROWS_AN_HOUR}",
                rows_an_hour > ROWS_AN_HOUR + 1,
            ),
            Measured(
                "from opening it to the first answer: after a stop, after a kill",
                ", ".join(f"{each:.2f} s" for each in starts_s),
                f"{START_S:.0f} s",
                max(starts_s) > START_S,
            ),
            Measured(f"one step of {result['trainers']} trainers written, median", f"{step['p50']:.1f} ms"),
            Measured("upkeep of a second: median, p99", f"{upkeep['p50']:.1f} ms, {upkeep['p99']:.1f} ms"),
        )
    )


def _migration_table(result: Mapping[str, Any]) -> str:
    what = f"upgrading a ledger of the version before: {result['bytes'] / 1e6:.0f} MB, {result['rows']:,} reports"
    took_s = result["start_s"]
    return measured((Measured(what, f"{took_s:.1f} s", f"{MIGRATION_S:.0f} s", took_s > MIGRATION_S),))


EVIDENCE = {
    "ledger": Benchmark(("benchmarks.ledger", "--step", "300"), 3.0, {"table": table}),
    "ledger_migration": Benchmark(("benchmarks.ledger", "--migrate", "4000000"), 1.0, {"table": table}),
}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--months", type=float, default=6.0)
    parser.add_argument("--trainers", type=int, default=10)
    parser.add_argument(
        "--step", type=float, default=60.0, metavar="S", help="simulated seconds that a step stands for"
    )
    parser.add_argument("--migrate", type=int, metavar="ROWS", help="bring a ledger of the version before up to date")
    parser.add_argument("--folder", metavar="DIR", help="where to write: the disk that is measured")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "ledger.sqlite"
        if options.migrate is not None:
            told = migrate(path, options.migrate)
        else:
            told = months(path, options.months, options.trainers, options.step)
    if options.json:
        print(json.dumps(told, indent=2))
        return
    print(table(told))


if __name__ == "__main__":
    main()
