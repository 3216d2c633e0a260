"""Tables that fit their width."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from bftd.base.tables import Column, fit, lines
from tests.support.messages import wording

WORDS = st.text(st.sampled_from("ab, 日…"), max_size=40)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Column], list[list[str]]]:
    titles = draw(st.lists(st.from_regex(r"[a-z]{1,9}", fullmatch=True), min_size=1, max_size=8, unique=True))
    columns = [
        Column(
            title,
            rank=draw(st.integers(0, 4)),
            right=draw(st.booleans()),
            least=draw(st.none() | st.integers(1, 12)),
            folds=draw(st.booleans()),
        )
        for title in titles
    ]
    rows = draw(st.lists(st.lists(WORDS, min_size=len(titles), max_size=len(titles)), max_size=4))
    return columns, rows


@given(tables(), st.integers(60, 250))
def test_whatever_the_values_no_header_is_cut_and_nothing_is_wider_than_asked(
    table: tuple[list[Column], list[list[str]]], width: int
) -> None:
    columns, rows = table
    chosen = fit(columns, rows, width)
    headers = sum(len(columns[at].title) for at in chosen.shown) + 2 * (len(chosen.shown) - 1)
    header, *rest = lines(columns, rows, width)
    assert header.split() == [columns[at].title for at in chosen.shown]
    for line in [header, *(rest[:-1] if chosen.dropped else rest)]:
        assert cell_len(line) <= max(width, headers)
    assert {columns[at].rank for at in chosen.dropped} <= {1, 2, 3, 4}
    if chosen.dropped:
        kept = [columns[at].rank for at in chosen.shown]
        assert max(kept) <= min(columns[at].rank for at in chosen.dropped)
        assert not fit(columns, rows, chosen.needs).dropped


@given(tables())
def test_without_a_width_every_value_stands_in_one_piece(table: tuple[list[Column], list[list[str]]]) -> None:
    columns, rows = table
    assert len(list(lines(columns, rows, None))) == 1 + len(rows)
    chosen = fit(columns, rows, None)
    assert chosen.shown == tuple(range(len(columns)))
    assert all(cell_len(cell) <= width for row in rows for cell, width in zip(row, chosen.widths, strict=True))


def test_a_long_name_is_cut_and_a_node_set_folds_behind_its_commas() -> None:
    columns = [Column("name", least=8), Column("on", least=8, folds=True), Column("id")]
    row = ["a-very-long-name", "n[1-3],n[5-7],n9", "run-host-12345"]
    assert list(lines(columns, [row], 36)) == [
        "name       on         id",
        "a-very-l+  n[1-3],    run-host-12345",
        "           n[5-7],n9",
    ]


def test_a_folded_value_loses_nothing_but_the_blanks_at_its_breaks() -> None:
    text = "job 3812907 starts here in 12 s, on node[001-003,005-010,012-017] and nowhere else"
    for width in range(8, 90):
        shown = list(lines([Column("why", least=width, folds=True)], [[text]], width))[1:]
        assert max(map(len, shown)) <= width
        assert re.sub(" ", "", "".join(shown)) == text.replace(" ", "")


def test_the_last_line_names_what_a_wider_terminal_shows() -> None:
    columns = [Column("id"), Column("state", rank=1), Column("resizes", rank=3), Column("step", rank=2)]
    rows = [["x" * 50, "running", "1", "2"]]
    assert fit(columns, rows, 60).needs == 50 + 7 + 7 + 4 + 6
    assert list(lines(columns, rows, 60)) == [
        f"{'id':50}  state",
        f"{'x' * 50}  running",
        wording("bftd.tables.more_columns", needs=74, title="resizes, step"),
    ]


@pytest.mark.parametrize("width", [1, 10, 30])
def test_where_nothing_fits_the_values_fold_and_the_headers_stay(width: int) -> None:
    header, *rest = lines([Column("trainer"), Column("id")], [["t" * 20, "i" * 20]], width)
    assert header.split() == ["trainer", "id"]
    assert "".join(rest).count("i") == 20
