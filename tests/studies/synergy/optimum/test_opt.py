"""Synergy-OPT: no packing is faster, few jobs are split, and what it is measured against is never below it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing.base.errors import SizingError
from sizing.cpu.sensitivity.matrix import Matrix
from studies.synergy.optimum import opt, server_patterns
from studies.synergy.optimum.pooled import bounds
from studies.synergy.packing import priced, proportional, throughput, tune
from studies.synergy.packing.check import broken
from studies.synergy.packing.job_options import menu
from studies.synergy.packing.types import Packing, PackJob, Servers, Share
from tests.studies.synergy.packing.test_priced import EIGHT, FLAT, GB, NEEDS_6, instances, matrices, named, of_cpus
from tests.support.messages import pattern

pytestmark = pytest.mark.slow

SOME = settings(max_examples=40, deadline=None)


def every_packing(jobs: list[PackJob], servers: Servers) -> Iterator[Packing]:
    """All packings in cells of the matrices that are not below the share, those that servers cannot hold among them."""
    of_each = []
    for job in jobs:
        cells = [option.point for option in menu(job.matrix, servers.proportional).options]
        splits = [
            split
            for split in itertools.product(range(job.gpus + 1), repeat=servers.count)
            if sum(split) == job.gpus and max(split) <= servers.gpus
        ]
        of_each.append(
            [
                tuple(
                    Share(at, gpus, gpus * cell.cpus, gpus * cell.memory_bytes) for at, gpus in enumerate(split) if gpus
                )
                for cell in cells
                for split in splits
            ]
        )
    for shares in itertools.product(*of_each):
        yield Packing({job.id: each for job, each in zip(jobs, shares, strict=True)})


@st.composite
def tiny(draw: st.DrawFn) -> tuple[list[PackJob], Servers]:
    """At most three jobs of at most three GPUs on one or two small servers."""
    servers = Servers(draw(st.integers(1, 2)), 3, 3 * draw(st.sampled_from([1.0, 2.0, 3.7])), 120 * GB)
    jobs: list[PackJob] = []
    for matrix in draw(st.lists(matrices(st.sampled_from([1, 1, 2, 3])), min_size=1, max_size=3)):
        if sum(job.gpus for job in jobs) + matrix.gpus <= servers.count * servers.gpus:
            jobs.append(PackJob(f"j{len(jobs)}", matrix))
    return jobs, servers


@SOME
@given(tiny())
def test_no_packing_is_faster(drawn: tuple[list[PackJob], Servers]) -> None:
    jobs, servers = drawn
    if not jobs:
        return
    found = throughput.mean(opt.pack(jobs, servers), jobs, servers)
    best = max(
        throughput.mean(packing, jobs, servers)
        for packing in every_packing(jobs, servers)
        if not broken(packing, jobs, servers)
    )
    # a job is split only where that brings more than it costs
    assert found == pytest.approx(best, abs=len(jobs) * server_patterns.SPLIT_COST)


@SOME
@given(instances())
def test_every_job_runs_and_none_below_its_share_and_order_is_kept_among_equals(
    drawn: tuple[list[PackJob], Servers],
) -> None:
    jobs, servers = drawn
    packing = opt.pack(jobs, servers)
    assert broken(packing, jobs, servers, order=True) == []
    if jobs:
        found = throughput.mean(packing, jobs, servers)
        most = bounds(jobs, servers)
        assert throughput.mean(priced.pack(jobs, servers), jobs, servers) <= found + 1e-9
        assert found <= most.whole + 1e-6 <= most.relaxed + 2e-6


@SOME
@given(instances(), st.sampled_from([0, 1, 2]))
def test_what_programs_find_alone_is_a_packing_however_few_servers_are_left_to_the_last(
    drawn: tuple[list[PackJob], Servers], last: int
) -> None:
    jobs, servers = drawn
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(server_patterns, "_LAST", last)
        packing = opt._programmed(jobs, servers) if jobs else None
    if packing is not None:
        assert broken(packing, jobs, servers, order=True) == []


@settings(max_examples=100, deadline=None)
@given(instances())
def test_what_is_printed_gives_only_what_there_is_and_tune_lets_all_run(drawn: tuple[list[PackJob], Servers]) -> None:
    jobs, servers = drawn
    assert broken(proportional.pack(jobs, servers), jobs, servers, order=True) == []
    assert broken(tune.greedy(jobs, servers), jobs, servers, floor=False) == []
    assert broken(tune.tune(jobs, servers), jobs, servers) == []


def test_demanding_jobs_are_spread_over_many_servers() -> None:
    # two that need 6 CPUs and six that need 1 on each server: 18 of 24, and any third would be one too many elsewhere
    jobs = named(*[NEEDS_6] * 32, *[FLAT] * 96)
    servers = replace(EIGHT, count=16, cpus=18.0)
    packing = opt.pack(jobs, servers)
    assert {packing.point(job.id).cpus for job in jobs[:32]} == {6}
    assert broken(packing, jobs, servers) == []


def test_where_servers_cannot_hold_what_all_of_them_have_it_is_still_the_best_that_they_can() -> None:
    jobs = named(NEEDS_6, NEEDS_6, NEEDS_6)
    servers = Servers(2, 2, 9.0, 120 * GB)
    found = throughput.mean(opt.pack(jobs, servers), jobs, servers)
    # of 18 CPUs there are 6 for each; but two of the jobs share 9, and none is slower than with 4.5
    assert bounds(jobs, servers).whole == pytest.approx(1 / 1.3 * 2)
    assert found == pytest.approx((2 + 1.6 + 1.3) / 1.3 / 3)


def test_as_few_jobs_are_split_as_can_be() -> None:
    three, two = of_cpus(1, gpus=3, memory_gb=20), of_cpus(1, gpus=2, memory_gb=20)
    servers = Servers(2, 4, 12.0, 240 * GB)
    packing = opt.pack(named(three, three, two), servers)
    assert sum(len(shares) > 1 for shares in packing.shares.values()) == 1
    even = opt.pack(named(two, three, of_cpus(1, memory_gb=20), two), servers)
    assert all(len(shares) == 1 for shares in even.shares.values())


@pytest.mark.parametrize("sizes", [[2] * 8, [3, 1] * 4, [1, 2, 1, 4, 2, 2, 4], [3, 3, 2, 2, 1, 1, 4]])
def test_no_job_is_split_that_need_not_be(sizes: list[int]) -> None:
    jobs = named(*(of_cpus(1, gpus=gpus, memory_gb=20) for gpus in sizes))
    for servers in (Servers(4, 4, 12.0, 240 * GB), Servers(5, 4, 12.0, 240 * GB)):
        shares = opt.pack(jobs, servers).shares
        assert max(map(len, shares.values())) == 1


def test_a_job_larger_than_a_server_is_split_in_proportion() -> None:
    jobs = named(of_cpus(0.2, 0.4, 1, 1.5, gpus=20), *[FLAT] * 12)
    servers = replace(EIGHT, count=4)
    packing = opt.pack(jobs, servers)
    assert broken(packing, jobs, servers) == []
    # four for each of 20 GPUs and one for each of the others are 92 of 96 CPUs
    assert packing.point("j0").cpus == 4


def test_of_equal_jobs_the_earlier_is_faster() -> None:
    jobs = named(NEEDS_6, *[FLAT] * 6, NEEDS_6)
    packing = opt.pack(jobs, replace(EIGHT, cpus=16.0))
    assert packing.point("j0").cpus >= packing.point("j7").cpus


def test_too_many_kinds_of_jobs_are_left_to_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = named(NEEDS_6, *[FLAT] * 6, NEEDS_6)
    monkeypatch.setattr(opt, "_MOST_KINDS", 1)
    assert opt.pack(jobs, EIGHT) == priced.pack(jobs, EIGHT)


def test_with_many_options_only_some_are_tried_and_all_jobs_are_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opt, "_MOST_OPTIONS", 3)
    jobs = named(*[NEEDS_6] * 16, *[FLAT] * 48)
    servers = replace(EIGHT, count=8)
    packing = opt._programmed(jobs, servers)
    assert packing is not None
    assert broken(packing, jobs, servers, order=True) == []
    assert throughput.mean(packing, jobs, servers) == pytest.approx((16 * 2 + 48) / 64)


def test_where_all_servers_as_one_mislead_there_is_the_least_of_each_and_else_what_priced_finds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opt, "_MOST_OPTIONS", 1)
    jobs, servers = named(NEEDS_6, NEEDS_6, NEEDS_6), Servers(2, 2, 9.0, 120 * GB)
    found = opt._programmed(jobs, servers)
    assert found is not None
    assert throughput.mean(found, jobs, servers) == pytest.approx((2 + 1.3 + 1.3) / 1.3 / 3)
    assert throughput.mean(opt.pack(jobs, servers), jobs, servers) == pytest.approx((2 + 1.6 + 1.3) / 1.3 / 3)


def test_regression_what_is_nearest_to_whole_had_more_jobs_than_were_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_patterns, "_LAST", 0)
    servers = Servers(3, 2, 6.0, 120 * GB)
    assert opt._programmed(named(*[FLAT] * 5), servers) is not None


def test_regression_a_server_held_two_options_of_the_only_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_patterns, "_LAST", 0)
    two_ways = Matrix(1, (2.0, 4.0), (10 * GB, 20 * GB), ((0.0, 0.5), (0.5, 0.0)))
    assert opt._programmed(named(two_ways), Servers(2, 2, 6.0, 40 * GB)) is not None


def test_jobs_that_ask_for_too_much_are_refused_and_none_are_no_trouble() -> None:
    servers = Servers(1, 2, 6.0, 120 * GB)
    assert opt.pack([], servers) == Packing({})
    for pack in (opt.pack, proportional.pack, tune.greedy):
        with pytest.raises(SizingError, match=pattern("studies.free_servers.too_many_gpus", jobs=3, asked=3, there=2)):
            pack(named(FLAT, FLAT, FLAT), servers)


def test_equal_jobs_get_equal_packings() -> None:
    def made() -> Packing:
        return opt.pack(named(*[NEEDS_6] * 10, *[FLAT] * 30), replace(EIGHT, count=5))

    assert made() == made()


def test_the_relaxed_program_mixes_cells_below_the_share_and_the_whole_one_does_not() -> None:
    # half a job with 6 CPUs and half a one with 1 average more than with 3, which is no choice for a job
    steep = Matrix(1, (1.0, 3.0, 6.0), (20 * GB,), ((0.9,), (1.0,), (2.0,)))
    most = bounds(named(steep, steep), Servers(1, 2, 7.0, 120 * GB))
    assert most.relaxed == pytest.approx((2.0 + 0.9) / 2)
    assert most.whole == pytest.approx(1.0)


def test_no_job_pays_for_another_s_gain_in_the_bounds() -> None:
    # at 1 CPU the first would lose 0.1, and the second win 1
    first = Matrix(1, (1.0, 3.0), (20 * GB,), ((0.9,), (1.0,)))
    second = Matrix(1, (1.0, 3.0, 5.0), (20 * GB,), ((0.0,), (1.0,), (2.0,)))
    assert bounds(named(first, second), Servers(1, 2, 6.0, 120 * GB)).relaxed == pytest.approx(1.0)
