"""A new packing with names of servers and jobs changed so that as many jobs as can be stay where they are.

Packers know nothing of the last round. But servers are all alike, and so are jobs of one model that have the same CPUs
and memory: which of them stands where is free, and who stays is not restarted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace

from sizing.pack.types import Packing, Share

Shares = tuple[Share, ...]


def stay(packing: Packing, before: Mapping[str, Shares], models: Mapping[str, str], servers: int) -> dict[str, Shares]:
    """The shares of each job of a packing, on renamed servers.

    `before` is what jobs have now, `models` is the model of each job of both. Nothing but names changes: each job has
    as much as it had in the packing, or another of its model with exactly as much has.
    """
    names = _servers(packing, before, models, servers)
    given = {
        id: tuple(sorted((replace(share, server=names[share.server]) for share in shares), key=lambda one: one.server))
        for id, shares in packing.shares.items()
    }
    return _exchanged(given, before, models)


def _servers(packing: Packing, before: Mapping[str, Shares], models: Mapping[str, str], servers: int) -> dict[int, int]:
    """New names by old: the pair that keeps most goes first (by GPUs of the same jobs, then of the same models)."""
    had: dict[str, dict[int, int]] = {
        id: {share.server: share.gpus for share in shares} for id, shares in before.items()
    }
    same: Counter[tuple[int, int]] = Counter()
    kinds_now, kinds_before = _kinds(packing.shares, models), _kinds(before, models)
    for id, shares in packing.shares.items():
        for share in shares:
            for server, gpus in had.get(id, {}).items():
                same[share.server, server] += min(gpus, share.gpus)
    alike: Counter[tuple[int, int]] = Counter()
    for key, now in kinds_now.items():
        for new, count in now.items():
            for old, there in kinds_before.get(key, {}).items():
                alike[new, old] += min(count, there) * key[1]
    pairs = sorted(alike.keys() | same.keys(), key=lambda pair: (-alike[pair], -same[pair], pair))
    names: dict[int, int] = {}
    taken: set[int] = set()
    for new, old in pairs:
        if new not in names and old not in taken:
            names[new] = old
            taken.add(old)
    free = (server for server in range(servers) if server not in taken)
    for new in range(servers):
        if new not in names:
            names[new] = next(free)
    return names


def _kinds(shares: Mapping[str, Shares], models: Mapping[str, str]) -> dict[tuple[str, int], Counter[int]]:
    """How many jobs of a model have so many GPUs on a server."""
    found: dict[tuple[str, int], Counter[int]] = defaultdict(Counter)
    for id, each in shares.items():
        for share in each:
            found[models[id], share.gpus][share.server] += 1
    return found


def _exchanged(given: dict[str, Shares], before: Mapping[str, Shares], models: Mapping[str, str]) -> dict[str, Shares]:
    """Jobs on one server that are alike in all exchange their places, so that who can stays."""
    groups: dict[tuple[str, int, float, float], list[str]] = defaultdict(list)
    for id, shares in given.items():
        if len(shares) == 1:
            groups[models[id], shares[0].gpus, shares[0].cpus, shares[0].memory_bytes].append(id)
    for ids in groups.values():
        places: dict[int, list[Shares]] = defaultdict(list)
        for id in ids:
            places[given[id][0].server].append(given[id])
        left = []
        for id in ids:
            had = before.get(id, ())
            if len(had) == 1 and places.get(had[0].server):
                given[id] = places[had[0].server].pop()
            else:
                left.append(id)
        rest = [place for each in places.values() for place in each]
        for id, place in zip(left, rest, strict=True):
            given[id] = place
    return given
