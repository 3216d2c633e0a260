"""What jobs used that have run: reported, compared with a step, and what the next plan makes of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.base.errors import Untraceable, UsageError
from sizing.base.estimate import Estimate
from sizing.base.parallel import Parallel, RankBatch
from sizing.choice import ran
from sizing.choice.layout import Layout, TimedLayout
from sizing.choice.ran import work_of
from sizing.choice.sources import Traces
from sizing.files.past_runs import Ran
from sizing.inventory.shapes import GpuShape
from sizing.memory.peak import guarded_bytes
from sizing.model.trace import StepTrace
from tests.sizing.choice.cells_of import pool
from tests.sizing.plans_of import GIB, RAN, trace
from tests.support.messages import excerpt, says, wording

POINT = RankBatch(Parallel(2), 64)
GPU_BYTES = 78 * GIB
TRACED = Estimate(60 * GIB, 60 * GIB, guarded_bytes(60 * GIB), "traced")
REPORT = {"job": "42", "global_batch": 128, "steps": 1000, "step_s": 0.5}


def report(*rows: dict[str, object]) -> ran.JobReport:
    return ran.reported("\n\n".join(json.dumps({**REPORT, **row}) for row in rows), "r")


def used(runs: Sequence[Ran], peak: Estimate, gpu_bytes: int) -> TimedLayout:
    layout = Layout(GpuShape(replace(pool(), gpu_bytes=gpu_bytes), 1, 2), (Parallel(2),), 128)
    assert layout.place == RAN.place
    return ran.used(runs, layout, peak)


def test_a_step_is_known_by_what_is_traced_of_it_and_not_by_when_and_with_which_torch() -> None:
    traced = trace(POINT, 60)
    known = work_of(traced)
    assert work_of(replace(traced, torch="2.12.0", trace_s=9.0)) == known
    others = [
        trace(POINT, 61),
        trace(POINT, 60, flops=2e12),
        trace(POINT, 60, parameters=7),
        trace(POINT, 60, collectives={"all_reduce": 5}),
        trace(RankBatch(Parallel(4), 64), 60),
        trace(RankBatch(Parallel(2), 32), 60),
    ]
    assert len({known, *map(work_of, others)}) == 7


def test_runs_are_of_the_step_where_the_trace_is_the_same_and_each_point_is_traced_once() -> None:
    asked: list[RankBatch] = []

    def measure(points: Sequence[RankBatch]) -> list[StepTrace | Untraceable]:
        asked.extend(points)
        return [Untraceable("no") if point.batch == 8 else trace(point, point.batch) for point in points]

    def run(batch: int, dp: int = 2, **fields: Any) -> Ran:
        point = RankBatch(Parallel(dp), batch)
        return replace(RAN, dp=dp, gpus=dp, batch=batch, work=work_of(trace(point, batch)), **fields)

    traces = Traces()
    traces.add(POINT, trace(POINT, 64))
    traces.fail(RankBatch(Parallel(2), 4), "no")
    old = replace(run(64, job="b"), work="of another", parameters=7)
    own = [run(64, job="a"), old, run(32, dp=4, job="c"), run(8, job="d"), run(4, job="e")]
    strangers = [
        replace(run(16, job="f"), parameters=7),
        replace(run(64, job="g"), work="of another"),
        run(64, job="h"),
    ]
    found = ran.of_step(own, strangers, traces, measure)
    assert {each.job for each in found.same} == {"a", "c", "h"}
    assert (found.others, found.unknown) == (1, 2)
    assert sorted(asked) == [RankBatch(Parallel(2), 8), RankBatch(Parallel(4), 32)], "none of a stranger's other model"


def test_the_slowest_and_the_fullest_rank_of_a_report_count() -> None:
    found = report({"peak_bytes": 7}, {"step_s": 0.6}, {"peak_bytes": 9})
    assert (found.job, found.steps, found.step_s, found.peak_bytes) == ("42", 1000, 0.6, 9)
    assert report({}).peak_bytes is None
    assert ran.reported(json.dumps(REPORT, indent=2), "r") == report({})
    assert report({"tp": 2}).point(8) == RankBatch(Parallel(4, 2), 32)
    assert report({"fsdp": 4}).point(4) == RankBatch(Parallel(1, 1, 4), 32)
    for gpus, said in (
        (3, wording("sizing.ran.no_groups", gpus=3, tp=2, fsdp=1)),
        (6, wording("sizing.parallel.batch_not_cut", global_batch=128, shares=3, dp=3, fsdp=1, shares2=3)),
    ):
        with pytest.raises(UsageError) as refused:
            report({"tp": 2}).point(gpus)
        assert str(refused.value) == said


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        "step_s",
        json.dumps({**REPORT, "step_s": 0}),
        json.dumps({**REPORT, "step_s": "1"}),
        json.dumps({**REPORT, "step_s": 1e400}),
        json.dumps({**REPORT, "peak_bytes": 1.5}),
        json.dumps({**REPORT, "loss": 3}),
        json.dumps({**REPORT, "steps": None}),
    ],
)
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        ran.reported(text, "r")


def test_a_report_says_whose_it_is() -> None:
    for text, key in (
        ("\n", "sizing.ran.empty"),
        (json.dumps({**REPORT, "job": "42_7"}), "sizing.ran.job_wanted"),
        (f"{json.dumps(REPORT)}\n{json.dumps({**REPORT, 'job': '43'})}", "sizing.ran.different_jobs"),
    ):
        with pytest.raises(UsageError) as refused:
            ran.reported(text, "r")
        assert says(str(refused.value), key)


def test_milliseconds_and_gibibytes_are_refused() -> None:
    traced = trace(POINT, 60)
    ran.refuse_wrong_units(report({"peak_bytes": 50 * GIB}), 600, traced, GPU_BYTES)
    with pytest.raises(UsageError) as slow:
        ran.refuse_wrong_units(report({"step_s": 500.0}), 600, traced, GPU_BYTES)
    assert says(str(slow.value), "sizing.ran.no_seconds", steps=1000)
    for peak_bytes in (50, 50 * GIB * 1024):
        with pytest.raises(UsageError) as odd:
            ran.refuse_wrong_units(report({"peak_bytes": peak_bytes}), 600, traced, GPU_BYTES)
        assert says(str(odd.value), "sizing.ran.no_bytes", peak=peak_bytes)


def test_the_fullest_gpu_of_all_nodes_counts_and_none_may_be_missing() -> None:
    def node(*lines: str) -> str:
        return "".join(f"| GPU ID: {at}   |\n| SM Clock | 9 |\n{line}\n" for at, line in enumerate(lines))

    plain, starred = "| Max GPU Memory Used (bytes)        | {} |", "| Max GPU Memory Used (bytes)    *   | {} |"
    texts = [node(plain.format(5), starred.format(8)), node(plain.format(7), plain.format(6))]
    assert ran.in_use(texts, "42", 4) == 8
    whole_node = f"Successfully retrieved statistics for job: 42.\n{node(plain.format(5), plain.format(0))}"
    assert ran.in_use([whole_node], "42", 1) == 5, "of GPUs of others nothing was used"
    unknown = node(plain.format("N/A"), plain.format(0), plain.format(5), plain.format(6))
    for few, job, said in (
        (texts[:1], "42", excerpt("sizing.ran.other_gpus", found=2, gpus=4)),
        ([unknown], "42", excerpt("sizing.ran.other_gpus", found=2, gpus=4)),
        ([whole_node], "43", wording("sizing.ran.other_job", jobs="42", job="43")),
        (texts[:1] * 2, "42", wording("sizing.ran.twice")),
    ):
        with pytest.raises(UsageError) as refused:
            ran.in_use(few, job, 4)
        assert said in str(refused.value)


def test_a_step_takes_what_the_median_run_took_and_its_tensors_what_the_fullest_had() -> None:
    runs = [
        replace(RAN, job="1", step_s=0.3, peak_bytes=50 * GIB),
        replace(RAN, job="2", step_s=0.2, peak_bytes=51 * GIB, host_bytes=5),
        replace(RAN, job="3", step_s=0.4, host_bytes=7),
    ]
    found = used(runs, TRACED, GPU_BYTES)
    assert found.step_s == Estimate(0.3, 0.2 / 1.1, 0.4 * 1.1, "measured")
    assert found.peak == Estimate(51 * GIB, 50 * GIB, guarded_bytes(51 * GIB), "measured")
    assert (found.runs, found.host_bytes) == (3, 7)


def test_what_ran_fits_and_what_was_in_use_bounds_the_guard_band() -> None:
    assert used([RAN], TRACED, GPU_BYTES).peak == TRACED
    tight = used([RAN], TRACED, 61 * GIB).peak
    assert (tight.value, tight.high, tight.origin) == (60 * GIB, 61 * GIB, "traced")
    bounded = used([RAN], TRACED, 50 * GIB).peak
    assert (bounded.value, bounded.high) == (50 * GIB, 50 * GIB), "its trace was an upper bound"
    whole = used([replace(RAN, in_use_bytes=62 * GIB)], TRACED, GPU_BYTES).peak
    assert (whole.value, whole.high) == (60 * GIB, 62 * GIB)
    assert used([replace(RAN, in_use_bytes=77 * GIB)], TRACED, GPU_BYTES).peak == TRACED, "torch keeps what it need not"
    missed = replace(RAN, peak_bytes=20 * GIB, in_use_bytes=3 * GIB)
    assert used([missed], TRACED, GPU_BYTES).peak.value == 20 * GIB, "samples came too late"


@given(
    st.floats(1, 200),
    st.floats(1, 200),
    st.lists(
        st.builds(
            replace,
            st.just(RAN),
            step_s=st.floats(1e-3, 1e3),
            peak_bytes=st.none() | st.integers(1, 200 * GIB),
            in_use_bytes=st.none() | st.integers(1, 200 * GIB),
        ),
        min_size=1,
    ),
)
def test_whatever_ran_is_an_estimate_that_fits_what_it_ran_on(gib: float, peak_gib: float, runs: list[Ran]) -> None:
    peak, gpu_bytes = peak_gib * GIB, int(gib * GIB)
    found = used(runs, Estimate(peak, peak, guarded_bytes(peak), "traced"), gpu_bytes)
    assert found.peak.low <= found.peak.value <= found.peak.high <= gpu_bytes
    assert all(found.step_s.low < each.step_s < found.step_s.high for each in runs)
