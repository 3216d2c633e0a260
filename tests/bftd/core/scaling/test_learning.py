"""What is learned from reports."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftd.core.planning.objective import values
from bftd.core.scaling import amdahl
from bftd.core.scaling.learning import (
    SIZES_KEPT,
    UNKNOWN_DOWN_COST_S,
    UNKNOWN_UP_COST_S,
    UNKNOWN_WARM_UP_S,
    ScalingModel,
    curve,
    median_rate_per_node,
    observe_estimates,
    observe_rate,
    observe_resize,
    observe_resume,
    observe_state,
    observe_warm_up,
)
from bftd.core.scaling.resize_cost import Stall, cost_s
from bftd.protocol.curves import CurveEstimate
from bftd.protocol.reports import ResizeKind, ResizeReport
from milp import interpolate as rate

SIZES = st.integers(1, 64)
RATES = st.floats(0.01, 1e6)


def test_a_trainer_about_which_nothing_is_known_scales_less_than_linearly_from_the_guess() -> None:
    points = curve(ScalingModel(), 8, guess_per_node=50.0)
    assert points[0] == (0, 0.0)
    assert rate(points, 1) == 50.0
    per_node = [rate(points, nodes) / nodes for nodes in (1, 2, 4, 8)]
    assert per_node == sorted(per_node, reverse=True)
    assert per_node[-1] < per_node[0]


@given(st.integers(2, 256), st.integers(1, 256), RATES)
def test_a_curve_through_one_size_is_concave_below_it_and_above_it(nodes_max: int, size: int, at_size: float) -> None:
    points = curve(observe_rate(ScalingModel(), min(size, nodes_max), at_size), nodes_max)
    slopes = [(after - before) / (high - low) for (low, before), (high, after) in itertools.pairwise(points)]
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in itertools.pairwise(slopes))
    assert rate(points, min(size, nodes_max)) == pytest.approx(at_size)


def test_trainers_seen_at_different_sizes_are_taken_to_scale_alike() -> None:
    small, large = (curve(observe_rate(ScalingModel(), size, 100.0), 64) for size in (1, 64))
    for nodes in (2, 8, 64):
        assert rate(small, nodes) / rate(small, 1) == pytest.approx(rate(large, nodes) / rate(large, 1))


@pytest.mark.parametrize("serial", [0.0, 0.02, 0.1, 0.3, 0.5])
def test_two_sizes_far_apart_tell_what_is_made_of_others(serial: float) -> None:
    def true(nodes: int) -> float:
        return 10.0 * amdahl.speed_up(serial, nodes)

    known = observe_rate(observe_rate(ScalingModel(), 2, true(2)), 16, true(16))
    points = curve(known, 64)
    for nodes in (1, 4, 8, 32):
        assert rate(points, nodes) == pytest.approx(true(nodes), rel=0.08)


def test_a_trainer_begins_with_how_those_before_it_have_scaled() -> None:
    history: amdahl.Weights = ()
    for _ in range(5):
        history = amdahl.remembered(history, [((1, 10.0), (8, 79.0), (16, 156.0))])
    assert amdahl.remembered(history, [((4, 10.0), (5, 12.0))]) == history, "sizes so close tell nothing"
    assert sum(history) < amdahl.REMEMBERED
    stranger, here = (curve(ScalingModel(prior=prior), 64) for prior in ((), amdahl.prior(history)))
    assert rate(here, 64) > 1.3 * rate(stranger, 64)


def test_the_users_curve_is_believed_until_something_is_seen() -> None:
    given_curve = ScalingModel(given=((1, 10.0), (2, 19.0), (4, 30.0)))
    assert [rate(curve(given_curve, 4), nodes) for nodes in (1, 2, 3, 4)] == [10.0, 19.0, 24.5, 30.0]


def test_what_is_seen_scales_the_users_curve_elsewhere() -> None:
    known = observe_rate(ScalingModel(given=((1, 10.0), (2, 19.0), (4, 30.0))), 2, 38.0)
    points = curve(known, 4)
    assert [rate(points, nodes) for nodes in (1, 2, 4)] == [20.0, 38.0, 60.0]


def test_between_seen_sizes_the_curve_bends_as_the_time_of_a_sample_does() -> None:
    known = observe_rate(observe_rate(ScalingModel(), 2, 100.0), 16, 160.0)
    points = curve(known, 16)
    assert rate(points, 2) == 100.0
    assert rate(points, 16) == pytest.approx(160.0)
    part = (1 / 4 - 1 / 16) / (1 / 2 - 1 / 16)
    assert 1 / rate(points, 4) == pytest.approx(part / 100.0 + (1 - part) / 160.0)


def test_a_new_report_moves_a_known_size_by_a_third() -> None:
    known = observe_rate(observe_rate(ScalingModel(), 2, 100.0), 2, 200.0)
    assert known.seen == ((2, 135.0),)


@pytest.mark.parametrize(("nodes", "samples_per_s"), [(0, 5.0), (2, 0.0), (2, -1.0), (2, math.nan), (2, math.inf)])
def test_senseless_reports_teach_nothing(nodes: int, samples_per_s: float) -> None:
    assert observe_rate(ScalingModel(), nodes, samples_per_s) == ScalingModel()


def resized(known: ScalingModel, from_nodes: int, to_nodes: int, stall_s: float, **told: Any) -> ScalingModel:
    """What is known after one more resize."""
    kind: ResizeKind = "up" if to_nodes > from_nodes else "down"
    return observe_resize(known, ResizeReport(0.0, from_nodes, to_nodes, kind, stall_s, **told))


def test_costs_are_the_median_of_the_last_stalls_and_first_what_the_user_said() -> None:
    known = ScalingModel(given_up_cost_s=7.0)
    assert known.up_cost_s(1) == 7.0
    for stall_s in (1.0, 30.0, 2.0):
        known = resized(known, 1, 2, stall_s)
    assert known.up_cost_s(1) == 2.0
    for _ in range(3):
        known = resized(known, 1, 2, 9.0)
    assert known.up_cost_s(1) == 9.0, "a lasting change counts after three"
    assert known.down_stalls == ()
    assert known.down_cost_s(2) == UNKNOWN_DOWN_COST_S


def test_starting_from_nothing_stopping_and_crashes_are_no_rescale_costs() -> None:
    assert resized(ScalingModel(), 0, 4, 12.0) == ScalingModel()
    assert resized(ScalingModel(), 4, 0, 12.0) == ScalingModel()
    assert observe_resize(ScalingModel(), ResizeReport(0.0, 4, 2, "crash", 12.0)) == ScalingModel()
    assert observe_resize(ScalingModel(), ResizeReport(0.0, 4, 2, "down")) == ScalingModel()


def test_a_resize_costs_what_it_did_at_about_the_same_size() -> None:
    known = ScalingModel()
    for stall_s in (40.0, 41.0, 42.0):
        known = resized(known, 64, 65, stall_s)
    for stall_s in (4.0, 5.0, 6.0):
        known = resized(known, 2, 3, stall_s)
    assert known.up_cost_s(2) == 5.0
    assert 40.0 <= known.up_cost_s(60) <= 42.0


def test_before_any_resize_was_seen_a_measured_save_tells_what_one_costs() -> None:
    known = observe_state(ScalingModel(), 30.0, 14e9)
    assert known.up_cost_s(4) == UNKNOWN_UP_COST_S + 60.0
    assert known.down_cost_s(4) == UNKNOWN_DOWN_COST_S + 60.0
    said = observe_state(ScalingModel(given_up_cost_s=7.0), 30.0, 14e9)
    assert said.up_cost_s(4) == 7.0, "the user knows better until one is seen"
    assert resized(known, 4, 5, 50.0).up_cost_s(4) == 50.0
    assert observe_state(known, None, None) is known
    assert observe_state(known, math.nan, -1.0) is known


def test_where_slurm_took_nodes_the_save_that_a_plan_would_wait_for_is_added() -> None:
    known = observe_state(ScalingModel(), 30.0, 14e9)
    assert resized(known, 4, 3, 20.0, save_s=0.0).down_cost_s(4) == 50.0
    assert resized(known, 4, 3, 50.0, save_s=30.0).down_cost_s(4) == 50.0
    assert resized(ScalingModel(), 4, 3, 0.2, save_s=0.0).down_cost_s(4) == 0.2, "Horovod saves nothing at a resize"


def test_stalls_of_a_state_that_has_grown_since_count_less() -> None:
    known = ScalingModel()
    for _ in range(5):
        known = resized(known, 4, 5, 3.0, state_bytes=10**9)
    larger = resized(known, 4, 5, 12.0, state_bytes=4 * 10**9)
    assert larger.up_cost_s(4) == 12.0
    assert resized(known, 4, 5, 12.0, state_bytes=10**9).up_cost_s(4) == 3.0, "one odd stall is none"
    # nobody has resized it yet, but its saves are known
    assert observe_state(known, 60.0, 64e9).up_cost_s(4) == UNKNOWN_UP_COST_S + 120.0
    assert observe_state(known, 0.5, 1.1e9).up_cost_s(4) == 3.0


def test_a_resume_costs_what_resumes_did_and_first_a_warm_up_and_the_loading() -> None:
    known = observe_state(observe_warm_up(ScalingModel(), 10.0), 25.0, None)
    assert known.resume_s == 35.0
    for duration_s in (50.0, 300.0, 52.0, math.inf):
        known = observe_resume(known, duration_s)
    assert known.resume_s == 52.0


STALLS = st.lists(st.tuples(st.integers(1, 64), st.floats(0, 1e12), st.floats(0, 1e6)), min_size=1, max_size=8)


@given(STALLS, st.integers(0, 64), st.floats(0, 1e12), st.none() | st.floats(0, 1e6))
def test_a_cost_is_never_outside_of_what_it_is_made_from(
    seen: list[Stall], nodes: int, state_bytes: float, guess_s: float | None
) -> None:
    told = [stall_s for _, _, stall_s in seen] + ([] if guess_s is None else [guess_s])
    assert min(told) <= cost_s(tuple(seen), nodes, state_bytes, guess_s) <= max(told)


@given(STALLS, st.integers(1, 64), st.floats(0, 1e12), st.data())
def test_a_longer_stall_never_makes_a_resize_cheaper(
    seen: list[Stall], nodes: int, state_bytes: float, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(seen) - 1))
    before, size, stall_s = seen[place]
    raised = [*seen]
    raised[place] = (before, size, stall_s + data.draw(st.floats(0, 1e6)))
    assert cost_s(tuple(raised), nodes, state_bytes) >= cost_s(tuple(seen), nodes, state_bytes)


@given(st.lists(st.floats(0, 1e3), max_size=8), st.floats(0, 1e6), st.integers(1, 64), st.floats(0, 1e12))
def test_three_alike_are_followed_whatever_was_before(
    before: list[float], now_s: float, nodes: int, state_bytes: float
) -> None:
    stalls = (*((nodes, state_bytes, stall_s) for stall_s in before), *[(nodes, state_bytes, now_s)] * 3)
    assert cost_s(stalls, nodes, state_bytes) == now_s


@given(st.lists(st.floats(0, 1e3), min_size=3, max_size=8), st.floats(0, 1e6), st.integers(1, 64))
def test_a_single_odd_stall_moves_the_cost_no_further_than_to_its_neighbour(
    usual: list[float], odd_s: float, nodes: int
) -> None:
    seen = tuple((nodes, 0.0, stall_s) for stall_s in usual)
    assert min(usual) <= cost_s((*seen, (nodes, 0.0, odd_s)), nodes, 0.0) <= max(usual)


def test_the_guess_for_a_stranger_is_the_median_rate_of_the_others() -> None:
    others = [observe_rate(ScalingModel(), 1, total) for total in (10.0, 20.0, 1000.0)]
    assert median_rate_per_node([*others, ScalingModel()]) == 20.0
    alone = observe_rate(ScalingModel(), 2, 20.0)
    assert 10.0 < median_rate_per_node([alone]) < 20.0, "one node makes more than half of what two make"
    assert median_rate_per_node([ScalingModel()]) == 1.0


@given(st.lists(st.tuples(SIZES, RATES), max_size=8), st.lists(st.tuples(SIZES, RATES), max_size=4), SIZES)
def test_every_curve_starts_at_zero_ends_at_nodes_max_and_never_falls(seen, given_points, nodes_max) -> None:
    known = ScalingModel(given=tuple(sorted(dict(given_points).items())))
    for nodes, samples_per_s in seen:
        known = observe_rate(known, nodes, samples_per_s)
    points = curve(known, nodes_max, 3.0)
    assert points[0] == (0, 0.0)
    assert points[-1][0] == nodes_max
    sizes = [nodes for nodes, _ in points]
    assert sizes == sorted(set(sizes))
    rates = [samples_per_s for _, samples_per_s in points]
    assert all(later >= earlier for earlier, later in itertools.pairwise(rates))


def test_objectives_value_the_same_curve_differently() -> None:
    points = ((0, 0.0), (1, 200.0), (2, 300.0))
    assert values(points, "throughput", 5.0) == (points, 1.0)
    assert values(points, "efficiency", 5.0) == (((0, 0.0), (1, 1.0), (2, 1.5)), 1.0)
    assert values(points, "priority", 5.0) == (((0, 0.0), (1, 1.0), (2, 1.5)), 5.0)
    assert values(((0, 0.0), (2, 0.0)), "efficiency", 1.0)[0] == ((0, 0.0), (2, 0.0))


def test_the_warm_up_is_the_median_of_the_last_ones_and_a_guess_before() -> None:
    assert ScalingModel().warm_up_s == UNKNOWN_WARM_UP_S
    knowledge = ScalingModel()
    for duration_s in (100.0, 4.0, 6.0, 5.0, 4.0, 6.0, float("nan"), -1.0):
        knowledge = observe_warm_up(knowledge, duration_s)
    assert knowledge.warm_up_s == 5.0


@given(st.lists(st.tuples(st.integers(-1, 10**6), st.floats(0.01, 1e9)), max_size=400), st.integers(1, 10**6))
def test_regression_sizes_that_a_trainer_never_had_were_learned_without_end(
    reports: list[tuple[int, float]], nodes_max: int
) -> None:
    known = ScalingModel()
    for nodes, samples_per_s in reports:
        known = observe_rate(known, nodes, samples_per_s, nodes_max)
        sizes = [size for size, _ in known.seen]
        assert sizes == sorted(set(sizes))
        assert all(1 <= size <= nodes_max for size in sizes)
        assert len(sizes) <= SIZES_KEPT
        if 1 <= nodes <= nodes_max:
            assert nodes in sizes, "the newest is always known"


def test_a_size_too_many_takes_the_place_of_the_nearest() -> None:
    known = ScalingModel(seen=tuple((4 * size, 1.0) for size in range(1, SIZES_KEPT + 1)))
    known = observe_rate(known, 41, 7.0, 1000)
    assert (41, 7.0) in known.seen
    assert 40 not in dict(known.seen)
    assert 44 in dict(known.seen)


FAST = CurveEstimate("fast", ((1, 100.0), (2, 190.0), (4, 360.0), (8, 640.0)))
SLOW = CurveEstimate("slow", ((1, 10.0), (2, 19.0), (4, 36.0), (8, 64.0)))


def estimated(*estimates: CurveEstimate) -> ScalingModel:
    return observe_estimates(ScalingModel(), estimates)


def rates(known: ScalingModel, *sizes: int, on: str | None = None, most: int = 8) -> list[float]:
    return [rate(curve(known, most, 1.0, on), nodes) for nodes in sizes]


def test_an_estimate_is_the_curve_until_something_is_seen() -> None:
    assert rates(estimated(FAST), 1, 2, 3, 4, 8) == [100.0, 190.0, 275.0, 360.0, 640.0]
    assert estimated(FAST).rate_per_node is not None


def test_what_is_seen_replaces_the_estimate_there_and_moves_the_rest_as_far_off_as_the_nearest() -> None:
    known = observe_rate(estimated(FAST), 2, 95.0)
    assert rates(known, 1, 2, 4, 8) == pytest.approx([50.0, 95.0, 180.0, 320.0])
    known = observe_rate(known, 8, 640.0)
    assert rates(known, 1, 2, 4, 8, 16, most=16)[:4] == pytest.approx([50.0, 95.0, 270.0, 640.0])


def test_a_class_where_a_trainer_never_ran_is_as_far_off_its_estimate_as_those_where_it_did() -> None:
    known = observe_rate(estimated(FAST, SLOW), 4, 18.0, node_class="slow")
    assert rates(known, 1, 4, on="slow") == pytest.approx([5.0, 18.0])
    assert rates(known, 1, 4, on="fast") == pytest.approx([50.0, 180.0])
    known = observe_rate(known, 1, 100.0, node_class="fast")
    assert rates(known, 1, 4, on="fast") == pytest.approx([100.0, 360.0])
    assert rates(known, 1, 4, on="slow") == pytest.approx([5.0, 18.0]), "what was seen there stays"


def test_before_anybody_knows_on_which_class_it_will_run_a_trainer_is_as_slow_as_on_the_slowest() -> None:
    assert rates(estimated(FAST, SLOW), 1, 8) == [10.0, 64.0]


def test_a_class_without_an_estimate_is_taken_for_what_was_seen_elsewhere() -> None:
    known = observe_rate(estimated(FAST, SLOW), 4, 36.0, node_class="slow")
    assert rates(known, 4, on="other") == pytest.approx([36.0])


def test_what_the_user_says_of_the_curve_counts_and_no_estimate() -> None:
    known = observe_estimates(ScalingModel(given=((1, 10.0), (2, 19.0))), [FAST])
    assert rates(known, 1, 2, most=2) == [10.0, 19.0]


@given(
    st.dictionaries(SIZES, RATES, min_size=1, max_size=8),
    st.dictionaries(SIZES, RATES, max_size=6),
    st.integers(1, 64),
)
def test_a_curve_of_estimate_and_measured_rates_is_a_curve_and_passes_through_rising_ones(
    guess: dict[int, float], seen: dict[int, float], most: int
) -> None:
    points = tuple(zip(sorted(guess), sorted(guess.values()), strict=True))
    known = estimated(CurveEstimate("c", points))
    for nodes, samples_per_s in seen.items():
        known = observe_rate(known, nodes, samples_per_s)
    made = curve(known, most)
    assert made[0] == (0, 0.0)
    assert made[-1][0] == most
    assert all(later[1] >= earlier[1] * (1 - 1e-9) for earlier, later in itertools.pairwise(made))
    assert all(math.isfinite(samples_per_s) for _, samples_per_s in made)
    if len(seen) == 1:
        [(nodes, samples_per_s)] = seen.items()
        if nodes <= most:
            assert rate(made, nodes) == pytest.approx(samples_per_s)


EXTREMES = st.sampled_from([1e-6, 1.0, 1e12])


@given(
    st.dictionaries(st.sampled_from([1, 2, 64, 10**6]), EXTREMES, min_size=1),
    st.dictionaries(st.sampled_from([1, 3, 64]), st.sampled_from([5e-324, 1.0, 1e12]), max_size=3),
    st.sampled_from([None, "seen", "told"]),
)
def test_whatever_a_driver_says_and_reports_its_curve_stays_within_what_a_solver_takes(
    told: dict[int, float], seen: dict[int, float], on: str | None
) -> None:
    points = tuple(zip(sorted(told), sorted(told.values()), strict=True))
    for known in (
        ScalingModel(given=points),
        estimated(CurveEstimate("seen", points), CurveEstimate("told", points[:1])),
    ):
        for nodes, samples_per_s in seen.items():
            known = observe_rate(known, nodes, samples_per_s, node_class="seen")
        made = curve(known, 64, 1.0, on)
        assert all(0 <= samples_per_s <= 1e12 for _, samples_per_s in made), "and is a number"
