"""Replays worked out by hand, and what holds for every replay."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.base.errors import UsageError
from bftd.core.invariants import validate_state
from bftd.simulation.drivers.trainers import SimTrainer
from bftd.simulation.replay import EXACT, Mends, Options, Result, run
from bftd.simulation.replay.cluster import SimulatedCluster
from bftd.simulation.trace import Trace
from tests.bftd.simulation.replay.making import linear, trace_of, week
from tests.support.messages import fragment, pattern

pytestmark = pytest.mark.slow

# The pool of `week` is 2, 3, 2, 3, ... nodes for 300 s each and 2 for the last 600 s: 8,700 node-seconds, so that the
# trainer earns 87,000 samples where it always has them all.
ONE = Options(pj_max=1)


def _figures(result: Result) -> dict[str, Any]:
    """The result without what depends on this machine."""
    return {key: value for key, value in result.to_json(series=True).items() if key not in ("wall_s", "solve_ms")}


def test_exact_accounting_of_ten_events_is_what_a_hand_computes() -> None:
    result = run(week(), [linear("a-1")], ONE)
    # R_up = 3 s at 20 samples/s for the start and five times for growing from 2, R_down = 2 s at 30 for five losses
    assert result.rescale_cost_samples == pytest.approx(6 * 60)
    assert result.preempt_cost_samples == pytest.approx(5 * 60)
    assert result.preemptions == 5
    assert result.outcome_samples == pytest.approx(87_000 - 360 - 300)
    assert result.eq_nodes == pytest.approx(8_700 / 3_600)
    assert result.static_outcome_samples == pytest.approx(87_000)
    assert result.efficiency == pytest.approx(86_340 / 87_000)
    assert (result.node_hours, result.held_node_hours) == pytest.approx((8_700 / 3_600, 8_700 / 3_600))
    # It stands still on what it has then: for the start on 2 nodes, five times R_up on 3, five times R_down on 2.
    assert result.training_node_hours == pytest.approx((8_700 - 6 - 45 - 20) / 3_600)
    assert result.used_node_hours == result.held_node_hours
    assert result.events == 11


def test_reference_accounting_of_ten_events_is_what_a_hand_computes() -> None:
    result = run(week(), [linear("a-1")], replace(ONE, accounting="reference"))
    # The start is free but bound to (2 + 1) / 2 = 1 node, so that 3,000 samples are missed, and grows from 1 at 300 s.
    assert result.rescale_cost_samples == pytest.approx(30 + 4 * 60)
    assert result.preempt_cost_samples == pytest.approx(5 * 60)
    assert result.outcome_samples == pytest.approx(84_000 - 270 - 300)


def test_a_completion_is_an_event_of_its_own_in_exact_accounting() -> None:
    result = run(week(), [linear("a-1", work_samples=20_000.0), linear("b-2")], ONE)
    # By 600 s a has 15,000 - 180 samples, the rest takes it 259 s at 20 samples/s; then b starts on its two nodes.
    assert result.mean_runtime_s == {"a": pytest.approx(859.0)}
    assert result.trainers_completed == 1
    assert result.events == 12
    assert result.outcome_samples == pytest.approx(87_000 - 7 * 60 - 5 * 60)
    assert result.account.earned["b-2"] == pytest.approx(result.outcome_samples - 20_000)


def test_a_completion_waits_for_the_next_change_of_the_pool_in_reference_accounting() -> None:
    trainers = [linear("a-1", work_samples=20_000.0), linear("b-2")]
    result = run(week(), trainers, replace(ONE, accounting="reference"))
    # At 900 s a lacks 2,090 samples; it is found to be done at 1200 s, 6,790 too late, and b may take one node then.
    assert result.mean_runtime_s == {"a": pytest.approx(1200.0)}
    assert result.account.total("overshoot") == pytest.approx(6_790)
    assert result.rescale_cost_samples == pytest.approx(30 + 60 + 30 + 60 + 60)
    assert result.outcome_samples == pytest.approx(81_000 - 240 - 300 - 6_790)


def test_an_arrival_is_an_event_in_exact_accounting_only() -> None:
    late = [linear("a-1", submit_s=100.0)]
    assert run(week(), late, ONE).account.earned["a-1"] == pytest.approx(86_340 - 2_000)
    # Seen at 300 s, when three nodes are there, of which the paper's M allows two.
    reference = run(week(), late, replace(ONE, accounting="reference"))
    assert reference.account.rate[:2] == [0.0, 20.0]


def test_growing_does_not_stop_the_others_in_the_measured_model() -> None:
    result = run(week(), [linear("a-1")], replace(ONE, rescale_model="measured"))
    # 12.8 s without any work at the start; then new nodes join 12.8 s late and stop the others for 0.57 s.
    assert result.rescale_cost_samples == pytest.approx(5 * 0.57 * 20)
    assert result.preempt_cost_samples == pytest.approx(5 * 0.19 * 30)
    assert result.outcome_samples == pytest.approx(87_000 - 12.8 * 20 - 5 * 12.8 * 10 - 57 - 28.5)


def test_a_rigid_job_dies_as_a_whole_and_begins_again_at_its_last_checkpoint() -> None:
    options = replace(ONE, policy="scavenger", scavenger_nodes=2, checkpoint_every_s=100.0)
    result = run(week(), [linear("a-1")], options)
    # Four times 600 s: 3 s to start, 500 s saved, 97 s lost. The last run of 1,200 s goes on to the end.
    assert result.preemptions == 4
    assert result.preempt_cost_samples == pytest.approx(4 * 97 * 20)
    assert result.rescale_cost_samples == pytest.approx(5 * 3 * 20)
    assert result.outcome_samples == pytest.approx(4 * 500 * 20 + 1_197 * 20)


def test_the_best_size_of_rigid_jobs_is_found_by_a_sweep() -> None:
    options = replace(ONE, policy="scavenger", checkpoint_every_s=100.0)
    found = run(week(), [linear("a-1")], options)
    each = [run(week(), [linear("a-1")], replace(options, scavenger_nodes=size)) for size in (1, 2, 4)]
    assert found.outcome_samples == max(result.outcome_samples for result in each)
    assert found.run["arguments"]["scavenger_nodes"] in (1, 2)


def test_costs_are_multiplied() -> None:
    tenfold = run(week(), [linear("a-1")], replace(ONE, cost_multiplier=10.0))
    assert tenfold.preempt_cost_samples == pytest.approx(10 * 300)
    assert run(week(), [linear("a-1")], replace(ONE, cost_multiplier=0.0)).efficiency == pytest.approx(1.0)


def test_a_start_is_worth_it_however_short_the_horizon() -> None:
    assert run(week(), [linear("a-1")], replace(ONE, t_fwd_s=1.0)).outcome_samples > 0


def test_hours_and_nodes_cut_the_trace() -> None:
    result = run(week(), [linear("a-1")], replace(ONE, hours=0.25, nodes="n1,n2"))
    assert result.node_hours == pytest.approx((600 + 900) / 3_600)


def test_an_endless_list_starts_again() -> None:
    short = [linear("a-1", work_samples=5_000.0)]
    once, again = run(week(), short, ONE), run(week(), short, replace(ONE, endless=True))
    assert (once.trainers_completed, once.mean_runtime_s.keys()) == (1, again.mean_runtime_s.keys())
    assert again.trainers_completed > 10
    assert again.outcome_samples > 0.9 * again.static_outcome_samples


def test_windows_add_up_to_the_whole() -> None:
    trace = trace_of({"n1": [(0.0, 30_000.0)], "n2": [(10_000.0, 50_000.0)]}, 50_000.0)
    result = run(trace, [linear("a-1"), linear("b-2", work_samples=123_456.0)], Options())
    rows = result.series
    assert [row["start_s"] for row in rows] == [0.0, 21_600.0, 43_200.0]
    for key, total in (("outcome_samples", result.outcome_samples), ("node_hours", result.node_hours)):
        assert sum(row[key] for row in rows) == pytest.approx(total)
    for key in ("training_node_hours", "held_node_hours"):
        assert sum(row[key] for row in rows) == pytest.approx(getattr(result, key))
    assert result.training_node_hours < result.held_node_hours


def test_preemptions_are_told_by_how_soon_after_the_decision_before_they_come() -> None:
    # The five losses come 300 s after a node joined, which was the event before.
    assert run(week(), [linear("a-1")], replace(ONE, t_fwd_s=300.0)).t_fwd_preempted_share == 1.0
    assert run(week(), [linear("a-1")], replace(ONE, t_fwd_s=299.0)).t_fwd_preempted_share == 0.0


def test_a_run_is_reproducible_from_its_json() -> None:
    trainers = [linear("a-1", work_samples=20_000.0), linear("b-2")]
    options = Options(pj_max=1, t_fwd_s=60.0, nodes="n1,n3", mends=Mends(True, False, True), seed=7)
    first = run(week(), trainers, options)
    told = json.loads(json.dumps(first.to_json()))["run"]
    assert told["versions"].keys() >= {"bftd", "python", "numpy"}
    again = run(week(), trainers, Options.from_json(told["arguments"]))
    assert _figures(again) == _figures(first)
    other = run(week(), [*trainers, linear("c-3")], options)
    assert other.run["inputs"]["trainers"]["sha256"] != told["inputs"]["trainers"]["sha256"]
    assert other.run["inputs"]["trace"] == told["inputs"]["trace"]


def test_the_mends_of_exact_accounting_are_the_default() -> None:
    trainers = [linear("a-1", work_samples=20_000.0), linear("b-2")]
    by_name, by_mends = run(week(), trainers, ONE), run(week(), trainers, replace(ONE, mends=EXACT))
    assert by_name.outcome_samples == by_mends.outcome_samples


def test_the_keys_of_the_json_are_those_that_scripts_rely_on() -> None:
    keys = """efficiency outcome_samples static_outcome_samples eq_nodes node_hours training_node_hours held_node_hours
    used_node_hours events
    rescale_cost_samples preempt_cost_samples preemptions trainers_completed mean_runtime_s t_fwd_preempted_share
    wall_s solve_ms run"""
    result = run(week(), [linear("a-1")], ONE)
    assert list(result.to_json()) == keys.split()
    assert result.to_json()["solve_ms"].keys() == {"p50", "p99", "max"}
    assert result.to_json(series=True)["series"]


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"t_fwd_s": 0.0}, pattern("whatif.options.not_above", name="t_fwd_s", least=fragment("0"))),
        ({"t_fwd_s": float("nan")}, pattern("whatif.options.not_above", name="t_fwd_s", least=fragment("0"))),
        ({"pj_max": 0}, pattern("whatif.options.too_few", name="pj_max")),
        ({"cost_multiplier": -1.0}, pattern("whatif.options.below", name="cost_multiplier", least=fragment("0"))),
        (
            {"policy": "milk"},
            pattern("whatif.options.unknown", name="policy", self="milk", listed="milp, equal-share, scavenger"),
        ),
        ({"solver": "exakt"}, "unknown solver 'exakt'"),
        (
            {"rescale_model": "measured", "accounting": "reference"},
            pattern("whatif.options.measured_without_reference"),
        ),
    ],
)
def test_options_that_cannot_be_are_told_in_one_line(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        Options(**fields)


def test_no_trainer_is_told_in_one_line() -> None:
    with pytest.raises(UsageError, match=pattern("whatif.loop.no_trainer")):
        run(week(), [])


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Up to six nodes that come and go at whole seconds over 500 s."""
    periods = {}
    for place in range(draw(st.integers(1, 6))):
        times = sorted(draw(st.sets(st.integers(0, 499), min_size=2, max_size=8)))
        pairs = list(zip(times[::2], times[1::2], strict=False))
        periods[f"n{place}"] = [(float(start), float(end)) for start, end in pairs]
    return trace_of(periods, 500.0)


