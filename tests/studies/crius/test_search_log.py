"""Replays of recorded searches: the form that is read and written, and what counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from sizing.base.errors import UsageError
from sizing.base.parallel import Parallel
from studies.crius import search_log
from studies.crius.command import crius
from tests.support.messages import excerpt, says, wording

pytestmark = pytest.mark.slow

HEADER = "first_layer,last_layer,dp,tp,forced,cost_s,fits,avail_gb,peak_gb,layers,measured_e2e_s\n"


def rows(*lines: str) -> str:
    """A log of these rows, each first_layer,last_layer,dp,tp,forced,cost_s,fits."""
    return HEADER + "".join(f"{line},28.0,20.0,8,48.7\n" for line in lines)


def replayed(*lines: str) -> dict[str, object]:
    return search_log.to_json(search_log.replay(search_log.parse(rows(*lines), "log.csv")))


def test_the_json_has_the_form_that_is_documented() -> None:
    said = replayed("0,1,4,1,batch,1.0,0", "0,1,2,2,batch,2.0,1", "0,1,1,4,batch,4.0,1", "2,3,2,1,,1.0,0")
    assert said == {
        "cells": [
            {
                "first_layer": 0,
                "last_layer": 1,
                "gpus": 4,
                "best_s": 2.0,
                "tuned_s": 2.0,
                "tried": 3,
                "candidates": 3,
                "feasible": True,
                "called_feasible": True,
            },
            {
                "first_layer": 2,
                "last_layer": 3,
                "gpus": 2,
                "best_s": None,
                "tuned_s": None,
                "tried": 1,
                "candidates": 1,
                "feasible": False,
                "called_feasible": False,
            },
        ],
        "mean_accuracy": 1.0,
        "worst_accuracy": 1.0,
        "missed_feasible": 0,
        "tried_ratio": 1.0,
    }


def test_variants_of_a_split_are_one_candidate_whose_time_is_the_best_that_fits() -> None:
    cells = search_log.parse(rows("0,0,2,1,,1.0,0", "0,0,2,1,batch,3.0,1", "0,0,2,1,other,2.0,1"), "log.csv")
    ((cell, grid),) = cells.items()
    assert (cell.gpus, grid) == (2, {Parallel(2, 1): [None, 3.0, 2.0]})
    assert search_log.replay(cells)[0].tuned.time_s == 2.0


def test_the_tuner_sees_only_what_it_measures() -> None:
    # A valley that breaks the rule lies in the half of the slower extreme: whoever looked there would find it.
    lines = [f"0,3,{2**at},{2 ** (5 - at)},batch,{cost},1" for at, cost in enumerate([9.0, 0.1, 7.0, 6.0, 5.0, 4.0])]
    (cell,) = replayed(*lines)["cells"]  # type: ignore[misc]
    assert (cell["best_s"], cell["tuned_s"], cell["tried"], cell["candidates"]) == (0.1, 4.0, 3, 6)


def test_accuracy_is_that_of_feasible_cells_and_a_log_without_any_has_none() -> None:
    said = replayed("0,0,1,1,,1.0,0", "0,0,2,1,,,0")
    assert (said["mean_accuracy"], said["worst_accuracy"], said["missed_feasible"]) == (None, None, 0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "line 1: no column first_layer"),
        ("first_layer,last_layer,dp,tp,cost_s\n", "no column fits"),
        (HEADER, "has no rows"),
        (
            rows("0,1,x,1,batch,1.0,1"),
            wording("studies.search_log.not_whole", where="line 2", column="dp", said="x"),
        ),
        (rows("0,1,1,1,batch,1.0,1", "0,1,1,-1,batch,1.0,1"), "line 3: tp is '-1'"),
        (rows("0,1,0,1,batch,1.0,1"), "at least 1 each"),
        (rows("2,1,1,1,batch,1.0,1"), excerpt("studies.search_log.first_after_last")),
        (rows("0,1,1,1,batch,nan,1"), "cost_s is 'nan'"),
        (rows("0,1,1,1,batch,0,1"), "cost_s is '0'"),
        (rows("0,1,1,1,batch,1.0,maybe"), "fits is 'maybe'"),
        (HEADER + "0,1,1\n", "line 2: tp is ''"),
        (
            rows("0,1,1,1,batch,1.0,1", "0,1,1,1,batch,1.0,1,7"),
            excerpt("studies.search_log.too_many_cells", line_num=3, names=11),
        ),
        (
            HEADER.replace("fits", "fits,tp") + "0,1,1,1,b,1.0,1,4\n",
            excerpt("studies.search_log.column_twice", twice="tp"),
        ),
        (rows("0,1,99999999999999999999,1,batch,1.0,1"), "dp is '99999999999999999999'"),
    ],
)
def test_a_log_that_cannot_be_read_is_refused_with_the_line(text: str, why: str) -> None:
    with pytest.raises(UsageError) as error:
        search_log.parse(text, "log.csv")
    assert why in str(error.value)
    assert str(error.value).startswith("log.csv")


def test_the_command_prints_json_and_a_table(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text(rows("0,1,2,1,batch,1.0,1", "0,1,1,2,batch,4.0,1"))
    said = CliRunner().invoke(crius, ["search-log", str(log), "--json"])
    assert said.exit_code == 0
    assert json.loads(said.output)["cells"][0]["tuned_s"] == 1.0
    table = CliRunner().invoke(crius, ["search-log", str(log)]).output
    assert "0-1" in table
    assert "dp2 tp1" in table
    assert says(table, "studies.crius_command.log_result", replays=1, feasible=1, replays2=0, tried=2, there=2)
