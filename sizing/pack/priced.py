"""Our own packer: every job runs, none slower than with its share of a server, and the rest goes where it helps most.

It has the aims and the guarantee of Synergy's TUNE (`sizing.pack.synergy`), and not its procedure.

Whatever their places, all jobs can have their GPU-proportional share at once, or what of it makes them as fast: that is
where everyone begins, and no later step takes it away. First all servers are taken for one great one, which shows what
each job would have if places did not matter. Jobs that would have much are then put beside jobs that would have little,
and on the servers as they are the CPUs and the memory that are left are given out in steps of the matrices, each where
it is worth the most for what it takes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sizing.pack.fill import Places, Prices, Steps, Stock, begin, fill
from sizing.pack.menu import Menu, menu
from sizing.pack.placing import place
from sizing.pack.room import refuse_too_many
from sizing.pack.swaps import LEAST, swap
from sizing.pack.targets import most_of, pooled, prices_of, steps_of
from sizing.pack.types import Packing, PackJob, Servers, Share

TRIED_JOBS = 640
"""Which prices are best shows on the servers alone: so many jobs are packed, the same ones again at other prices."""


def pack(jobs: Sequence[PackJob], servers: Servers, previous: Packing | None = None) -> Packing:
    """Who has what, all jobs on the servers; earlier jobs are never slower than later ones with the same matrix.

    Jobs of a `previous` round stay on their servers, but for few where that would split another job or would be much
    worse; the order among equals then holds on each server. Raises SizingError for more GPUs than there are.
    """
    refuse_too_many(jobs, servers)
    menus = _menus(jobs, servers)
    most = most_of(menus, servers.count, servers.gpus)
    prices = prices_of(menus, servers.count * servers.gpus, most)
    stay = _stay(jobs, servers, previous)
    best: _Attempt | None = None
    # other prices would move jobs that can stay
    for each in prices[: 1 if stay else max(1, TRIED_JOBS // max(1, len(jobs)))]:
        attempt = _attempt(menus, steps_of(menus, each, most), each, servers, stay)
        if best is None or attempt.value > best.value:
            best = attempt
        if attempt.value >= attempt.pooled:
            break  # everyone has what it would have if places did not matter
    assert best is not None  # there is at least one pair of prices
    _put_in_order(menus, best.places, best.chosen, within_servers=bool(stay))
    points = [each.options[i].point for each, i in zip(menus, best.chosen, strict=True)]
    return Packing(
        {
            job.id: tuple(Share(server, k, k * point.cpus, k * point.memory_bytes) for server, k in of)
            for job, of, point in zip(jobs, best.places, points, strict=True)
        }
    )


class _Attempt(NamedTuple):
    """Places and options of all jobs: `value` is their throughput, `pooled` what it could be at most."""

    value: float
    pooled: float
    places: list[Places]
    chosen: list[int]


def _attempt(
    menus: Sequence[Menu], steps: Sequence[Steps], prices: Prices, servers: Servers, stay: Mapping[int, Places]
) -> _Attempt:
    """A packing at these prices."""
    aims, _ = pooled(steps, servers.count * servers.gpus)
    wanted = [each.options[i] for each, i in zip(menus, aims, strict=True)]
    places = place([each.gpus for each in menus], wanted, servers.count, servers.gpus, stay)
    there = {job for job, of in stay.items() if places[job] == of}
    swap(places, wanted, servers.count, servers.gpus, prices, there)
    stock = Stock(servers.count, servers.gpus)
    chosen = begin(steps, places, stock)
    fill(steps, places, stock, chosen)
    return _Attempt(_value(menus, chosen), _value(menus, aims) - LEAST, places, chosen)


def _value(menus: Sequence[Menu], chosen: Sequence[int]) -> float:
    """Throughput over the proportional one, added up over GPUs."""
    return sum(each.gpus * each.options[i].value for each, i in zip(menus, chosen, strict=True))


def _stay(jobs: Sequence[PackJob], servers: Servers, previous: Packing | None) -> dict[int, Places]:
    """The places that jobs had, as far as there are such servers and the job still has as many GPUs."""
    stay = {}
    for number, job in enumerate(jobs):
        if previous is not None and (shares := previous.shares.get(job.id)):
            places = tuple((share.server, share.gpus) for share in shares)
            if sum(gpus for _, gpus in places) == job.gpus and all(server < servers.count for server, _ in places):
                stay[number] = places
    return stay


def _put_in_order(menus: Sequence[Menu], places: list[Places], chosen: list[int], *, within_servers: bool) -> None:
    """Of jobs with the same matrix the earliest has the place with the most, and so on; with equal ones none moves."""
    alike: dict[tuple[int, Places], list[int]] = {}
    for job, each in enumerate(menus):
        alike.setdefault((id(each), places[job] if within_servers else ()), []).append(job)
    for equals in alike.values():
        values = [menus[job].options[chosen[job]].value for job in equals]
        if any(a < b for a, b in itertools.pairwise(values)):
            ranked = sorted(equals, key=lambda job: (-menus[job].options[chosen[job]].value, job))
            for job, (of, option) in zip(equals, [(places[job], chosen[job]) for job in ranked], strict=True):
                places[job], chosen[job] = of, option


def _menus(jobs: Sequence[PackJob], servers: Servers) -> list[Menu]:
    """The same menu for the same matrix."""
    proportional = servers.proportional
    known: dict[int, Menu] = {}
    for job in jobs:
        if id(job.matrix) not in known:
            known[id(job.matrix)] = menu(job.matrix, proportional)
    return [known[id(job.matrix)] for job in jobs]
