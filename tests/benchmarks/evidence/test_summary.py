"""README's table is made of several results, and marks what is beyond its bound."""

from __future__ import annotations

import pytest

from benchmarks import markdown
from benchmarks.evidence import summary
from benchmarks.evidence.model import Figure
from benchmarks.evidence.registry import benchmarks

pytestmark = pytest.mark.slow

ROW = next(row for row in summary.ROWS if row.figures == ("give_back.harvested", "give_back.idle"))


def lines(harvested_s: float, idle_s: float | None) -> list[str]:
    """The table's rows, of this benchmark alone."""
    of = {"give_back.harvested": Figure("a", harvested_s), "give_back.idle": None}
    if idle_s is not None:
        of["give_back.idle"] = Figure("b", idle_s)
    return summary.table(of.get, lambda name: f"run {name}").splitlines()[2:]


def test_a_row_has_all_its_figures_its_bound_and_the_command_that_a_user_types() -> None:
    [line] = lines(1.1, 0.2)
    assert line.split(" | ")[1:] == [f"[a, b](docs/evidence/{ROW.page})", ROW.bound, "`run give_back` |"]


def test_a_figure_beyond_its_bound_is_marked() -> None:
    assert "missed" in lines(1.3, 0.2)[0]
    assert "missed" not in lines(1.1, 0.2)[0]


def test_a_row_is_left_out_where_no_result_has_one_of_its_figures() -> None:
    assert lines(1.1, None) == []


def test_every_figure_of_a_row_whose_result_is_kept_is_of_that_benchmark() -> None:
    kept = [row.figures for row in summary.ROWS if row.figures[0].partition(".")[0] in benchmarks()]
    assert kept
    assert all(len({name.partition(".")[0] for name in figures}) == 1 for figures in kept)


def test_a_table_of_figures_marks_those_beyond_their_bounds_and_tells_least_and_most_of_what_was_repeated() -> None:
    rows = [markdown.Measured("a", markdown.spread([3.0, 1.0, 2.0], "s", 1), "1 s", True), markdown.Measured("b", "4")]
    assert markdown.measured(rows).splitlines()[2:] == ["| a | 2.0 s (1.0-3.0) | 1 s, **missed** |", "| b | 4 |  |"]
    assert markdown.spread([0.25], "ms") == "0.25 ms"
