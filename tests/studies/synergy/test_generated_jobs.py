"""Jobs that are drawn have the load, the mix and the durations that were asked for."""

from __future__ import annotations

from collections import Counter

import pytest

from sizing.base.errors import UsageError
from studies.simulation.world import SimulatedJob
from studies.synergy.generated_jobs import drawn
from studies.synergy.packing.types import Servers
from tests.studies.synergy.toys import MATRICES, SERVERS
from tests.support.messages import pattern

pytestmark = pytest.mark.slow


def come(jobs: tuple[SimulatedJob, ...]) -> list[SimulatedJob]:
    """Those that are not there from the beginning."""
    return [job for job in jobs if not job.id.startswith("there")]


MIX = {"image": 0.25, "language": 0.75}
KNOWN = {name: MATRICES[name] for name in ("image", "language", "image2", "language2")}


def test_the_load_is_what_all_jobs_ask_for_until_the_last_of_them_comes() -> None:
    for load in (0.5, 1.5):
        jobs = drawn(KNOWN, MIX, SERVERS, seed=1, count=200, load=load, sizes={1: 0.5, 2: 0.5})
        asked = sum(job.gpus * job.iterations / KNOWN[job.model].matrix.rates[1][0] for job in come(jobs))
        assert asked / (4 * jobs[-1].submit_s) == pytest.approx(load)
        assert (jobs[0].submit_s, [job.submit_s for job in jobs]) == (0.0, sorted(job.submit_s for job in jobs))


def test_classes_and_gpus_are_drawn_by_their_shares() -> None:
    jobs = drawn(KNOWN, MIX, SERVERS, seed=2, count=4000, load=1.0, sizes={1: 0.8, 2: 0.2})
    count = Counter(job.model for job in jobs)
    assert count["image"] + count["image2"] == pytest.approx(1000, rel=0.1)
    assert count["image2"] + count["language2"] == pytest.approx(800, rel=0.1)
    assert all(job.gpus == KNOWN[job.model].matrix.gpus for job in jobs)


def test_durations_are_lognormal_or_those_that_are_given() -> None:
    def hours(durations_s: tuple[float, ...] = ()) -> list[float]:
        jobs = drawn(KNOWN, {"language": 1.0}, SERVERS, seed=3, count=3000, load=1.0, durations_s=durations_s)
        return sorted(job.iterations / 3.0 / 3600 for job in come(jobs))

    found = hours()
    assert found[1500] == pytest.approx(2.2, rel=0.1)
    assert sum(found) / 3000 == pytest.approx(3.5, rel=0.1)
    assert {round(each, 6) for each in hours((3600.0, 7200.0))} == {1.0, 2.0}
    # a duration of a trace that is no training is held to five minutes
    assert hours((1.0,))[0] == pytest.approx(300 / 3600)


def test_a_seed_draws_the_same_jobs_again_at_whatever_load() -> None:
    one, two, other = (
        come(drawn(KNOWN, MIX, SERVERS, seed=seed, count=50, load=load))
        for seed, load in ((4, 1.0), (4, 2.0), (5, 1.0))
    )
    assert [(job.model, job.iterations, job.submit_s) for job in one] == [
        (job.model, job.iterations, pytest.approx(2 * job.submit_s)) for job in two
    ]
    assert one != other
    assert one == come(drawn(KNOWN, MIX, SERVERS, seed=4, count=50, load=1.0))


def test_jobs_are_there_from_the_beginning_as_many_and_as_far_along_as_at_any_time() -> None:
    many = Servers(500, gpus=4, cpus=8.0, memory_bytes=8.0)
    for load, gpus in ((0.5, 1000), (1.4, 2000)):
        jobs = drawn(KNOWN, {"language": 1.0}, many, seed=6, count=10, load=load, sizes={1: 0.5, 2: 0.5})
        there = [job for job in jobs if job.id.startswith("there")]
        assert gpus - 1 <= sum(job.gpus for job in there) <= gpus
        assert {job.submit_s for job in there} == {0.0}
    # of durations of 1 and 9 h nine in ten that run are of the long ones: half of 0.1 * 1 + 0.9 * 9 is left
    jobs = drawn(KNOWN, {"language": 1.0}, many, seed=6, count=10, load=1.0, durations_s=(3600.0, 9 * 3600.0))
    left = [job.iterations / 3.0 / 3600 for job in jobs if job.id.startswith("there")]
    assert sum(left) / len(left) == pytest.approx(4.1, rel=0.1)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"mix": {"video": 1.0}}, pattern("studies.generated_jobs.no_such_job", kind="video", gpus=1)),
        ({"sizes": {8: 1.0}}, pattern("studies.generated_jobs.no_such_job", kind="image", gpus=8)),
        ({"count": 1}, "at least two"),
        ({"load": 0.0}, "load above 0"),
        ({"servers": Servers(2, 4, 2.0, 4.0)}, pattern("studies.generated_jobs.does_not_run", name="image")),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_a_line(asked: dict[str, object], words: str) -> None:
    whole = {"mix": {"image": 1.0}, "servers": SERVERS, "seed": 1, "count": 5, "load": 1.0, **asked}
    with pytest.raises(UsageError, match=words) as told:
        drawn(KNOWN, **whole)  # type: ignore[arg-type]
    assert "\n" not in str(told.value)
