"""Swaps of places: never more is lacking afterwards, GPUs stay within their servers, and jobs that stay move last."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing.cpu.sensitivity.matrix import CpuMemory
from studies.synergy.packing.greedy_fill import Places, Prices
from studies.synergy.packing.job_options import Option
from studies.synergy.packing.swaps import LEAST, swap

pytestmark = pytest.mark.slow

PER_SERVER = 4


def option(cpus: float, memory: float) -> Option:
    return Option(cpus, memory, 1.0, CpuMemory(1.0, 1.0))


def lacking(places: list[Places], wanted: list[Option], servers: int, prices: Prices) -> float:
    """What all servers lack, worked out anew."""
    total = 0.0
    for server in range(servers):
        on = [(gpus, job) for job, of in enumerate(places) for at, gpus in of if at == server]
        assert sum(gpus for gpus, _ in on) <= PER_SERVER
        total += max(0.0, sum(gpus * wanted[job].cpus for gpus, job in on) - PER_SERVER) * prices.cpus
        total += max(0.0, sum(gpus * wanted[job].memory for gpus, job in on) - PER_SERVER) * prices.memory
    return total


def dealt(rng: random.Random, servers: int) -> tuple[list[Places], list[Option]]:
    """Jobs of one, two and four GPUs here and there; some GPUs idle, one job on two servers."""
    places: list[Places] = [((0, 1), (1, 1))]
    for server in range(servers):
        left = PER_SERVER - (server < 2)
        while left and rng.random() < 0.9:
            gpus = rng.choice([size for size in (1, 1, 2, 4) if size <= left])
            places.append(((server, gpus),))
            left -= gpus
    needs = (0.3, 0.5, 1.0, 1.3, 2.0)
    return places, [option(rng.choice(needs), rng.choice(needs)) for _ in places]


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(2, 6), st.sampled_from([0.2, 1.0, 5.0]))
def test_no_more_is_lacking_and_every_job_keeps_its_gpus(rng: random.Random, servers: int, ratio: float) -> None:
    places, wanted = dealt(rng, servers)
    before, prices = list(places), Prices(ratio, 1 / ratio)
    lacked = lacking(before, wanted, servers, prices)
    swap(places, wanted, servers, PER_SERVER, prices)
    assert places[0] == before[0]
    assert [sum(gpus for _, gpus in of) for of in places] == [sum(gpus for _, gpus in of) for of in before]
    lacks = lacking(places, wanted, servers, prices)
    assert lacks <= lacked + LEAST
    assert (lacks < lacked) == (places != before)


def test_a_large_job_changes_places_with_several_small_ones() -> None:
    # 4 shares a server: 2 x 1.5 + 2 x 1 lack 1 on the first, and the second has 1.8 to spare
    places: list[Places] = [((0, 2),), ((0, 2),), *[((1, 1),)] * 4]
    wanted = [option(1.5, 1), option(1, 1), option(0.3, 1), option(0.3, 1), option(0.8, 1), option(0.8, 1)]
    swap(places, wanted, 2, PER_SERVER, Prices())
    assert lacking(places, wanted, 2, Prices()) == 0
    assert {places[0][0][0], places[1][0][0]} == {0, 1}


def test_jobs_move_to_idle_gpus() -> None:
    places: list[Places] = [((0, 1),)] * 4
    wanted = [option(2, 1)] * 4
    swap(places, wanted, 2, PER_SERVER, Prices())
    assert sorted(of[0][0] for of in places) == [0, 0, 1, 1]


def test_idle_gpus_are_taken_once() -> None:
    places: list[Places] = [*[((0, 1),)] * 4, *[((1, 1),)] * 3]
    wanted = [*[option(2, 1)] * 4, *[option(0.3, 1)] * 3]
    swap(places, wanted, 2, PER_SERVER, Prices())
    assert lacking(places, wanted, 2, Prices()) < 1


def test_a_job_that_stays_moves_only_for_what_is_worth_a_restart() -> None:
    def moved(lack: float) -> bool:
        places: list[Places] = [((0, 1),)] * 4
        swap(places, [option(1 + lack / 4, 1)] * 4, 2, PER_SERVER, Prices(), {0, 1, 2, 3})
        return any(of != ((0, 1),) for of in places)

    assert not moved(0.2)
    assert moved(0.5)
