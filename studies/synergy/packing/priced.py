"""Our own packer: every job runs, none slower than with its share of a server, and the rest goes where it helps most.

It has the aims and the guarantee of Synergy's TUNE (`studies.synergy.packing.tune`), but not its procedure.

Whatever their places, all jobs can have their GPU-proportional share at once, or the part of it that makes them as
fast: every job begins there, and no later step takes it away. First all servers are taken for one large one, which
shows what each job would have if places did not matter. Jobs that would have much are then put beside jobs that would
have little. On the real servers the remaining CPUs and memory are given out in steps of the matrices, each where it is
worth most for its cost.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from studies.synergy.packing.free_servers import refuse_too_many
from studies.synergy.packing.greedy_fill import Places, Prices, Steps, Stock, begin, fill
from studies.synergy.packing.ideal_shares import most_of, pooled, prices_of, steps_of
from studies.synergy.packing.job_options import Menu, menu
from studies.synergy.packing.placing import place
from studies.synergy.packing.swaps import LEAST, swap
from studies.synergy.packing.types import Packing, PackJob, Servers, Share

TRIED_JOBS = 640
"""Number of jobs packed to find the best prices, which only show on real servers: the same jobs at other prices."""


def pack(jobs: Sequence[PackJob], servers: Servers, previous: Packing | None = None) -> Packing:
    """Return the shares of all jobs; earlier jobs are never slower than later ones with the same matrix.

    Jobs of a `previous` round stay on their servers, except a few if staying would split another job or would be much
    worse; the order among equals then holds on each server. Raises SizingError if jobs ask for more GPUs than there
    are.
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
            break  # every job has what it would have if places did not matter
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
    """Places and options of all jobs: `value` is their throughput, `pooled` its upper bound."""

    value: float
    pooled: float
    places: list[Places]
    chosen: list[int]


def _attempt(
    menus: Sequence[Menu], steps: Sequence[Steps], prices: Prices, servers: Servers, stay: Mapping[int, Places]
) -> _Attempt:
    """Return a packing at these prices."""
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
    """Return the throughput over the proportional one, summed over GPUs."""
    return sum(each.gpus * each.options[i].value for each, i in zip(menus, chosen, strict=True))


def _stay(jobs: Sequence[PackJob], servers: Servers, previous: Packing | None) -> dict[int, Places]:
    """Return the earlier places of jobs, if these servers exist and the job still has as many GPUs."""
    stay = {}
    for number, job in enumerate(jobs):
        if previous is not None and (shares := previous.shares.get(job.id)):
            places = tuple((share.server, share.gpus) for share in shares)
            if sum(gpus for _, gpus in places) == job.gpus and all(server < servers.count for server, _ in places):
                stay[number] = places
    return stay


def _put_in_order(menus: Sequence[Menu], places: list[Places], chosen: list[int], *, within_servers: bool) -> None:
    """Among jobs with the same matrix give the best place to the earliest, and so on; equally good ones do not move."""
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
    """Return the menus, the same one for the same matrix."""
    proportional = servers.proportional
    known: dict[int, Menu] = {}
    for job in jobs:
        if id(job.matrix) not in known:
            known[id(job.matrix)] = menu(job.matrix, proportional)
    return [known[id(job.matrix)] for job in jobs]
