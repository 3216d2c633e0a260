"""Synergy-TUNE: every job runs, none slower than with its share of a server, and what is left goes where it helps most.

Whatever their places, all jobs can have their GPU-proportional share at once, or what of it makes them as fast: that is
where everyone begins, so no later step can take it away. First all servers are taken for one great one, which shows what each
job would have if places did not matter. Jobs that would have much are then put beside jobs that would have little, and
on the servers as they are the CPUs and the memory that are left are given out step by step of the matrices, each step
where it is worth the most for what it takes.
"""

from __future__ import annotations

from collections.abc import Sequence

from sizing.errors import SizingError
from sizing.pack.fill import Places, Prices, Stock, fill, steps
from sizing.pack.menu import Menu, menu
from sizing.pack.placing import place
from sizing.pack.types import Packing, PackJob, Servers, Share


def pack(jobs: Sequence[PackJob], servers: Servers) -> Packing:
    """Who has what, all jobs on the servers.

    Raises SizingError for more GPUs than there are, and for a job that does not run with its share.
    """
    asked, there = sum(job.gpus for job in jobs), servers.count * servers.gpus
    if asked > there:
        raise SizingError(f"the jobs ask for {asked} GPUs, and there are {there}: leave the last ones to a later round")
    menus = _menus(jobs, servers)
    base = [menu.base for menu in menus]
    tables = {id(menu): steps(menu, Prices()) for menu in menus}
    steps_of = [tables[id(menu)] for menu in menus]
    pooled = list(base)
    everywhere = [((0, menu.gpus),) for menu in menus]
    fill(steps_of, everywhere, _stock(menus, base, everywhere, 1, there), pooled)
    wanted = [menu.options[i] for menu, i in zip(menus, pooled, strict=True)]
    places = place([menu.gpus for menu in menus], wanted, servers.count, servers.gpus)
    chosen = list(base)
    fill(steps_of, places, _stock(menus, base, places, servers.count, servers.gpus), chosen)
    return Packing(
        {
            job.id: tuple(
                Share(server, gpus, gpus * menu.options[i].point.cpus, gpus * menu.options[i].point.memory_bytes)
                for server, gpus in of
            )
            for job, menu, of, i in zip(jobs, menus, places, chosen, strict=True)
        }
    )


def _menus(jobs: Sequence[PackJob], servers: Servers) -> list[Menu]:
    known: dict[int, Menu] = {}
    for job in jobs:
        if id(job.matrix) not in known:
            found = menu(job.matrix, servers.proportional)
            if found is None:
                raise SizingError(
                    f"job {job.id} does not run with its share of a server ({servers.proportional.cpus:g} CPUs and "
                    f"{servers.proportional.memory_bytes / 1e9:g} GB a GPU): leave it out, or take other servers"
                )
            known[id(job.matrix)] = found
    return [known[id(job.matrix)] for job in jobs]


def _stock(menus: Sequence[Menu], chosen: Sequence[int], places: Sequence[Places], servers: int, gpus: int) -> Stock:
    """What is left of servers with so many GPUs each."""
    stock = Stock([float(gpus)] * servers, [float(gpus)] * servers)
    for menu, i, of in zip(menus, chosen, places, strict=True):
        for server, part in of:
            stock.cpus[server] -= part * menu.options[i].cpus
            stock.memory[server] -= part * menu.options[i].memory
    return stock
