"""The page as bytes: what stands in it, what never does, and how large it becomes."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.core.sampling import NODE_STATES
from bftd.web import charts, page, sections
from bftd.web.history import drawn
from bftd.web.series import COLOURED, GAP, SLOTS_LEAST, Picture, Series, charted
from tests.bftd.web import making
from tests.support.messages import fragment, says, wording

pytestmark = pytest.mark.slow

_VOID = {"meta", "link", "br"}
_SELF_ENDING = {"html", "head", "body", "p", "li", "dt", "dd", "tr", "th", "td", "thead", "tbody", "caption"}


class Read(HTMLParser):
    """What a page consists of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in _VOID and tag not in _SELF_ENDING:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if tag not in _SELF_ENDING:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text.append(data)


def read(shown: page.PageData) -> Read:
    return Read(page.render(shown).decode())


@pytest.fixture(scope="module")
def large() -> page.PageData:
    return making.shown(5_000, 100)


def test_a_page_of_5000_nodes_and_100_trainers_stays_below_its_bound(large: page.PageData) -> None:
    assert len(page.render(large)) < 250_000
    assert len(page.render(replace(large, groups=[*large.groups, *_reasons(5_000)]))) < 300_000


def _reasons(number: int) -> list[dict[str, object]]:
    """Every node with a reason of its own."""
    return [
        {
            "state": "planned",
            "why": wording("pool.judgement.needed", by=f"job {at}", window_s=at),
            "nodes": f"n{at:04d}",
            "count": 1,
        }
        for at in range(number)
    ]


def test_the_delay_of_regular_jobs_and_what_is_promised_stand_among_the_first_figures() -> None:
    delays = {"starts": 40, "unknown": 0, "delay_seconds": 90.0, "counted_s": 37.0, "budget_s": 600.0}
    said = wording("web.sections.delayed", promised=wording("web.sections.promised", budget_s=600))
    assert re.search(rf"Delay +37 s +{re.escape(said)}", " ".join(read(making.shown(50, 3, delays=delays)).text))
    told = " ".join(read(making.shown(50, 3, delays=delays | {"budget_s": None})).text)
    assert re.search(rf"37 s +{re.escape(wording('web.sections.delayed', promised=''))} ", told + " ")
    assert "Delay" not in " ".join(read(making.shown(50, 3)).text), "an older daemon does not tell"


def test_a_page_asks_for_nothing_and_brings_no_style_or_script_but_its_own(large: page.PageData) -> None:
    found = read(large)
    assert found.tags["script"] == found.tags["style"] == 1
    for tag, name, value in found.attributes:
        assert name != "style", "the page's policy lets no attribute style anything"
        assert not name.startswith("on")
        if name in ("src", "href", "action", "xlink:href"):
            assert re.match(r"data:image/svg|#|\?hours=\d+$", value), (tag, name, value)
    assert not {"iframe", "img", "form", "object", "embed", "base"} & set(found.tags)
    assert "@import" not in page.STYLE
    assert "url(" not in page.STYLE
    for quoted in re.findall(r"'sha256-([^']+)'", page.CSP):
        assert len(quoted) == 44


def test_whatever_is_open_is_closed_and_every_id_is_one_only(large: page.PageData) -> None:
    found = read(large)
    assert found.open == []
    ids = Counter(value for _, name, value in found.attributes if name == "id")
    assert set(ids.values()) == {1}
    labels = {value for _, name, value in found.attributes if name == "aria-labelledby"}
    assert labels <= set(ids)


