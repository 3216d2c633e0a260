"""The page as bytes: what stands in it, what never does, and how large it becomes."""

from __future__ import annotations

import itertools
import math
import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.base.format import minute
from bftd.core.sampling import NODE_STATES
from bftd.http.auth.privacy import NAMELESS
from bftd.web import charts, details, page, sections
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
            assert re.match(r"data:image/svg|#|\?hours=\d+$|/(trainers|nodes)/[\w%.-]+$", value), (tag, name, value)
    assert not {"iframe", "img", "form", "object", "embed", "base"} & set(found.tags)
    assert "@import" not in page.STYLE
    assert "url(" not in page.STYLE
    for quoted in re.findall(r"'sha256-([^']+)'", page.CSP):
        assert len(quoted) == 44


# What eyes without one kind of cone see of linear red, green and blue (Machado, Oliveira and Fernandes 2009).
_EYES = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "no green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "no blue": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def _lab(color: str, eyes: str) -> tuple[float, float, float]:
    """A colour in CIELAB, as such eyes see it."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    r, g, b = (sum(w * part for w, part in zip(row, linear, strict=True)) for row in _EYES[eyes])
    xyz = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089,
    )
    x, y, z = (max(0.0, part) ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("eyes", _EYES)
@pytest.mark.parametrize("theme", [0, 1])
def test_held_training_and_recovered_are_three_colours_in_light_and_in_dark_for_all_eyes(theme: int, eyes: str) -> None:
    found = [re.findall(rf"--{role}:(#[0-9a-f]{{6}})", page.STYLE)[theme] for role in ("held", "training", "recovered")]
    seen = [_lab(color, eyes) for color in found]
    for one, other in itertools.combinations(seen, 2):
        assert math.dist(one, other) > 25, (theme, eyes, found)


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


@settings(max_examples=8, deadline=None)
@given(st.text(min_size=1, max_size=40).filter(str.strip), st.booleans())
def test_what_others_have_named_is_text_on_the_pages_of_a_trainer_and_a_node_too(word: str, known: bool) -> None:
    hostile = f'"><script>x</script>\x1b[2J{word}'
    subject = _subject(hostile, known)
    for made in (details.trainer_page(subject, 24, ""), details.node_page(subject)):
        assert made is not None
        found = Read(made.decode())
        assert found.tags["script"] == 1
        assert found.open == []
        assert "\x1b" not in "".join(found.text)
        ids = Counter(value for _, name, value in found.attributes if name == "id")
        assert set(ids.values()) == {1}
        for _, name, value in found.attributes:
            if name == "href":
                assert re.match(r"data:image/svg|#main$|/$|/(trainers|nodes)/[\w%.~-]+$|\?hours=\d+$", value), value


def _subject(name: str, known: bool) -> details.Subject:
    """A trainer and a node of the same name, each of which has the other."""
    node = {
        "name": name, "state": name, "class": name, "kind": "leased", "in_pool": True, "window_s": None,
        "trainer": name, "lease": "n1.1", "lease_state": "working", "why": name,
    }  # fmt: skip
    trainer = making.shown(8, 1, 1).status["trainers"][0]
    more = {"backend": name, "resizes": 1, "suspends": 1, "steps_lost": 1, "efficiency": None}
    trainer = trainer | more | {"id": name, "name": name, "user": name}
    decisions = [{"at_s": making.NOW_S, "trainer": name, "text": name}]
    status = dict(making.shown(8, 1, 1).status) | {"nodes": [node], "trainers": [trainer], "decisions": decisions}
    lease = dict.fromkeys(("granted_s", "revoked_s", "ended_s", "give_back_s", "overdue_s")) | {
        "lease": "n1.1", "trainer": name, "name": name, "user": name, "why": name, "why_revoked": name,
    }  # fmt: skip
    nothing = dict.fromkeys(("earmark", "quarantined_until_s", "left_out_until_s"))
    told = {
        "trainer": {
            "tail": [name, "<b>"],
            "resize_costs": {"text": name, "state_bytes": 1, "save_s": 1.0},
            "curve": {"text": name},
        },
        "decisions": [*decisions, {"at_s": 0.0, "trainer": name, "text": name, "decision": {"kind": "noted"}}],
        "node": node | nothing | {"co_located": name, "paused": [name], "failures": 1, "left_out_for": name},
        "leases": [lease],
    }
    return details.Subject(name, name, status, told if known else None)


def test_drawings_are_well_formed_and_have_no_more_than_they_show(large: page.PageData) -> None:
    for svg in re.findall(r"<svg class=(?:big|small).*?</svg>", large.past.machine + large.past.trainers, re.S):
        assert not re.search(r"\d\.\d", svg.replace("data-steps", "", 1).partition("<g")[2]), "whole pixels are enough"
        root = ET.fromstring(re.sub(r"(\w+)=([\w]+)(?=[ >])", r'\1="\2"', svg))
        assert {each.tag for each in root.iter()} <= {"svg", "g", "path", "text"}
        assert says(root.attrib["aria-label"], "web.past.over_last", hours="1 day")


def test_bands_add_up_to_all_nodes_wherever_anything_is_known() -> None:
    shown = charted(making.history(500, 12, 24))
    for at in range(len(shown.machine.starts_s)):
        values = [each.values[at] for each in shown.machine.series]
        if all(value is None for value in values[:-1]):
            assert shown.machine.series[-1].role == GAP
            assert values[-1] == 500
        else:
            assert sum(value or 0 for value in values) == 500
    assert len(shown.roles) == COLOURED
    assert set(making.history(1, 1, 1)["points"][0]["nodes"]) == set(NODE_STATES)


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=5))
def test_averages_of_a_partial_step_never_add_up_to_more_than_all_nodes(samples: list[tuple[int, int, int]]) -> None:
    """Each sample stands for some seconds, in which some of four nodes were lent and some of those trained."""
    covered_s = sum(span_s for span_s, *_ in samples)
    leased = sum(span_s * lent for span_s, lent, _ in samples) / covered_s
    working = sum(span_s * min(lent, works) for span_s, lent, works in samples) / covered_s
    means = {"regular": 0.0, "planned": 4 - leased, "leased": leased, "idle": 0.0, "away": 0.0}
    trainer = {"working": round(working, 3), "leased": round(leased, 3), "samples_per_s": 1.0}
    point = {
        "at_s": making.NOW_S - 60,
        "mean_nodes": {state: round(mean, 3) for state, mean in means.items()},
        "trainers": {"1": trainer},
        "pool_node_seconds": 0.0,
    }
    told = making.history(4, 1, 1) | {"points": [point], "trainers": {"1": {"name": "one", "user": "ann"}}}
    for picture in (charted(told).machine, charted(told).pool):
        values = [each.values[-1] or 0 for each in picture.series if each.role != GAP]
        assert sum(values) == pytest.approx(4, abs=0.01)
        assert min(values) >= 0


def test_nodes_that_are_held_and_do_not_train_have_a_band_of_their_own() -> None:
    told = making.history(500, 2, 24)
    for point in told["points"]:
        for trainer in point["trainers"].values():
            trainer["working"] = 0.75 * trainer["leased"]
    bands = {each.role: each.values for each in charted(told).machine.series}
    points = iter(told["points"])
    for training, held in zip(bands["training"], bands["held"], strict=True):
        if training is not None:
            assert held is not None
            point = next(points)
            assert training + held == pytest.approx(point["nodes"]["leased"])
            assert training == 0.75 * sum(trainer["leased"] for trainer in point["trainers"].values())
    held_share, training_share, _ = charted(told).efficiency.series
    known = [pair for pair in zip(training_share.values, held_share.values, strict=True) if None not in pair]
    assert known
    assert all(share == pytest.approx(0.93 * of) for share, of in known)


def _drawn_paths(svg: str, role: str) -> list[str]:
    """The parts of what is drawn of one series."""
    found = re.findall(rf'<path class={role} d="([^"]*)"/>', svg)
    return [part for path in found for part in re.split(r"(?=M)", path) if part]


def test_a_gap_is_a_gap_and_nothing_is_drawn_through_it() -> None:
    shown = charted(making.history(500, 2, 24))
    gaps = [at for at, value in enumerate(shown.sizes.series[0].values) if value is None]
    assert gaps
    assert gaps == list(range(gaps[0], gaps[-1] + 1))
    line = charts.lines(shown.sizes, charts.SMALL[:1], "sizes")
    for each in shown.sizes.series:
        before, after = _drawn_paths(line, each.role)
        ends, begins = re.findall(r"\d+", before)[-1], re.findall(r"\d+", after)[0]
        assert int(begins) - int(ends) > 10


@given(st.lists(st.one_of(st.none(), st.integers(0, 8)), min_size=1, max_size=40), st.booleans())
def test_counts_are_drawn_as_steps_and_never_as_diagonals(values: list[int | None], filled: bool) -> None:
    picture = Picture(making.NOW_S, 60.0, making.NOW_S + 60 * len(values), (Series("t0", "x", tuple(values)),))
    draw = charts.areas if filled else charts.lines
    svg = draw(picture, charts.SMALL[:1], "x")
    for part in _drawn_paths(svg, "t0"):
        for subpath in part.split("L"):
            assert re.fullmatch(r"M?\d+,\d+(H\d+(V\d+)?)*z?", subpath), subpath
        if filled:  # it comes back below where it ended, and closes above where it began
            there, back = part.removesuffix("z").split("L")
            assert re.findall(r"[H,M](\d+)", there)[-1] == back.partition(",")[0]
            assert re.match(r"M(\d+)", there)[1] == re.findall(r"H(\d+)", back)[-1]  # type: ignore[index]
    parts = sum(value is not None and (at == 0 or values[at - 1] is None) for at, value in enumerate(values))
    if not filled:
        assert len(_drawn_paths(svg, "t0")) == parts


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 24), st.integers(0, 3600), st.sampled_from([60.0, 180.0, 600.0, 3600.0]))
def test_every_point_has_its_step_whenever_the_page_is_asked_for(hours: int, late_s: int, step_s: float) -> None:
    until_s = making.NOW_S + late_s
    since_s = until_s - hours * 3600
    starts = range(int(since_s // step_s), int((until_s - 1) // step_s) + 1)
    points = [
        {
            "at_s": at * step_s,
            "mean_nodes": {"regular": at, "leased": 0},
            "trainers": {},
            "pool_node_seconds": 0,
        }
        for at in starts
    ]
    told = {"since_s": since_s, "until_s": until_s, "step_s": step_s, "points": points, "trainers": {}}
    shown = charted(told)
    regular = next(each for each in shown.machine.series if each.role == "regular")
    assert list(regular.values) == list(starts)
    assert [at_s // step_s for at_s in shown.machine.starts_s] == list(starts)
    assert shown.machine.starts_s[-1] < shown.machine.until_s <= until_s


def test_a_record_that_has_just_begun_is_no_sliver_at_the_edge() -> None:
    told = making.history(8, 2, 24, gap=False)
    for minutes, steps in ((10, SLOTS_LEAST), (300, 30), (1440, 144)):
        recorded = [point for point in told["points"] if point["at_s"] >= making.NOW_S - 60 * minutes]
        shown = charted(told | {"points": recorded})
        assert len(shown.machine.starts_s) == steps
        assert shown.machine.starts_s[-1] == making.NOW_S - 600


@given(
    st.floats(0, 86400), st.integers(SLOTS_LEAST, 200), st.sampled_from(list(page.STEPS.values())), st.integers(5, 13)
)
def test_times_below_a_chart_are_at_least_two_and_few_and_in_order(
    late_s: float, steps: int, step_s: float, most: int
) -> None:
    since_s = making.NOW_S + late_s
    picture = Picture(since_s, step_s, since_s + steps * step_s, (Series("t0", "x", (1.0,) * steps),))
    times_s = [at_s for at_s, _ in picture.ticks(most)]
    assert 2 <= len(times_s) <= 2 * most
    assert times_s == sorted(set(times_s))
    assert picture.since_s <= times_s[0] <= times_s[-1] <= picture.until_s


@given(st.floats(0, 1e9), st.booleans())
def test_an_axis_has_few_round_steps_and_reaches_its_values_and_counts_in_whole_ones(most: float, whole: bool) -> None:
    scale = charts._linear(most, whole).scale
    assert scale[0] == 0
    assert scale[-1] >= most - 0.01 * (scale[1] - scale[0]) * (1 + 1e-9)
    assert 2 <= len(scale) <= 7
    if whole:
        assert all(value == int(value) for value in scale)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 12, 500])
def test_an_axis_of_nodes_ends_at_a_number_with_a_label(nodes: int) -> None:
    shown = charted(making.history(nodes, 1, 1, gap=False))
    labels = re.findall(r"<text x=\d+ y=\d+>([\d,]+)</text>", charts.areas(shown.machine, charts.FLAT[:1], "x"))
    assert labels[0] == "0"
    assert nodes <= int(labels[-1]) <= max(2, 1.25 * nodes)


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
    assert says(text, "web.sections.nothing_recorded")
    assert says(text, "web.sections.recorded_since", since=minute(shown.status["ledger"]["oldest_event_s"]))
    assert says(text, "web.sections.no_trainer")
    assert says(text, "web.sections.no_node", partition="elastic")
    unread = "".join(read(replace(nothing, status={**shown.status, "snapshot_age_s": None})).text)
    assert says(unread, "web.sections.not_read")
    assert says(text, "web.sections.usage_hidden")
    missing = "the ledger cannot be read (disk I/O error)"
    failed = "".join(read(replace(nothing, missing=missing)).text)
    assert says(failed, "web.sections.no_history", missing=missing)


def test_rows_beyond_the_bound_are_counted_and_those_with_nodes_come_first() -> None:
    shown = making.shown(500, 300, 1)
    found = sections.trainers(shown.status, {})
    assert says(found, "web.sections.not_shown", left=fragment(f"{300 - sections.ROWS_MOST}"))
    assert found.index("running") < found.index("waiting")


def test_trainers_that_run_stand_first_and_those_that_ended_are_folded() -> None:
    shown = making.shown(50, 4, 1)
    states = ("finished", "suspended", "waiting", "running")
    told = [item | {"state": state} for item, state in zip(shown.status["trainers"], states, strict=True)]
    found = sections.trainers({**shown.status, "trainers": told}, {})
    places = [found.index(f'href="/trainers/{item["id"]}"') for item in reversed(told)]
    assert places == sorted(places)
    assert places[2] < found.index("<details id=ended") < places[3]
    assert says(sections.trainers({**shown.status, "trainers": told[:1]}, {}), "web.sections.nobody_wants")
    private = [told[3] | {"id": "", "name": NAMELESS}]
    assert "href" not in sections.trainers({**shown.status, "trainers": private}, {})
