"""The benchmark of packers: what it counts, and that its bounds hold on the public matrices."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks.markdown import table
from benchmarks.synergy import packing as benchmark
from sizing.cpu.matrices_file import load
from sizing.cpu.sensitivity.matrix import Matrix, Recorded

pytestmark = pytest.mark.slow

needs_data = pytest.mark.skipif(not benchmark.DATA.is_file(), reason=f"the public matrices are not at {benchmark.DATA}")

GB = 1e9
AXES = (1.0, 3.0, 6.0), (20 * GB,)
MATRICES = {
    "eyes": Recorded("eyes", "image", Matrix(1, *AXES, ((0.4,), (1.0,), (2.0,))), 0.1),
    "words": Recorded("words", "language", Matrix(1, *AXES, ((1.0,), (1.0,), (1.0,))), 0.1),
}


def cases() -> list[benchmark.Case]:
    return list(benchmark.measured(MATRICES, ["50/50/0"], [2], draws=2, seed=1))


@needs_data
@pytest.mark.parametrize("mix", benchmark.BOUND_MIXES)
def test_priced_is_near_opt_and_nobody_pays_for_it(mix: str) -> None:
    found = list(benchmark.measured(load(benchmark.DATA), [mix], [4, 16, 64], draws=2, seed=0))
    held = benchmark.verdict(found)
    assert (held["priced_of_opt"], held["no_job_below_proportional"], held["nothing_broken"]) == (True, True, True)
    # no packing beats the bounds, and there is much to gain
    assert all(1.1 < each.policies["opt"].throughput <= each.whole + 1e-9 for case in found for each in case.draws)


@needs_data
def test_without_slack_nothing_is_gained() -> None:
    (case,) = benchmark.measured(load(benchmark.DATA), ["50/0/50"], [4], draws=1, seed=0)
    assert case.draws[0].policies["priced"].throughput == pytest.approx(1.0)
    assert case.draws[0].policies["greedy"].throughput < 1.0


def test_each_bound_is_broken_by_what_it_forbids() -> None:
    (case,) = cases()
    case = replace(case, mix=benchmark.BOUND_MIXES[0])
    first = case.draws[0]
    assert all(benchmark.verdict([case])[name] for name in ("no_job_below_proportional", "nothing_broken"))

    def changed(**values: float) -> benchmark.Case:
        priced = replace(first.policies["priced"], **values)  # type: ignore[arg-type]
        return replace(case, draws=(replace(first, policies={**first.policies, "priced": priced}),))

    assert not benchmark.verdict([changed(throughput=0.9 * first.whole)])["priced_of_opt"]
    assert not benchmark.verdict([changed(least_job=0.99)])["no_job_below_proportional"]
    assert not benchmark.verdict([changed(ms=51.0)])["priced_ms"]
    assert not benchmark.verdict([changed(broken=1)])["nothing_broken"]
    assert not benchmark.verdict([replace(case, draws=(replace(first, bounds_ms=1001.0),))])["opt_ms"]


def test_the_table_has_a_row_for_each_case_of_the_bounds_and_one_for_another_mix_and_the_json_each_draw() -> None:
    found = list(benchmark.measured(MATRICES, ["50/50/0"], [2, 4], draws=2, seed=1))
    (row,) = benchmark.rows(found)
    assert (len(row), row[:2]) == (len(benchmark.HEAD), ("50/50/0", "2 to 4"))
    assert len(list(benchmark.rows([replace(case, mix=benchmark.BOUND_MIXES[0]) for case in found]))) == 2
    told = json.loads(json.dumps(benchmark.to_json(found)))
    assert benchmark.shown(told) == table(benchmark.HEAD, benchmark.rows(found))
    assert [each["seed"] for each in told["cases"][0]["draws"]] == [1, 2]
    assert told["cases"][0]["draws"][0]["policies"].keys() == {"priced", "tune", "opt", "greedy", "proportional"}