@settings(max_examples=8, deadline=None)
@given(st.text(min_size=1, max_size=40).filter(str.strip))
def test_what_others_have_named_is_text_wherever_it_stands(word: str) -> None:
    hostile = f'"><script>x</script>\x1b[2J{word}'
    shown = making.shown(8, 2, 1)
    status = dict(shown.status)
    status["trainers"] = [item | {"name": hostile, "user": hostile, "account": hostile} for item in status["trainers"]]
    status["decisions"] = [item | {"text": hostile} for item in status["decisions"]]
    status["alarms"] = [{"text": hostile}]
    status["pauses"] = [item | {"text": hostile} for item in status["pauses"]]
    status["hold"] = hostile
    told = making.history(8, 2, 1)
    told["trainers"] = {id_: {"name": hostile, "user": hostile} for id_ in told["trainers"]}
    groups = [group | {"why": hostile, "nodes": hostile} for group in shown.groups]
    usage = {"usage": [item | {"user": hostile} for item in (shown.usage or {})["usage"]]}
    found = read(replace(shown, place=hostile, status=status, groups=groups, usage=usage, past=drawn(told, 1)))
    assert found.tags["script"] == 1
    assert found.open == []
    assert "\x1b" not in "".join(found.text)


def test_drawings_are_well_formed_and_have_no_more_than_they_show(large: page.PageData) -> None:
    for svg in re.findall(r"<svg class=(?:big|small).*?</svg>", large.past.machine + large.past.trainers, re.S):
        root = ET.fromstring(re.sub(r"(\w+)=([\w]+)(?=[ >])", r'\1="\2"', svg))
        assert {each.tag for each in root.iter()} <= {"svg", "g", "path", "text"}
        assert not re.search(r"\d\.\d", svg), "whole pixels are fine enough"
        assert says(root.attrib["aria-label"], "web.past.over_last", hours="1 day")


def test_bands_add_up_to_all_nodes_wherever_anything_is_known() -> None:
    shown = charted(making.history(500, 12, 24))
    for at in range(len(shown.machine.times_s)):
        values = [each.values[at] for each in shown.machine.series]
        if all(value is None for value in values[:-1]):
            assert shown.machine.series[-1].role == GAP
            assert values[-1] == 500
        else:
            assert sum(value or 0 for value in values) == 500
    assert len(shown.roles) == COLOURED
    assert set(making.history(1, 1, 1)["points"][0]["nodes"]) == set(NODE_STATES)


def test_nodes_that_are_held_and_do_not_train_have_a_band_of_their_own() -> None:
    told = making.history(500, 2, 24)
    for point in told["points"]:
        for trainer in point["trainers"].values():
            trainer["working"] = 0.75 * trainer["leased"]
    for picture in (charted(told).machine, charted(told).pool):
        bands = {each.role: each.values for each in picture.series}
        for at, value in enumerate(bands["starting"]):
            if value is not None:
                assert value == pytest.approx(((bands["t0"][at] or 0) + (bands["t1"][at] or 0)) / 3)
    training, held = charted(told).efficiency.series
    known = [pair for pair in zip(training.values, held.values, strict=True) if None not in pair]
    assert known
    assert all(share == pytest.approx(0.93 * of) for share, of in known)


def test_a_gap_is_a_gap_and_nothing_is_drawn_through_it() -> None:
    shown = charted(making.history(500, 2, 24))
    gaps = [at for at, value in enumerate(shown.sizes.series[0].values) if value is None]
    assert gaps
    assert gaps == list(range(gaps[0], gaps[-1] + 1))
    line = charts.lines(shown.sizes, charts.SMALL[:1], "sizes")
    assert line.count("<path") - line.count('line"') == 2 * len(shown.sizes.series)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 24), st.integers(0, 3600), st.sampled_from([60.0, 180.0, 600.0, 3600.0]))
