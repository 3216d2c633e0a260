"""Synergy's OPT: the packing with the most throughput, by linear and integer programs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from studies.synergy.optimum import pooled, server_patterns
from studies.synergy.optimum.choices import Kind, kinds
from studies.synergy.packing import priced, throughput
from studies.synergy.packing.free_servers import FreeServers, refuse_too_many
from studies.synergy.packing.types import Packing, PackJob, Servers, Share

# Limit on options of all kinds together: above it each kind keeps few. With too many kinds no patterns are made.
_MOST_OPTIONS = 60
_MOST_KINDS = 60


def pack(jobs: Sequence[PackJob], servers: Servers) -> Packing:
    """Place all jobs, none slower than with its proportional share, with the most throughput and few jobs split.

    The objective is the sum of throughputs over the proportional ones, each times the job's GPUs. `pooled.bounds` is
    its value if all servers were one (the paper's first program, linear and integer); this is the second program on
    servers as they are. It is a yardstick: jobs of some tens of models take well below a second. With more kinds of
    jobs its choices are fewer and it may miss the optimum, but it is never worse than `priced`. Among jobs with the
    same matrix no earlier one is slower. Raises SizingError if jobs ask for more GPUs than there are.
    """
    refuse_too_many(jobs, servers)
    known = priced.pack(jobs, servers)
    found = _programmed(jobs, servers) if jobs else None
    if found is None or throughput.mean(found, jobs, servers) < throughput.mean(known, jobs, servers):
        return known
    return found


def _programmed(jobs: Sequence[PackJob], servers: Servers) -> Packing | None:
    """Return the packing that the programs find, None if there is none."""
    alike = _fewer(kinds(jobs, servers), servers)
    placed = server_patterns.place(alike, servers) if len(alike) <= _MOST_KINDS else None
    if placed is None:
        return None
    shares: dict[str, tuple[Share, ...]] = {}
    for kind, each in zip(alike, _dealt(alike, placed, servers), strict=True):
        shares.update({job.id: given for job, given in zip(kind.jobs, each, strict=True)})
    return Packing({job.id: shares[job.id] for job in jobs})


def _fewer(alike: Sequence[Kind], servers: Servers) -> Sequence[Kind]:
    """Limit too many options to those used if all servers were one, and the least of each kind."""
    if sum(len(kind.options) for kind in alike) <= _MOST_OPTIONS:
        return alike
    found = []
    for kind, counts in zip(alike, pooled.chosen(alike, servers), strict=True):
        kept = tuple(
            option for option, count in zip(kind.options, counts, strict=True) if count or option is kind.least
        )
        found.append(replace(kind, options=kept))
    return found


def _dealt(
    alike: Sequence[Kind], placed: Sequence[server_patterns.Pattern], servers: Servers
) -> list[list[tuple[Share, ...]]]:
    """Return the shares of each kind's jobs, the fastest first."""
    free = FreeServers(servers)
    found: list[list[tuple[float, tuple[Share, ...]]]] = [[] for _ in alike]
    single: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for server, pattern in enumerate(placed):
        for piece, number in pattern:
            option = alike[piece.kind].options[piece.option]
            if not piece.whole:
                single[piece.kind, piece.option].append((number, server))
                continue
            for _ in range(number):
                found[piece.kind].append((option.value, (free.take(server, piece.gpus, option.point),)))
    # single GPUs with the same option form a line by their servers, which is cut into jobs
    for (kind, at), there in single.items():
        option, gpus = alike[kind].options[at], alike[kind].gpus
        line = [server for number, server in sorted(there, reverse=True) for _ in range(number)]
        for first in range(0, len(line), gpus):
            part = line[first : first + gpus]
            shares = tuple(free.take(server, part.count(server), option.point) for server in dict.fromkeys(part))
            found[kind].append((option.value, shares))
    return [[shares for _, shares in sorted(each, key=lambda pair: -pair[0])] for each in found]
