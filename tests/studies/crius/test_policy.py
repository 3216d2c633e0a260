"""Crius as a policy: what arrivals, ends, waiting, deadlines and ablations do, and what it never does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from studies.crius.options import Options
from studies.crius.policy import PATIENCE_S, CriusPolicy
from studies.crius.virtual import Virtual
from studies.simulation.engine import simulate
from studies.simulation.outcome import JobOutcome, Outcome
from studies.simulation.types import Allocation, Decision, Moment, Running, SimulatedJob, Speeds, Waiting

pytestmark = pytest.mark.slow

CLUSTER = {"fast": 16, "slow": 16}


class Rates:
    """The fast type is twice as fast, doubling GPUs gives 1.6x, two stages cost 10 % but for "deep", which needs them.

    "wide" fits 8 GPUs and more, "picky" the fast type alone.
    """

    def rate(self, model: str, allocation: Allocation) -> float:
        if (model == "wide" and allocation.gpus < 8) or (model == "picky" and allocation.gpu_type == "slow"):
            return 0.0
        if (model == "deep" and allocation.stages < min(2, allocation.gpus)) or model == "giant":
            return 0.0
        speed = 2.0 if allocation.gpu_type == "fast" else 1.0
        return float(speed * 1.6 ** (allocation.gpus.bit_length() - 1) * 0.9 ** (allocation.stages.bit_length() - 1))

    def data_parallel_rate(self, model: str, gpu_type: str, gpus: int) -> float:
        return self.rate(model, Allocation(gpu_type, gpus))


class Wrong:
    """Estimates that are off by up to 30 %, always the same for the same cell."""

    def rate(self, model: str, allocation: Allocation) -> float:
        return Rates().rate(model, allocation) * Random(f"{model}{allocation}").uniform(0.7, 1.3)

    data_parallel_rate = Rates.data_parallel_rate


@dataclass
class Watched:
    """A policy with everything that it saw and said."""

    policy: CriusPolicy
    seen: list[tuple[Moment, Decision]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def interval_s(self) -> float | None:
        return self.policy.interval_s

    def decide(self, moment: Moment) -> Decision:
        said = self.policy.decide(moment)
        self.seen.append((moment, said))
        return said


def job(
    id: str, submit_s: float = 0.0, hours: float = 1.0, gpus: int = 4, model: str = "m", gpu_type: str = "fast"
) -> SimulatedJob:
    """So many hours on what it asks for."""
    rate = max(Rates().rate(model, Allocation(gpu_type, gpus, stages)) for stages in (1, min(2, gpus))) or 1.0
    return SimulatedJob(id, model, submit_s, hours * 3600 * rate, gpus, gpu_type)


def run(jobs: Sequence[SimulatedJob], cluster: dict[str, int] | None = None, **keys: object) -> Outcome:
    return simulate(jobs, cluster or CLUSTER, CriusPolicy(Rates(), **keys), Rates(), restart_s=30.0)  # type: ignore[arg-type]


def by_id(outcome: Outcome) -> dict[str, JobOutcome]:
    return {each.job.id: each for each in outcome.jobs}


def test_a_job_alone_has_the_fastest_of_its_cells() -> None:
    (x,) = run([job("x")]).jobs
    assert [span.allocation for span in x.spans] == [Allocation("fast", 8, 1)]
    (deep,) = run([job("deep", model="deep", gpu_type="slow")]).jobs
    assert deep.spans[0].allocation == Allocation("fast", 8, 2)


def test_cells_are_half_the_number_the_number_and_twice_it_of_every_type_that_fits() -> None:
    found = Options(Rates()).of(job("x", gpus=4), {"fast": 16, "slow": 4})
    assert [(each.allocation.gpu_type, each.allocation.gpus) for each in found] == [
        ("fast", 2),
        ("fast", 4),
        ("fast", 8),
        ("slow", 2),
        ("slow", 4),
    ]
    assert next(each.value for each in found if each.allocation == Allocation("fast", 4)) == 1.0
    assert [each.allocation.gpus for each in Options(Rates()).of(job("w", gpus=8, model="wide"), {"fast": 16})] == [
        8,
        16,
    ]
    raw = Options(Rates(), objective="raw").of(job("x"), CLUSTER)
    assert all(each.value == each.rate for each in raw)


def test_running_jobs_shrink_or_move_for_one_that_arrives() -> None:
    seen = by_id(run([job("x"), job("y"), job("z", 600.0)], {"fast": 16}))
    assert seen["z"].queued_s == 0.0
    assert {each.allocation.gpus for each in seen["x"].spans} | {each.allocation.gpus for each in seen["y"].spans} >= {
        4,
        8,
    }


def test_a_job_grows_when_others_have_ended_and_nobody_waits() -> None:
    seen = by_id(run([job("x", hours=1.0), job("y", 1.0, hours=8.0)], {"fast": 8}))
    assert [span.allocation.gpus for span in seen["y"].spans] == [4, 8]
    assert seen["y"].restarts == 1


def test_a_job_near_its_end_is_not_moved() -> None:
    # 40 s are left when half of the cluster becomes free: a restart takes 30 s, twice the GPUs are 1.6 times as fast
    first, second = job("x", hours=1.0), job("y", 0.0, hours=3640 / 3600)
    seen = by_id(run([first, second], {"fast": 8}))
    assert [span.allocation.gpus for span in seen["y"].spans] == [4]


def test_the_ablations_keep_the_number_or_the_type() -> None:
    rng = Random(3)
    jobs = [
        job(f"{n}", 300.0 * n, rng.uniform(0.5, 3), rng.choice([1, 2, 4, 8]), "m", rng.choice(["fast", "slow"]))
        for n in range(30)
    ]
    fixed, same = run(jobs, adaptive=False), run(jobs, heterogeneous=False)
    assert (fixed.policy, same.policy) == ("Crius-NA", "Crius-NH")
    for each in fixed.jobs:
        assert {span.allocation.gpus for span in each.spans} == {each.job.gpus}
    for each in same.jobs:
        assert {span.allocation.gpu_type for span in each.spans} == {each.job.gpu_type}
    assert {len({span.allocation.gpu_type for span in each.spans}) for each in fixed.jobs} >= {2}
    assert {len({span.allocation.gpus for span in each.spans}) for each in same.jobs} >= {2}


def test_a_job_that_fits_no_cell_is_dropped_and_holds_nobody_up() -> None:
    seen = by_id(run([job("g", model="giant"), job("w", model="wide", gpus=2), job("x", 1.0)]))
    assert seen["g"].dropped_s == seen["w"].dropped_s == 0.0
    assert seen["x"].queued_s == 0.0


def test_an_opportunistic_job_is_suspended_as_soon_as_the_one_it_overtook_has_its_least_cell() -> None:
    # of 12 GPUs two jobs have 4 each; "wide" needs 8, and while it waits small jobs take the 4 that are idle
    jobs = [job("p", 0.0, 1.0, 4, "picky"), job("q", 0.0, 3.0, 4, "picky"), job("wide", 10.0, 1.0, 8, "wide")]
    jobs += [job(f"s{number}", 20.0 + 60 * number, 5.0, 2, "picky") for number in range(4)]
    watched = Watched(CriusPolicy(Rates(), adaptive=False, patience_s=0))
    seen = by_id(simulate(jobs, {"fast": 12}, watched, Rates()))
    assert (seen["s0"].start_s, seen["s1"].start_s, seen["wide"].start_s) == (20.0, 80.0, 3600.0)
    assert [seen[f"s{number}"].restarts for number in range(4)] == [1, 1, 0, 0]
    assert (seen["s0"].spans[0].until_s, seen["s1"].spans[0].until_s) == (3600.0, 3600.0)
    # who was there before it keeps its GPUs
    assert seen["q"].restarts == 0
    assert all(each.end_s is not None for each in seen.values())


def test_only_as_many_opportunistic_jobs_are_suspended_as_must_be_and_the_latest_first() -> None:
    jobs = [job("p", 0.0, 1.0, 4, "picky"), job("wide", 10.0, 1.0, 8, "wide")]
    jobs += [job(f"s{number}", 20.0 + 60 * number, 5.0, 2, "picky") for number in range(3)]
    seen = by_id(run(jobs, {"fast": 10}, adaptive=False, patience_s=0))
    # 4 GPUs of "p" become free and 0 were idle: two of three jobs with 2 each have to go
    assert seen["wide"].start_s == 3600.0
    assert [seen[f"s{number}"].restarts for number in range(3)] == [0, 1, 1]


def test_a_stream_of_small_jobs_does_not_starve_a_big_one() -> None:
    jobs = [job(f"s{number}", 200.0 * number, 0.5, 2, "picky") for number in range(200)]
    jobs.append(job("wide", 1000.0, 1.0, 16, "wide"))
    for depth, patience_s in ((0, 0), (1, 0), (3, 0), (0, 3600), (3, 3600)):
        seen = by_id(run(jobs, {"fast": 16}, depth=depth, patience_s=patience_s))
        queued_s = seen["wide"].queued_s
        assert queued_s is not None
        # those that ran when it became impatient have at most half an hour on what they asked for, twice that on half
        assert queued_s <= patience_s + 2 * 3600.0
    # without a claim it waits until the stream is at an end
    assert (by_id(run(jobs, {"fast": 16}, depth=0, patience_s=1e9))["wide"].queued_s or 1e9) > 3 * 3600.0


def test_a_deadline_is_met_by_every_job_that_is_started_and_the_others_are_dropped() -> None:
    rng = Random(5)
    jobs = []
    for number in range(60):
        one = job(
            f"{number}",
            240.0 * number,
            rng.uniform(0.3, 2),
            rng.choice([1, 2, 4, 8]),
            "m",
            rng.choice(["fast", "slow"]),
        )
        jobs.append(replace(one, deadline_s=one.submit_s + rng.uniform(0.2, 3) * 3600))
    strict, loose = run(jobs, deadlines=True), run(jobs)
    assert strict.policy == "Crius-DDL"
    for each in strict.jobs:
        assert (each.end_s is not None) != (each.dropped_s is not None)
        assert each.end_s is None or each.met_deadline
        # what has started is never given up
        assert each.dropped_s is None or each.start_s is None
    assert sum(bool(each.met_deadline) for each in strict.jobs) > sum(bool(each.met_deadline) for each in loose.jobs)
    assert all(each.end_s is not None for each in loose.jobs)


def test_a_job_with_a_deadline_is_never_suspended() -> None:
    jobs = [job("p", 0.0, 1.0, 4, "picky"), job("q", 0.0, 3.0, 4, "picky"), job("wide", 10.0, 1.0, 8, "wide")]
    jobs += [replace(job(f"s{n}", 20.0 + 60 * n, 5.0, 2, "picky"), deadline_s=30 * 3600.0) for n in range(2)]
    seen = by_id(run(jobs, {"fast": 12}, adaptive=False, deadlines=True, patience_s=0))
    assert seen["wide"].start_s == 3 * 3600.0
    assert all(each.restarts == 0 and each.met_deadline is not False for each in seen.values())


def test_a_running_job_that_will_miss_its_deadline_is_given_a_cell_with_which_it_meets_it() -> None:
    late = replace(job("x"), deadline_s=2000.0)
    new = job("y", 10.0, 1.0, 1)
    running = [Running(late, Allocation("slow", 2), 0.0, 8000.0)]
    moment = Moment(10.0, running, [Waiting(new, new.iterations)], CLUSTER, frozenset({"y"}), False)
    assert CriusPolicy(Rates(), depth=0).decide(moment).allocations["x"] == Allocation("slow", 2)
    assert CriusPolicy(Rates(), depth=0, deadlines=True).decide(moment).allocations["x"].gpu_type == "fast"
    hopeless = replace(moment, running=[replace(running[0], left=1e6)])
    assert CriusPolicy(Rates(), depth=0, deadlines=True).decide(hopeless).dropped == {"x"}


def test_who_adds_more_for_each_gpu_is_started_first_and_who_is_impatient_before_all() -> None:
    jobs = [job("p", 0.0, 1.0, 8, "picky"), job("old", 10.0, 1.0, 8, "picky"), job("small", 20.0, 1.0, 2, "picky")]
    seen = by_id(run(jobs, {"fast": 8}, adaptive=False, patience_s=PATIENCE_S))
    assert (seen["small"].start_s, seen["old"].start_s) == (3600.0, 7200.0)
    seen = by_id(run(jobs, {"fast": 8}, adaptive=False, patience_s=1800))
    assert (seen["old"].start_s, seen["small"].start_s) == (3600.0, 7200.0)


def test_a_deadline_in_the_past_is_dropped_at_once() -> None:
    late = replace(job("x", 100.0), deadline_s=50.0)
    (seen,) = run([late], deadlines=True).jobs
    assert seen.dropped_s == 100.0


def test_a_job_whose_estimate_was_too_good_is_saved_by_another_cell_or_given_up() -> None:
    class TooGood(Rates):
        def rate(self, model: str, allocation: Allocation) -> float:
            return super().rate(model, allocation) * (3.0 if allocation == Allocation("slow", 4) else 1.0)

    one = replace(job("x", 0.0, 1.0, 4), deadline_s=4000.0)
    block = job("b", 0.0, 0.5, 8, "picky")
    jobs = [block, one, *(job(f"{n}", 600.0 * n, 0.01, 1, "m", "slow") for n in range(1, 6))]
    seen = by_id(simulate(jobs, {"fast": 8, "slow": 8}, CriusPolicy(TooGood(), deadlines=True), Rates()))
    assert seen["x"].met_deadline or seen["x"].dropped_s is not None


arrivals = st.lists(
    st.tuples(
        st.integers(0, 4000),
        st.floats(0.02, 1.5),
        st.sampled_from([1, 2, 4, 8]),
        st.sampled_from(["m", "deep", "picky", "wide"]),
        st.sampled_from(["fast", "slow"]),
        st.one_of(st.none(), st.floats(0, 3)),
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=40, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    arrivals,
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from([Rates(), Wrong()]),
    st.sampled_from(["normalised", "raw"]),
    st.sampled_from([0.0, 1800.0, 1e9]),
)
def test_what_it_promises_on_any_trace(trace, depth: int, deadlines: bool, speeds: Speeds, objective, patience) -> None:  # type: ignore[no-untyped-def]
    jobs = []
    for number, (at, hours, gpus, model, gpu_type, slack) in enumerate(trace):
        one = job(f"{number}", float(at), hours, gpus, model, gpu_type)
        jobs.append(one if slack is None else replace(one, deadline_s=at + slack * 3600))
    keys = {"depth": depth, "deadlines": deadlines, "objective": objective, "patience_s": patience}
    watched = Watched(CriusPolicy(speeds, **keys))
    # the engine refuses whatever overdraws the cluster
    seen = simulate(jobs, CLUSTER, watched, Rates())
    for each in seen.jobs:
        # a closed system comes to an end: nobody waits for ever
        assert each.end_s is not None or each.dropped_s is not None
    submitted = {each.id: each.submit_s for each in jobs}
    for moment, said in watched.seen:
        virtual = Virtual(moment, Options(speeds, objective=objective), restart_s=30.0, deadlines=deadlines)
        before = virtual.objective()
        had = {each.job.id: each.allocation for each in moment.running}
        gone = {id for id in had if id not in said.allocations} - said.dropped
        waited = {each.job.id for each in moment.waiting}
        if gone:
            # GPUs are taken away for an older job that has waited, and that now starts
            begun = (said.allocations.keys() & waited) or {""}
            assert min(submitted.get(id, 9e9) for id in begun) <= min(submitted[id] for id in gone)
        elif not (deadlines and said.dropped) and not deadlines:
            for id, allocation in said.allocations.items():
                virtual.give(id, allocation)
            assert virtual.objective() >= before - 1e-6
    assert seen == simulate(jobs, CLUSTER, CriusPolicy(speeds, **keys), Rates())


@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.randoms(use_true_random=False))
def test_an_arrival_is_served_no_worse_with_more_depth(rng: Random) -> None:
    running, free = [], dict(CLUSTER)
    for number in range(12):
        one = job(f"{number}", 0.0, rng.uniform(0.5, 3), rng.choice([2, 4, 8]), "m", rng.choice(["fast", "slow"]))
        cell = rng.choice(Options(Rates()).of(one, CLUSTER)).allocation
        if free[cell.gpu_type] >= cell.gpus:
            free[cell.gpu_type] -= cell.gpus
            running.append(Running(one, cell, 0.0, one.iterations * rng.random()))
    new = job("new", 10.0, 1.0, rng.choice([2, 4, 8]))
    moment = Moment(10.0, running, [Waiting(new, new.iterations)], CLUSTER, frozenset({"new"}), False)
    found = []
    for depth in range(4):
        virtual = Virtual(moment, Options(Rates()), restart_s=30.0, deadlines=False)
        said = CriusPolicy(Rates(), depth=depth).decide(moment)
        for id, allocation in said.allocations.items():
            virtual.give(id, allocation)
        found.append(virtual.objective())
    assert all(after >= before - 1e-6 for before, after in pairwise(found))


@pytest.mark.parametrize("name", ["", "mine"])
def test_its_name_says_what_it_is(name: str) -> None:
    assert CriusPolicy(Rates(), name=name).name == (name or "Crius")


def test_in_rounds_nothing_changes_between_two_of_them_and_what_has_come_is_served_at_the_next() -> None:
    jobs = [job("first", 0.0, 100.0, 4), job("second", 10.0, 600.0, 4)]
    seen = by_id(run(jobs, {"fast": 8, "slow": 0}, adaptive=False, interval_s=300.0))
    assert [seen[id].start_s for id in ("first", "second")] == [0.0, 300.0]
    alone = by_id(run(jobs, {"fast": 8, "slow": 0}, adaptive=False))
    assert alone["second"].start_s == 10.0
