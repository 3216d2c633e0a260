"""Servers with CPUs and memory: what may be given to a job, how fast it is then, and what a change of it costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from sizing.base.errors import UsageError
from studies.simulation.engine import BrokenRule, simulate_in
from studies.simulation.world import Decision, Moment, SimulatedJob
from studies.synergy.packing.types import Share
from studies.synergy.servers import Placed, ServerWorld
from tests.studies.synergy.toys import MATRICES, SERVERS, job
from tests.support.messages import fragment, pattern

pytestmark = pytest.mark.slow


def on(server: int, gpus: int = 1, cpus: float = 2.0, memory_bytes: float = 2.0) -> Share:
    return Share(server, gpus, cpus, memory_bytes)


@dataclass
class Scripted:
    """Gives what a function of the time says."""

    says: Callable[[float], dict[str, tuple[Share, ...]]]
    interval_s: float | None = 100.0
    name: str = "scripted"

    def decide(self, moment: Moment[Placed]) -> Decision[Placed]:
        there = {each.job.id for each in (*moment.running, *moment.waiting)}
        return Decision({id: Placed(each) for id, each in self.says(moment.now_s).items() if id in there})


def test_a_job_is_as_fast_as_its_matrix_says_with_what_it_has() -> None:
    world = ServerWorld(SERVERS, MATRICES)
    assert world.rate(job("x", "image"), Placed((on(0),))) == 10.0
    assert world.rate(job("x", "image"), Placed((on(0, cpus=3.0),))) == 20.0
    assert world.rate(job("x", "image2"), Placed((on(0, cpus=3.0), on(1, cpus=3.0)))) == 20.0
    assert world.reference_rate(job("x", "image")) == 10.0
    assert world.capacity == {"gpu": 4}


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ({"x": ()}, "no shares"),
        ({"x": (on(2),)}, pattern("studies.servers.no_shares", count=2)),
        ({"x": (on(-1),)}, pattern("studies.servers.no_shares", count=2)),
        ({"x": (on(0, 2, 4.0, 4.0),)}, "it asked for 1"),
        ({"two": (on(0, 1),)}, "it asked for 2"),
        ({"two": (on(0), on(0))}, "it asked for 2"),
        ({"two": (on(0, cpus=3.0), on(1, cpus=1.0))}, pattern("studies.servers.split_unevenly")),
        ({"two": (on(0, memory_bytes=1.0), on(1))}, pattern("studies.servers.split_unevenly")),
        ({"x": (on(0, cpus=0.5),)}, pattern("studies.servers.does_not_run", model=fragment("language"))),
        (
            {"x": (on(0, memory_bytes=0.5),)},
            pattern("studies.servers.does_not_run", model=fragment("language")),
        ),
        (
            {"x": (on(0, cpus=3.0),), "y": (on(0, cpus=1.5),)},
            pattern("studies.servers.too_many", count=fragment("4.5"), what="CPUs", server=0, there=4),
        ),
        (
            {"x": (on(1, memory_bytes=3.0),), "y": (on(1),)},
            pattern("studies.servers.too_many", count=fragment("5"), what="bytes", server=1, there=4),
        ),
        (
            {"x": (on(0, cpus=1.0, memory_bytes=1.0),), "two": (on(0, 2, 2.0, 2.0),)},
            pattern("studies.servers.too_many", count=fragment("3"), what="GPUs", server=0, there=2),
        ),
        ({"z": (on(0),)}, pattern("studies.engine.gives_to_absent", id="z")),
    ],
)
def test_what_servers_cannot_give_is_named_with_who_gave_it(shares: dict[str, tuple[Share, ...]], words: str) -> None:
    class Wrong:
        name, interval_s = "Wrong", 100.0

        def decide(self, moment: Moment[Placed]) -> Decision[Placed]:
            return Decision({id: Placed(each) for id, each in shares.items()})

    with pytest.raises(BrokenRule, match=words) as told:
        simulate_in(ServerWorld(SERVERS, MATRICES), [job("x"), job("y"), job("two", "language2")], Wrong())
    assert str(told.value).startswith("Wrong ")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (job("x", "huge"), pattern("studies.servers.too_large", id="x", gpus=5, capacity=4, model="huge")),
        (job("x", "starved"), pattern("studies.generated_jobs.does_not_run", name="starved")),
        (SimulatedJob("x", "nobody", 0.0, 1.0, 1, ""), pattern("studies.servers.no_matrix", model="nobody")),
        (SimulatedJob("x", "language", 0.0, 1.0, 2, ""), "has 2 GPUs and language 1"),
    ],
)
def test_jobs_that_the_servers_can_never_run_are_refused_in_a_line(wrong: SimulatedJob, words: str) -> None:
    with pytest.raises(UsageError, match=words) as told:
        simulate_in(ServerWorld(SERVERS, MATRICES), [wrong], Scripted(lambda _: {}))
    assert "\n" not in str(told.value)


def test_other_cpus_on_the_same_server_cost_no_restart_and_another_server_does() -> None:
    def says(now_s: float) -> dict[str, tuple[Share, ...]]:
        return {"x": (on(0),) if now_s < 100 else (on(0, cpus=3.0),) if now_s < 200 else (on(1, cpus=3.0),)}

    [x] = simulate_in(ServerWorld(SERVERS, MATRICES), [job("x", "image")], Scripted(says), restart_s=30.0).jobs
    assert [(one.from_s, one.ready_s, one.rate) for one in x.spans] == [
        (0.0, 0.0, 10.0),
        (100.0, 100.0, 20.0),
        (200.0, 230.0, 20.0),
    ]
    assert (x.restarts, x.end_s) == (1, 230.0 + (10_000 - 100 * 10 - 100 * 20) / 20)


def test_other_cpus_during_a_restart_do_not_cut_it_short() -> None:
    def says(now_s: float) -> dict[str, tuple[Share, ...]]:
        return {"x": (on(0),) if now_s < 100 else (on(1),) if now_s < 200 else (on(1, cpus=3.0),)}

    [x] = simulate_in(ServerWorld(SERVERS, MATRICES), [job("x", "image")], Scripted(says), restart_s=150.0).jobs
    assert [(one.from_s, one.ready_s) for one in x.spans] == [(0.0, 0.0), (100.0, 250.0), (200.0, 250.0)]
    assert x.end_s == 250.0 + (10_000 - 100 * 10) / 20


def test_a_job_that_was_suspended_pays_for_it_even_where_it_was() -> None:
    def says(now_s: float) -> dict[str, tuple[Share, ...]]:
        return {} if 100 <= now_s < 200 else {"x": (on(0),)}

    [x] = simulate_in(ServerWorld(SERVERS, MATRICES), [job("x")], Scripted(says), restart_s=30.0).jobs
    assert [(one.from_s, one.ready_s) for one in x.spans] == [(0.0, 0.0), (200.0, 230.0)]
    assert x.restarts == 1


def test_in_rounds_a_policy_is_asked_at_its_interval_alone_and_told_all_that_came_since() -> None:
    moments: list[Moment[Placed]] = []

    class Watching(Scripted):
        def decide(self, moment: Moment[Placed]) -> Decision[Placed]:
            moments.append(moment)
            return super().decide(moment)

    jobs = [job("x", duration_s=150.0), job("y", at_s=110.0), job("late", at_s=2050.0, duration_s=10.0)]
    policy = Watching(lambda _: {"x": (on(0),), "y": (on(1),), "late": (on(0),)})
    seen = simulate_in(ServerWorld(SERVERS, MATRICES), jobs, policy, rounds=True)
    at = [moment.now_s for moment in moments]
    # nobody is there from 1200 s on: the next round begins with the next arrival
    assert at == [*(100.0 * number for number in range(12)), 2050.0]
    assert [sorted(moment.arrived) for moment in moments[:3]] == [["x"], [], ["y"]]
    assert [moment.ended for moment in moments[:4]] == [False, False, True, False]
    assert [each.start_s for each in seen.jobs] == [0.0, 200.0, 2050.0]
