"""Synergy's OPT: the packing with the most throughput, by linear and integer programs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from sizing.errors import SizingError
from sizing.pack import patterns
from sizing.pack.choices import Kind, kinds
from sizing.pack.room import Room, refuse_too_many
from sizing.pack.types import Packing, PackJob, Servers, Share


def pack(jobs: Sequence[PackJob], servers: Servers) -> Packing:
    """Place all jobs, none slower than with its proportional share."""
    refuse_too_many(jobs, servers)
    if not jobs:
        return Packing({})
    alike = kinds(jobs, servers)
    found = patterns.place(alike, servers)
    if found is None:
        raise SizingError("OPT")
    shares: dict[str, tuple[Share, ...]] = {}
    for kind, each in zip(alike, _shares(alike, found, servers), strict=True):
        rates = sorted(each, key=lambda pair: -pair[0])
        for job, (_, given) in zip(kind.jobs, rates, strict=True):
            shares[job.id] = given
    return Packing({job.id: shares[job.id] for job in jobs})


def _shares(
    alike: Sequence[Kind], found: Sequence[patterns.Pattern], servers: Servers
) -> Iterator[list[tuple[float, tuple[Share, ...]]]]:
    """For each kind what its jobs have, with what it is worth."""
    room = Room(servers)
    whole: list[list[tuple[float, tuple[Share, ...]]]] = [[] for _ in alike]
    single: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for server, pattern in enumerate(found):
        for piece, number in pattern:
            option = alike[piece.kind].options[piece.option]
            if not piece.whole:
                single[piece.kind, piece.option].append((number, server))
                continue
            for _ in range(number):
                whole[piece.kind].append((option.worth, (room.take(server, piece.gpus, option.point),)))
    for (place, at), there in single.items():
        option, gpus = alike[place].options[at], alike[place].gpus
        line = [server for number, server in sorted(there, reverse=True) for _ in range(number)]
        for first in range(0, len(line), gpus):
            part = line[first : first + gpus]
            shares = tuple(room.take(server, part.count(server), option.point) for server in dict.fromkeys(part))
            whole[place].append((option.worth, shares))
    yield from whole
