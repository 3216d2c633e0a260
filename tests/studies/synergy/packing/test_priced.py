"""The packer by prices: whatever there is, all run as fast as with their shares, and the rest is used well."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.synergy import generated_packing as generated
from sizing.base.errors import SizingError
from sizing.cpu.sensitivity.matrix import Matrix
from studies.synergy.packing import priced, throughput
from studies.synergy.packing.check import broken
from studies.synergy.packing.types import Packing, PackJob, Servers, Share

pytestmark = pytest.mark.slow

GB = 1e9
EIGHT = Servers(1, gpus=8, cpus=24.0, memory_bytes=480 * GB)  # 3 CPUs and 60 GB a GPU
MANY = settings(max_examples=150, deadline=None)


@st.composite
def matrices(draw: st.DrawFn, gpus: st.SearchStrategy[int]) -> Matrix:
    """Few rows and columns, rates of any kind: rising, noisy, or 0 where it does not run."""
    cpus = draw(
        st.lists(st.sampled_from([0.5, 1, 2, 3, 4, 6.5, 8, 12]), min_size=1, max_size=5, unique=True).map(sorted)
    )
    memory = draw(
        st.lists(st.sampled_from([10, 20, 60, 90, 150, 250]), min_size=1, max_size=4, unique=True).map(sorted)
    )
    rows = [[draw(st.sampled_from([0.0, 0.5, 1.0, 1.2, 2.0, 7.0])) for _ in memory] for _ in cpus]
    if draw(st.booleans()):
        rows = [
            [max(rows[a][b] for a in range(i + 1) for b in range(j + 1)) for j in range(len(memory))]
            for i in range(len(cpus))
        ]
    rates = tuple(map(tuple, rows))
    return Matrix(draw(gpus), tuple(map(float, cpus)), tuple(each * GB for each in memory), rates)


@st.composite
def instances(draw: st.DrawFn) -> tuple[list[PackJob], Servers]:
    """Servers of any shape, and jobs of a few matrices that ask for all of their GPUs or for some."""
    per_server = draw(st.integers(1, 9))
    servers = Servers(
        draw(st.integers(1, 6)),
        per_server,
        per_server * draw(st.sampled_from([1.0, 3.0, 3.7, 8.0])),
        per_server * draw(st.sampled_from([20, 60, 100])) * GB,
    )
    kinds = draw(st.lists(matrices(st.sampled_from([1, 1, 1, 2, 3, 4, 8, 11])), min_size=1, max_size=5))
    jobs: list[PackJob] = []
    left = servers.count * per_server
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=40)):
        if kind.gpus <= left:
            jobs.append(PackJob(f"j{len(jobs)}", kind))
            left -= kind.gpus
    return jobs, servers


def of_cpus(*rates: float, gpus: int = 1, memory_gb: float = 60) -> Matrix:
    """Rates with 1, 2, 3... CPUs for each GPU and so much memory."""
    return Matrix(
        gpus, tuple(float(1 + i) for i in range(len(rates))), (memory_gb * GB,), tuple((each,) for each in rates)
    )


FLAT = of_cpus(1, memory_gb=20)
NEEDS_6 = of_cpus(0.3, 0.6, 1, 1.3, 1.6, 2)
AT_6_ONLY = of_cpus(0, 1, 1, 1, 1, 2)


def named(*matrices: Matrix) -> list[PackJob]:
    return [PackJob(f"j{number}", matrix) for number, matrix in enumerate(matrices)]


def servers_of(packing: Packing, jobs: Sequence[PackJob]) -> list[list[int]]:
    return [[share.server for share in packing.shares[job.id]] for job in jobs]


@MANY
@given(instances())
def test_every_job_runs_and_none_below_its_share_and_order_is_kept_among_equals(
    drawn: tuple[list[PackJob], Servers],
) -> None:
    jobs, servers = drawn
    packing = priced.pack(jobs, servers)
    assert broken(packing, jobs, servers, order=True) == []
    copies = [PackJob(job.id, replace(job.matrix)) for job in jobs]
    assert priced.pack(copies, servers) == packing


@MANY
@given(instances(), st.randoms(use_true_random=False))
def test_every_job_runs_and_none_below_its_share_from_round_to_round(
    drawn: tuple[list[PackJob], Servers], rng: random.Random
) -> None:
    jobs, servers = drawn
    first = rng.sample(jobs, rng.randint(0, len(jobs)))
    # a server fewer than before: places that are no more
    before = priced.pack(first, replace(servers, count=servers.count + rng.randint(0, 1)))
    packing = priced.pack(jobs, servers, previous=before)
    assert broken(packing, jobs, servers) == []


@MANY
@given(instances())
def test_only_jobs_larger_than_a_server_are_split_where_sizes_divide_it(drawn: tuple[list[PackJob], Servers]) -> None:
    jobs = [job for job in drawn[0] if job.gpus in (1, 2, 4, 8)]
    full = replace(EIGHT, count=max(1, -(-sum(job.gpus for job in jobs) // 8)))
    packing = priced.pack(jobs, full)
    assert all(len(shares) == 1 for shares in packing.shares.values())


def test_a_server_s_spare_cpus_go_to_the_job_that_can_use_them() -> None:
    jobs = named(FLAT, FLAT, FLAT, FLAT, FLAT, FLAT, FLAT, NEEDS_6)
    packing = priced.pack(jobs, EIGHT)
    assert packing.point("j7").cpus == 6
    assert throughput.mean(packing, jobs, EIGHT) == pytest.approx((7 + 2) / 8)


def test_demand_is_trimmed_by_steps_and_not_to_the_share() -> None:
    # 24 CPUs: four frugal jobs take 4, and 20 for four that would have 6 each
    jobs = named(*[FLAT] * 4, *[NEEDS_6] * 4)
    packing = priced.pack(jobs, EIGHT)
    cpus = [packing.point(f"j{number}").cpus for number in range(4, 8)]
    assert sum(cpus) == 20
    assert min(cpus) >= 4


def test_of_equal_jobs_the_earlier_is_trimmed_last() -> None:
    jobs = named(AT_6_ONLY, *[FLAT] * 6, AT_6_ONLY)
    packing = priced.pack(jobs, replace(EIGHT, cpus=16.0))
    assert [packing.point(id).cpus for id in ("j0", "j7")] == [6, 2]


def test_demanding_jobs_are_put_beside_frugal_ones() -> None:
    # by GPUs alone, all that need CPUs would be on the first server
    jobs = named(*[NEEDS_6] * 6, *[FLAT] * 10)
    servers = replace(EIGHT, count=2)
    packing = priced.pack(jobs, servers)
    on = [server for (server,) in servers_of(packing, jobs[:6])]
    assert on.count(0) == on.count(1) == 3
    assert all(packing.point(job.id).cpus == 6 for job in jobs[:6])


def test_jobs_that_need_cpus_share_a_server_with_those_that_need_memory() -> None:
    memory = (20 * GB, 60 * GB, 100 * GB)
    cpus_heavy = Matrix(1, (1.0, 3.0, 5.0), memory[:2], ((0.2, 0.2), (1, 1), (2, 2)))
    memory_heavy = Matrix(1, (1.0, 3.0, 5.0), memory, ((0.2, 1, 2),) * 3)
    jobs = named(*[cpus_heavy] * 8, *[memory_heavy] * 8)
    servers = replace(EIGHT, count=2)
    assert throughput.mean(priced.pack(jobs, servers), jobs, servers) == pytest.approx(2)


def test_servers_that_lack_what_jobs_would_have_swap_them_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = replace(EIGHT, count=6)
    draws = [like_synergy(random.Random(seed), 0.3, 48, (1, 2, 4)) for seed in range(20)]
    swapped = [throughput.mean(priced.pack(jobs, servers), jobs, servers) for jobs in draws]
    monkeypatch.setattr(priced, "swap", lambda *_: None)
    dealt = [throughput.mean(priced.pack(jobs, servers), jobs, servers) for jobs in draws]
    assert sum(swapped) > 1.01 * sum(dealt)


def test_a_job_with_several_gpus_is_on_one_server_where_one_has_them() -> None:
    jobs = named(*[FLAT] * 4, of_cpus(1, gpus=4, memory_gb=20), of_cpus(1, gpus=8, memory_gb=20))
    servers = replace(EIGHT, count=2)
    places = servers_of(priced.pack(jobs, servers), jobs)
    assert [len(each) for each in places[4:]] == [1, 1]


def test_sizes_that_do_not_divide_a_server_are_packed_tightly_before_any_job_is_split() -> None:
    # 5 + 3 on each server; where CPUs alone chose, a job of 3 could go beside another and one of 5 be left over
    five, three = of_cpus(1, 1, 1, gpus=5), of_cpus(1, 1, 2, 3, gpus=3)
    jobs = named(three, three, five, five)
    places = servers_of(priced.pack(jobs, replace(EIGHT, count=2)), jobs)
    assert [len(each) for each in places] == [1] * 4


def test_where_cpus_alone_would_split_a_job_gpus_decide() -> None:
    # dealt to where most is left the two jobs of 4 part, and none has two GPUs after the jobs of 3
    jobs = named(*[of_cpus(1, 1, 1, gpus=size) for size in (4, 4, 3, 3, 2)])
    places = servers_of(priced.pack(jobs, replace(EIGHT, count=2)), jobs)
    assert [len(each) for each in places] == [1] * 5


def test_everyone_begins_within_its_share_of_both() -> None:
    # 1 CPU and 90 GB are as good as 3 and 60, and less of a server, but not for eight
    jobs = named(*[Matrix(1, (1.0, 3.0), (60 * GB, 90 * GB), ((0.5, 1), (1, 1)))] * 8)
    assert broken(priced.pack(jobs, EIGHT), jobs, EIGHT, order=True) == []


def test_a_split_job_has_no_more_memory_than_each_of_its_servers_can_give() -> None:
    def cpus(memory_gb: float) -> Matrix:
        return Matrix(6, (3.75, 4.5), (memory_gb * GB,), ((1,), (1.2,)))

    # on each of three servers six GPUs are taken; the last job, on two of each, would have 70 GB, and one has but 60
    jobs = named(Matrix(6, (1.0,), (60 * GB, 70 * GB), ((1, 2),)), cpus(60), cpus(20), cpus(20))
    servers = replace(EIGHT, count=3, cpus=30.0)
    packing = priced.pack(jobs, servers)
    assert [share.gpus for share in packing.shares["j0"]] == [2, 2, 2]
    assert packing.point("j0").memory_bytes == 60 * GB
    assert broken(packing, jobs, servers, order=True) == []


def test_a_split_job_has_the_same_for_each_gpu_and_still_gets_more_than_its_share() -> None:
    big = of_cpus(0.2, 0.4, 1, 1.5, gpus=12)
    jobs = named(big, *[FLAT] * 4)
    servers = replace(EIGHT, count=2, cpus=24.0)
    packing = priced.pack(jobs, servers)
    assert sorted(share.gpus for share in packing.shares["j0"]) == [4, 8]
    assert broken(packing, jobs, servers, order=True) == []
    # the whole server that it holds has 3 CPUs a GPU, and so has every other GPU of it
    assert packing.point("j0").cpus == 3


def test_with_idle_gpus_their_cpus_go_to_the_jobs_there_are() -> None:
    jobs = named(NEEDS_6, NEEDS_6)
    packing = priced.pack(jobs, EIGHT)
    assert [packing.point(job.id).cpus for job in jobs] == [6, 6]
    assert priced.pack([], EIGHT).shares == {}


def test_a_job_that_does_not_run_with_its_share_is_given_what_it_needs_first() -> None:
    large = Matrix(1, (1.0,), (200 * GB,), ((5.0,),))
    jobs = named(NEEDS_6, *[FLAT] * 6, large)
    packing = priced.pack(jobs, EIGHT)
    assert packing.point("j7").memory_bytes == 200 * GB
    # where all others need their share nobody gives it up
    jobs = named(*[of_cpus(1, 1, 1)] * 7, large)
    assert broken(priced.pack(jobs, EIGHT), jobs, EIGHT) == []
    assert throughput.relative(priced.pack(jobs, EIGHT), jobs[7], EIGHT) == 0


def test_more_gpus_than_there_are_is_one_line() -> None:
    with pytest.raises(SizingError, match="9 GPUs") as raised:
        priced.pack(named(*[FLAT] * 9), EIGHT)
    assert "\n" not in str(raised.value)


def test_few_jobs_are_packed_at_several_prices_and_the_best_packing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = replace(EIGHT, count=4)
    draws = [generated.draw("mixed", random.Random(seed), 32, (1, 2)) for seed in range(8)]
    several = [throughput.mean(priced.pack(jobs, servers), jobs, servers) for jobs in draws]
    monkeypatch.setattr(priced, "TRIED_JOBS", 1)
    once = [throughput.mean(priced.pack(jobs, servers), jobs, servers) for jobs in draws]
    assert all(a >= b - 1e-9 for a, b in zip(several, once, strict=True))
    assert sum(several) > 1.005 * sum(once)


@pytest.mark.parametrize("scarce", ["cpus", "memory"])
def test_what_runs_out_is_made_dearer(scarce: str) -> None:
    # some can take either for as much, others need what is then scarce
    cpus, memory = (3.0, 6.0), (60 * GB, 120 * GB)
    either = Matrix(1, cpus, memory, ((1, 2), (2, 2)))
    needs = Matrix(1, cpus, memory, ((1, 1), (1.8, 1.8)) if scarce == "cpus" else ((1, 1.8), (1, 1.8)))
    jobs = named(*[either] * 4, *[needs] * 4, *[FLAT] * 8)
    packing = priced.pack(jobs, replace(EIGHT, count=2))
    point = packing.point("j0")
    assert (point.cpus, point.memory_bytes) == ((3, 120 * GB) if scarce == "cpus" else (6, 60 * GB))
    assert all(packing.point(job.id) == point for job in jobs[:4])


def like_synergy(rng: random.Random, image: float, gpus: int, sizes: Sequence[int] = (1,)) -> list[PackJob]:
    """Jobs of the classes of the paper: image ones need CPUs, some need memory too, others neither."""
    jobs: list[PackJob] = []
    while gpus:
        size = rng.choice([size for size in sizes if size <= gpus])
        cpus, memory = (1.0, 2.0, 3.0, 4.0, 6.0, 9.0, 12.0), tuple(each * GB for each in (20, 60, 120, 180))
        if rng.random() < image:
            enough, cached = rng.choice((4, 6, 9, 12)), rng.choice((1, 1, 2))
            rates = tuple(tuple(min(c, enough) * (1 if j >= cached else 0.5) for j in range(4)) for c in cpus)
        else:
            enough = rng.choice((1, 1, 1, 3))
            rates = tuple((float(min(c, enough)),) * 4 for c in cpus)
        jobs.append(PackJob(f"g{rng.random()}", Matrix(size, cpus, memory, rates)))
        gpus -= size
    return jobs


@pytest.mark.parametrize(("image", "sizes"), [*itertools.product((0.2, 0.3), ((1,), (1, 2, 4)))])
def test_jobs_stay_where_they_are_from_round_to_round_and_no_throughput_is_lost_by_it(
    image: float, sizes: tuple[int, ...]
) -> None:
    rng, servers = random.Random(5), replace(EIGHT, count=6)
    jobs, before, moved, stayed = like_synergy(rng, image, 48, sizes), None, 0, 0
    anew, kept = 0.0, 0.0
    for _ in range(8):
        packing = priced.pack(jobs, servers, previous=before)
        assert broken(packing, jobs, servers) == []
        kept += throughput.mean(packing, jobs, servers)
        anew += throughput.mean(priced.pack(jobs, servers), jobs, servers)
        if before is not None:
            for job in jobs:
                if old := before.shares.get(job.id):
                    same = [(each.server, each.gpus) for each in old] == [
                        (each.server, each.gpus) for each in packing.shares[job.id]
                    ]
                    moved, stayed = moved + (not same), stayed + same
        before = packing
        jobs = [job for job in jobs if rng.random() > 0.1]
        jobs += like_synergy(rng, image, 48 - sum(job.gpus for job in jobs), sizes)
        rng.shuffle(jobs)
    assert moved < 0.1 * stayed
    assert kept > 0.98 * anew


def test_equal_jobs_do_not_change_places_because_their_order_does() -> None:
    servers = replace(EIGHT, count=2, cpus=16.0)
    # on each server one of two can have 6 CPUs: the second is behind the third, and slower than it
    jobs = named(*[AT_6_ONLY] * 4, *[FLAT] * 12)
    at = [0, 0, 1, 1, *[0] * 6, *[1] * 6]
    before = Packing({job.id: (Share(server, 1, 1.0, 20 * GB),) for job, server in zip(jobs, at, strict=True)})
    after = priced.pack(jobs, servers, previous=before)
    assert servers_of(after, jobs) == [[server] for server in at]
    assert [after.point(job.id).cpus for job in jobs[:4]] == [6, 2, 6, 2]


def test_places_on_servers_of_another_shape_or_of_a_job_of_another_size_are_not_kept() -> None:
    large = Servers(1, gpus=16, cpus=48.0, memory_bytes=960 * GB)
    jobs = named(*[FLAT] * 16)
    before = priced.pack(jobs, large)
    assert broken(priced.pack(jobs, replace(EIGHT, count=2), previous=before), jobs, replace(EIGHT, count=2)) == []
    grown = [replace(jobs[0], matrix=of_cpus(1, gpus=2, memory_gb=20)), *jobs[1:15]]
    assert broken(priced.pack(grown, large, previous=before), grown, large) == []


def test_a_large_job_is_fitted_by_moving_few_small_ones() -> None:
    servers = replace(EIGHT, count=2)
    first = named(*[FLAT] * 16)
    before = priced.pack(first, servers)
    on = {job.id: before.shares[job.id][0].server for job in first}
    # five leave one server and three the other: none has eight, and three jobs are in the way of one
    left = [job for job in first if on[job.id] == 0][:3] + [job for job in first if on[job.id] == 1][:5]
    jobs = [*left, PackJob("big", of_cpus(1, gpus=8, memory_gb=20))]
    packing = priced.pack(jobs, servers, previous=before)
    assert [share.server for share in packing.shares["big"]] == [0]
    assert all(packing.shares[job.id][0].server == 1 for job in left)
