"""The picture of what every node did."""

from __future__ import annotations

import re
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest

from bftd.simulation.report import style
from bftd.simulation.report.timeline import Span, held, picture
from tests.support.messages import wording

pytestmark = pytest.mark.slow

NAMES = {"7": "horovod", "8": "torchrun"}


def lease(at_s: float, state: str, lease_id: str, trainer: str = "7", said_s: float | None = None) -> dict[str, Any]:
    """An event of the ledger: what a driver said of one of its leases."""
    data = {"lease": lease_id, "state": state, "at_s": at_s if said_s is None else said_s, "reason": None}
    return {"at_s": at_s, "kind": "lease", "trainer": trainer, "node": lease_id.partition(".")[0], "data": data}


def of_daemon(at_s: float, kind: str, lease_id: str, trainer: str = "7") -> dict[str, Any]:
    """An event of the ledger: what the daemon did with a lease."""
    data = {"lease": lease_id, "reason": "", "vacate": False, "job_id": "55"}
    return {"at_s": at_s, "kind": kind, "trainer": trainer, "node": lease_id.partition(".")[0], "data": data}


def test_a_pilot_starts_until_its_first_worker_works_and_ends_when_its_driver_says_so() -> None:
    events = [
        of_daemon(1.0, "granted", "n1.1"),
        lease(2.0, "placed", "n1.1", said_s=1.5),
        lease(4.0, "ready", "n1.1"),
        lease(6.0, "working", "n1.1", said_s=5.5),
        of_daemon(9.0, "revoked", "n1.1"),
        lease(10.0, "leaving", "n1.1"),
        lease(11.0, "working", "n1.1"),
        lease(12.0, "ended", "n1.1", said_s=11.5),
        of_daemon(12.0, "ended", "n1.1"),
    ]
    assert held(events, NAMES, 99.0) == [
        Span("n1", 1.5, 5.5, "starting", "horovod"),
        Span("n1", 5.5, 11.5, "training", "horovod"),
    ]


def test_what_was_granted_and_never_started_is_not_drawn() -> None:
    events = [
        of_daemon(1.0, "granted", "n1.1"),
        lease(2.0, "refused", "n1.1"),
        of_daemon(2.0, "ended", "n1.1"),
        of_daemon(3.0, "granted", "n1.2"),
        of_daemon(4.0, "ended", "n1.2"),
    ]
    assert held(events, NAMES, 99.0) == []


def test_a_pilot_that_never_worked_only_started_and_one_still_there_lasts_to_the_end() -> None:
    events = [
        lease(1.0, "placed", "n1.1"),
        of_daemon(5.0, "ended", "n1.1"),
        lease(6.0, "placed", "n2.2", trainer="8"),
        lease(8.0, "working", "n2.2", trainer="8"),
    ]
    assert held(events, NAMES, 20.0) == [
        Span("n1", 1.0, 5.0, "starting", "horovod"),
        Span("n2", 6.0, 8.0, "starting", "torchrun"),
        Span("n2", 8.0, 20.0, "training", "torchrun"),
    ]


def test_a_node_changes_trainers_and_an_unknown_one_keeps_its_id() -> None:
    events = [
        lease(1.0, "working", "n1.1"),
        lease(5.0, "ended", "n1.1"),
        lease(6.0, "working", "n1.2", trainer="9"),
    ]
    assert [(span.who, span.start_s, span.end_s) for span in held(events, NAMES, 7.0)] == [
        ("horovod", 1.0, 5.0),
        ("9", 6.0, 7.0),
    ]


def test_a_resize_stalls_those_that_trained_before_and_a_suspension_ends_training_where_nodes_are_kept() -> None:
    resize = {"at_s": 10.1, "kind": "resize", "trainer": "7", "node": None, "data": {"at_s": 10.0, "stall_s": 2.0}}
    suspend = {"at_s": 15.0, "kind": "suspend", "trainer": "7", "node": None, "data": {"at_s": 15.0, "step": 9}}
    events = [
        lease(1.0, "working", "n1.1"),
        lease(1.0, "working", "n3.3", trainer="8"),
        lease(3.0, "placed", "n2.2"),
        lease(10.0, "working", "n2.2"),
        resize,
        suspend,
        lease(18.0, "working", "n1.1"),
    ]
    spans = [span for span in held(events, NAMES, 20.0) if span.who == "horovod"]
    assert [(span.node, span.kind, span.start_s, span.end_s) for span in spans] == [
        ("n1", "training", 1.0, 8.0),
        ("n2", "starting", 3.0, 10.0),
        ("n1", "resizing", 8.0, 10.0),
        ("n1", "training", 10.0, 15.0),
        ("n2", "training", 10.0, 15.0),
        ("n1", "starting", 15.0, 18.0),
        ("n2", "starting", 15.0, 20.0),
        ("n1", "training", 18.0, 20.0),
    ]


@pytest.mark.plot
def test_the_picture_stands_alone_and_says_what_is_what() -> None:
    spans = [
        Span("n1", 102.0, 110.0, "starting", "horovod"),
        Span("n1", 110.0, 130.0, "training", "horovod"),
        Span("n2", 100.0, 120.0, "training", "torchrun"),
        Span("n2", 121.0, 140.0, "regular", "12"),
        Span("elsewhere", 100.0, 140.0, "regular", "13"),
        Span("n1", 10.0, 90.0, "regular", "11"),  # before the picture begins
    ]
    made = picture("Two <trainers>", spans, ["n1", "n2"], 100.0, 140.0)
    text = made.decode()
    root = fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    shown = {element.text for element in root.iter() if element.tag.endswith("}text")}
    assert {"Two <trainers>", "n1", "n2", wording("whatif.timeline.seconds_since"), "node", "0", "40"} <= shown
    assert {"regular job", "horovod trains", "torchrun trains", "is resized", "idle"} <= shown
    assert not re.search(r'(href|src)="(?!#)|url\((?!#)|@import|@font-face', text), "it needs nothing from elsewhere"
    used = set(re.findall(r"var\(--([a-z]+)\)", text))
    assert {style.RIGID.role, style.OURS.role, style.EQUAL.role, style.START.role, style.RESIZE.role} <= used
    assert all(f"--{role}:" in text for role in used)
    assert text.count(f"fill: var(--{style.START.role})") == 2  # one span, and the legend's
    assert made == picture("Two <trainers>", spans, ["n1", "n2"], 100.0, 140.0)


@pytest.mark.plot
def test_a_span_is_drawn_where_it_belongs() -> None:
    def bars(*spans: Span) -> list[tuple[float, float]]:
        text = picture("x", spans, ["n1", "n2"], 1000.0, 1100.0).decode()
        edges = re.findall(rf'd="([^"]*)"[^>]*style="fill: var\(--{style.OURS.role}\)"', text)
        numbers = [[float(number) for number in re.findall(r"[\d.]+", edge)] for edge in edges]
        return [(min(each[::2]), max(each[::2])) for each in numbers]

    (left, middle), *_ = bars(Span("n1", 1000.0, 1050.0, "training", "a"))
    (start, right), *_ = bars(Span("n1", 1050.0, 1200.0, "training", "a"))
    assert 0 < left < right < 720
    assert start == pytest.approx(middle)
    assert right - start == pytest.approx(middle - left)
