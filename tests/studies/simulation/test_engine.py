"""The simulated cluster: exact times, restarts that cost, what a policy must not do, and no matter in which order."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sizing.base.errors import UsageError
from studies.simulation import engine
from studies.simulation.engine import BrokenRule, simulate
from studies.simulation.outcome import Level, average
from studies.simulation.types import Allocation, Decision, Moment, SimulatedJob, Speeds
from tests.support.messages import fragment, pattern

pytestmark = pytest.mark.slow

A1, A2, A4, B1 = Allocation("a", 1), Allocation("a", 2), Allocation("a", 4), Allocation("b", 1)


class Linear:
    """One iteration a second and GPU, half of it on type b; model "big" needs four GPUs."""

    def rate(self, model: str, allocation: Allocation) -> float:
        if model == "big" and allocation.gpus < 4:
            return 0.0
        return allocation.gpus * (1.0 if allocation.gpu_type == "a" else 0.5)

    def data_parallel_rate(self, model: str, gpu_type: str, gpus: int) -> float:
        return self.rate(model, Allocation(gpu_type, gpus))


@dataclass
class Scripted:
    """Does what a function says; keeps the moments."""

    says: Callable[[Moment], Mapping[str, Allocation]]
    interval_s: float | None = None
    name: str = "scripted"
    moments: list[Moment] = field(default_factory=list)

    def decide(self, moment: Moment) -> Decision:
        self.moments.append(moment)
        return Decision(self.says(moment))


@dataclass
class InTurn:
    """First come, first served, as asked for."""

    name: str = "in turn"
    interval_s: float | None = None

    def decide(self, moment: Moment) -> Decision:
        given = {each.job.id: each.allocation for each in moment.running}
        free = dict(moment.capacity)
        for allocation in given.values():
            free[allocation.gpu_type] -= allocation.gpus
        for each in moment.waiting:
            if free[each.job.gpu_type] < each.job.gpus:
                break
            free[each.job.gpu_type] -= each.job.gpus
            given[each.job.id] = Allocation(each.job.gpu_type, each.job.gpus)
        return Decision(given)


def job(id: str, submit_s: float = 0.0, iterations: float = 100.0, gpus: int = 1, model: str = "m") -> SimulatedJob:
    return SimulatedJob(id, model, submit_s, iterations, gpus, "a")


def test_a_job_trains_at_its_rate_and_the_next_has_its_gpus_when_it_ends() -> None:
    seen = simulate([job("x", 5.0), job("y", 10.0, 50.0)], {"a": 1}, InTurn(), Linear())
    x, y = seen.jobs
    assert (x.start_s, x.end_s, x.completion_s, x.queued_s) == (5.0, 105.0, 100.0, 0.0)
    assert (y.start_s, y.end_s, y.completion_s, y.queued_s) == (105.0, 155.0, 145.0, 95.0)
    assert (seen.end_s, seen.decisions) == (155.0, 3)
    assert seen.throughput == (Level(5.0, 1.0, 1.0, 1), Level(105.0, 1.0, 1.0, 1), Level(155.0, 0.0, 0.0, 0))


def test_another_allocation_costs_a_restart_and_no_iterations() -> None:
    # at 40 s another job comes, and the first one grows from 1 to 4 GPUs: 60 iterations are left, at 4 a second
    policy = Scripted(lambda moment: {"x": A1 if moment.now_s < 40 else A4} if moment.now_s < 85 else {})
    seen = simulate([job("x"), job("y", 40.0, 1.0)], {"a": 8}, policy, Linear(), restart_s=30.0)
    x, y = seen.jobs
    assert (x.start_s, x.end_s, x.restarts) == (0.0, 85.0, 1)
    assert [(span.from_s, span.ready_s, span.until_s, span.iterations) for span in x.spans] == [
        (0.0, 0.0, 40.0, 40.0),
        (40.0, 70.0, 85.0, 60.0),
    ]
    # it does nothing while it restarts, and has its GPUs
    assert seen.throughput[1:3] == (Level(40.0, 0.0, 0.0, 4), Level(70.0, 4.0, 4.0, 4))
    assert y.end_s is None


def test_a_suspended_job_goes_on_where_it_was_and_pays_for_it() -> None:
    policy = Scripted(lambda moment: {"y": A1} if "y" in {each.job.id for each in waits(moment)} else {"x": A1})
    seen = simulate([job("x"), job("y", 10.0, 20.0)], {"a": 1}, policy, Linear(), restart_s=5.0)
    x, y = seen.jobs
    assert (y.start_s, y.end_s, y.restarts) == (10.0, 30.0, 0)
    assert (x.end_s, x.restarts) == (30.0 + 5.0 + 90.0, 1)
    assert policy.moments[1].running[0].left == 90.0
    assert policy.moments[2].waiting[0].left == 90.0


def waits(moment: Moment) -> list[object]:
    return [*moment.waiting, *moment.running]


def test_a_policy_with_an_interval_is_asked_on_its_grid_and_at_arrivals_and_ends() -> None:
    policy = Scripted(lambda moment: {each.job.id: A1 for each in waits(moment)}, interval_s=60.0)
    simulate([job("x"), job("y", 90.0, 20.0), job("late", 1000.0, 5.0)], {"a": 4}, policy, Linear())
    assert [moment.now_s for moment in policy.moments] == [0.0, 60.0, 90.0, 100.0, 1000.0]
    assert [sorted(moment.arrived) for moment in policy.moments] == [["x"], [], ["y"], [], ["late"]]
    # "y" ends at 110 s, when nobody is there to be asked about: the next question tells it
    assert [moment.ended for moment in policy.moments] == [False, False, False, True, True]


def test_what_happens_at_the_same_time_is_one_question() -> None:
    policy = Scripted(lambda moment: {each.job.id: A1 for each in waits(moment)})
    simulate([job("x"), job("y"), job("z", 100.0, 1.0)], {"a": 4}, policy, Linear())
    assert [(m.now_s, sorted(m.arrived), m.ended) for m in policy.moments] == [
        (0.0, ["x", "y"], False),
        (100.0, ["z"], True),
    ]


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ({"x": A4, "y": A1}, pattern("studies.pools.too_many", count=5, gpu_type="a", there=4)),
        ({"x": Allocation("a", 3)}, "a cell has 1, 2, 4"),
        ({"x": Allocation("a", 0)}, "a cell has 1, 2, 4"),
        ({"x": Allocation("c", 1)}, pattern("studies.pools.no_such_type")),
        ({"x": Allocation("a", 2, 4)}, "4 stages on 2 GPUs"),
        ({"big": A2}, pattern("studies.pools.does_not_fit", model=fragment("big"))),
        ({"nobody": A1}, pattern("studies.engine.gives_to_absent", id="nobody")),
    ],
)
def test_a_policy_that_gives_what_cannot_be_given_is_named(says: dict[str, Allocation], words: str) -> None:
    jobs = [job("x"), job("y"), job("big", model="big")]
    with pytest.raises(BrokenRule, match=words) as told:
        simulate(jobs, {"a": 4, "b": 4}, Scripted(lambda _: says, name="Greedy"), Linear())
    assert str(told.value).startswith("Greedy ")
    assert "\n" not in str(told.value)


def test_a_policy_that_drops_a_job_and_feeds_it_is_named() -> None:
    class Both:
        name, interval_s = "Both", None

        def decide(self, moment: Moment) -> Decision:
            return Decision({"x": A1}, frozenset({"x"}))

    with pytest.raises(BrokenRule, match=pattern("studies.engine.gives_to_dropped", id="x")):
        simulate([job("x")], {"a": 4}, Both(), Linear())


def test_a_dropped_job_is_told_with_its_time_and_never_asked_about_again() -> None:
    class Dropping:
        name, interval_s = "Dropping", None

        def decide(self, moment: Moment) -> Decision:
            gone = frozenset(each.job.id for each in moment.waiting if each.job.id == "x")
            return Decision({each.job.id: A1 for each in waits(moment) if each.job.id not in gone}, gone)

    seen = simulate([job("x"), job("y")], {"a": 4}, Dropping(), Linear())
    assert (seen.jobs[0].dropped_s, seen.jobs[0].end_s, seen.jobs[0].start_s) == (0.0, None, None)
    assert seen.jobs[1].end_s == 100.0


def test_a_policy_that_never_starts_a_job_comes_to_an_end() -> None:
    for interval_s in (None, 10.0):
        seen = simulate([job("x")], {"a": 4}, Scripted(lambda _: {}, interval_s), Linear())
        assert (seen.jobs[0].start_s, seen.jobs[0].end_s, seen.throughput) == (None, None, ())


def test_a_policy_that_moves_a_job_for_ever_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "STUCK_ROUNDS", 50)
    turn = Scripted(lambda moment: {"x": A1 if int(moment.now_s / 10) % 2 else A2}, 10.0)
    with pytest.raises(BrokenRule, match=pattern("studies.engine.in_circles")):
        simulate([job("x")], {"a": 4}, turn, Linear(), restart_s=30.0)


def test_a_simulation_can_end_before_its_jobs() -> None:
    seen = simulate([job("x"), job("y", 500.0)], {"a": 4}, InTurn(), Linear(), until_s=60.0)
    assert (seen.jobs[0].end_s, seen.jobs[0].spans[0].until_s, seen.end_s) == (None, 60.0, 60.0)
    assert (seen.jobs[1].start_s, seen.jobs[1].spans) == (None, ())


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        ([job("x"), job("x")], pattern("studies.engine.job_twice", id="x")),
        ([job("x", gpus=6)], "take 4 or 8"),
        ([job("x", gpus=0)], "take 1 or 2"),
        ([job("x", iterations=0.0)], "give finite numbers"),
        ([job("x", submit_s=float("nan"))], "give finite numbers"),
    ],
)
def test_jobs_that_make_no_sense_are_refused_in_a_line(jobs: list[SimulatedJob], words: str) -> None:
    with pytest.raises(UsageError, match=words) as told:
        simulate(jobs, {"a": 4}, InTurn(), Linear())
    assert "\n" not in str(told.value)


def test_the_average_throughput_is_that_between_two_times() -> None:
    found = [Level(0.0, 1.0, 1.0, 1), Level(10.0, 3.0, 3.0, 1), Level(20.0, 0.0, 0.0, 0)]
    assert average(found, 0.0, 20.0) == 2.0
    assert average(found, 5.0, 15.0) == 2.0
    assert average(found, 10.0, 40.0) == 1.0
    assert average(found, 5.0, 5.0) == average([], 0.0, 1.0) == 0.0


traces = st.lists(
    st.tuples(st.integers(0, 500), st.integers(1, 400), st.sampled_from([1, 2, 4]), st.sampled_from(["m", "big"])),
    max_size=12,
)


@settings(max_examples=30, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(traces, st.integers(0, 60), st.randoms(use_true_random=False))
def test_iterations_are_neither_lost_nor_made_whatever_a_policy_does(trace, restart_s, rng) -> None:  # type: ignore[no-untyped-def]
    jobs = [
        job(str(number), float(at), float(work), max(gpus, 4 if model == "big" else 1), model)
        for number, (at, work, gpus, model) in enumerate(trace)
    ]

    def anything(moment: Moment) -> dict[str, Allocation]:
        free, given = dict(moment.capacity), {}
        for each in rng.sample(waits(moment), len(waits(moment))):
            kind, gpus = rng.choice("ab"), rng.choice([1, 2, 4])
            if free[kind] >= gpus and Linear().rate(each.job.model, Allocation(kind, gpus)) > 0:
                free[kind] -= gpus
                given[each.job.id] = Allocation(kind, gpus)
        return given

    seen = simulate(jobs, {"a": 6, "b": 4}, Scripted(anything, 50.0), Linear(), restart_s=restart_s, until_s=3000.0)
    for each in seen.jobs:
        done = sum(span.iterations for span in each.spans)
        assert done <= each.job.iterations * (1 + 1e-9)
        if each.end_s is not None:
            assert done == pytest.approx(each.job.iterations)
        assert each.restarts == max(0, each.restarts)
        assert all(one.until_s <= two.from_s for one, two in zip(each.spans, each.spans[1:], strict=False))
    assert all(level.gpus <= 10 for level in seen.throughput)
    work = sum(span.iterations for each in seen.jobs for span in each.spans)
    area = sum(
        level.iterations * (after.at_s - level.at_s)
        for level, after in zip(seen.throughput, seen.throughput[1:], strict=False)
    )
    assert area == pytest.approx(work)


def test_the_same_jobs_have_the_same_outcome_in_whatever_order_they_are_given() -> None:
    jobs = [job(f"{number}", 7.0 * number, 10.0 + number, 1 << number % 3) for number in range(40)]
    one = simulate(jobs, {"a": 8}, InTurn(), Linear())
    assert one == simulate(jobs, {"a": 8}, InTurn(), Linear()) == simulate(jobs[::-1], {"a": 8}, InTurn(), Linear())


def test_thousands_of_jobs_take_seconds() -> None:
    jobs = [job(f"{number}", 3.0 * number, 100.0 + 37 * number % 300, 1 << number % 3) for number in range(4_000)]
    speeds: Speeds = Linear()
    begun_s = time.process_time()
    seen = simulate(jobs, {"a": 100}, InTurn(), speeds)
    assert all(each.end_s is not None for each in seen.jobs)
    assert time.process_time() - begun_s < 24
