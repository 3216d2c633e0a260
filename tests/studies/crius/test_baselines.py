"""The simplified baselines: what each does, and that all of them end all jobs within the rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from studies.crius import comparison
from studies.crius.baselines import BASELINES, ByGain, Easy, ElasticFlow, Fcfs, Gandiva, Gavel, Profiled
from studies.crius.baselines.free_gpus import FreeGpus
from studies.crius.baselines.gandiva import _Grown
from studies.crius.baselines.shares import shares
from studies.simulation import clusters, workload
from studies.simulation.engine import simulate
from studies.simulation.outcome import JobOutcome, Outcome
from studies.simulation.types import Allocation, Moment, Running, SimulatedJob, Waiting
from tests.studies.simulation.toys import Written, job

pytestmark = pytest.mark.slow

ONE = Written({("m", "a"): 1.0, ("m", "b"): 1.0, ("big", "a"): 1.0})


def ran(make: Callable[[Profiled], object], jobs: list[SimulatedJob], speeds: Written = ONE, **gpus: int) -> Outcome:
    return simulate(jobs, gpus, make(Profiled(speeds, speeds)), speeds, restart_s=10.0)  # type: ignore[arg-type]


def by_id(outcome: Outcome) -> dict[str, JobOutcome]:
    return {each.job.id: each for each in outcome.jobs}


def test_fcfs_lets_nobody_overtake_who_wants_the_same_type() -> None:
    jobs = [job("1", gpus=2), job("2", at_s=1, gpus=4), job("3", at_s=2), job("4", at_s=3, on="b")]
    found = by_id(ran(Fcfs, jobs, a=4, b=1))
    assert found["2"].start_s == found["1"].end_s
    start_s = found["2"].end_s
    assert found["3"].start_s == start_s, "it would have fitted beside 1"
    assert found["4"].start_s == 3, "another type is another queue"
    assert all(each.restarts == 0 for each in found.values())


def test_fcfs_does_not_wait_for_a_job_that_never_runs_as_it_is_asked_for() -> None:
    speeds = Written({("m", "a"): 1.0}, least={"big": 2})
    found = by_id(ran(Fcfs, [job("1", "big"), job("2")], speeds, a=1))
    assert found["1"].start_s is None
    assert found["2"].end_s == 100


def test_by_gain_a_small_job_comes_before_a_large_one_until_that_has_waited_for_long() -> None:
    jobs = [job("1", work=400, gpus=4), job("large", at_s=1, gpus=4), job("small", at_s=2, gpus=1)]

    def starts_s(patience_s: float) -> tuple[float | None, float | None]:
        found = by_id(ran(lambda known: ByGain(Fcfs(known), known, patience_s), jobs, a=4))
        return found["small"].start_s, found["large"].start_s

    small, large = starts_s(1e6)
    assert (small or 0) < (large or 0)
    small, large = starts_s(10.0)
    assert (large or 0) < (small or 0)


def test_easy_starts_behind_the_head_what_does_not_put_it_off() -> None:
    # 1 ends at 1000; 2 wants all four; 3 ends before that, 4 does not
    jobs = [
        job("1", work=2000, gpus=2),
        job("2", at_s=1, gpus=4),
        job("3", at_s=2, work=500),
        job("4", at_s=3, work=5000),
    ]
    found = by_id(ran(Easy, jobs, a=4))
    assert found["3"].start_s == 2
    assert found["2"].start_s == found["1"].end_s
    assert found["4"].start_s == found["2"].end_s
    assert all(each.restarts == 0 for each in found.values())


def test_easy_starts_long_jobs_on_what_the_head_leaves_free() -> None:
    # of eight, three are left when 1 has ended and 2 has its four, while 0 still runs
    jobs = [
        job("0", work=9000),
        job("1", work=3000, gpus=4),
        job("2", at_s=1, gpus=4),
        job("3", at_s=2, work=9000, gpus=2),
    ]
    found = by_id(ran(Easy, jobs, a=8))
    assert found["3"].start_s == 2
    assert found["2"].start_s == found["1"].end_s


def test_gandiva_takes_any_type_and_grows_when_nobody_waits() -> None:
    found = by_id(ran(Gandiva, [job("1", work=5000), job("2", at_s=1, work=10)], a=1, b=8))
    assert found["2"].queued_s == 0
    assert {span.allocation.gpu_type for one in found.values() for span in one.spans} == {"b"}, "asked for a"
    assert max(span.allocation.gpus for span in found["1"].spans) > 1


def test_gandiva_takes_growth_back_that_does_not_pay_and_does_not_try_it_again() -> None:
    speeds = Written({("m", "a"): 1.0}, scaling={"m": 1.8}, truth={"m": 1.0})
    found = by_id(ran(Gandiva, [job("1", work=20000)], speeds, a=8))
    assert [span.allocation.gpus for span in found["1"].spans] == [1, 2, 1]


def test_gandiva_shrinks_grown_jobs_for_one_that_waits() -> None:
    found = by_id(ran(Gandiva, [job("1", work=10000), job("2", at_s=3000, work=10, gpus=2)], a=4))
    assert found["2"].queued_s == 0
    assert [span.allocation.gpus for span in found["1"].spans][:4] == [1, 2, 4, 1]


def test_gandiva_moves_a_small_job_for_a_large_one() -> None:
    jobs = [job("1", work=1e4), job("2", at_s=1, work=1e4), job("3", at_s=2, work=100, gpus=2)]
    found = by_id(ran(Gandiva, jobs, a=2, b=2))
    assert found["3"].queued_s == 0
    assert sum(found[id].restarts for id in "12") >= 1


def test_gavel_gives_the_fast_type_to_whom_it_helps_the_most() -> None:
    speeds = Written({("x", "a"): 1.0, ("x", "b"): 4.0, ("y", "a"): 1.0, ("y", "b"): 1.2})
    jobs = [job("1", "y", work=1e4), job("2", "x", work=1e4)]
    found = by_id(ran(Gavel, jobs, speeds, a=1, b=1))
    assert [span.allocation.gpu_type for span in found["2"].spans] == ["b"]
    assert found["1"].spans[0].allocation.gpu_type == "a"


def test_gavel_keeps_counts_and_changes_only_in_rounds() -> None:
    jobs = [job(str(at), at_s=100.0 * at, work=3000, gpus=2) for at in range(4)]
    outcome = ran(lambda known: Gavel(known, fair=True), jobs, a=4)
    assert all(span.allocation.gpus == 2 for one in outcome.jobs for span in one.spans)
    assert all(one.end_s is not None for one in outcome.jobs)
    # four equal jobs share two places, so each is made to wait and is taken up again
    assert sum(one.restarts for one in outcome.jobs) > 0
    changes = {span.from_s for one in outcome.jobs for span in one.spans if span.from_s > 400}
    ends = {one.end_s for one in outcome.jobs}
    assert all(at % 360 == 0 or at in ends for at in changes)


def test_the_program_of_gavel_is_solved_to_the_optimum() -> None:
    gains = {("x", "a"): 1.0, ("x", "b"): 3.0, ("y", "a"): 1.0, ("y", "b"): 2.0}
    found = shares(gains, {"x": 1, "y": 1}, {"a": 1, "b": 1})
    assert found == {("x", "b"): 1.0, ("y", "a"): 1.0}
    # two jobs of two GPUs on a pool of three: one and a half of them at once
    found = shares({("x", "a"): 1.0, ("y", "a"): 1.0}, {"x": 2, "y": 2}, {"a": 3})
    assert sum(found.values()) == pytest.approx(1.5)
    fair = shares({("x", "a"): 1.0, ("y", "a"): 5.0}, {"x": 1, "y": 1}, {"a": 1}, fair=True)
    assert fair["x", "a"] == pytest.approx(5 * fair["y", "a"], rel=1e-6)
    assert shares({("x", "a"): 1.0}, {"x": 2}, {"a": 1}) == {}


def test_elasticflow_admits_by_the_least_share_of_data_parallelism_which_is_more_than_needed() -> None:
    jobs = [job(str(at), "big", gpus=4, work=100) for at in range(3)]
    cells = Written({("big", "a"): 1.0}, least={"big": 1}, data_parallel_least={"big": 4})
    found = ran(ElasticFlow, jobs, cells, a=8)
    assert [one.start_s for one in found.jobs].count(0.0) == 2, "adaptive parallelism would let all three run"


def test_where_data_parallelism_fits_nothing_a_baseline_knows_what_was_asked_for_and_no_more() -> None:
    speeds = Written({("big", "a"): 1.0, ("big", "b"): 9.0}, least={"big": 2}, data_parallel_least={"big": 1024})
    known = Profiled(speeds, speeds)
    asked = job("1", "big", gpus=4)
    assert known.rate(asked, "a", 4) == pytest.approx(1.8**2)
    assert known.rate(asked, "a", 8) == known.rate(asked, "b", 4) == 0
    assert known.least(asked, "a", 64) == 4


def test_elasticflow_gives_what_is_left_to_whom_it_helps_the_most() -> None:
    speeds = Written({("s", "a"): 1.0, ("f", "a"): 1.0}, scaling={"s": 1.1, "f": 1.9})
    known = Profiled(speeds, speeds)
    waiting = [Waiting(job("1", "s"), 100.0), Waiting(job("2", "f"), 100.0)]
    decision = ElasticFlow(known).decide(Moment(0.0, [], waiting, {"a": 5}, frozenset("12"), False))
    assert {id: each.gpus for id, each in decision.allocations.items()} == {"1": 1, "2": 4}


def test_elasticflow_with_deadlines_gives_what_it_takes_and_drops_what_cannot_be_in_time() -> None:
    jobs = [job("1", work=100, by_s=60.0), job("2", work=100, by_s=5.0), job("3", work=100)]
    found = by_id(ran(lambda known: ElasticFlow(known, deadlines=True), jobs, a=4))
    assert found["1"].met_deadline
    assert found["2"].dropped_s == 0
    assert found["3"].end_s is not None


def test_regression_elasticflow_made_jobs_late_by_restarts_that_it_did_not_count() -> None:
    scaling = Written({("m", "a"): 1.0}, scaling={"m": 1.1})
    policy = ElasticFlow(Profiled(scaling, scaling), deadlines=True)
    # with the GPU that it has it just ends in time; a second one would save 9 s and cost a restart of 30 s
    running = [Running(job("1", work=200, by_s=100.0), Allocation("a", 1), 0.0, 99.0)]
    moment = Moment(0.0, running, [], {"a": 4}, frozenset(), True)
    assert policy.decide(moment).allocations == {"1": Allocation("a", 1)}
    # and with two, it would be late with one that it has to be restarted on
    running = [Running(job("1", work=200, by_s=100.0), Allocation("a", 2), 0.0, 99.0)]
    waiting = [Waiting(job("2", work=10), 10.0)]
    found = policy.decide(Moment(0.0, running, waiting, {"a": 2}, frozenset("2"), False)).allocations
    assert found == {"1": Allocation("a", 2)}


def test_elasticflow_never_takes_its_least_share_from_a_running_job() -> None:
    known = Profiled(ONE, ONE)
    running = [Running(job("1", gpus=1), cell, 0.0, 50.0) for cell in [known.cell(job("1"), "a", 1)] if cell]
    moment = Moment(5.0, running, [Waiting(job("2", at_s=5), 100.0)], {"a": 1}, frozenset("2"), False)
    assert ElasticFlow(known).decide(moment).allocations.keys() == {"1"}


MODELS = ("m", "n", "big")
worlds = st.fixed_dictionaries(
    {
        "one": st.fixed_dictionaries(
            {(model, kind): st.sampled_from([0.5, 1.0, 3.0]) for model in MODELS for kind in "ab"}
        ),
        "least": st.just({"big": 2}),
        "data_parallel_least": st.just({"big": 8, "n": 2}),
    }
)
requests = st.tuples(
    st.sampled_from(MODELS),
    st.floats(0, 3000),
    st.floats(10, 5000),
    st.sampled_from([2, 4]),
    st.sampled_from("ab"),
)


@pytest.mark.parametrize("name", BASELINES)
@given(world=worlds, asked=st.lists(requests, min_size=1, max_size=12))
@settings(max_examples=25, deadline=None)
def test_every_baseline_ends_all_jobs_within_the_cluster_and_does_the_same_again(
    name: str, world: dict[str, object], asked: list[tuple[str, float, float, int, str]]
) -> None:
    speeds = Written(**world)  # type: ignore[arg-type]
    jobs = [SimulatedJob(str(at), *one) for at, one in enumerate(asked)]
    # the engine refuses what does not fit and what is no cell
    found = simulate(jobs, {"a": 4, "b": 8}, BASELINES[name](speeds, speeds), speeds)
    assert all(one.end_s is not None for one in found.jobs)
    for one in found.jobs:
        assert sum(span.iterations for span in one.spans) == pytest.approx(one.job.iterations, rel=1e-6)
    assert found == simulate(jobs, {"a": 4, "b": 8}, BASELINES[name](speeds, speeds), speeds)


def test_gandiva_knows_at_any_time_which_jobs_have_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    shrinks = Gandiva._shrinks

    def checked(
        self: Gandiva, job: SimulatedJob, free: FreeGpus, running: Mapping[str, Running], grown: _Grown
    ) -> bool:
        anew = _Grown(free, running)
        assert (grown.jobs, grown.gpus) == (anew.jobs, anew.gpus)
        seen.append(any(grown.gpus.values()))
        return shrinks(self, job, free, running, grown)

    monkeypatch.setattr(Gandiva, "_shrinks", checked)
    site = comparison.Site.of(clusters.crius_testbed(), workload.models_of(()))
    trace = workload.generated(1, 300)
    jobs = workload.jobs_of(trace, site.models, site.pools, site.speeds, seed=1, load=1.2)
    comparison.run("gandiva", jobs, site)
    assert any(seen)
