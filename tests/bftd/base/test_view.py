"""A trainer's line and the notices, the same wherever they are shown."""

from __future__ import annotations

from typing import Any

import pytest

from bftd.base import view

NOW_S = 1_800_000_000.0
RUNNING: dict[str, Any] = {"id": "7", "name": "a", "user": "ann", "state": "running", "working": 2, "requested": 2}


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, {"state": "running", "nodes": "2", "account": "-", "range": "-", "rate": "-", "ends": "-", "left": "-"}),
        ({"requested": 4, "nodes_min": 1, "nodes_max": 8}, {"nodes": "2->4", "range": "1-8"}),
        ({"step": 20, "total_steps": 100, "samples_per_s": 12.34}, {"step": "20/100", "rate": "12.3"}),
        ({"step": 20}, {"step": "20"}),
        ({"expected_end_s": NOW_S + 7200}, {"left": "2.0 h"}),
        ({"expected_end_s": 1e18}, {"ends": "never"}),
        ({"state": "finished", "exit_code": 3, "expected_end_s": NOW_S + 60},
         {"state": "finished (3)", "nodes": "-", "left": "-", "ends": "-"}),
        ({"state": "finished"}, {"state": "lost"}),
        ({"state": "finished", "exit_code": 143}, {"state": "cancelled"}),
    ],
)  # fmt: skip
def test_a_line_is_what_is_known_of_a_trainer(changes: dict[str, Any], shown: dict[str, str]) -> None:
    line = view.trainer_line(RUNNING | changes, NOW_S)
    assert {name: getattr(line, name) for name in shown} == shown


def test_an_account_is_shown_only_where_slurm_knows_one() -> None:
    none, some = (view.trainer_line(RUNNING | {"account": account}, NOW_S) for account in ("", "phys"))
    assert view.shown(("id", "account", "on"), [none]) == ["id", "on"]
    assert view.shown(("id", "account", "on"), [none, some]) == ["id", "account", "on"]
    assert view.shown(("id", "ends"), [none], ("ends",)) == ["id"]


def test_a_setting_that_was_tuned_back_is_no_notice() -> None:
    tuned = {"pj_max": {"value": 2, "file": 10}, "t_fwd_s": {"value": 3, "file": 3}}
    (line,) = view.warnings({"tuned": tuned, "hours": None, "bound": {"text": ""}})
    assert "pj_max = 2" in line
