"""U and what was recovered, over windows: by hand, and against a replay of the same trainers on the same nodes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bftd.core.scaling.learning import ScalingModel, observe_rate
from bftd.ledger import rolling
from bftd.ledger.file import Ledger
from bftd.ledger.history import table
from bftd.ledger.history.table import PoolRecord, TrainerIdentity, TrainerRecord
from bftd.ledger.reader import LedgerReader
from bftd.ledger.rolling import Aims, RollingPeriod, curve_of, reckoned
from bftd.shadow import trainers as imaginary
from bftd.simulation.replay.loop import run
from bftd.simulation.replay.options import Options
from bftd.simulation.trace import Trace
from tests.bftd.builders import job, node, trainer
from tests.bftd.shadow.test_shadow import Site

pytestmark = pytest.mark.slow

NOW_S = 1_000_020
HALF = {"low": 1, "high": 4, "only": None, "weight": 1.0, "curve": [[0, 0.0], [1, 10.0], [4, 25.0]]}
STEEP = {"low": 2, "high": 2, "only": None, "weight": 1.0, "curve": [[0, 0.0], [2, 18.0]]}
UNKNOWN = STEEP | {"curve": None}
AIMS = Aims("throughput", 10, False)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(Ledger(tmp_path / "ledger")) as made:
        yield made


def write(ledger: Ledger, minutes: int, pool: float, made: float, curves: dict[str, Any], **shares: float) -> None:
    """The last minutes: a pool of so many nodes, and samples/s of all together. `shares` is who is there how much."""
    named = [TrainerIdentity(id_, id_, "ann", curve) for id_, curve in curves.items()]
    points = tuple(
        TrainerRecord(id_, 1.0, 1.0, 0.0, 0, 0.0, 60.0 * made / len(curves), shares.get(id_, 1.0)) for id_ in curves
    )
    first_s = NOW_S - 60 * minutes
    records = [
        PoolRecord(first_s + 60 * number, 60, {}, 60.0 * pool, 30.0 * pool, 15.0 * pool, points)
        for number in range(1, minutes + 1)
    ]
    ledger.write(lambda db: table.add(db, records, named))


def found(ledger: Ledger, aims: Aims = AIMS) -> tuple[RollingPeriod, ...]:
    return reckoned(LedgerReader(ledger.path), NOW_S, aims)


def test_U_is_what_was_made_over_what_the_best_allocation_of_as_many_nodes_makes(ledger: Ledger) -> None:
    write(ledger, 90, pool=3.0, made=14.0, curves={"a": HALF, "b": STEEP})
    hour, day, week = found(ledger)
    assert hour == RollingPeriod(3600, pytest.approx(14.0 / 28.0), 3 * 3600.0, 1.5 * 3600.0, 0.75 * 3600.0)
    assert (hour.training_share, hour.held_share) == (0.25, 0.5)
    told = hour.to_json()
    assert (told["recovered"], told["used_node_seconds"]) == (told["held_share"], told["held_node_seconds"])
    assert (day.u, day.pool_node_seconds) == (pytest.approx(0.5), 3 * 5400.0)
    assert replace(week, window_s=0) == replace(day, window_s=0)


def test_a_driver_that_makes_samples_up_does_not_make_U_say_nothing(ledger: Ledger) -> None:
    write(ledger, 60, pool=3.0, made=14.0, curves={"a": HALF, "b": STEEP})
    write(ledger, 1, pool=3.0, made=1e15, curves={"a": HALF, "b": STEEP})
    assert found(ledger)[0].u == pytest.approx((59 * 14.0 + 2 * (25.0 + 18.0)) / 60 / 28.0)


def test_of_a_pool_that_changes_as_many_nodes_as_its_mean_are_dedicated(ledger: Ledger) -> None:
    write(ledger, 60, pool=2.0, made=18.0, curves={"a": HALF, "b": STEEP})
    write(ledger, 30, pool=4.0, made=30.0, curves={"a": HALF, "b": STEEP})
    assert found(ledger)[0].u == pytest.approx((18.0 + 30.0) / 2 / 28.0)  # on 2 and on 4 nodes all was as it can be


def test_a_trainer_counts_for_the_time_in_which_it_was_there(ledger: Ledger) -> None:
    write(ledger, 60, pool=2.0, made=15.0, curves={"a": HALF})
    write(ledger, 30, pool=2.0, made=18.0, curves={"b": STEEP})
    assert found(ledger)[0].u == pytest.approx(1.0)
    write(ledger, 60, pool=2.0, made=15.0, curves={"a": HALF, "b": STEEP}, b=0.0)
    assert found(ledger)[0].u == pytest.approx(1.0), "who has finished is not there"


def test_no_more_trainers_are_dedicated_nodes_to_than_are_planned_for_at_once(ledger: Ledger) -> None:
    write(ledger, 60, pool=6.0, made=25.0, curves={"a": HALF, "b": STEEP})
    assert found(ledger, replace(AIMS, pj_max=1))[0].u == pytest.approx(1.0)


def test_without_curves_there_is_no_U_and_time_of_which_they_are_not_known_is_left_out(ledger: Ledger) -> None:
    assert [window.u for window in found(ledger)] == [None, None, None]
    assert (found(ledger)[0].training_share, found(ledger)[0].held_share) == (None, None)
    write(ledger, 60, pool=2.0, made=15.0, curves={"a": HALF})
    write(ledger, 20, pool=2.0, made=99.0, curves={"a": HALF, "b": UNKNOWN})
    assert found(ledger)[0].u == pytest.approx(1.0)
    write(ledger, 40, pool=2.0, made=99.0, curves={"a": HALF, "b": UNKNOWN})
    assert found(ledger)[0].u is None


def test_a_curve_that_nobody_told_and_nobody_measured_is_not_known() -> None:
    fresh = trainer("1", nodes_max=8)
    assert curve_of(fresh)["curve"] is None
    learned = curve_of(replace(fresh, knowledge=observe_rate(ScalingModel(), 2, 20.0)))
    assert (2, 20.0) in learned["curve"]


def test_a_part_of_a_window_is_looked_at_once(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    write(ledger, 1440, pool=2.0, made=15.0, curves={"a": HALF})
    looked: list[int] = []
    there = rolling._there
    monkeypatch.setattr(rolling, "_there", lambda db, at_s, most: looked.append(at_s) or there(db, at_s, most))
    found(ledger)
    assert len(looked) <= 3 * (rolling.PARTS + 1)


NAMES = [f"n{number}" for number in range(1, 13)]
HOURS = 1


def changes(seed: int) -> list[tuple[float, int, bool]]:
    """When which node becomes idle or busy, every ten minutes on the average."""
    rng, rows = random.Random(seed), []
    for place in range(len(NAMES)):
        at_s, idle = 0.0, rng.random() < 0.5
        if idle:
            rows.append((0.0, place, True))
        while (at_s := at_s + 10.0 * round(rng.expovariate(1 / 60.0) + 1)) < HOURS * 3600:
            idle = not idle
            rows.append((at_s, place, idle))
    return sorted(rows, key=lambda row: row[0])


def replayed(rows: Sequence[tuple[float, int, bool]], trainers: Sequence[Any]) -> float:
    times_s, nodes, idle = zip(*rows, strict=True)
    trace = Trace(tuple(NAMES), np.array(times_s), np.array(nodes, np.int32), np.array(idle), HOURS * 3600.0)
    options = Options(pj_max=10, objective="throughput", rescale_model="measured", endless=True)
    return run(trace, trainers, options).efficiency


def lived(rows: Sequence[tuple[float, int, bool]], path: Path) -> tuple[RollingPeriod, ...]:
    """The same changes as a live service sees them, at polls."""
    site, idle, changed = Site(path), set(), 0
    for at_s in range(0, HOURS * 3600 + 1, 10):
        while changed < len(rows) and rows[changed][0] <= at_s:
            _, place, joins = rows[changed]
            (idle.add if joins else idle.discard)(NAMES[place])
            changed += 1
        jobs = [job(f"5{name[1:]}", "RUNNING", nodes=(name,)) for name in NAMES if name not in idle]
        site.see([node(name, "IDLE" if name in idle else "ALLOCATED") for name in NAMES], jobs, 10.0)
    site.service.stop()
    site.service.history.settle()
    site.service.ledger.close()
    return site.service.windows()


# A live pool is seen at polls and lent from the second poll on; and a minute's progress may not be told yet.
TOLERANCE = 0.035


@pytest.mark.parametrize("seed", [1])
def test_the_live_U_is_that_of_a_replay_of_the_same_changes(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # none of them ends: on dedicated nodes those that come next would take their places sooner
    trainers = tuple(replace(item, work_samples=1e12) for item in imaginary.NETWORKS)
    monkeypatch.setattr(imaginary, "NETWORKS", trainers)
    rows = changes(seed)
    expected = replayed(rows, trainers)
    _, day, _ = lived(rows, tmp_path / "ledger")
    assert day.u is not None
    assert expected - TOLERANCE < day.u < expected
    assert 0.5 < expected < 0.99
