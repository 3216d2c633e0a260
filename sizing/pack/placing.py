"""Where the GPUs of jobs are: together where they can be, demanding jobs beside frugal ones, and where they were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from sizing.pack.fill import Places
from sizing.pack.menu import Option


def place(
    gpus: Sequence[int],
    wanted: Sequence[Option],
    servers: int,
    per_server: int,
    stay: Mapping[int, Places] | None = None,
) -> list[Places]:
    """Servers for each job: those with the most GPUs first, of these the most demanding, each where most is left.

    A job goes on one server if any has the GPUs, else it is split over those with the most left. Where being choosy
    about CPUs and memory splits more jobs than taking the fullest server that will do, the latter it is. Jobs in `stay`
    keep the servers they have, but where that splits others: then all are placed anew, and servers, which are all
    alike, are numbered so that most GPUs stay.
    """
    order = sorted(range(len(gpus)), key=lambda job: (-gpus[job], -max(wanted[job].cpus, wanted[job].memory), job))
    least = sum(size > per_server for size in gpus)
    if stay:
        found = _Deal(servers, per_server, gpus, wanted).run(order, stay)
        if _split(found) <= max(least, sum(len(of) > 1 for of in stay.values())):
            return found
    found = _Deal(servers, per_server, gpus, wanted).run(order, {})
    if _split(found) > least:
        found = min(found, _Deal(servers, per_server, gpus, wanted, tight=True).run(order, {}), key=_split)
    return _renumbered(found, stay, servers) if stay else found


def _split(places: Sequence[Places]) -> int:
    """How many jobs are on several servers."""
    return sum(len(of) > 1 for of in places)


def _renumbered(places: Sequence[Places], stay: Mapping[int, Places], servers: int) -> list[Places]:
    """The same places with servers numbered so that many GPUs are where they were, those with most in common first."""
    common: Counter[tuple[int, int]] = Counter()
    for job, before in stay.items():
        for now, gpus in places[job]:
            for old, old_gpus in before:
                common[now, old] += min(gpus, old_gpus)
    number: dict[int, int] = {}
    free = set(range(servers))
    for (now, old), _ in sorted(common.items(), key=lambda item: (-item[1], item[0])):
        if now not in number and old in free:
            number[now] = old
            free.remove(old)
    for now in range(servers):
        if now not in number:
            number[now] = now if now in free else min(free)
            free.remove(number[now])
    return [tuple(sorted((number[server], gpus) for server, gpus in of)) for of in places]


class _Deal:
    """Servers that are filled one job after the other; `tight` looks at GPUs first for jobs with several."""

    def __init__(
        self, servers: int, per_server: int, gpus: Sequence[int], wanted: Sequence[Option], *, tight: bool = False
    ) -> None:
        self.gpus, self.wanted, self.tight = gpus, wanted, tight
        self.free = [per_server] * servers
        self.cpus = [float(per_server)] * servers
        self.memory = [float(per_server)] * servers

    def run(self, order: Sequence[int], stay: Mapping[int, Places]) -> list[Places]:
        """Places for all jobs; those that stay come first, as far as their servers have the GPUs."""
        places: list[Places] = [()] * len(self.gpus)
        for job in sorted(stay):
            if all(self.free[server] >= part for server, part in stay[job]):
                places[job] = self._take(job, stay[job])
        for job in order:
            if not places[job]:
                best = self._best(job)
                if best is None and stay:
                    best = self._cleared(job, places)
                places[job] = self._take(job, self._parts(job) if best is None else ((best, self.gpus[job]),))
        return places

    def _take(self, job: int, places: Places, sign: int = 1) -> Places:
        for server, part in places:
            self.free[server] -= sign * part
            self.cpus[server] -= sign * part * self.wanted[job].cpus
            self.memory[server] -= sign * part * self.wanted[job].memory
        return places

    def _cleared(self, job: int, places: list[Places]) -> int | None:
        """The server that has the job's GPUs if fewest GPUs of smaller jobs, whose turn is yet to come, leave it.

        These lose their places. None where it cannot be had to the GPU.
        """
        size = self.gpus[job]
        there: dict[int, list[int]] = {}
        for other, of in enumerate(places):
            if len(of) == 1 and self.gpus[other] < size:
                there.setdefault(of[0][0], []).append(other)
        best, fewest, leaving = None, size + 1, list[int]()
        for server, others in sorted(there.items()):
            gone: list[int] = []
            lacking = size - self.free[server]
            for other in sorted(others, key=lambda other: (-self.gpus[other], other)):
                if self.gpus[other] <= lacking:
                    gone.append(other)
                    lacking -= self.gpus[other]
            if lacking == 0 and size - self.free[server] < fewest:
                best, fewest, leaving = server, size - self.free[server], gone
        if best is not None:
            for other in leaving:
                self._take(other, places[other], sign=-1)
                places[other] = ()
        return best

    def _best(self, job: int) -> int | None:
        """The server that has the job's GPUs and most left of what it then has least of; None if none has them."""
        size = self.gpus[job]
        fits = [server for server, free in enumerate(self.free) if free >= size]
        if self.tight and size > 1 and fits:
            fullest = min(self.free[server] for server in fits)
            fits = [server for server in fits if self.free[server] == fullest]
        take_cpus, take_memory = size * self.wanted[job].cpus, size * self.wanted[job].memory
        cpus, memory = self.cpus, self.memory
        best, most = None, float("-inf")
        for server in fits:
            left, left_memory = cpus[server] - take_cpus, memory[server] - take_memory
            if left_memory < left:
                left = left_memory
            if left > most:
                best, most = server, left
        return best

    def _parts(self, job: int) -> Places:
        """A job's GPUs on several servers, few of them."""
        parts, rest = [], self.gpus[job]
        for server in sorted(range(len(self.free)), key=lambda server: (-self.free[server], server)):
            part = min(rest, self.free[server])
            if part:
                parts.append((server, part))
                rest -= part
        return tuple(sorted(parts))
