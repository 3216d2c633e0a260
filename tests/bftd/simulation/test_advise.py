"""The sweep over t_fwd and pj_max, the choice among its points, how sure the outcome is, and `bft advise`."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.base.errors import UsageError
from bftd.simulation.advise import Prefer, SweepPoint, advise, pareto, recommend, sweep
from bftd.simulation.advise.choice import ALIKE, KEEP, at_edge
from bftd.simulation.advise.confidence import expected, student
from bftd.simulation.advise.sweep import Day
from bftd.simulation.advise.units import best_rate, in_node_seconds
from bftd.simulation.advise.workers import each
from bftd.simulation.drivers.networks import TABLE_2, representative
from bftd.simulation.drivers.trainers import Points, SimTrainer
from bftd.simulation.replay import Options
from bftd.simulation.trace import Trace, write
from tests.bftd.simulation.trace.making import trace_of
from tests.support.messages import pattern, wording
from tests.support.terminal import Run, Terminal
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow

DAY_S = 86400.0


def trainer(name: str, work: float, curve: Points, **fields: float) -> SimTrainer:
    return SimTrainer(name, 1, curve[-1][0], work, curve, curve, **fields)


LINEAR: Points = ((0, 0.0), (8, 8.0))
BENDING: Points = ((0, 0.0), (1, 10.0), (2, 18.0), (4, 30.0), (8, 40.0))
TRAINERS = (
    trainer("a-1", 20_000.0, LINEAR, up_cost_s=20.0, down_cost_s=5.0),
    trainer("b-2", 300_000.0, BENDING, up_cost_s=30.0, down_cost_s=10.0),
)


def flickering(days: float, nodes: int = 6, seed: int = 0) -> Trace:
    """Nodes that are idle for an hour or so, again and again."""
    rng = random.Random(seed)
    periods: dict[str, list[tuple[float, float]]] = {}
    for number in range(nodes):
        at_s, found = 0.0, []
        while at_s < days * DAY_S:
            start_s = at_s + round(rng.expovariate(1 / 1800.0))
            at_s = start_s + 10 + round(rng.expovariate(1 / 3600.0))
            if start_s < days * DAY_S:
                found.append((start_s, at_s))
        periods[f"n{number}"] = found
    return trace_of(periods, days * DAY_S)


def steady(nodes: int, days: float) -> Trace:
    return trace_of({f"n{number}": [(0.0, inf)] for number in range(nodes)}, days * DAY_S)


def point(pj_max: int, t_fwd_s: float, efficiency: float, mean_runtime_s: float) -> SweepPoint:
    return SweepPoint(
        t_fwd_s, pj_max, efficiency, efficiency, efficiency, 1.0, 1.0, mean_runtime_s, None, 0, pj_max, 0, 0.0, 0.0
    )


POINTS = st.lists(
    st.builds(
        point,
        st.integers(1, 5),
        st.sampled_from([10.0, 60.0, 120.0]),
        st.integers(1, 100).map(lambda percent: percent / 100),
        st.integers(1, 50).map(float) | st.just(inf),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda found: (found.pj_max, found.t_fwd_s),
)


def beats(one: SweepPoint, other: SweepPoint) -> bool:
    """At least as good in both, and better in one."""
    mine, theirs = (one.efficiency, -one.mean_runtime_s), (other.efficiency, -other.mean_runtime_s)
    return mine != theirs and mine[0] >= theirs[0] and mine[1] >= theirs[1]


class TestChoosing:
    @given(POINTS)
    @settings(deadline=None)
    def test_no_point_of_the_pareto_curve_is_beaten_and_every_other_point_is_beaten_or_matched(
        self, points: list[SweepPoint]
    ) -> None:
        curve = pareto(points)
        assert not any(beats(other, one) for one in curve for other in points)
        for one in points:
            same = [c for c in curve if (c.efficiency, c.mean_runtime_s) == (one.efficiency, one.mean_runtime_s)]
            assert same or any(beats(other, one) for other in curve)
        assert list(curve) == sorted(curve, key=lambda found: found.mean_runtime_s)

    @given(POINTS, st.sampled_from(list(KEEP)))
    @settings(deadline=None)
    def test_what_is_recommended_keeps_what_was_promised_and_no_kept_pj_max_is_faster(
        self, points: list[SweepPoint], prefer: Prefer
    ) -> None:
        best = max(points, key=lambda found: found.efficiency)
        if best.mean_runtime_s == inf:
            return
        chosen, _ = recommend(points, prefer)
        kept = [found for found in points if found.efficiency >= KEEP[prefer] * best.efficiency]
        assert chosen in kept
        fastest = min(found.mean_runtime_s for found in kept)
        mine = [found for found in kept if found.pj_max == chosen.pj_max]
        assert fastest == min(found.mean_runtime_s for found in mine)
        assert chosen.efficiency >= max(found.efficiency for found in mine) - ALIKE
        assert all(found.efficiency < chosen.efficiency for found in mine if found.t_fwd_s < chosen.t_fwd_s)

    def test_each_preference_takes_the_setting_that_its_tolerance_says(self) -> None:
        points = [
            point(2, 60, 0.70, 1000),
            point(5, 10, 0.80, 2000),
            point(5, 60, 0.817, 1950),
            point(5, 120, 0.82, 1940),
            point(20, 60, 0.85, 8000),
            point(60, 60, 0.855, 24000),
        ]
        assert recommend(points, "efficiency")[0] is points[4]
        assert recommend(points, "runtime")[0] is points[0]
        chosen, reason = recommend(points, "balanced")
        assert chosen is points[2]
        assert wording("whatif.choice.shortest", KEEP="95%", pj_max=5) in reason
        assert "95.6% of what pj_max 60 recovers, in 8% of the time" in reason
        assert wording("whatif.choice.smallest_t_fwd", t_fwd_s=60) in reason

    def test_a_trace_that_gives_nothing_is_no_reason_to_recommend_anything(self) -> None:
        with pytest.raises(UsageError, match=pattern("whatif.choice.nothing_recovered")):
            recommend([point(1, 60, 0.0, inf)])


class TestConfidence:
    @given(
        st.lists(st.tuples(st.floats(24, 47.9), st.floats(0, 1e5)), min_size=3, max_size=30),
        st.integers(0, 2**32),
    )
    @settings(deadline=None, max_examples=50)
    def test_the_interval_contains_the_estimate_is_not_negative_and_is_the_same_for_the_same_seed(
        self, found: list[tuple[float, float]], seed: int
    ) -> None:
        days = [Day(*day) for day in found]
        first = expected(days, seed)
        assert first == expected(days, seed)
        assert first.low is not None
        assert first.high is not None
        assert 0 <= first.low <= first.node_hours_per_week <= first.high
        assert first.node_hours_per_week == pytest.approx(168 * sum(d[1] for d in found) / sum(d[0] for d in found))

    def test_another_seed_draws_other_days(self) -> None:
        days = [Day(24.0, float(number**2)) for number in range(9)]
        assert len({expected(days, seed).high for seed in range(20)}) > 1

    def test_days_that_are_all_alike_leave_no_doubt(self) -> None:
        found = expected([Day(24.0, 10.0)] * 5)
        assert found.low == pytest.approx(70) == found.high

    @pytest.mark.parametrize("count", [1, 2])
    def test_fewer_than_three_days_give_no_confidence_and_the_reason(self, count: int) -> None:
        found = expected([Day(24.0, 10.0)] * count)
        assert (found.low, found.high, found.confidence) == (None, None, None)
        assert found.node_hours_per_week == pytest.approx(70)
        assert found.why_not is not None
        assert found.why_not.startswith(f"the trace has {count} whole day")

    @pytest.mark.parametrize("count", [3, 7, 28])
    def test_the_true_rate_is_within_the_bounds_about_as_often_as_they_say(self, count: int) -> None:
        rng = np.random.default_rng(5)
        draws = rng.normal(100.0, 20.0, size=(300, count))
        spans = [expected([Day(24.0, float(value)) for value in row]) for row in draws]
        hits = sum(
            1 for span in spans if span.low is not None and span.high is not None and span.low <= 700 <= span.high
        )
        assert 0.83 <= hits / len(spans) <= 0.96

    @pytest.mark.parametrize(("freedom", "value"), [(2, 2.920), (3, 2.353), (6, 1.943), (30, 1.697)])
    def test_students_t_is_that_of_the_tables(self, freedom: int, value: float) -> None:
        assert student(0.95, freedom) == pytest.approx(value, rel=0.013)


class TestSweep:
    def test_points_do_not_depend_on_the_number_of_processes(self) -> None:
        trace = flickering(0.5)
        alone = sweep(trace, TRAINERS, (120, 30), (3, 1), jobs=1)
        assert (
            alone == sweep(trace, TRAINERS, (30, 120), (1, 3), jobs=2) == sweep(trace, TRAINERS, (30, 120), (1, 3, 3))
        )
        assert [(found.pj_max, found.t_fwd_s) for found in alone] == [(1, 30), (1, 120), (3, 30), (3, 120)]

    def test_steady_nodes_without_costs_are_worth_all_of_themselves(self) -> None:
        linear = [trainer("a", 4 * 3600.0, LINEAR)]
        (found,) = sweep(steady(4, 2.0), linear, [60], [2], jobs=1)
        assert found.efficiency == pytest.approx(1)
        assert found.node_hours_per_week == pytest.approx(4 * 168) == found.held_node_hours_per_week
        # 4 nodes do 4 node-hours of work an hour, one trainer's; two are at it
        assert found.mean_runtime_s == pytest.approx(2 * 3600)
        assert found.completed in (47, 48)
        assert [day.node_hours for day in found.days] == [pytest.approx(96)] * 2

    def test_one_trainer_that_cannot_use_all_nodes_is_not_efficient_whatever_u_says(self) -> None:
        small = [trainer("a", 1e6, ((0, 0.0), (2, 2.0)))]
        (found,) = sweep(steady(8, 1.0), small, [60], [1], jobs=1)
        assert found.u == pytest.approx(1)
        assert found.efficiency == pytest.approx(2 / 8)

    def test_what_is_recovered_is_counted_alike_whatever_a_trainer_counts_in(self) -> None:
        trace = flickering(0.5)
        curve = tuple((nodes, 1000 * rate) for nodes, rate in BENDING)
        other = replace(TRAINERS[1], work_samples=1000 * TRAINERS[1].work_samples, curve=curve)
        options = Options(objective="efficiency")
        mixed = sweep(trace, [TRAINERS[0], other], [60], [2], options=options, jobs=1)[0]
        same = sweep(trace, TRAINERS, [60], [2], options=options, jobs=1)[0]
        assert mixed.efficiency == pytest.approx(same.efficiency)
        assert mixed.mean_runtime_s == pytest.approx(same.mean_runtime_s)
        assert mixed.completed == same.completed

    def test_no_trainer_gets_more_out_of_a_node_than_the_unit_says(self) -> None:
        for found in sweep(flickering(1.0), TRAINERS, [30, 300], [1, 4], jobs=1):
            assert 0 < found.efficiency < 1
            assert found.node_hours_per_week <= found.held_node_hours_per_week

    def test_days_add_up_to_the_whole_and_the_last_takes_what_is_left(self) -> None:
        (found,) = sweep(flickering(2.5, nodes=3), TRAINERS, [60], [2], jobs=1)
        assert [day.hours for day in found.days] == [24, 36]
        weeks = 2.5 / 7
        assert sum(day.node_hours for day in found.days) == pytest.approx(found.node_hours_per_week * weeks)

    def test_the_run_time_agrees_with_that_of_the_completed_where_nearly_all_are(self) -> None:
        short = [replace(TRAINERS[0], work_samples=4000.0)]
        (found,) = sweep(flickering(2.0), short, [60], [3], jobs=1)
        assert found.completed > 100
        assert found.completed_runtime_s is not None
        assert found.mean_runtime_s == pytest.approx(found.completed_runtime_s, rel=0.05)

    def test_a_setting_gains_nothing_when_only_its_short_trainers_come_to_their_end(self) -> None:
        minnows = [trainer(f"minnow-{number}", 3600.0, LINEAR) for number in range(20)]
        whale = trainer("whale-1", 100 * 3600.0, ((0, 0.0), (8, 4.0)))  # 200 node-hours, and always comes last
        (found,) = sweep(steady(4, 1.0), [*minnows, whale], [60], [4], jobs=1)
        assert found.completed == found.kinds["minnow"].completed > 40
        assert found.kinds["whale"].completed == 0
        assert found.completed_runtime_s is not None
        # 4 nodes do the work of an average trainer, 220 / 21 node-hours, in a quarter of that time; 4 are at it
        assert found.mean_runtime_s == pytest.approx(220 / 21 * 3600)
        assert found.mean_runtime_s > 5 * found.completed_runtime_s

    def test_hours_end_the_replays_early(self) -> None:
        trace = flickering(2.0)
        options = Options(hours=12)
        cut = sweep(trace, TRAINERS, [60], [2], options=options, jobs=1)
        assert cut == sweep(trace.first(12), TRAINERS, [60], [2], jobs=1)
        assert cut != sweep(trace, TRAINERS, [60], [2], jobs=1)

    def test_arrivals_do_not_matter_since_trainers_are_never_what_is_lacking(self) -> None:
        late = [replace(one, submit_s=40_000.0) for one in TRAINERS]
        trace = flickering(0.5)
        assert sweep(trace, late, [60], [2], jobs=1) == sweep(trace, TRAINERS, [60], [2], jobs=1)

    def test_progress_rises_to_one(self) -> None:
        heard: list[float] = []
        sweep(flickering(0.5), TRAINERS, [60], [1, 2], jobs=1, progress=heard.append)
        sweep(flickering(0.5), TRAINERS, [60], [1, 2], jobs=2, progress=heard.append)
        assert 0 <= min(heard) <= max(heard) == 1
        assert heard[-1] == 1

    def test_throughput_plans_by_samples_and_curve_by_what_the_file_says(self) -> None:
        one = replace(TRAINERS[1], objective=LINEAR)
        planned = {
            objective: in_node_seconds([one], Options(objective=objective))[0][0].objective
            for objective in ("curve", "throughput")
        }
        assert planned == {"curve": LINEAR, "throughput": BENDING}
        assert best_rate(one) == 10.0
        assert best_rate(replace(one, nodes_min=4)) == 7.5

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"t_fwds_s": [-1.0]}, "t_fwd_s must be"),
            ({"pj_maxes": [0]}, "pj_max must be"),
            ({"pj_maxes": []}, "nothing to try"),
            ({"jobs": 0}, "jobs must be"),
            ({"trainers": [trainer("a", 1.0, ((0, 0.0), (1, 0.0)))]}, "trainer a earns nothing"),
        ],
    )
    def test_what_cannot_be_swept_is_refused(self, change: dict[str, object], says: str) -> None:
        arguments = {"trainers": TRAINERS, "t_fwds_s": [60.0], "pj_maxes": [1]} | change
        with pytest.raises(UsageError, match=says):
            sweep(steady(1, 0.1), **arguments)  # type: ignore[arg-type]


class TestAdvice:
    def test_the_same_advice_is_the_same_text_on_any_number_of_processes(self) -> None:
        trace = flickering(3.0, nodes=4)
        first = advise(trace, TRAINERS, [30, 120], [1, 3], jobs=1)
        text = json.dumps(first.to_json())
        assert text == json.dumps(advise(trace, TRAINERS, [30, 120], [1, 3], jobs=2).to_json())
        found = json.loads(text)
        assert {"recommended", "grid", "pareto", "expected", "run"} <= set(found)
        assert len(found["grid"]) == 4
        assert all(one in found["grid"] for one in found["pareto"])
        chosen = next(
            one for one in found["grid"] if {key: one[key] for key in ("t_fwd_s", "pj_max")} == found["recommended"]
        )
        assert chosen["node_hours_per_week"] == pytest.approx(found["expected"]["node_hours_per_week"])
        assert found["expected"]["low"] < found["expected"]["node_hours_per_week"] < found["expected"]["high"]
        assert found["run"]["inputs"]["trace"]["sha256"] == trace.digest()

    def test_without_trainers_the_networks_of_the_paper_stand_for_them_and_it_says_so(self) -> None:
        found = advise(steady(4, 1.0), t_fwds_s=[60], jobs=1)
        assert any("Table 2" in note for note in found.notes)
        assert found.run["inputs"]["trainers"]["built_in"]
        assert [trainer.kind for trainer in representative()] == list(TABLE_2)
        assert {one.pj_max for one in found.grid} == {1, 2}

    def test_kinds_that_never_came_to_their_end_are_named(self) -> None:
        whale = trainer("whale-1", 1e9, ((0, 0.0), (8, 4.0)))
        found = advise(steady(4, 1.0), [TRAINERS[0], whale], [60], [2], jobs=1)
        assert any("none of whale was completed" in note for note in found.notes)

    @pytest.mark.parametrize(
        ("best", "says"),
        [
            ((9, 60), [wording("whatif.choice.largest_pj_max", pj_max=9)]),
            ((2, 60), [wording("whatif.choice.least_pj_max", pj_max=2)]),
            ((5, 99), [wording("whatif.choice.largest_t_fwd", t_fwd_s=99)]),
            ((5, 30), [wording("whatif.choice.least_t_fwd", t_fwd_s=30)]),
            ((5, 60), []),
        ],
    )
    def test_a_choice_at_the_edge_of_the_grid_asks_for_more(self, best: tuple[int, int], says: list[str]) -> None:
        points = [
            point(pj, t_fwd, 0.9 if (pj, t_fwd) == best else 0.5, 60) for pj in (2, 5, 9) for t_fwd in (30, 60, 99)
        ]
        assert at_edge(recommend(points)[0], points) == says

    def test_a_trace_without_idle_time_is_refused(self) -> None:
        with pytest.raises(UsageError):
            advise(trace_of({"n0": [(60.0, inf)]}, 60.0), TRAINERS, jobs=1)


WAITING = """
import os, signal, sys
from bftd.simulation.advise.workers import each
from bftd.base.errors import BftError

