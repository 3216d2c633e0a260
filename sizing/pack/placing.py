"""Where the GPUs of jobs are: together where they can be, demanding jobs beside frugal ones."""

from __future__ import annotations

from collections.abc import Sequence

from sizing.pack.fill import Places
from sizing.pack.menu import Option


def place(gpus: Sequence[int], wanted: Sequence[Option], servers: int, per_server: int) -> list[Places]:
    """Servers for each job: those with the most GPUs first, of these the most demanding, each where most is left.

    A job goes on one server if any has the GPUs, else it is split over those with the most left. Where being choosy
    about CPUs and memory splits more jobs than filling the fullest server that will do, the latter it is.
    """
    order = sorted(range(len(gpus)), key=lambda job: (-gpus[job], -max(wanted[job].cpus, wanted[job].memory), job))
    first = _deal(order, gpus, wanted, servers, per_server, tight=False)
    if _split(first) > sum(size > per_server for size in gpus):
        tight = _deal(order, gpus, wanted, servers, per_server, tight=True)
        return min(first, tight, key=_split)
    return first


def _split(places: Sequence[Places]) -> int:
    """How many jobs are on several servers."""
    return sum(len(of) > 1 for of in places)


def _deal(
    order: Sequence[int],
    gpus: Sequence[int],
    wanted: Sequence[Option],
    servers: int,
    per_server: int,
    *,
    tight: bool,
) -> list[Places]:
    """One job after the other; `tight` looks at GPUs alone for jobs with several."""
    free = [per_server] * servers
    cpus = [float(per_server)] * servers
    memory = [float(per_server)] * servers
    places: list[Places] = [()] * len(gpus)
    for job in order:
        size, take_cpus, take_memory = gpus[job], wanted[job].cpus, wanted[job].memory
        best, best_key = -1, (float("inf"), 0.0)
        for server in range(servers):
            if free[server] >= size:
                left = min(cpus[server] - size * take_cpus, memory[server] - size * take_memory)
                key = (float(free[server]) if tight and size > 1 else 0.0, -left)
                if key < best_key:
                    best, best_key = server, key
        if best >= 0:
            places[job] = ((best, size),)
        else:
            parts, rest = [], size
            for server in sorted(range(servers), key=lambda server: (-free[server], server)):
                part = min(rest, free[server])
                if part:
                    parts.append((server, part))
                    rest -= part
            places[job] = tuple(sorted(parts))
        for server, part in places[job]:
            free[server] -= part
            cpus[server] -= part * take_cpus
            memory[server] -= part * take_memory
    return places
