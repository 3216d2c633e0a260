"""Synergy-OPT's second program: which jobs a server holds together, so that throughput is most and few are split.

All servers are alike, so what counts is how many hold the same *pattern* of pieces. The relaxed program over patterns
is solved by column generation: few patterns at first, then always the one that earns most beyond the prices of its jobs
and of a server, which is a small integer program. Its whole parts are kept; the few servers that are left are filled by
an integer program of their own, which is exact for them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sizing.pack.choices import Kind, Option
from sizing.pack.program import Program, Solved
from sizing.pack.types import Servers

SPLIT_COST = 1e-3
"""What a job that is split costs, in its own throughput for a GPU: of equally fast plans that with fewest is taken."""
# Servers that are filled together in the end, at least. More are slower and hardly better.
_LAST = 6
_ROUNDS = 400
_MISSING = 10.0  # what a GPU of a job that has no place costs, in the greatest worth: more than any packing gains by it


@dataclass(frozen=True, slots=True)
class Piece:
    """Of one of the jobs of a kind, with one of its options: all its GPUs, or one GPU of a job that is split."""

    kind: int
    option: int
    gpus: int
    whole: bool


Pattern = tuple[tuple[Piece, int], ...]
"""Pieces on a server, and how many of each."""


def place(alike: Sequence[Kind], servers: Servers) -> list[Pattern] | None:
    """What each server holds: all jobs, those that are split in pieces of a GPU. None where none is found."""
    pieces = _pieces(alike, servers)
    found = _relaxed(alike, pieces, servers)
    kept = Counter(
        {
            pattern: int(count + 1e-6)
            for pattern, count in found
            if count > 1 - 1e-6 and all(piece.whole for piece, _ in pattern)
        }
    )
    last = min(_LAST, servers.count)
    while True:
        while servers.count - kept.total() < last:  # of patterns that stand for many servers first
            kept[max(kept, key=lambda pattern: kept[pattern])] -= 1
        counts = [len(kind.jobs) for kind in alike]
        for pattern, times in kept.items():
            for piece, number in pattern:
                counts[piece.kind] -= number * times
        rest = _filled(alike, counts, pieces, servers, servers.count - kept.total())
        if rest is not None:
            return [*kept.elements(), *rest]
        if last >= servers.count:
            return None
        last = min(2 * last, servers.count)


def _pieces(alike: Sequence[Kind], servers: Servers) -> list[Piece]:
    """All pieces that a server can hold."""
    found = []
    for place, kind in enumerate(alike):
        for at, option in enumerate(kind.options):
            most = _most(option, servers)
            if kind.gpus <= most:
                found.append(Piece(place, at, kind.gpus, whole=True))
            if kind.gpus > 1 and most:
                found.append(Piece(place, at, 1, whole=False))
    return found


def _most(option: Option, servers: Servers) -> int:
    """GPUs of one server with so much for each."""
    cpus, memory = servers.cpus / option.point.cpus, servers.memory_bytes / option.point.memory_bytes
    return int(min(servers.gpus, cpus * (1 + 1e-9), memory * (1 + 1e-9)))


def _worth(piece: Piece, alike: Sequence[Kind]) -> float:
    kind = alike[piece.kind]
    return kind.options[piece.option].worth * piece.gpus - (0.0 if piece.whole else SPLIT_COST / kind.gpus)


def _sizes(piece: Piece, alike: Sequence[Kind], servers: Servers) -> tuple[float, float, float]:
    """What a piece takes of a server: GPUs, and shares of its CPUs and memory."""
    point = alike[piece.kind].options[piece.option].point
    return piece.gpus, piece.gpus * point.cpus / servers.cpus, piece.gpus * point.memory_bytes / servers.memory_bytes


def _relaxed(alike: Sequence[Kind], pieces: Sequence[Piece], servers: Servers) -> list[tuple[Pattern, float]]:
    """Patterns, and how many servers hold each; all jobs have their GPUs."""
    worths = [_worth(piece, alike) for piece in pieces]
    program = Program()
    gpus = [program.row(kind.gpus * len(kind.jobs), kind.gpus * len(kind.jobs)) for kind in alike]
    count = program.row(high=servers.count)
    penalty = -_MISSING * max(1.0, *(option.worth for kind in alike for option in kind.options))
    for row in gpus:
        program.column(penalty, {row: 1.0})
    best = _Best(alike, pieces, servers)
    patterns: dict[Pattern, None] = {}
    while True:
        found = _solved(program)
        if len(patterns) >= _ROUNDS:
            break
        prices = [found.prices[gpus[piece.kind]] for piece in pieces]
        pattern = best(
            [worth - price * piece.gpus for worth, price, piece in zip(worths, prices, pieces, strict=True)],
            more_than=found.prices[count],
        )
        if pattern is None or pattern in patterns:
            break
        patterns[pattern] = None
        rows: Counter[int] = Counter({count: 1})
        worth = 0.0
        for piece, number in pattern:
            rows[gpus[piece.kind]] += piece.gpus * number
            worth += _worth(piece, alike) * number
        program.column(worth, rows)
    return list(zip(patterns, found.x[len(alike) :], strict=True))


def _solved(program: Program) -> Solved:
    found = program.solve()
    assert found is not None, "no job has a place: that is a point"
    return found


class _Best:
    """The pattern that earns most: a knapsack with three sizes."""

    def __init__(self, alike: Sequence[Kind], pieces: Sequence[Piece], servers: Servers) -> None:
        self._pieces = pieces
        self._program = Program(gap=1e-4)
        rows = [self._program.row(high=servers.gpus), self._program.row(high=1.0), self._program.row(high=1.0)]
        for piece in pieces:
            most = len(alike[piece.kind].jobs) * alike[piece.kind].gpus // piece.gpus
            sizes = _sizes(piece, alike, servers)
            self._program.column(0.0, dict(zip(rows, sizes, strict=True)), high=most, integer=True)

    def __call__(self, worths: Sequence[float], more_than: float) -> Pattern | None:
        self._program.change_worths(worths)
        found = self._program.solve()
        if found is None or found.value <= more_than + 1e-6:
            return None
        return _pattern(self._pieces, found.x)


def _pattern(pieces: Sequence[Piece], x: Sequence[float]) -> Pattern:
    return tuple((piece, round(number)) for piece, number in zip(pieces, x, strict=True) if number > 0.5)


def _filled(
    alike: Sequence[Kind], counts: Sequence[int], pieces: Sequence[Piece], servers: Servers, number: int
) -> list[Pattern] | None:
    """So many jobs of each kind on so many servers, in whole pieces; None where they have no place."""
    program = Program()
    gpus = [program.row(kind.gpus * count, kind.gpus * count) for kind, count in zip(alike, counts, strict=True)]
    # one GPU at a time, but by jobs
    cuts = {(piece.kind, piece.option): program.row(0.0, 0.0) for piece in pieces if not piece.whole}
    for _ in range(number):
        sizes = [program.row(high=servers.gpus), program.row(high=1.0), program.row(high=1.0)]
        for piece in pieces:
            worth = alike[piece.kind].options[piece.option].worth * piece.gpus
            rows = dict(zip(sizes, _sizes(piece, alike, servers), strict=True))
            rows[gpus[piece.kind]] = piece.gpus
            if not piece.whole:
                rows[cuts[piece.kind, piece.option]] = 1.0
            most = counts[piece.kind] * alike[piece.kind].gpus // piece.gpus
            program.column(worth, rows, high=min(most, servers.gpus), integer=True)
    for (kind, _), row in cuts.items():
        program.column(-SPLIT_COST, {row: -float(alike[kind].gpus)}, high=counts[kind], integer=True)
    found = program.solve()
    if found is None or not math.isfinite(found.value):
        return None
    step = len(pieces)
    return [_pattern(pieces, found.x[at * step : (at + 1) * step]) for at in range(number)]
