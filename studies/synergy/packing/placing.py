"""The placement of jobs' GPUs: together if possible, demanding jobs beside frugal ones, and where they were before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from studies.synergy.packing.greedy_fill import Places
from studies.synergy.packing.job_options import Option


def place(
    gpus: Sequence[int],
    wanted: Sequence[Option],
    servers: int,
    per_server: int,
    stay: Mapping[int, Places] | None = None,
) -> list[Places]:
    """Return servers for each job: jobs with the most GPUs first, then the most demanding, each where most is left.

    A job goes on one server if any has the GPUs, else it is split over those with the most left. If this care for CPUs
    and memory splits more jobs than taking the fullest sufficient server, the latter is done. Jobs in `stay` keep their
    servers, except a few small ones in the way of a large one that would be split.
    """
    order = sorted(range(len(gpus)), key=lambda job: (-gpus[job], -max(wanted[job].cpus, wanted[job].memory), job))
    if stay:
        return _Deal(servers, per_server, gpus, wanted).run(order, stay)
    found = _Deal(servers, per_server, gpus, wanted).run(order, {})
    if _split(found) > sum(size > per_server for size in gpus):
        return min(found, _Deal(servers, per_server, gpus, wanted, tight=True).run(order, {}), key=_split)
    return found


def _split(places: Sequence[Places]) -> int:
    """Count the jobs that are on several servers."""
    return sum(len(of) > 1 for of in places)


class _Deal:
    """Servers that are filled one job after the other; `tight` considers GPUs first for jobs with several."""

    def __init__(
        self, servers: int, per_server: int, gpus: Sequence[int], wanted: Sequence[Option], *, tight: bool = False
    ) -> None:
        self.gpus, self.wanted, self.tight = gpus, wanted, tight
        self.free = [per_server] * servers
        self.cpus = [float(per_server)] * servers
        self.memory = [float(per_server)] * servers

    def run(self, order: Sequence[int], stay: Mapping[int, Places]) -> list[Places]:
        """Return places for all jobs; those that stay come first, as far as their servers have the GPUs."""
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
        """Return the server that has the job's GPUs once smaller jobs with the fewest GPUs leave it.

        Those jobs lose their places and are placed later. None if larger jobs are in the way on every server.
        """
        size = self.gpus[job]
        there: dict[int, list[int]] = {}
        for other, of in enumerate(places):
            if len(of) == 1 and self.gpus[other] < size:
                there.setdefault(of[0][0], []).append(other)
        best, fewest, leaving = None, float("inf"), list[int]()
        for server, others in sorted(there.items()):
            lacking, gone, rest = size - self.free[server], list[int](), list[int]()
            for other in sorted(others, key=lambda other: (-self.gpus[other], other)):
                if self.gpus[other] <= lacking:
                    gone.append(other)
                    lacking -= self.gpus[other]
                else:
                    rest.append(other)
            if lacking > 0 and rest:  # the smallest of the jobs that each free more than enough
                gone.append(rest[-1])
                lacking -= self.gpus[rest[-1]]
            gpus = sum(self.gpus[other] for other in gone)
            if lacking <= 0 and gpus < fewest:
                best, fewest, leaving = server, gpus, gone
        for other in leaving:
            self._take(other, places[other], sign=-1)
            places[other] = ()
        return best

    def _best(self, job: int) -> int | None:
        """Return the server with the job's GPUs and then most left of its scarcer resource; None if none has them."""
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
        """Return a job's GPUs on several servers, as few as possible."""
        parts, rest = [], self.gpus[job]
        for server in sorted(range(len(self.free)), key=lambda server: (-self.free[server], server)):
            part = min(rest, self.free[server])
            if part:
                parts.append((server, part))
                rest -= part
        return tuple(sorted(parts))
