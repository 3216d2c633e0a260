"""The benchmark of estimates: its arithmetic by hand, its cuts, and one tiny model run by real ranks."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from benchmarks.cells import accuracy, cases
from benchmarks.cells.cases import TWO, Case, Plan

pytestmark = pytest.mark.slow

TINY = Case("tiny", "transformer", 16, {"hidden": 32, "layers": 2, "heads": 2, "seq": 16, "vocab": 64})


def found_of(work_s: float, update_s: float, wire_s: float, plan_s: float) -> list[dict[str, object]]:
    """What two ranks would write of plan DP2 of three blocks, each round alike."""
    seconds = {
        "shard 0 2 8 1": [work_s] * 3,
        "update 0 2 8 1": [update_s] * 3,
        "plan DP2": [plan_s] * 3,
        **{f"all_reduce 2 {size}": [wire_s] * 3 for size in (2**10, 2**24)},
    }
    facts = {"shard 0 2 8 1": {"exchanges": [], "across_bytes": 4, "parameters": 10**6}}
    return [{"seconds": seconds, "facts": facts}] * 2


def test_an_estimate_is_held_to_the_real_time() -> None:
    (row,) = accuracy.rows_of(TINY, [Plan("DP2", dp=2)], found_of(0.1, 0.02, 0.03, 0.16))
    assert row.estimated_s == pytest.approx(0.15)  # 4 MB are one bucket, and nothing of it hides
    assert row.accuracy == pytest.approx(1 - 0.01 / 0.16)
    assert row.plan == "DP2"
    assert not row.within
    assert row.took_s == (0.16,) * 3
    told = {"rows": [asdict(row) | {"accuracy": row.accuracy, "within": row.within}] * 2}
    assert [cell.strip() for cell in accuracy.by_plan(told).splitlines()[2].split("|")[1:-1]] == [
        *("DP2", "2", "93.8 %", "93.8 %", "0"),
    ]


def test_a_rank_that_is_late_is_what_a_step_takes() -> None:
    found = found_of(0.1, 0.02, 0.03, 0.16)
    late = {**found[1], "seconds": {**found[1]["seconds"], "plan DP2": [0.3] * 3}}  # type: ignore[dict-item]
    (row,) = accuracy.rows_of(TINY, [Plan("DP2", dp=2)], [found[0], late])
    assert row.real_s == 0.3


@pytest.mark.parametrize("count", [4, 5, 7, 8])
@pytest.mark.parametrize("plan", [*TWO, *cases.FOUR], ids=lambda plan: plan.name)
def test_every_stage_has_a_block_and_every_block_a_stage(plan: Plan, count: int) -> None:
    spans = cases.cut(TINY, count, plan)
    assert [block for first, last in spans for block in range(first, last + 1)] == list(range(count))
    assert all(first <= last for first, last in spans)


@pytest.mark.torch
def test_two_real_ranks_run_every_kind_of_plan_beside_their_shards() -> None:
    plans = [TWO[0], TWO[1], TWO[2]]
    rows = list(accuracy.rows_of(TINY, plans, accuracy.measured(TINY, plans, 2, 1)))
    assert [row.plan for row in rows] == [plan.name for plan in plans]
    assert all(row.real_s > 0 and row.low_s <= row.estimated_s <= row.high_s for row in rows)