def test_every_point_has_its_step_whenever_the_page_is_asked_for(hours: int, late_s: int, step_s: float) -> None:
    until_s = making.NOW_S + late_s
    since_s = until_s - hours * 3600
    starts = range(int(since_s // step_s), int((until_s - 1) // step_s) + 1)
    points = [
        {"at_s": at * step_s, "nodes": {"regular": at}, "trainers": {}, "pool_node_seconds": 0, "used_node_seconds": 0}
        for at in starts
    ]
    told = {"since_s": since_s, "until_s": until_s, "step_s": step_s, "points": points, "trainers": {}}
    shown = charted(told)
    regular = next(each for each in shown.machine.series if each.role == "regular")
    assert list(regular.values) == list(starts)
    assert [at_s // step_s for at_s in shown.machine.times_s] == list(starts)


def test_a_record_that_has_just_begun_is_no_sliver_at_the_edge() -> None:
    told = making.history(8, 2, 24, gap=False)
    for minutes, steps in ((10, SLOTS_LEAST), (300, 30), (1440, 144)):
        recorded = [point for point in told["points"] if point["at_s"] >= making.NOW_S - 60 * minutes]
        shown = charted(told | {"points": recorded})
        assert len(shown.machine.times_s) == steps
        assert shown.machine.times_s[-1] == making.NOW_S - 300


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e6)), min_size=2, max_size=300), st.integers(2, 13))
def test_times_below_a_chart_are_few_and_in_order(values: list[float | None], most: int) -> None:
    times_s = tuple(making.NOW_S + 600 * at for at in range(len(values)))
    ticks = Picture(times_s, (Series("t0", "x", tuple(values)),)).ticks(most)
    assert len(ticks) <= most + 1
    assert list(ticks) == sorted(ticks)
    assert all(0 <= at < len(values) for at in ticks)


@given(st.floats(0, 1e9))
def test_an_axis_has_few_round_steps_and_reaches_its_values(most: float) -> None:
    scale = charts._scale(most)
    assert scale[0] == 0
    assert scale[-1] >= most * (1 - 1e-9)
    assert 2 <= len(scale) <= 9


def test_who_looks_is_told_what_the_daemon_does_and_what_is_wrong() -> None:
    def said(**changes: object) -> str:
        return " ".join("".join(read(making.shown(8, 2, 1, **changes)).text).split())

    assert "Harvesting" in said()
    assert "Alarm: n0042 was asked back" in said()
    assert "Shadow mode" in said(mode="shadow")
    assert wording("web.page.shadow") in said(mode="shadow")
    totals = {"idle_node_seconds": 7200.0, "since_s": making.NOW_S, "preemptions": 3, "waiting": [{"user": "ann"}]}
    would = said(mode="shadow", shadow=totals, training_node_seconds=3600.0)
    part = wording("web.sections.part_of_idle", share="50.0%")
    assert says(would, "web.sections.would_have_had", training_s="1.00", part=part, preemptions=3)
    assert "1 real trainer waits" in would
    assert "Would be lent" in would
    held = said(hold="the snapshot is 40 s old")
    assert "On hold" in held
    assert "nothing grows: the snapshot is 40 s old" in held
    assert wording("web.page.not_read") in said(snapshot_age_s=None)
    assert wording("web.sections.nothing_wrong") in said(alarms=[], pauses=[])
    assert "node n0007 is paused by root: new cable" in said()


def test_a_daemon_that_has_just_begun_has_a_page_and_one_without_a_ledger_says_why() -> None:
    shown = making.shown(8, 0, 1)
    nothing = replace(shown, past=drawn({"points": []}, 1), windows=[], usage=None, groups=[])
    text = " ".join("".join(read(nothing).text).split())
    assert says(text, "web.past.nothing")
    assert says(text, "web.sections.no_trainer")
    assert says(text, "web.sections.usage_hidden")
    missing = "the ledger cannot be read (disk I/O error)"
    failed = "".join(read(replace(nothing, missing=missing)).text)
    assert says(failed, "web.sections.no_history", missing=missing)


def test_rows_beyond_the_bound_are_counted_and_those_with_nodes_come_first() -> None:
    shown = making.shown(500, 300, 1)
    found = sections.trainers(shown.status, {})
    assert says(found, "web.sections.not_shown", left=fragment(f"{300 - sections.ROWS_MOST}"))
    assert found.index("running") < found.index("waiting")
