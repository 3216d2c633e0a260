"""Figures of a run in rounds are those that one works out by hand, of the jobs in the middle."""

from __future__ import annotations

import pytest

from sizing.base.errors import SizingError, UsageError
from studies.simulation.engine import simulate_in
from studies.simulation.outcome import JobOutcome, Outcome, Span
from studies.synergy import comparison
from studies.synergy.job_orders import fifo
from studies.synergy.packing import priced
from studies.synergy.packing.types import Servers, Share
from studies.synergy.rounds import Rounds
from studies.synergy.servers import Placed, ServerWorld
from studies.synergy.stable_assignment import staying
from tests.studies.synergy.toys import MATRICES, SERVERS, even, job
from tests.support.messages import pattern

pytestmark = pytest.mark.slow

ONE = Servers(1, gpus=1, cpus=2.0, memory_bytes=2.0)


def test_figures_are_those_worked_out_by_hand() -> None:
    jobs = [job(f"{at}", at_s=100.0 * at, duration_s=500.0) for at in range(5)]
    policy = Rounds(fifo, staying(even), ONE, {name: each.matrix for name, each in MATRICES.items()})
    outcome = simulate_in(ServerWorld(ONE, MATRICES), jobs, policy, rounds=True)
    found = comparison.figures(outcome, 1, policy.packings)
    # they run from 0, 600, 1200... on; of the last four a quarter is cut at each end: 2 and 3 count, from 200 to 300 s
    assert (found.jobs, found.mean_jct_s, found.median_jct_s, found.p99_jct_s) == (2, 1750.0, 1750.0, 2000.0)
    assert (found.mean_queue_s, found.slowdown, found.restarts) == (1250.0, 3.5, 0.0)
    assert (found.throughput, found.busy, found.slowest, found.packings) == (1.0, 1.0, 1.0, 5)


def test_figures_of_too_few_jobs_are_refused_in_a_line() -> None:
    for jobs in ([job("a"), job("b")], [job("a"), job("b", at_s=1.0)]):
        with pytest.raises(UsageError, match="too few jobs"):
            comparison.run("fifo", "priced", jobs, SERVERS, MATRICES)


def test_jobs_that_want_cpus_are_done_sooner_with_what_others_leave_and_no_slower_where_none_leaves_any() -> None:
    slack = [job(f"{at}", ("image", "language")[at % 2], 250.0 * at) for at in range(24)]
    for jobs, least, most in ((slack, 1.2, 9.0), ([job(f"{at}", "image", 250.0 * at) for at in range(24)], 1.0, 9.0)):
        shared, tuned = (
            comparison.run("fifo", packer, jobs, SERVERS, MATRICES).mean_jct_s for packer in ("proportional", "priced")
        )
        assert least <= shared / tuned <= most


def test_names_that_there_are_not_are_refused_before_anything_runs() -> None:
    for order, packer in (("lifo", "priced"), ("fifo", "tuna")):
        with pytest.raises(UsageError):
            comparison.run(order, packer, [job("x")], SERVERS, MATRICES)


def test_throughput_counts_gpus_and_no_restarts_and_both_count_only_what_is_in_the_middle() -> None:
    two = Placed((Share(0, 2, 4.0, 4.0),))
    spans = (Span(two, 150.0, 250.0, 400.0, 4.5), Span(two, 400.0, 400.0, 500.0, 2.0))
    outcomes = [
        JobOutcome(job(f"{at}", "language2", 100.0 * at), 150.0, 500.0, None, 1, 3.0, spans if at == 1 else ())
        for at in range(5)
    ]
    found = comparison.figures(Outcome("p", tuple(outcomes), (), 500.0, 1), 4)
    # from 200 to 300 s it has 2 of 4 GPUs, and trains half of that time, half as fast again as with its share
    assert (found.busy, found.throughput) == (0.5, 0.5 * 0.5 * 1.5)
    assert found.slowest == pytest.approx(2 / 3)


def test_priced_is_told_who_has_what_and_other_packings_are_renamed() -> None:
    assert comparison.repacker("priced") is priced.pack
    jobs = [job(f"{at}", ("image", "language")[at % 2], 400.0 * at, 2000.0) for at in range(12)]
    for packer in ("proportional", "priced"):
        assert comparison.run("fifo", packer, jobs, SERVERS, MATRICES).restarts == 0


def test_regression_a_job_that_never_ran_was_left_out_of_the_figures() -> None:
    jobs = [job(f"{at}", "image2" if at == 2 else "language", 400.0 * at) for at in range(6)]
    with pytest.raises(
        SizingError,
        match=pattern("studies.comparison.never_placed", policy="fifo-greedy", id=2, model="image2", gpus=2),
    ):
        comparison.run("fifo", "greedy", jobs, Servers(1, 2, 4.0, 4.0), MATRICES)


def test_regression_jobs_with_proportional_shares_were_moved_to_fill_servers() -> None:
    # when the short ones have ended each long one is alone on a server, and nobody is better off with both on one
    jobs = [job(f"{at}", at_s=10.0 * at, duration_s=(500.0, 5000.0)[at % 2]) for at in range(4)]
    told = {name: each.matrix for name, each in MATRICES.items()}
    policy = Rounds(fifo, comparison.repacker("proportional"), SERVERS, told)
    outcome = simulate_in(ServerWorld(SERVERS, MATRICES), jobs, policy, rounds=True)
    assert [each.restarts for each in outcome.jobs] == [0, 0, 0, 0]


def test_jobs_with_proportional_shares_are_moved_where_another_would_be_split() -> None:
    jobs = [job(f"{at}", at_s=10.0 * at, duration_s=(500.0, 5000.0)[at % 2]) for at in range(4)]
    told = {name: each.matrix for name, each in MATRICES.items()}
    policy = Rounds(fifo, comparison.repacker("proportional"), SERVERS, told)
    both = [*jobs, job("two", "language2", 1500.0)]
    outcome = simulate_in(ServerWorld(SERVERS, MATRICES), both, policy, rounds=True)
    assert sum(each.restarts for each in outcome.jobs) == 1
    assert len(outcome.jobs[4].spans[0].allocation.gpus_by_server) == 1
