"""Answers of daemons of any age: what is not known is ignored, and what is missing has its default."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftd.client import Event, Explanation, History, Rows, Status, Trainer, Usage
from bftd.client.decode import read
from bftd.client.display import Shown
from bftd.ui.live import panels

pytestmark = pytest.mark.slow

ANSWERS = (Status, Explanation, History, Usage, Event, Trainer)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
# Keys that the daemon has, with anything in them.
KEYS = st.sampled_from(
    ["id", "name", "trainers", "trainer", "nodes", "node_groups", "points", "windows", "usage", "decisions", "curve",
     "at_s", "settings", "pauses", "give_back_s", "time_s", "class", "data", "learned", "samples_per_s", "hours"]
)  # fmt: skip
SENT = st.dictionaries(KEYS | st.text(max_size=5), st.deferred(lambda: SENT) | st.lists(JSON, max_size=3) | JSON)


@given(st.sampled_from(ANSWERS), SENT | JSON)
def test_whatever_is_sent_becomes_an_answer_that_can_be_shown(cls: type[Shown], sent: Any) -> None:
    answer = read(cls, sent)
    again = read(cls, answer.to_dict())
    assert repr(again) == repr(answer)  # nan is not itself
    assert answer._repr_html_().startswith("<table>")
    assert all(len(row) == len(sheet.titles) for sheet in answer.sheets() for row in sheet.rows)


def test_an_older_daemon_leaves_what_it_does_not_tell_unknown() -> None:
    status = read(Status, {"version": "0.0.1", "trainers": [{"id": "7", "nodes_min": 1, "nodes_max": 4}]})
    (trainer,) = status.trainers
    assert (trainer.id, trainer.nodes_max, trainer.total_steps, trainer.efficiency) == ("7", 4, None, None)
    assert (status.windows, status.training_share, status.held_share, status.groups) == ((), None, None, ())


def test_a_newer_daemon_may_tell_more_and_another_kind_of_thing() -> None:
    sent = {"id": "7", "colour": "red", "step": {"now": 3}, "loss": "low", "samples": 3, "exit_code": 1.0}
    assert read(Trainer, sent) == Trainer(id="7", samples=3.0, exit_code=1)


def test_what_was_read_is_written_under_the_names_that_the_daemon_uses() -> None:
    sent = {"nodes": "n[1-2]", "count": 2, "class": "gpu", "why": "is idle", "in_pool": True}
    told = read(Status, {"node_groups": [sent]}).to_dict()["node_groups"][0]
    assert sent.items() <= told.items()
    json.dumps(told)


def test_names_of_others_are_neither_html_nor_commands_to_the_terminal() -> None:
    from rich.console import Console

    trainers = Rows([Trainer(id="7", name="<script>alert(1)</script>[red]\x1b[2J", user="a&b")])
    html = trainers._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "a&amp;b" in html
    assert "\x1b" not in html
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(trainers)
    text = console.export_text()
    assert "[red]" in text
    assert "\x1b" not in text


def test_a_long_table_says_how_much_is_left_out() -> None:
    assert "(50 more rows)" in Rows(Trainer(id=str(at)) for at in range(250))._repr_html_()


@pytest.mark.parametrize("cls", ANSWERS)
def test_an_answer_without_anything_is_shown_too(cls: type[Shown]) -> None:
    from rich.console import Console

    console = Console(width=60, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(cls())
    console.print(Rows(()))
    assert console.export_text().strip()


def test_shares_are_of_the_pool_and_training_is_no_other_word_for_held() -> None:
    told = {"pool_node_seconds": 200.0, "training_node_seconds": 50.0, "used_node_seconds": 150.0}
    status = read(Status, told | {"windows": [{"window_s": 3600.0, "training_share": 0.25, "held_share": 0.75}]})
    assert (status.training_share, status.held_share) == (0.25, 0.75)
    assert (status.cells()["training"], status.cells()["held"]) == (0.25, 0.75)
    assert (status.windows[0].cells()["training"], status.windows[0].cells()["held"]) == (0.25, 0.75)
    line = panels.headline(status).plain
    assert line.index("training 25%") < line.index("held 75%")
