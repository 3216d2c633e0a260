"""The replay with trainers' speed unknown, guessed and known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.curves.estimates import EVIDENCE, compare, level_of, replayed
from bftd.simulation.drivers.trainers import SimTrainer
from bftd.simulation.replay import Options
from bftd.simulation.trace import Trace

pytestmark = pytest.mark.slow

NODES = 12
STEEP = ((0, 0.0), (1, 100.0), (4, 380.0), (12, 1000.0))
FLAT = ((0, 0.0), (1, 1.0), (4, 1.5), (12, 1.6))


def trace(hours: float = 1.0) -> Trace:
    """All nodes but the last four are idle all the time; those come and go every ten minutes."""
    times, node, idle = [0.0] * NODES, list(range(NODES)), [True] * NODES
    for change in range(1, int(hours * 6)):
        times += [change * 600.0] * 4
        node += range(8, 12)
        idle += [change % 2 == 0] * 4
    names = tuple(map(str, range(NODES)))
    return Trace(names, np.array(times), np.array(node, np.int32), np.array(idle), hours * 3600.0, "made up")


def trainers() -> list[SimTrainer]:
    costs = {"up_cost_s": 2.0, "down_cost_s": 1.0}
    return [
        SimTrainer(f"J{number}-{name}", 1, 12, 1e9, curve, curve, **costs)
        for number, (name, curve) in enumerate((("flat", FLAT), ("steep", STEEP)))
    ]


OPTIONS = Options(pj_max=2, objective="throughput")


def test_a_guess_without_error_is_worth_as_much_as_knowing() -> None:
    known, guessed = (
        replayed(trace(), trainers(), OPTIONS, knows, 0.0, 0.0, 0)["samples"] for knows in ("known", "guessed")
    )
    assert guessed == pytest.approx(known, rel=0.01)


def test_knowing_nothing_costs_samples_and_a_guess_saves_some_of_them() -> None:
    found = compare(trace(), trainers(), OPTIONS, "samples", 0.35, (0.05,), 2)
    assert found["unknown_below_known"] > 0.05, "at first the two are taken for alike"
    [guessed] = found["guessed"]
    assert guessed["below_known"] < 0.5 * found["unknown_below_known"]
    assert guessed["saved"] == pytest.approx(1 - guessed["below_known"] / found["unknown_below_known"])
    figures = EVIDENCE["curve_estimates"].figures({"lists": {"throughput": found}})
    low, high = figures["throughput.0.05.saved"].interval or (1.0, 0.0)
    assert low <= guessed["saved"] <= high


def test_the_level_of_error_is_that_of_the_measured_cases() -> None:
    cases = [{"estimated_s": 1.1, "real_s": 1.0}, {"estimated_s": 1.0, "real_s": 1.1}, {"case": "not run"}]
    assert level_of({"rows": cases}) == pytest.approx(math.log(1.1))
    with pytest.raises(ValueError, match="no two rows"):
        level_of({"rows": cases[2:]})
