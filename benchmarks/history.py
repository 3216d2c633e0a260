"""The cost of history: a sample, its write and its upkeep on the loop; the windows, an answer and the bytes beside it.

    python -m benchmarks.history [--nodes N] [--trainers N] [--days N] [--folder DIR] [--json]

A month of records of a large site is written in simulated time, with the upkeep that the daemon does, and then a last
hour by the daemon's own code. What the loop does is told in processor time, the rest by the clock. Every trainer holds
nodes all the time, and every tenth is another each day.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from benchmarks import markdown
from benchmarks.evidence.model import Benchmark
from benchmarks.markdown import Measured
from bftd.core.model.domain import Lease, NodeUsage, PoolNode, PoolView, State, Trainer
from bftd.core.sampling import sample
from bftd.core.scaling.learning import given
from bftd.http.encoding import encoded
from bftd.ledger import rolling
from bftd.ledger.file import Ledger
from bftd.ledger.history import query, table
from bftd.ledger.history.recorder import EVERY_S, HistoryRecorder
from bftd.ledger.history.table import PoolRecord, TrainerIdentity, TrainerRecord
from bftd.ledger.reader import LedgerReader
from bftd.protocol.registration import Registration
from bftd.protocol.sizes import Sizes

BEGIN_S = 1_700_000_000 // 86_400 * 86_400
DAY_S = 86_400
MONTH_BYTES, SAMPLE_MS = 50e6, 3.0
_T = TypeVar("_T")


def site(nodes: int, trainers: int, day: int, at_s: float) -> State:
    """A cluster of which half is lent, a quarter runs jobs and the rest is idle, and its trainers of one day."""
    rng = random.Random(day // 10)
    names = [f"n{number}" for number in range(nodes)]
    there = {}
    for place, name in enumerate(names):
        busy = place % 4 == 3
        there[name] = PoolNode(name, "ALLOCATED" if busy else "IDLE", not busy, "is idle", wanted=busy)
    made = {}
    for number in range(trainers):
        id_ = str(1000 + number + (trainers * day if number % 10 == 0 else 0))
        rate = rng.uniform(50.0, 500.0)
        curve = tuple((2**power, rate * 2 ** (power * rng.uniform(0.7, 0.95))) for power in range(7))
        asked = Registration(id_, f"train-{number}", "torchrun", Sizes(1, 64), f"user{number % 20}", curve=curve)
        samples = rate * (at_s - BEGIN_S)
        made[id_] = Trainer(
            asked, BEGIN_S, given(asked), state="running", samples=samples, step=int(samples), samples_per_s=rate
        )
    ids, leases = list(made), {}
    for place in range(0, nodes // 2 if trainers else 0):
        name = names[place // 3 * 4 + place % 3]
        lease = Lease(f"{name}.1", name, ids[place % len(ids)], BEGIN_S, 3600.0, "", phase="working", observed=True)
        leases[lease.id] = lease
    passed_s = at_s - BEGIN_S
    usage = NodeUsage(passed_s * nodes * 0.75, passed_s * nodes * 0.5, passed_s * nodes * 0.5)
    return State(time_s=at_s, pool=PoolView(1, at_s, nodes=there), trainers=made, leases=leases, usage=usage)


def month(ledger: Ledger, nodes: int, trainers: int, days: int) -> list[float]:
    """Write records of so many days; returns how long each upkeep took, in seconds."""
    took_s = []
    for day in range(days):
        state = site(nodes, trainers, day, BEGIN_S + day * DAY_S)
        taken = sample(state)
        named = [
            TrainerIdentity(item.id, item.name, item.user, rolling.curve_of(item)) for item in state.trainers.values()
        ]
        points = [
            TrainerRecord(id_, point.working, point.leased, point.samples_per_s * 1.0003, 1, 1.0, 1.0, 1.0)
            for id_, point in taken.trainers.items()
        ]
        for minute in range(1, DAY_S // EVERY_S + 1):
            at_s = BEGIN_S + day * DAY_S + minute * EVERY_S
            gained = [
                replace(point, step=minute, samples=at_s * 1.1, gained=point.samples_per_s * EVERY_S)
                for point in points
            ]
            pool_s = 0.75 * nodes * EVERY_S
            record = PoolRecord(at_s, EVERY_S, taken.nodes, pool_s, 0.5 * nodes * EVERY_S, 0.0, tuple(gained))
            new = named if minute == 1 else []
            ledger.write(partial(table.add, records=[record], named=new))
            begun_s = time.thread_time()
            ledger.write(partial(table.tidy, now_s=at_s, points_most=table.ROWS_MOST))
            took_s.append(time.thread_time() - begun_s)
        ledger.maintain(at_s)
    return took_s


def measured(path: Path, nodes: int, trainers: int, days: int) -> dict[str, Any]:
    """All figures."""
    with closing(Ledger(path)) as ledger:
        upkeep_s = month(ledger, nodes, trainers, days)
        end_s = BEGIN_S + days * DAY_S
        state = site(nodes, trainers, days - 1, end_s)
        history = HistoryRecorder(ledger, state)
        samples_s, notes_s = [], []
        for minute in range(1, 61):
            at_s = float(end_s + minute * EVERY_S)
            state = replace(site(nodes, trainers, days - 1, at_s), usage=NodeUsage(at_s, at_s, at_s))
            samples_s.append(timed(partial(sample, state), time.thread_time)[1])
            history.settle()
            notes_s.append(timed(partial(history.note, state), time.thread_time)[1])
        history.settle()
        aims = rolling.Aims("efficiency", 10, False)
        reader = LedgerReader(path)
        first_s = timed(lambda: rolling.reckoned(reader, int(at_s), aims))[1]
        again_s = timed(lambda: rolling.reckoned(reader, int(at_s), aims))[1]
        answers = {}
        for name, length_s, step_s, with_trainers in (
            ("day", DAY_S, None, True),
            ("month", 30 * DAY_S, None, True),
            ("month_without_trainers", 30 * DAY_S, 3600.0, False),
        ):
            asked = query.HistoryRequest(at_s - length_s, at_s, at_s, step_s, with_trainers)
            body, took = timed(lambda request=asked: encoded(query.read(reader, request)))  # type: ignore[misc]
            answers[name] = {"s": took, "bytes": len(body)}
        ledger.read(lambda db: db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())
        (rows,) = ledger.read(lambda db: db.execute("SELECT count(*) FROM history_points").fetchone())
    return {
        "nodes": nodes,
        "trainers": trainers,
        "days": days,
        "bytes": path.stat().st_size,
        "points": rows,
        "bytes_an_hour_of_minutes": hour_bytes(path.with_name("hour"), nodes, trainers),
        "sample_ms": spread(samples_s),
        "sample_and_write_ms": spread(notes_s),
        "upkeep_ms": spread(upkeep_s),
        "windows_s": {"first": first_s, "again": again_s},
        "answers": answers,
    }


def hour_bytes(path: Path, nodes: int, trainers: int) -> int:
    """By how much an hour of records makes a ledger larger."""
    with closing(Ledger(path)) as ledger:
        history = HistoryRecorder(ledger, State())
        sizes = []
        for minute in range(121):
            history.note(site(nodes, trainers, 0, BEGIN_S + minute * EVERY_S))
            if minute in (60, 120):
                history.settle()
                ledger.read(lambda db: db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())
                sizes.append(path.stat().st_size)
    return sizes[1] - sizes[0]


def timed(work: Callable[[], _T], clock: Callable[[], float] = time.perf_counter) -> tuple[_T, float]:
    """What it returns, and the seconds that it took."""
    begun_s = clock()
    found = work()
    return found, clock() - begun_s


def spread(took_s: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum in milliseconds."""
    ordered = sorted(took_s)
    return {
        "p50": 1e3 * ordered[len(ordered) // 2],
        "p99": 1e3 * ordered[int(0.99 * (len(ordered) - 1))],
        "max": 1e3 * ordered[-1],
    }


def rows_of(result: Mapping[str, Any]) -> str:
    """The rows in Markdown."""
    sample_, note, upkeep = result["sample_ms"], result["sample_and_write_ms"], result["upkeep_ms"]
    answers = {
        name: f"{answer['s']:.2f} s, {answer['bytes'] / 1e6:.1f} MB" for name, answer in result["answers"].items()
    }
    size = result["bytes"]
    return markdown.measured(
        (
            Measured(
                f"size of the ledger after {result['days']} days, {result['points']:,} rows of trainers",
                f"{size / 1e6:.1f} MB",
                f"{MONTH_BYTES / 1e6:.0f} MB",
                size > MONTH_BYTES,
            ),
            Measured("its growth in an hour", f"{result['bytes_an_hour_of_minutes'] / 1e6:.2f} MB"),
            Measured(
                "a sample, processor time: median, most of 60",
                f"{sample_['p50']:.1f} ms, {sample_['max']:.1f} ms",
                f"{SAMPLE_MS:.0f} ms",
                sample_["max"] > SAMPLE_MS,
            ),
            Measured("the same and its write", f"{note['p50']:.1f} ms, {note['max']:.1f} ms"),
            Measured(
                "upkeep of a minute, processor time: median, p99, most",
                f"{upkeep['p50']:.1f} ms, {upkeep['p99']:.1f} ms, {upkeep['max']:.1f} ms",
            ),
            Measured("the three windows, in a thread", f"{result['windows_s']['again']:.2f} s"),
            Measured("an answer of a day with all trainers, in a thread", answers["day"]),
            Measured("of a month with all trainers", answers["month"]),
            Measured("of a month without them, by the hour", answers["month_without_trainers"]),
        )
    )


EVIDENCE = {"history": Benchmark(("benchmarks.history",), 6.0, {"table": rows_of})}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--trainers", type=int, default=100)
    parser.add_argument("--days", type=int, default=31)
    parser.add_argument("--folder", metavar="DIR", help="where to write: the disk that is measured")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        told = measured(Path(folder) / "ledger.sqlite", options.nodes, options.trainers, options.days)
    if options.json:
        print(json.dumps(told, indent=2))
        return
    print(rows_of(told))


if __name__ == "__main__":
    main()
