"""Jobs drawn from matrices, servers and policies as they are asked for, and the packers as they are printed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from sizing.base.errors import UsageError
from sizing.cpu.sensitivity.matrix import Matrix, Recorded
from studies.synergy.packing import proportional, throughput, tune
from studies.synergy.packing.draw import draw, mix_of
from studies.synergy.packing.packers import PACKERS, packer
from studies.synergy.packing.parse_servers import papers, servers_of
from studies.synergy.packing.types import PackJob, Servers
from tests.support.messages import fragment, pattern

pytestmark = pytest.mark.slow

GB = 1e9


def recorded(kind: str, gpus: int = 1, rate: float = 1.0) -> Recorded:
    return Recorded(f"{kind}_{gpus}", kind, Matrix(gpus, (1.0, 3.0), (20 * GB,), ((rate,), (2 * rate,))), 0.1)


MATRICES = {
    "a": recorded("image"),
    "b": recorded("image", rate=2),
    "l": recorded("language"),
    "s": recorded("speech"),
    "a2": recorded("image", 2),
}


def test_jobs_are_of_the_classes_in_their_shares_and_of_all_models_of_a_class() -> None:
    jobs = draw(MATRICES, mix_of("20/70/10"), 4000, seed=3)
    models = Counter(job.id.partition(":")[2] for job in jobs)
    assert {job.gpus for job in jobs} == {1}
    assert len({job.id for job in jobs}) == 4000
    assert models["l"] / 4000 == pytest.approx(0.7, abs=0.03)
    assert models["a"] / 4000 == pytest.approx(0.1, abs=0.03)
    assert models["b"] / 4000 == pytest.approx(0.1, abs=0.03)
    assert models["s"] / 4000 == pytest.approx(0.1, abs=0.03)


def test_a_seed_draws_the_same_jobs_and_another_draws_others() -> None:
    mix = mix_of("20/70/10")
    assert draw(MATRICES, mix, 64, seed=1) == draw(dict(reversed(MATRICES.items())), mix, 64, seed=1)
    assert draw(MATRICES, mix, 64, seed=1) != draw(MATRICES, mix, 64, seed=2)


def test_a_class_of_which_nothing_is_asked_need_not_be_there() -> None:
    only = {"a": MATRICES["a"], "a2": MATRICES["a2"]}
    assert len(draw(only, mix_of("100/0/0"), 8, seed=1)) == 8
    with pytest.raises(
        UsageError, match=pattern("studies.pack_draw.no_one_gpu_job", kind="language", there=fragment("image"))
    ):
        draw(only, mix_of("99/1/0"), 8, seed=1)
    with pytest.raises(UsageError, match="only of " + pattern("studies.pack_draw.none")):
        draw({"a2": MATRICES["a2"]}, mix_of("100/0/0"), 8, seed=1)


@pytest.mark.parametrize("text", ["", "20/70", "20/70/10/0", "a/b/c", "nan/50/50", "-10/100/10", "20/70/20", "0/0/0"])
def test_a_mix_that_is_none_is_refused_in_a_line(text: str) -> None:
    with pytest.raises(UsageError, match=r"--mix .*: (give|the percentages)"):
        mix_of(text)


@pytest.mark.parametrize(
    "text", ["", "8/24", "8/24/500/1", "0/24/500", "8.5/24/500", "8/0/500", "8/24/nan", "8/24/inf"]
)
def test_a_server_that_is_none_is_refused_in_a_line(text: str) -> None:
    with pytest.raises(UsageError, match="--server"):
        servers_of(text, 1)


def test_servers_are_read_as_they_are_written() -> None:
    assert papers(2) == Servers(2, 8, 24.0, 500 * GB)
    assert servers_of("4/32.5/256", 3) == Servers(3, 4, 32.5, 256 * GB)


def test_a_policy_that_there_is_not_is_told_with_the_nearest() -> None:
    assert {packer(name) for name in PACKERS} == set(PACKERS.values())
    with pytest.raises(UsageError, match=pattern("sizing.fields.hint", near=fragment("greedy"))):
        packer("gredy")
    with pytest.raises(UsageError, match="one of priced, tune, opt, greedy, proportional"):
        packer("xyzzy")


SERVERS = Servers(2, 4, 12.0, 160 * GB)
FLAT = Matrix(1, (1.0,), (20 * GB,), ((1.0,),))
HUNGRY = Matrix(1, (1.0, 3.0, 6.0), (20 * GB,), ((0.5,), (1.0,), (2.0,)))


def test_proportional_splits_no_job_whose_size_divides_a_server_whatever_the_order() -> None:
    sizes = [1, 2, 1, 4]
    jobs = [PackJob(str(at), replace(FLAT, gpus=gpus)) for at, gpus in enumerate(sizes)]
    shares = proportional.pack(jobs, SERVERS).shares
    assert [len(shares[job.id]) for job in jobs] == [1, 1, 1, 1]
    assert shares["3"][0].cpus == 12.0


def test_proportional_places_the_large_before_the_small_get_in_their_way() -> None:
    jobs = [PackJob(str(at), replace(FLAT, gpus=gpus)) for at, gpus in enumerate([1, 1, 3, 3])]
    shares = proportional.pack(jobs, SERVERS).shares
    assert list(shares) == ["0", "1", "2", "3"]
    assert all(len(each) == 1 for each in shares.values())


def test_proportional_splits_a_job_over_as_few_servers_as_can_be() -> None:
    jobs = [PackJob("big", replace(FLAT, gpus=6)), PackJob("two", replace(FLAT, gpus=2))]
    shares = proportional.pack(jobs, SERVERS).shares
    assert [share.gpus for share in shares["big"]] == [4, 2]
    assert [share.gpus for share in shares["two"]] == [2]


def test_greedy_leaves_out_who_finds_no_place_and_goes_on_with_later_ones() -> None:
    jobs = [PackJob(f"h{at}", HUNGRY) for at in range(5)] + [PackJob("late", FLAT)]
    one = replace(SERVERS, cpus=13.0)
    packing = tune.greedy(jobs, one)
    assert list(packing.shares) == ["h0", "h1", "h2", "h3", "late"]
    assert packing.point("h0").cpus == 6
    assert throughput.least(packing, jobs, one) == 0
    assert throughput.mean(packing, jobs, one) == pytest.approx((4 * 2 + 1) / 6)


def test_greedy_splits_a_job_that_fits_no_server_alone() -> None:
    packing = tune.greedy([PackJob("big", replace(HUNGRY, gpus=4))], SERVERS)
    assert [(share.gpus, share.cpus) for share in packing.shares["big"]] == [(2, 12), (2, 12)]


def test_tune_takes_back_from_the_latest_what_goes_beyond_its_share_and_no_more_than_is_needed() -> None:
    one = replace(SERVERS, count=1)
    jobs = [PackJob(name, HUNGRY if name.startswith("h") else FLAT) for name in ("h0", "h1", "f", "h2")]
    cpus = [
        [tune.tune(jobs[:count], one).point(job.id).cpus for job in jobs[:count]] for count in range(1, len(jobs) + 1)
    ]
    assert cpus == [[6], [6, 6], [6, 3, 1], [3, 3, 1, 3]]


def test_tune_puts_a_job_on_the_fullest_server_that_has_what_it_demands_and_splits_only_without_need() -> None:
    jobs = [PackJob("a", HUNGRY), PackJob("b", FLAT), PackJob("big", replace(HUNGRY, gpus=4))]
    shares = tune.tune([*jobs, PackJob("wide", replace(FLAT, gpus=2))], SERVERS).shares
    assert [share.server for name in ("a", "b", "big", "wide") for share in shares[name]] == [0, 0, 1, 0]
    assert shares["big"][0].cpus == 12  # it demands 24
    wide = tune.tune([*jobs[:2], PackJob("wide", replace(HUNGRY, gpus=6))], SERVERS).shares["wide"]
    assert [(share.server, share.gpus, share.cpus) for share in wide] == [(1, 4, 12), (0, 2, 6)]


def test_regression_greedy_cut_a_demand_to_what_a_server_has_and_the_job_did_not_run_with_it() -> None:
    # it needs few CPUs with more memory than there is, and with its share 3 CPUs
    job = PackJob("a", Matrix(1, (1.0, 3.0), (20 * GB, 600 * GB), ((0.0, 9.0), (1.0, 9.0))))
    assert throughput.least(tune.greedy([job], SERVERS), [job], SERVERS) == 1


def test_a_larger_job_counts_as_much_as_its_gpus_in_the_mean() -> None:
    jobs = [PackJob("big", replace(HUNGRY, gpus=3)), PackJob("small", FLAT)]
    packing = tune.greedy(jobs, replace(SERVERS, cpus=24.0))
    assert throughput.relative(packing, jobs[0], SERVERS) == 2
    assert throughput.mean(packing, jobs, SERVERS) == pytest.approx((3 * 2 + 1) / 4)
    assert throughput.least(packing, jobs, SERVERS) == 1