def work(index, tell):
    os.write(1, f"{os.getpid()}\\n".encode())
    signal.pause()

try:
    each(work, range(8), 2)
except KeyboardInterrupt:
    sys.exit(130)
except BftError as error:
    sys.exit(str(error))
"""


class TestWorkers:
    def test_results_are_in_order_and_come_from_other_processes(self) -> None:
        found = each(lambda index, tell: (index, os.getpid()), [3, 1, 0, 2], 2)
        assert [index for index, _ in found] == [0, 1, 2, 3]
        assert os.getpid() not in {pid for _, pid in found}

    def test_an_error_of_a_call_is_the_callers(self) -> None:
        def work(index: int, tell: Callable[[float], None]) -> int:
            raise UsageError(f"call {index} cannot be")

        with pytest.raises(UsageError, match=r"call \d cannot be"):
            each(work, range(4), 2)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
    def test_no_worker_outlives_its_parent(self, number: signal.Signals) -> None:
        parent, workers = self._started()
        parent.send_signal(number)
        assert parent.wait(STILL_S) == (130 if number == signal.SIGINT else -number)
        assert self._all_gone(workers)

    def test_a_worker_that_is_killed_ends_all_with_one_line(self) -> None:
        parent, workers = self._started()
        workers[0].kill()
        _, complaint = parent.communicate(timeout=STILL_S)
        assert parent.returncode == 1
        assert complaint.startswith(wording("whatif.workers.killed"))
        assert complaint.count("\n") == 1
        assert self._all_gone(workers)

    def _started(self) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
        parent = subprocess.Popen(
            [sys.executable, "-c", WAITING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert parent.stdout is not None
        return parent, [psutil.Process(int(parent.stdout.readline())) for _ in range(2)]

    def _all_gone(self, workers: list[psutil.Process]) -> bool:
        """Whoever reaps orphans may be slow at it."""
        _, alive = psutil.wait_procs(workers, timeout=STILL_S)
        return all(worker.status() == psutil.STATUS_ZOMBIE for worker in alive if worker.is_running())


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs `bft advise` on T.csv of three days and X.json."""
    write(flickering(3.0, nodes=4), tmp_path / "T.csv")
    (tmp_path / "X.json").write_text(json.dumps([one.to_json() for one in TRAINERS]))
    monkeypatch.chdir(tmp_path)
    return Terminal(monkeypatch, capsys, "advise")


