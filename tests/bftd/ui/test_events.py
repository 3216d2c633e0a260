"""Events of the ledger as sentences."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftd.base.format import clock, moment
from bftd.protocol.changes import ASKED
from bftd.protocol.reports import KINDS
from bftd.ui.events import _TOLD, sentences
from tests.support.messages import wording

AT_S = 1_795_801_333.25
NAMES = {"17": "train-a"}
CORE = Path(__file__).parents[3] / "bftd" / "core"


def event(kind: str, node: str | None = None, /, at_s: float = AT_S, trainer: str | None = "17", **data: Any) -> Any:
    made = {"at_s": at_s, "kind": kind, "trainer": trainer, "node": node, "data": data}
    return made | {"rowid": id(made)}


def said(*events: Mapping[str, Any]) -> list[str]:
    return [text for _, text in sentences(events, NAMES)]


EXAMPLES: list[tuple[Any, str]] = [
    (event("decision", text="train-a grows"), "train-a grows"),
    (
        event("registered", user="ann", name="train-b"),
        wording("cli.events.registered", who="train-b", user="ann", id="17"),
    ),
    (event("registered_again", epoch=2), wording("cli.events.registered_again", who="train-a")),
    (event("granted", "n1", reason="", lease="n1.4"), "train-a gets n1"),
    (event("adopted", "n1", reason="", lease="n1.4"), "train-a still has n1"),
    (
        event("revoked", "n1", reason="n1 runs a job", vacate=True),
        wording("cli.events.revoked", who="train-a", nodes="n1", why="n1 runs a job"),
    ),
    (event("ended", "n1", reason=ASKED), wording("cli.events.ended", who="train-a", nodes="n1", why=ASKED)),
    (
        event("lease", "n1", state="placed", reason="", at_s=AT_S),
        wording("cli.events.placed", who="train-a", nodes="n1"),
    ),
    (event("lease", "n1", state="ready", reason=""), "train-a is ready on n1"),
    (event("lease", "n1", state="working", reason=""), "train-a trains on n1"),
    (
        event("give_back", "n1", duration_s=0.1234567, lease="n1.4"),
        wording("cli.events.give_back", who="train-a", nodes="n1", took="0.12 s"),
    ),
    (
        event("progress", step=1820, nodes=2, samples_per_s=51.84, loss=0.27884),
        wording("cli.events.progress", who="train-a", rest="1,820 on 2 nodes, 51.8 samples/s, loss 0.2788"),
    ),
    (event("resume", step=20), wording("cli.events.resume", who="train-a", step=20)),
    (
        event("resize", from_nodes=1, to_nodes=3, kind="up", stall_s=1.25, steps_lost=0),
        wording("cli.events.resize", who="train-a", before=1, after="3 nodes, 1.25 s"),
    ),
    (
        event("resize", from_nodes=2, to_nodes=1, kind="crash", stall_s=None, steps_lost=1),
        wording("cli.events.crash_resize", who="train-a", on="1 node", rest=", 1 step lost"),
    ),
    (event("crash", "n1", rc=-9, text="out of memory"), "train-a: out of memory"),
    (
        event("crash", "n1", rc=2, text=""),
        wording("cli.events.crash", who="train-a", rc=2, node="n1"),
    ),
    (
        event("cancel", trainer=None, job_id="44", reason="it overstays"),
        wording("cli.events.cancel", job=44, why="it overstays"),
    ),
    (
        event("changed", nodes_min=1, nodes_max=4, weight=1.0),
        wording("cli.events.changed", who="train-a", many="1 to 4 nodes", weight=1),
    ),
    (event("clock_set", trainer=None, by_s=-2.5), wording("cli.events.clock_set", way="back", by="2.50 s")),
    (
        event("regular_start", trainer=None, job="44", nodes=1, since_s=1.0, start_s=2.5, delay_s=1.5),
        wording("cli.events.regular_start", job=44, on="1 node", delay="1.50 s"),
    ),
    (
        event("earmark", trainer=None, job="44", nodes="n[1-2]", leaving="n2", due_s=AT_S),
        wording("cli.events.earmark", nodes="n[1-2]", job=44, at=clock(AT_S), leaving="n2"),
    ),
    (
        event("earmark_over", trainer=None, job="44", end="started", duration_s=12.0, kept_node_seconds=1.4),
        wording("cli.events.earmark_over", job=44, took="12 s", end="started", kept="1 node-second"),
    ),
    (
        event("room_over", trainer=None, job="44", end="gone", duration_s=12.0, kept_node_seconds=8.0),
        wording("cli.events.earmark_over", job=44, took="12 s", end="gone", kept="8 node-seconds"),
    ),
    (
        event("pool", trainer=None, version=3, joined=["n1", "n2"], left=["n7"], beyond_joined=["n8"]),
        wording("cli.events.pool", joined="n[1-2]", left="n7", beyond="n8"),
    ),
    (
        event("pool_whole", trainer=None, nodes="", beyond="", first=True),
        wording("cli.events.started", nodes="no node"),
    ),
]


@pytest.mark.parametrize(("one", "text"), EXAMPLES, ids=[each["kind"] for each, _ in EXAMPLES])
def test_each_kind_is_a_plain_sentence(one: Any, text: str) -> None:
    assert said(one) == [text]


def test_every_kind_that_is_written_has_a_sentence_or_a_decision_that_tells_it() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in CORE.rglob("*.py"))
    written = {*re.findall(r'\bhappened\(\s*"(\w+)"', code), *KINDS, "granted", "revoked", "adopted", "ended", "cancel"}
    assert written <= {each["kind"] for each, _ in EXAMPLES} | _TOLD


def test_the_nodes_of_a_second_are_one_sentence_with_the_longest_time() -> None:
    starts = [event("lease", f"n{number}", state="ready", reason=None) for number in (1, 2, 3)]
    back = [event("give_back", f"n{number}", duration_s=number / 10) for number in (1, 2)]
    other = event("lease", "n4", trainer="18", state="ready", reason=None)
    assert said(starts[0], back[0], starts[1], other, starts[2], back[1]) == [
        "train-a is ready on n[1-3]",
        wording("cli.events.give_back", who="train-a", nodes="n[1-2]", took="0.20 s"),
        "trainer 18 is ready on n4",
    ]
    assert len(said(starts[0], event("lease", "n2", at_s=AT_S + 1, state="ready"))) == 2


def test_what_another_event_of_the_same_second_tells_is_said_once() -> None:
    text = "train-a starts on n1"
    granted, decided = event("granted", "n1"), event("decision", text=text, decision={"added": ["n1"], "size": 1})
    assert said(granted, decided, event("note", text="hello")) == [text]
    assert len(said(granted, event("granted", "n2"), decided)) == 2, "the decision names one node"
    assert len(said(granted, event("decision", at_s=AT_S + 1, text=text, decision=decided["data"]["decision"]))) == 2
    assert len(said(granted, event("decision", trainer="18", text=text, decision=decided["data"]["decision"]))) == 2
    ended, back = event("ended", "n1", reason=ASKED), event("give_back", "n1", duration_s=0.1)
    assert said(ended, back) == said(back)


def test_a_name_is_known_from_the_registration_and_the_end_too() -> None:
    registered = event("registered", trainer="18", user="bob", name="net")
    assert said(registered, event("adopted", "n1", trainer="18"))[1] == "net still has n1"
    finished = event("finished", trainer="19", exit_code=0)
    finished["data"]["trainer"] = {"name": "ended"}
    assert said(finished, event("adopted", "n1", trainer="19")) == ["ended still has n1"]


def test_a_kind_of_a_newer_daemon_is_shown_field_by_field() -> None:
    one = event(
        "moved_house", "n1", lent_s=AT_S, took_s=0.25, on=["n1", "n2"], gpus=3, whole=True, note="", more={"a": 1}
    )
    assert said(one) == [
        f'moved house: train-a, n1, lent {moment(AT_S)}, took 0.25 s, on n[1-2], gpus 3, whole yes, more {{"a": 1}}'
    ]
    assert said(event("moved", trainer=None)) == ["moved"]


def test_a_known_kind_with_other_fields_is_shown_so_too() -> None:
    assert said(event("progress", step="many")) == ["progress: train-a, step many"]
    assert said(event("lease", "n1", state="asleep")) == ["lease: train-a, n1, state asleep"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3)
)


@given(
    st.sampled_from([*(each["kind"] for each, _ in EXAMPLES), "other"]),
    st.dictionaries(
        st.sampled_from(sorted({name for each, _ in EXAMPLES for name in each["data"]})), VALUES, max_size=6
    ),
)
def test_no_data_ends_it(kind: str, data: dict[str, Any]) -> None:
    assert all(
        isinstance(text, str) for text in said(event(kind, "n1", **{k: v for k, v in data.items() if k != "at_s"}))
    )
