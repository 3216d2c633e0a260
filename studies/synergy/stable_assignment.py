"""A new packing with servers and jobs renamed so that as many jobs as possible stay where they are.

Most packers know nothing of the last round. But servers are all equal, and jobs with as many GPUs, CPUs and bytes can
be exchanged freely: a job that stays is not restarted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from studies.synergy.packing import proportional
from studies.synergy.packing.types import Packer, Packing, PackJob, Servers, Share

Shares = tuple[Share, ...]
Repacker = Callable[[Sequence[PackJob], Servers, Packing], Packing]
"""A packer that is also told the current shares."""
_Size = tuple[int, float, float]


def staying(packer: Packer) -> Repacker:
    """Return a packer that leaves jobs where they are as far as renaming allows; `packer` ignores the last round."""

    def repack(jobs: Sequence[PackJob], servers: Servers, before: Packing) -> Packing:
        return Packing(stay(packer(jobs, servers), before.shares, servers.count))

    return repack


def sharing(jobs: Sequence[PackJob], servers: Servers, before: Packing) -> Packing:
    """Pack proportional shares: all are equal, so running jobs stay, unless a new packing would split fewer jobs."""
    kept = proportional.pack(jobs, servers, before)
    if (split := _split(kept)) and _split(anew := proportional.pack(jobs, servers)) < split:
        return Packing(stay(anew, before.shares, servers.count))
    return kept


def _split(packing: Packing) -> int:
    return sum(len(shares) > 1 for shares in packing.shares.values())


def stay(packing: Packing, before: Mapping[str, Shares], servers: int) -> dict[str, Shares]:
    """Return the shares of each job of a packing, where `before` has the current shares.

    Each job has as much as in the packing. Servers are renamed pair by pair, starting with those that keep most jobs:
    this need not keep the most possible.
    """
    names = _names(packing, before, servers)
    given = {
        id: tuple(sorted((replace(share, server=names[share.server]) for share in shares), key=lambda one: one.server))
        for id, shares in packing.shares.items()
    }
    for ids in _alike(given).values():
        places: dict[int, list[Shares]] = defaultdict(list)
        for id in ids:
            places[given[id][0].server].append(given[id])
        left = []
        for id in ids:
            free = places.get(_server(id, before), [])
            if free:
                given[id] = free.pop()
            else:
                left.append(id)
        rest = [place for each in places.values() for place in each]
        given.update(zip(left, rest, strict=True))
    return given


def _names(packing: Packing, before: Mapping[str, Shares], servers: int) -> dict[int, int]:
    """Return the new names of servers by old ones."""
    kept: Counter[tuple[int, int]] = Counter()
    for ids in _alike(packing.shares).values():
        slots = Counter(packing.shares[id][0].server for id in ids)
        stood = Counter(_server(id, before) for id in ids)
        for new, there in slots.items():
            for old, jobs in stood.items():
                kept[new, old] += min(there, jobs)
    for id, shares in packing.shares.items():
        if len(shares) > 1:
            for share in shares:
                for had in before.get(id, ()):
                    kept[share.server, had.server] += had.gpus == share.gpus
    names: dict[int, int] = {}
    taken: set[int] = set()
    for new, old in sorted(kept, key=lambda pair: (-kept[pair], pair)):
        if old >= 0 and new not in names and old not in taken:
            names[new] = old
            taken.add(old)
    free = (server for server in range(servers) if server not in taken)
    for new in range(servers):
        if new not in names:
            names[new] = next(free)
    return names


def _alike(shares: Mapping[str, Shares]) -> dict[_Size, list[str]]:
    """Return the jobs on one server by their share of it."""
    found: dict[_Size, list[str]] = defaultdict(list)
    for id, each in shares.items():
        if len(each) == 1:
            found[each[0].gpus, each[0].cpus, each[0].memory_bytes].append(id)
    return found


def _server(id: str, before: Mapping[str, Shares]) -> int:
    """Return the server that a job had alone, -1 if it had none or several."""
    had = before.get(id, ())
    return had[0].server if len(had) == 1 else -1
