"""The page: what it says, that it is whole by itself, and that no name becomes markup."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.evidence import kept
from benchmarks.impact.analysis.report import evidence
from bftd.base.errors import UsageError
from bftd.simulation.report import Case, Provenance, Replayed, TriedSettings, WeeklyGain, page
from bftd.simulation.report.html import document, tag
from bftd.simulation.report.page import (
    CHANCE_S,
    SLOTS,
    SLOTS_LOST,
    START_HARVESTED_S,
    START_IDLE_S,
    START_PREEMPTED_S,
)
from bftd.simulation.report.pool import pool_of
from bftd.simulation.report.sections import pareto_front
from tests.bftd.simulation.report.making import SITE, result, trace
from tests.support.messages import fragment, says, wording

pytestmark = pytest.mark.slow

MADE_BY = Provenance("bft report 'a b.csv.gz'", {"bftd": "0.1"}, [("<i>.csv", "trace", "ab" * 32)])
POINTS = (
    TriedSettings(120.0, 5, 0.6, 3600.0, 504.0),
    TriedSettings(10.0, 10, 0.55, 7300.0, 462.0),
    TriedSettings(120.0, 10, 0.7, 7200.0, 588.0),
)


class _Reader(HTMLParser):
    """Which elements there are, with their attributes, and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data.replace("\N{NO-BREAK SPACE}", " ")


def _case(**fields: object) -> Case:
    replays = (
        Replayed(result()),
        Replayed(result(policy="equal-share", efficiency=0.6)),
        Replayed(result(policy="scavenger", efficiency=0.3)),
    )
    whole = {"name": SITE, "pool": pool_of(trace()), "replays": replays, "points": POINTS}
    return Case(**whole | fields)  # type: ignore[arg-type]


@cache
def _standard() -> str:
    return page([_case()], MADE_BY).decode()


def _read(*cases: Case) -> _Reader:
    return _Reader(page(cases, MADE_BY).decode())


@pytest.mark.plot
def test_a_page_has_all_sections_and_needs_nothing_else() -> None:
    text = _standard()
    read = _Reader(text)
    ids = [attributes["id"] for name, attributes in read.found if name == "section" and "id" in attributes]
    assert ids == ["summary", "pool", "fragments", "efficiency", "costs", "t-fwd", "pareto", "method", "made"]
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", text.replace("xmlns", ""))
    loading = {"script", "link", "img", "iframe", "object", "embed", "base", "form", "image"}
    assert not loading & {name for name, _ in read.found}


@pytest.mark.plot
def test_the_same_figures_give_the_same_bytes() -> None:
    assert page([_case()], MADE_BY).decode() == _standard()


@pytest.mark.plot
def test_ids_are_there_once_and_whatever_refers_to_one_finds_it() -> None:
    read = _read(_case(), _case(name="other"))
    ids = [attributes["id"] for _, attributes in read.found if attributes.get("id")]
    assert len(ids) == len(set(ids))
    values = [value or "" for _, attributes in read.found for value in attributes.values()]
    wanted = {found for value in values for found in re.findall(r"url\(#([^)]*)\)", value)}
    wanted |= {attributes["href"] or "" for name, attributes in read.found if name == "use"}
    assert wanted
    assert {name.removeprefix("#") for name in wanted} <= set(ids)


@pytest.mark.plot
def test_a_name_never_becomes_markup() -> None:
    plain = _Reader(_standard())
    hostile = _read(_case(name='</title></style><script>alert(1)</script><img src=x onerror="x">'))
    assert [name for name, _ in hostile.found] == [name for name, _ in plain.found]
    assert "<script>alert(1)</script>" in hostile.text


@pytest.mark.plot
def test_reversed_writing_and_controls_in_a_name_are_shown_as_such() -> None:
    text = page([_case(name="a\u202eb\x00c\ud800")], MADE_BY).decode()
    assert "a\ufffdb\ufffdc\ufffd" in text
    assert "\u202e" not in text


@settings(deadline=None)
@given(st.text(), st.text())
def test_any_text_is_read_back_as_it_was(text: str, value: str) -> None:
    made = document("t", "", tag("p", text, aria_label=value)).decode()
    read = _Reader(made)
    assert [name for name, _ in read.found] == [
        "html",
        "head",
        "meta",
        "meta",
        "meta",
        "meta",
        "title",
        "style",
        "body",
        "p",
    ]
    if text.isprintable() and value.isprintable():
        assert read.text.strip("\n").removeprefix("t") == text
        assert read.found[-1][1]["aria-label"] == value


@pytest.mark.plot
def test_the_summary_answers_in_node_hours_u_and_what_others_pay() -> None:
    text = _read(_case(expected=WeeklyGain(120.0, 10, 588.0, 500.0, 650.0, 0.9))).text
    # 60 node-hours in 12 h are 840 a week
    assert "588recovered" + wording("whatif.page.of_idle", idle_per_week=840) in text
    assert says(text, "whatif.page.into_training", weekly="70%")
    assert "60% with equal share, 30% with rigid jobs" in text
    assert "500 to 650 with 90% confidence" in text
    assert (
        wording("whatif.page.later_by") + f"{START_HARVESTED_S - START_IDLE_S:.2f}\u202fs{START_HARVESTED_S} s" in text
    )


