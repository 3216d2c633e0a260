"""Ranking, and what is traced for it."""

from __future__ import annotations

import pytest

from sizing.base.errors import Untraceable
from sizing.base.parallel import Parallel, RankBatch
from sizing.choice.fit import MOST_TRACES, GpuPlan, best_of, explore
from sizing.choice.layout import Layout, Spread, layouts
from sizing.choice.sources import Traces
from sizing.inventory.inventory import PartitionOffer
from sizing.inventory.pools import pools
from sizing.memory.peak import guarded_bytes
from tests.sizing.plans_of import GIB, Step, group, inventory

CENTRE = inventory(
    PartitionOffer("new", (group(gpus=4, count=4),)),
    PartitionOffer("old", (group("v", gpus=4, count=4, kind="v100"),)),
)


def ways(batch: int, spread: Spread = Spread()) -> tuple[Layout, ...]:  # noqa: B008
    return layouts(pools(CENTRE), batch, spread)


def explored(step: Step, batch: int, spread: Spread = Spread()) -> tuple[GpuPlan, ...]:  # noqa: B008
    return explore(Traces("bf16"), ways(batch, spread), step.measure)


def test_what_fits_comes_first_and_then_what_costs_least() -> None:
    plans = list(explored(Step(10, 1), 64))
    fitting = [plan for plan in plans if plan.fits]
    assert plans[: len(fitting)] == fitting
    assert [plan.cost.value for plan in fitting] == sorted(plan.cost.value for plan in fitting)
    assert all(plan.peak.high <= plan.gpu_bytes for plan in fitting)
    assert 0 < len(fitting) < len(plans)


def test_of_plans_that_ask_slurm_for_the_same_only_the_best_is_offered() -> None:
    plans = explored(Step(10, 0.5), 64, Spread(tensor=True))
    best = best_of(plans, 3)
    assert len({plan.sbatch[:4] for plan in best}) == 3
    assert all(plan.peak.origin == "traced" for plan in best)
    first = next(plan for plan in plans if plan.gpus == best[1].gpus)
    assert first.parallel == best[1].parallel


def test_by_time_the_fastest_comes_first() -> None:
    plans = explore(Traces("bf16"), ways(64), Step(10, 1).measure, by="time")
    fitting = [plan for plan in plans if plan.fits]
    assert [plan.step_s.value for plan in fitting] == sorted(plan.step_s.value for plan in fitting)
    assert fitting[0].gpus > fitting[-1].gpus


def test_the_best_three_are_traced_themselves_and_little_else() -> None:
    step = Step(10, 0.5)
    plans = explored(step, 64)
    assert [plan.peak.origin for plan in plans[:3]] == ["traced"] * 3
    for plan in plans[:3]:
        exact = step.peak_gib(plan.parallel, plan.batch) * GIB
        assert plan.peak.value == pytest.approx(exact, abs=2)
        assert plan.peak.high == pytest.approx(guarded_bytes(exact), abs=2)
    assert len(step.points) <= 8
    assert len(set(step.points)) == len(step.points), "nothing is traced twice"


def test_between_two_batches_a_peak_is_interpolated_and_never_too_low() -> None:
    step = Step(10, 0.5)
    interpolated = [plan for plan in explored(step, 64) if plan.peak.origin == "interpolated"]
    assert interpolated
    for plan in interpolated:
        exact = step.peak_gib(plan.parallel, plan.batch) * GIB
        assert plan.peak.low <= exact <= plan.peak.value + 2


def test_a_plan_that_a_straight_line_would_rule_out_is_traced_before_it_is() -> None:
    # flat up to a batch of 32, then steep: the line from 1 to 64 is far above both
    class Bent(Step):
        def peak_gib(self, parallel: Parallel, batch: int) -> float:
            return max(20.0, 5.0 * (batch - 16))

    best = explored(Bent(0, 0), 64)[0]
    assert (best.fits, best.peak.origin) == (True, "traced")
    assert best.batch == 16
    assert best.peak.value == pytest.approx(20 * GIB, abs=2)


def test_shards_are_tried_where_replicas_do_not_fit() -> None:
    best = explored(Step(200, 0.5), 64, Spread(fsdp=True))[0]
    assert best.fits
    assert best.parallel.fsdp >= 4


def test_where_nothing_fits_the_nearest_comes_first() -> None:
    plans = explored(Step(500, 0.5), 64)
    assert plans
    assert not any(plan.fits for plan in plans)
    lacks = [plan.peak.high - plan.gpu_bytes for plan in plans]
    assert lacks == sorted(lacks)


def test_a_spread_that_cannot_be_traced_is_left_out() -> None:
    step = Step(10, 1, refuses=lambda point: point.parallel.dp > 1)
    plans = explored(step, 16)
    assert {plan.parallel for plan in plans} == {Parallel()}


def test_a_step_that_cannot_be_traced_at_all_says_why() -> None:
    with pytest.raises(Untraceable, match="looks at a loss"):
        explored(Step(10, 1, refuses=lambda point: True), 16)


def test_a_search_ends_whatever_the_step_does() -> None:
    class Odd(Step):
        def peak_gib(self, parallel: Parallel, batch: int) -> float:
            return 1000.0 if batch > 1 else 1.0

    step = Odd(0, 0)
    explored(step, 4096, Spread(tensor=True, fsdp=True))
    assert len(step.points) <= MOST_TRACES


def test_a_spread_that_cannot_be_traced_does_not_keep_others_from_being_traced() -> None:
    step = Step(10, 0.5, refuses=lambda point: point.parallel.tp == 2)
    plans = explored(step, 64, Spread(tensor=True))
    assert [plan.peak.origin for plan in plans[:3]] == ["traced"] * 3
    assert all(plan.parallel.tp != 2 for plan in plans)


def test_two_are_traced_at_a_time_as_what_one_shows_may_spare_the_next() -> None:
    step = Step(10, 0.5)
    plans = best_of(explore(Traces("bf16"), ways(64, Spread(True, True)), step.measure, top=6), 6)
    assert [plan.peak.origin for plan in plans] == ["traced"] * 6
    assert max(step.calls[1:]) == 2


def test_no_more_is_traced_than_allowed_and_the_rest_is_still_told() -> None:
    step = Step(10, 0.5)
    plans = explore(Traces("bf16"), ways(64), step.measure, most=4)
    assert len(step.points) <= 4
    assert plans[0].fits


def test_traces_of_any_number_of_replicas_are_the_same() -> None:
    traces = Traces("bf16")
    step = Step(10, 1)
    point = RankBatch(Parallel(2), 8)
    traces.add(point, step.measure([point])[0])  # type: ignore[arg-type]
    assert traces.peak(Parallel(16), 8) is not None
    assert traces.peak(Parallel(1), 8) is None, "one GPU keeps no buckets"
    assert traces.peak(Parallel(16), 9) is None, "beyond the last trace nothing is told"


def test_every_plan_has_its_lines_and_their_reasons() -> None:
    for plan in explored(Step(10, 1), 16):
        assert len(plan.sbatch) == len(plan.why) >= 5
        told = plan.to_json()
        assert told["gpus"] == told["dp"] * told["tp"] * told["fsdp"]
        assert f"#SBATCH --nodes={plan.nodes}" in told["sbatch"]


def test_what_one_gpu_holds_rules_out_spreads_that_are_too_small_without_a_trace_of_them() -> None:
    step = Step(200, 0.5)
    plans = explored(step, 64, Spread(tensor=True, fsdp=True))
    assert plans[0].fits
    assert all(point.parallel.tp * point.parallel.fsdp in (1, *range(3, 99)) for point in step.points)