@st.composite
def trainer_lists(draw: st.DrawFn) -> Sequence[SimTrainer]:
    """Up to five trainers that scale, cost and last as it comes."""
    trainers = []
    for place in range(draw(st.integers(1, 5))):
        low = draw(st.integers(1, 2))
        rates = [draw(st.sampled_from([1.0, 5.0, 9.0, 10.0, 20.0])) for _ in range(4)]
        curve = ((0, 0.0), *((nodes, sum(rates[:nodes])) for nodes in range(1, 5)))
        trainers.append(
            linear(
                f"t-{place}",
                nodes_min=low,
                work_samples=draw(st.sampled_from([200.0, 1_000.0, 1e9])),
                curve=curve,
                objective=curve,
                submit_s=float(draw(st.integers(0, 300))),
                up_cost_s=draw(st.sampled_from([0.0, 3.0, 20.0])),
            )
        )
    return trainers


KINDS = [
    Options(pj_max=2, t_fwd_s=30.0),
    Options(pj_max=3, t_fwd_s=30.0, accounting="reference"),
    Options(pj_max=2, policy="equal-share"),
    Options(pj_max=3, t_fwd_s=30.0, rescale_model="measured"),
    Options(pj_max=2, policy="scavenger", scavenger_nodes=2, checkpoint_every_s=20.0),
    Options(pj_max=2, t_fwd_s=30.0, endless=True),
]