@pytest.mark.plot
def test_what_regular_jobs_pay_is_told_as_it_was_measured_and_as_no_part_of_the_replay() -> None:
    text = _Reader(_standard()).text
    assert says(text, "whatif.page.on_a_private_cluster")
    assert says(text, "whatif.page.method")
    assert "nothing" not in text.lower()


def test_regression_the_page_told_other_figures_than_the_results_that_are_kept() -> None:
    started = kept.read("give_back").result
    assert f"{started['baseline_delay_s']:.2f}" == f"{START_IDLE_S:.2f}"
    assert f"{started['cooperative_delay_s']:.2f}" == f"{START_HARVESTED_S:.2f}"
    streams = kept.read("impact").result
    assert evidence(streams)["default.slots"].text == f"{SLOTS_LOST} of {SLOTS}"
    queue = streams["default"]
    assert f"{queue['preempt_to_start_s']['mean']:.2f}" == f"{START_PREEMPTED_S:.2f}"
    assert round(queue["ba"]["tells_s"]) == CHANCE_S


@pytest.mark.plot
def test_the_parts_of_the_costs_add_up_to_what_dedicated_nodes_earn() -> None:
    text = _Reader(_standard()).text
    assert "earns 80.0%" in text
    assert "loses 5.0% while" in text
    assert says(text, "whatif.sections.costs", preempted=fragment("2.0%"))
    assert "13.0%, is never earned" in text


@pytest.mark.plot
def test_what_was_unclear_about_the_trace_is_told() -> None:
    noted = replace(trace(), notes={"overlapping_jobs": 3})
    assert says(_read(_case(pool=pool_of(noted))).text, "whatif.notes.overlapping_jobs", overlapping=3)


@pytest.mark.plot
def test_policies_with_other_settings_are_not_compared() -> None:
    other = Replayed(result(policy="equal-share", efficiency=0.6, t_fwd_s=10.0))
    text = _read(_case(replays=(Replayed(result()), other))).text
    assert "with equal share" not in text


def test_no_line_is_broken_between_a_number_and_its_unit() -> None:
    assert f"{START_HARVESTED_S}\N{NO-BREAK SPACE}s against" in page([_case()], MADE_BY).decode()


@pytest.mark.plot
def test_stored_replays_of_several_t_fwd_draw_its_curve() -> None:
    replays = [Replayed(result(t_fwd_s=t_fwd_s, efficiency=u)) for t_fwd_s, u in ((120.0, 0.8), (10.0, 0.7))]
    read = _read(Case(SITE, replays=replays))
    assert says(read.text, "whatif.sections.t_fwd", u="80.0%", t_fwd_s="120 s", u2="70.0%", t_fwd_s2=fragment("10 s"))


@pytest.mark.plot
def test_regression_one_setting_had_two_figures_of_u() -> None:
    """A sweep counts in node-seconds, so it tells the recovered share and no U."""
    read = _read(_case())
    high, low = fragment("70.0%"), fragment("55.0%")
    assert says(read.text, "whatif.sections.t_fwd_recovered", share=high, share2=low)
    assert not says(read.text, "whatif.sections.t_fwd")


@pytest.mark.plot
def test_what_is_not_known_is_left_out() -> None:
    read = _read(Case(SITE, replays=(Replayed(result(series=False)),)))
    ids = [attributes["id"] for name, attributes in read.found if name == "section" and "id" in attributes]
    assert ids == ["summary", "efficiency", "costs", "method", "made"]
    assert says(read.text, "whatif.sections.no_series")


@pytest.mark.plot
def test_several_sites_are_told_one_by_one_behind_an_overview() -> None:
    read = _read(_case(name="one"), _case(name="two"))
    ids = [attributes["id"] for name, attributes in read.found if name == "section" and "id" in attributes]
    assert ids[0] == "overview"
    assert {"s1-pool", "s2-pareto"} <= set(ids)


def test_without_anything_there_is_no_page() -> None:
    with pytest.raises(UsageError, match="name a trace"):
        page([], MADE_BY)


_points = st.builds(
    TriedSettings,
    t_fwd_s=st.just(120.0),
    pj_max=st.integers(1, 9),
    efficiency=st.integers(0, 6).map(float),
    mean_runtime_s=st.integers(1, 6).map(float),
)


@settings(deadline=None)
@given(st.lists(_points, min_size=1, max_size=12))
def test_a_point_is_on_the_front_unless_another_beats_it(points: list[TriedSettings]) -> None:
    front = {(point.mean_runtime_s, point.efficiency) for point in pareto_front(points)}

    def beaten(point: TriedSettings) -> bool:
        return any(
            other.mean_runtime_s <= point.mean_runtime_s  # type: ignore[operator]
            and other.efficiency >= point.efficiency  # type: ignore[operator]
            and (other.mean_runtime_s, other.efficiency) != (point.mean_runtime_s, point.efficiency)
            for other in points
        )

    assert front == {(point.mean_runtime_s, point.efficiency) for point in points if not beaten(point)}
