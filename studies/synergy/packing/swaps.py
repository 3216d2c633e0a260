"""Swaps of jobs with as many GPUs between servers, if that makes more of the wanted CPUs and memory available."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from studies.synergy.packing.greedy_fill import Places, Prices
from studies.synergy.packing.job_options import Option

PARTNERS = 8
"""Number of other servers on which a server that lacks something looks for it, those with most left first."""
TURNS = 6
"""Most swaps per server."""
LEAST = 1e-6
"""Gains below this, in shares of a GPU, are rounding."""


MOVED = 0.3
"""Least gain, in shares per GPU, that is worth the restart of a job that has been in place for a round."""


class _Bundle(NamedTuple):
    """Jobs of one server, or idle GPUs, with all their GPUs and the sum of what they want.

    `moving` is the cost of moving them, counted like a lack.
    """

    gpus: int
    cpus: float
    memory: float
    moving: float
    jobs: tuple[int, ...]


class _Servers:
    """The excess of each server's demand over its capacity (negative: left), and the jobs that are wholly on it."""

    def __init__(
        self,
        places: list[Places],
        wanted: Sequence[Option],
        free: Sequence[int],
        per_server: int,
        stay: Collection[int],
    ) -> None:
        self.places, self.wanted, self.free, self.stay = places, wanted, list(free), stay
        self.cpus = [-float(per_server)] * len(free)
        self.memory = [-float(per_server)] * len(free)
        self.jobs: list[list[int]] = [[] for _ in free]
        for job, (of, option) in enumerate(zip(places, wanted, strict=True)):
            for server, gpus in of:
                self.cpus[server] += gpus * option.cpus
                self.memory[server] += gpus * option.memory
            if len(of) == 1:
                self.jobs[of[0][0]].append(job)
        self.sizes = sorted({of[0][1] for of in places if len(of) == 1})
        self._bundles: dict[int, list[_Bundle]] = {}

    def bundles(self, server: int) -> list[_Bundle]:
        """Return a server's candidates for a swap: each job, and per size the lightest and heaviest smaller jobs.

        Jobs that want the same count as one.
        """
        if server not in self._bundles:
            weight = {job: max(self.wanted[job].cpus, self.wanted[job].memory) for job in self.jobs[server]}
            light = sorted(weight, key=lambda job: (weight[job], job))
            found = [self._bundle((job,)) for job in light]
            for size in self.sizes:
                if size <= self.free[server]:
                    found.append(_Bundle(size, 0.0, 0.0, 0.0, ()))
                if size > 1:
                    found += [
                        self._bundle(jobs) for order in (light, light[::-1]) if (jobs := self._filled(order, size))
                    ]
            distinct = {each[:4]: each for each in reversed(found)}
            self._bundles[server] = list(distinct.values())
        return self._bundles[server]

    def _filled(self, order: Iterable[int], size: int) -> tuple[int, ...]:
        """Return the first jobs that have `size` GPUs together, each fewer; none if they do not add up to it."""
        jobs, left = [], size
        for job in order:
            gpus = self.places[job][0][1]
            if gpus < size and gpus <= left:
                jobs.append(job)
                left -= gpus
        return () if left else tuple(jobs)

    def _bundle(self, jobs: tuple[int, ...]) -> _Bundle:
        of = [(self.places[job][0][1], self.wanted[job]) for job in jobs]
        return _Bundle(
            sum(gpus for gpus, _ in of),
            sum(gpus * option.cpus for gpus, option in of),
            sum(gpus * option.memory for gpus, option in of),
            MOVED * sum(self.places[job][0][1] for job in jobs if job in self.stay) if self.stay else 0.0,
            jobs,
        )

    def swap(self, server: int, mine: _Bundle, other: int, theirs: _Bundle) -> None:
        """Let two bundles change places."""
        for at, to, bundle, sign in ((server, other, mine, -1), (other, server, theirs, 1)):
            for job in bundle.jobs:
                self.jobs[at].remove(job)
                self.jobs[to].append(job)
                self.places[job] = ((to, self.places[job][0][1]),)
            self.cpus[server] += sign * bundle.cpus
            self.memory[server] += sign * bundle.memory
            self.cpus[other] -= sign * bundle.cpus
            self.memory[other] -= sign * bundle.memory
            if not bundle.jobs:
                self.free[at] -= bundle.gpus
                self.free[to] += bundle.gpus
            self._bundles.pop(at, None)


def swap(
    places: list[Places],
    wanted: Sequence[Option],
    servers: int,
    per_server: int,
    prices: Prices,
    stay: Collection[int] = (),
) -> None:
    """Swap jobs as long as servers then lack less, those that lack most first; `places` are changed in place.

    Jobs in `stay` move only for a gain that is worth a restart.
    """
    free = [per_server] * servers
    for of in places:
        for server, gpus in of:
            free[server] -= gpus
    state = _Servers(places, wanted, free, per_server, stay)
    cpu_price, memory_price = prices

    def lacks(server: int) -> float:
        return max(0.0, state.cpus[server]) * cpu_price + max(0.0, state.memory[server]) * memory_price

    turns = [0] * servers
    short = sorted((server for server in range(servers) if lacks(server) > LEAST), key=lambda s: (-lacks(s), s))
    for server in short:
        while turns[server] < TURNS and (found := _best(state, server, prices, lacks(server))):
            turns[server] += 1
            state.swap(server, *found)


def _best(state: _Servers, server: int, prices: Prices, lacks: float) -> tuple[_Bundle, int, _Bundle] | None:
    """Return the bundles of this server and another whose swap leaves both lacking least, None if none helps."""
    cpu_price, memory_price = prices
    all_cpus, all_memory = state.cpus, state.memory
    cpus, memory = all_cpus[server], all_memory[server]
    if cpus * cpu_price > memory * memory_price:
        partners = sorted((at, other) for other, at in enumerate(all_cpus) if at < 0 and other != server)
    else:
        partners = sorted((at, other) for other, at in enumerate(all_memory) if at < 0 and other != server)
    mine = state.bundles(server)
    best, best_after = None, lacks - LEAST
    for _, other in partners[:PARTNERS]:
        other_cpus, other_memory = all_cpus[other], all_memory[other]
        bonus = max(0.0, other_cpus) * cpu_price + max(0.0, other_memory) * memory_price
        for theirs in state.bundles(other):
            gpus, their_cpus, their_memory, their_moving, _ = theirs
            for bundle in mine:
                if bundle[0] != gpus:
                    continue
                more_cpus, more_memory = bundle[1] - their_cpus, bundle[2] - their_memory
                after = bundle[3] + their_moving - bonus
                if cpus > more_cpus:
                    after += (cpus - more_cpus) * cpu_price
                if other_cpus + more_cpus > 0:
                    after += (other_cpus + more_cpus) * cpu_price
                if memory > more_memory:
                    after += (memory - more_memory) * memory_price
                if other_memory + more_memory > 0:
                    after += (other_memory + more_memory) * memory_price
                if after < best_after:
                    best, best_after = (bundle, other, theirs), after
    return best