@pytest.mark.parametrize("options", KINDS, ids=lambda options: f"{options.policy} {options.accounting}")
@given(trace=traces(), trainers=trainer_lists(), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=15)
def test_samples_are_conserved_and_the_order_of_nodes_does_not_matter(
    options: Options, trace: Trace, trainers: Sequence[SimTrainer], seed: int
) -> None:
    result = run(trace, trainers, options)
    account = result.account
    # What all trainers have is the integral of their rates less all charges, each kept in books of its own.
    assert result.outcome_samples == pytest.approx(sum(account.earned.values()), rel=1e-6)
    together = zip(account.training, account.held, account.pool, strict=True)
    assert all(training <= held <= pool for training, held, pool in together)
    assert _figures(run(trace, trainers, options)) == _figures(result)

    order = list(range(len(trace.nodes)))
    random.Random(seed).shuffle(order)
    place = np.argsort(order).astype(np.int32)
    shuffled = replace(trace, nodes=tuple(trace.nodes[index] for index in order), node=place[trace.node])
    permuted = run(shuffled, trainers, options)
    assert _figures(permuted) | {"run": None} == _figures(result) | {"run": None}


@given(trace=traces(), trainers=trainer_lists(), options=st.sampled_from(KINDS[:4]))
@settings(deadline=None, max_examples=30)
def test_the_core_stays_valid_and_holds_what_the_simulation_holds(
    trace: Trace, trainers: Sequence[SimTrainer], options: Options
) -> None:
    decide = SimulatedCluster.decide

    def checked(cluster: SimulatedCluster, *args: Any, **keywords: Any) -> None:
        decide(cluster, *args, **keywords)
        validate_state(cluster.state)
        held = {lease.node: lease.trainer for lease in cluster.state.leases.values()}
        assert held == cluster.drivers.holders
        assert all(cluster.state.trainers[trainer].active for trainer in held.values())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedCluster, "decide", checked)
        run(trace, trainers, options)
