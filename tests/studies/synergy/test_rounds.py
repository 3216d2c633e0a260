"""Rounds on small servers are those that one works out by hand, and keep their promises on any jobs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from studies.simulation.engine import simulate_in
from studies.simulation.outcome import JobOutcome
from studies.simulation.world import SimulatedJob
from studies.synergy.comparison import repacker
from studies.synergy.job_orders import ORDERS
from studies.synergy.packing import priced, tune
from studies.synergy.packing.types import Packing, PackJob, Servers
from studies.synergy.rounds import Rounds
from studies.synergy.servers import ServerWorld
from studies.synergy.stable_assignment import Repacker, staying
from tests.studies.synergy.toys import MATRICES, SERVERS, even, job

pytestmark = pytest.mark.slow

ONE = Servers(1, gpus=1, cpus=2.0, memory_bytes=2.0)
EVEN, GREEDY = staying(even), staying(tune.greedy)
TOLD = {name: each.matrix for name, each in MATRICES.items()}


def served(
    jobs: Sequence[SimulatedJob], order: str, packer: Repacker = EVEN, servers: Servers = ONE, restart_s: float = 30.0
) -> dict[str, JobOutcome]:
    policy = Rounds(ORDERS[order], packer, servers, TOLD)
    seen = simulate_in(ServerWorld(servers, MATRICES), jobs, policy, restart_s=restart_s, rounds=True)
    return {each.job.id: each for each in seen.jobs}


def starts(seen: dict[str, JobOutcome]) -> list[str]:
    """Jobs in the order of their first start."""
    return sorted(seen, key=lambda id: seen[id].start_s if seen[id].start_s is not None else float("inf"))


def test_first_come_first_served_starts_the_next_at_the_round_after_an_end() -> None:
    seen = served([job("a"), job("b", at_s=10.0, duration_s=100.0), job("c", at_s=20.0)], "fifo")
    assert [(seen[id].start_s, seen[id].end_s) for id in "abc"] == [
        *((0.0, 1000.0), (1200.0, 1300.0), (1500.0, 2500.0)),
    ]
    assert all(each.restarts == 0 for each in seen.values())


def test_shortest_remaining_time_takes_the_gpu_from_a_longer_job_at_the_next_round() -> None:
    seen = served([job("long", duration_s=2000.0), job("short", at_s=10.0, duration_s=500.0)], "srtf")
    assert (seen["short"].start_s, seen["short"].end_s) == (300.0, 800.0)
    # 300 s are done; it restarts at the round after the other's end
    assert (seen["long"].restarts, seen["long"].end_s) == (1, 900.0 + 30.0 + 1700.0)


def test_a_job_that_is_nearly_done_is_not_interrupted_by_a_short_one() -> None:
    seen = served([job("long", duration_s=2000.0), job("short", at_s=1510.0, duration_s=500.0)], "srtf")
    assert (seen["long"].end_s, seen["short"].start_s) == (2000.0, 2100.0)


def test_least_attained_service_lets_new_jobs_go_before_those_that_had_an_hour() -> None:
    seen = served([job("old", duration_s=9000.0), job("new", at_s=3700.0, duration_s=1000.0)], "las")
    assert seen["new"].start_s == 3900.0
    # both on a level: who runs goes on
    seen = served([job("old", duration_s=9000.0), job("new", at_s=1000.0, duration_s=1000.0)], "las")
    assert seen["new"].start_s == 3600.0


def test_attained_service_counts_gpus_and_what_was_had_before_a_suspension() -> None:
    servers = Servers(1, gpus=2, cpus=4.0, memory_bytes=4.0)
    jobs = [job("two", "language2", duration_s=9000.0), job("new", at_s=100.0, duration_s=100.0)]
    assert served(jobs, "las", servers=servers)["new"].start_s == 1800.0  # half an hour on two GPUs
    jobs = [job("old", duration_s=9000.0), *(job(f"{at}", at_s=at, duration_s=300.0) for at in (3700.0, 4000.0))]
    seen = served(jobs, "las")
    # without the hour that it had, the old one would be first again at 4200 s
    assert [seen[id].start_s for id in ("3700.0", "4000.0")] == [3900.0, 4200.0]


def test_finish_time_fairness_lets_the_job_go_that_has_waited_most_for_its_length() -> None:
    jobs = [job("a", duration_s=6000.0), job("long", at_s=10.0, duration_s=6000.0), job("short", at_s=20.0)]
    assert starts(served(jobs, "ftf")) == ["a", "short", "long"]


def test_a_job_that_does_not_fit_ends_the_list_and_none_behind_it_runs() -> None:
    servers = Servers(1, gpus=2, cpus=4.0, memory_bytes=4.0)
    jobs = [job("a"), job("two", "language2", at_s=1.0), job("b", at_s=2.0)]
    seen = served(jobs, "fifo", servers=servers)
    assert [seen[id].start_s for id in ("a", "two", "b")] == [0.0, 1200.0, 2400.0]


def test_nothing_is_packed_anew_while_the_same_jobs_run() -> None:
    asked: list[list[str]] = []

    def watched(jobs: Sequence[PackJob], servers: Servers) -> Packing:
        asked.append([each.id for each in jobs])
        return even(jobs, servers)

    jobs = [job("a"), job("b", at_s=400.0, duration_s=300.0)]
    policy = Rounds(ORDERS["fifo"], staying(watched), SERVERS, TOLD)
    simulate_in(ServerWorld(SERVERS, MATRICES), jobs, policy, rounds=True)
    assert asked == [["a"], ["a", "b"], ["a"]]
    assert policy.packings == 3


def test_who_a_packer_leaves_out_waits_and_is_offered_again() -> None:
    jobs = [job("a", "image"), job("b", "image", at_s=1.0), job("c", at_s=2.0)]
    servers = Servers(1, gpus=3, cpus=4.0, memory_bytes=4.0)
    seen = served(jobs, "fifo", GREEDY, servers)
    assert [seen[id].start_s for id in "abc"] == [0.0, 600.0, 300.0]  # each image wants 3 of 4 CPUs, and runs 500 s


def test_the_packer_sees_what_it_is_told_and_jobs_run_as_they_truly_do() -> None:
    told = {**TOLD, "image": MATRICES["language"].matrix}  # so it wants no more than a CPU, and truly is slower then
    policy = Rounds(ORDERS["fifo"], GREEDY, SERVERS, told)
    [one] = simulate_in(ServerWorld(SERVERS, MATRICES), [job("a", "image")], policy, rounds=True).jobs
    assert [span.rate for span in one.spans] == [5.0]


loads = st.lists(
    st.tuples(
        st.integers(0, 4000), st.integers(1, 4000), st.sampled_from(["image", "language", "image2", "language2"])
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=40, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(loads, st.sampled_from(sorted(ORDERS)), st.sampled_from(["proportional", "priced", "tune", "greedy"]))
def test_every_job_ends_and_none_is_slower_than_with_its_share(trace, order, packer) -> None:  # type: ignore[no-untyped-def]
    jobs = [job(f"{at}", model, float(at_s), float(long_s)) for at, (at_s, long_s, model) in enumerate(trace)]
    seen = served(jobs, order, repacker(packer), SERVERS)
    for each in seen.values():
        assert each.end_s is not None
        assert sum(span.iterations for span in each.spans) == pytest.approx(each.job.iterations)
        if packer != "greedy":
            assert all(span.rate >= each.reference_rate for span in each.spans)
    assert seen == served(jobs[::-1], order, repacker(packer), SERVERS) or len({at_s for at_s, *_ in trace}) < len(
        trace
    )


def test_first_come_first_served_is_kept_on_full_servers() -> None:
    jobs = [job(f"{at}", ("image", "language2")[at % 2], 50.0 * at, 700.0 + at) for at in range(30)]
    for packer in ("proportional", "priced"):
        seen = served(jobs, "fifo", repacker(packer), SERVERS)
        begun = [seen[f"{at}"].start_s or 0.0 for at in range(30)]
        assert begun == sorted(begun)


def test_what_a_job_that_ended_left_is_given_to_the_others() -> None:
    servers = Servers(1, gpus=2, cpus=4.0, memory_bytes=4.0)
    seen = served(
        [job("a", "image", duration_s=3000.0), job("b", "image", duration_s=1000.0)], "fifo", priced.pack, servers
    )
    first, then = seen["a"].spans
    assert (first.rate, then.rate, then.from_s) == (10.0, 20.0, 1200.0)


def test_who_a_packer_left_out_is_served_when_its_turn_has_come() -> None:
    servers = Servers(1, gpus=2, cpus=4.0, memory_bytes=4.0)
    jobs = [job("a", "image", duration_s=20_000.0), job("b", "image", at_s=1.0, duration_s=20_000.0)]
    seen = served(jobs, "las", GREEDY, servers)  # both are runnable all the time, and there are CPUs for one
    assert (seen["a"].spans[0].until_s, seen["b"].start_s) == (3600.0, 3600.0)


def test_of_equals_who_runs_goes_on() -> None:
    jobs = [job("first", duration_s=20_000.0), job("then", at_s=100.0, duration_s=20_000.0)]
    seen = served(jobs, "las")
    # at 7200 s both had an hour, and "first" was submitted first
    begun = seen["then"].spans[0]
    assert (begun.from_s, begun.until_s) == (3600.0, 10_800.0)
