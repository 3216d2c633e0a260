"""The regret of curves that are learned, on a pool of a few nodes for a few minutes."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks.curves import learning

pytestmark = pytest.mark.slow

HOURS = 0.1


def test_each_pool_has_its_regret_over_all_seeds_and_how_long_a_first_node_took(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--pools", "3,4", "--trainers", "2", "--seeds", "7:9"]
    asked = ["--hours", str(HOURS), "--week-hours", "0", *sizes, "--json"]
    monkeypatch.setattr(sys, "argv", ["curves_learned", *asked])
    learning.main()
    found = json.loads(capsys.readouterr().out)
    assert (found["hours"], found["objective"], found["seeds"], found["summit"]) == (HOURS, "efficiency", "7:9", [])
    assert [(row["nodes"], row["trainers"], len(row["runs"])) for row in found["quiet"]] == [(3, 2, 2), (4, 2, 2)]
    for row in found["quiet"]:
        for run in row["runs"]:
            assert run.keys() == {"regret", "regret_first_hour", "first_node_s", "first_node_known_s"}
            assert max(run["regret"], run["regret_first_hour"]) < 1.0
            assert 0.0 <= run["first_node_s"] <= 60.0
        regrets = [run["regret"] for run in row["runs"]]
        assert row["regret"] == {"median": pytest.approx(sum(regrets) / 2), "least": min(regrets), "most": max(regrets)}


def test_curves_that_are_known_are_no_regret(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = learning.Polled
    monkeypatch.setattr(
        learning, "Polled", lambda trainers, options, knows, *more: plain(trainers, options, "known", *more)
    )
    options = learning.Options(pj_max=2, objective="efficiency", rescale_model="measured")
    found = learning.compared(learning.quiet(4, HOURS), learning.drawn(2, 4, 7), options, 2)
    assert (found["regret"], found["regret_first_hour"]) == (0.0, 0.0)


def test_a_regret_or_a_wait_beyond_its_bound_is_marked() -> None:
    def row(regret: float, wait_s: float) -> dict[str, object]:
        figure = {"median": regret, "least": 0.0, "most": 1.0}
        wait = {"median": 0.0, "least": 0.0, "most": wait_s}
        return {"nodes": 4, "trainers": 2, "regret": figure, "regret_first_hour": figure, "first_node_s": wait}

    found = {"hours": 1.0, "quiet": [row(0.03, 60.0), row(0.031, 60.0), row(0.03, 61.0)], "summit": []}
    marks = [
        [", missed" in cell for cell in line.split("|")[2:4]] for line in learning.quiet_pools(found).splitlines()[2:]
    ]
    assert marks == [[False, False], [True, False], [False, True]]
    assert "in 24 hours" in learning.quiet_pools(found | {"hours": 24.0})
    week = {"summit": [{"objective": "efficiency", "hours": 168.0, "regret": 0.011, "first_node_s": 60.0}]}
    assert learning.summits_week(week).splitlines()[-1] == "| efficiency | 1.1 %, missed | 60 s |"