NO_CHOICE = "is not one of"
"""Of an option whose value is none of those that it may have: click's words."""


class TestCommand:
    def test_it_prints_a_table_a_recommendation_its_reason_and_what_to_expect(self, run: Run) -> None:
        code, out, err = run("T.csv", "--trainers", "X.json", "--t-fwd", "30,120", "--pj-max", "1,3", "--jobs", "1")
        assert (code, err) == (0, "")
        lines = out.splitlines()
        assert re.fullmatch(pattern("cli.advise.idle"), lines[0])
        assert sum(line.startswith("*") for line in lines) == 2  # the row and the legend
        for word in ("recommended: t_fwd ", "why:         of all settings", "expect:  "):
            assert any(line.startswith(word) for line in lines)
        assert "90% confidence (bootstrap of 3 days)" in out
        assert len({len(line) for line in lines[2:7]}) == 1

    def test_json_goes_to_standard_output_or_a_file_with_the_same_content(self, run: Run, tmp_path: Path) -> None:
        words = ("T.csv", "--trainers", "X.json", "--t-fwd", "30", "--pj-max", "1,2", "--hours", "30")
        code, out, _ = run(*words, "--json", "-o", "A.json", "--prefer", "runtime")
        assert code == 0
        assert json.loads(out) == json.loads((tmp_path / "A.json").read_text())
        assert json.loads(out)["prefer"] == "runtime"
        assert "expect:      " in (text := run(*words)[1])
        why = pattern("whatif.confidence.few_days", count=1, value="")
        assert re.search(pattern("cli.advise.no_confidence", why_not="WHY").replace("WHY", why), text)

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            (("none.csv",), "cannot read none.csv"),
            (("T.csv", "--trainers", "none.json"), "none.json"),
            (("T.csv", "--nodes", "n99"), "n99"),
            (("T.csv", "--pj-max", "1,x"), wording("cli.advise.no_numbers", value="1,x")),
            (("T.csv", "--t-fwd", "nan"), wording("whatif.options.not_above", name="t_fwd_s", least=0, value="nan")),
            (("T.csv", "--pj-max", "0"), "pj_max must be 1 or more"),
            (("T.csv", "--jobs", "0"), "jobs must be 1 or more"),
            (("T.csv", "--hours", "-1"), "hours must be"),
            (("T.csv", "-o", "none/A.json"), "cannot write none/A.json"),
            (("T.csv", "-o", "."), wording("cli.common.is_a_directory", path=".")),
            (("T.csv", "--seed", "-1"), "seed"),
            (("T.csv", "--prefer", "luck"), f"'luck' {NO_CHOICE}"),
        ],
    )
    def test_a_mistake_is_told_in_one_line(self, run: Run, words: tuple[str, ...], says: str) -> None:
        code, out, err = run(*words)
        assert (code, out) == (2, "")
        assert says in err
        assert err.count("\n") == 1
