"""Synergy-OPT's second program: the jobs that each server holds, for the most throughput and few split jobs.

All servers are equal, so only the number of servers with the same *pattern* of pieces matters. The relaxed program over
patterns is solved by column generation: few patterns at first, then always the one that earns most beyond the prices of
its jobs and of a server, which is a small integer program. Whole parts of its solution are settled, or else the part
nearest to whole, and the rest is solved anew. The last few servers are filled by an integer program of their own, exact
for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from studies.synergy.optimum.choices import Kind
from studies.synergy.optimum.program import Program
from studies.synergy.packing.free_servers import ROUNDING
from studies.synergy.packing.job_options import Option
from studies.synergy.packing.types import Servers

SPLIT_COST = 1e-3
"""The cost of a split job, in its own throughput per GPU: of equally fast plans the one with fewest splits is taken."""
# Least number of servers that are filled together at the end. More is slower and, where tried, no better.
_LAST = 4
# Work is bounded by counts and not by time, so that equal jobs get equal packings. The few tens of kinds that jobs of
# known models have reach none of these limits.
_PATTERNS = 150
_NODES = 100
_MISSING = 10.0  # cost of a GPU of a job without a place, in the greatest worth: more than any packing gains by it
_SLACK = 1e-6  # tolerance on a number of servers, or on throughput
_GAPS = (1e-2, 1e-4)  # any better pattern will do to go on with; that there is none must be shown more exactly


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a job of a kind, with one of its options: all its GPUs, or one GPU of a split job."""

    kind: int
    option: int
    gpus: int
    whole: bool


Pattern = tuple[tuple[Piece, int], ...]
"""Pieces on a server, and the number of each."""


def place(alike: Sequence[Kind], servers: Servers) -> list[Pattern] | None:
    """Return each server's pattern, with all jobs in place, split ones as one-GPU pieces; None if none is found."""
    relaxed = _Relaxed(alike, servers)
    while relaxed.left > _LAST:
        relaxed.settle()
    while True:
        rest = _filled(alike, relaxed.settled, relaxed.pieces, servers)
        if rest is not None:
            return [*relaxed.settled, *rest]
        if not relaxed.settled:
            return None
        del relaxed.settled[-relaxed.left :]  # twice as many servers to fill


def _pieces(alike: Sequence[Kind], servers: Servers) -> list[Piece]:
    """Return all pieces that a server can hold."""
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
    """Return the GPUs of one server that can each have an option."""
    return int(servers.gpus / max(1.0, option.cpus, option.memory) * (1 + ROUNDING))


def _sizes(piece: Piece, alike: Sequence[Kind]) -> tuple[float, float, float]:
    """Return what a piece takes of a server: GPUs, and CPUs and memory in GPU shares."""
    option = alike[piece.kind].options[piece.option]
    return piece.gpus, piece.gpus * option.cpus, piece.gpus * option.memory


def _gpus_left(alike: Sequence[Kind], patterns: Iterable[Pattern]) -> list[int]:
    """Return the GPUs of each kind's jobs that are not in the patterns."""
    left = [kind.gpus * len(kind.jobs) for kind in alike]
    for pattern in patterns:
        for piece, number in pattern:
            left[piece.kind] -= number * piece.gpus
    return left


def _pattern(pieces: Sequence[Piece], x: Sequence[float]) -> Pattern:
    return tuple((piece, round(number)) for piece, number in zip(pieces, x, strict=True) if number > 0.5)


class _Relaxed:
    """The program over patterns, in which more and more servers are settled: `settled` lists their patterns."""

    def __init__(self, alike: Sequence[Kind], servers: Servers) -> None:
        self.pieces = _pieces(alike, servers)
        self.settled: list[Pattern] = []
        self._alike = alike
        self._servers = servers
        self._best = _Best(self.pieces, alike, servers)
        self._columns: dict[Pattern, int] = {}
        self._program = Program()
        # in GPUs, so that the pieces of a split job add up to it
        self._jobs = [self._program.row() for _ in alike]
        self._count = self._program.row()
        most = max(1.0, *(option.value for kind in alike for option in kind.options))
        for row in self._jobs:
            self._program.column(-_MISSING * most, {row: 1.0})

    @property
    def left(self) -> int:
        """The number of servers that are not settled yet."""
        return self._servers.count - len(self.settled)

    def settle(self) -> None:
        """Settle the servers that are whole in the best solution, or the one nearest to it; never the last `_LAST`."""
        x = self._solved()
        order = sorted(self._columns, key=lambda pattern: -x[self._columns[pattern]])
        whole = [int(x[self._columns[pattern]] + _SLACK) for pattern in order]
        if not order or x[self._columns[order[0]]] < _SLACK:  # there are no more jobs
            order, whole = [()], [self.left]
        elif not whole[0]:
            whole[0] = 1
        for pattern, count in zip(order, whole, strict=True):
            self.settled += [pattern] * min(count, self.left - _LAST)

    def _solved(self) -> tuple[float, ...]:
        """Return the number of unsettled servers that hold each pattern, by column."""
        gpus = _gpus_left(self._alike, self.settled)
        for row, count in zip(self._jobs, gpus, strict=True):
            self._program.bound_row(row, count, count)
        self._program.bound_row(self._count, 0, self.left)
        self._best.limit(gpus)
        for pattern, column in self._columns.items():
            if min(_gpus_left(self._alike, [*self.settled, pattern])) < 0:
                self._program.bound_column(column, 0.0)
        while True:
            found = self._program.solve()
            assert found is not None, "that no job has a place is a point"
            prices = [found.prices[row] for row in self._jobs]
            better = self._best(prices, more_than=found.prices[self._count])
            if better is None or better in self._columns or len(self._columns) >= _PATTERNS:
                return found.x
            rows: Counter[int] = Counter({self._count: 1})
            for piece, number in better:
                rows[self._jobs[piece.kind]] += piece.gpus * number
            worth = sum(self._best.worth(piece) * number for piece, number in better)
            self._columns[better] = self._program.column(worth, rows)


class _Best:
    """The pattern that earns most: a knapsack with three sizes, and no more of a kind than there is."""

    def __init__(self, pieces: Sequence[Piece], alike: Sequence[Kind], servers: Servers) -> None:
        self._pieces = pieces
        self._alike = alike
        self._program = Program(nodes=_NODES)
        rows = [self._program.row(high=servers.gpus) for _ in range(3)]
        self._jobs = [self._program.row() for _ in alike]
        for piece in pieces:
            sizes = dict(zip(rows, _sizes(piece, alike), strict=True))
            self._program.column(0.0, {**sizes, self._jobs[piece.kind]: piece.gpus}, integer=True)

    def worth(self, piece: Piece) -> float:
        """Return a piece's contribution to the throughput; a job's cost of being split is spread over its pieces."""
        kind = self._alike[piece.kind]
        return kind.options[piece.option].value * piece.gpus - (0.0 if piece.whole else SPLIT_COST / kind.gpus)

    def limit(self, gpus: Sequence[int]) -> None:
        """Take no more pieces than there are GPUs of each kind's jobs."""
        for row, most in zip(self._jobs, gpus, strict=True):
            self._program.bound_row(row, 0, most)

    def __call__(self, prices: Sequence[float], more_than: float) -> Pattern | None:
        """Return the pattern that earns most beyond the prices of its GPUs by kind, if it is above `more_than`."""
        self._program.change_worths([self.worth(piece) - prices[piece.kind] * piece.gpus for piece in self._pieces])
        for gap in _GAPS:
            self._program.close_to(gap)
            found = self._program.solve()
            if found is not None and found.value > more_than + _SLACK:
                return _pattern(self._pieces, found.x)
        return None


def _filled(
    alike: Sequence[Kind], settled: Sequence[Pattern], pieces: Sequence[Piece], servers: Servers
) -> list[Pattern] | None:
    """Return the patterns of the servers that are not settled, with all remaining jobs; None if these have no place."""
    gpus = _gpus_left(alike, settled)
    program = Program(nodes=_NODES)
    jobs = [program.row(count, count) for count in gpus]
    able = [piece for piece in pieces if gpus[piece.kind]]
    # jobs are split one GPU at a time, but must be whole jobs together with the settled pieces
    cuts: dict[tuple[int, int], int] = {}
    had: Counter[tuple[int, int]] = Counter()
    for pattern in settled:
        had.update({(piece.kind, piece.option): number for piece, number in pattern if not piece.whole})
    for piece in pieces:
        place = piece.kind, piece.option
        if not piece.whole:
            cuts[place] = program.row(-had[place], -had[place])
            program.column(-SPLIT_COST, {cuts[place]: -float(alike[piece.kind].gpus)}, integer=True)
    first = len(cuts)
    count = servers.count - len(settled)
    for _ in range(count):
        sizes = [program.row(high=servers.gpus) for _ in range(3)]
        for piece in able:
            rows = dict(zip(sizes, _sizes(piece, alike), strict=True))
            rows[jobs[piece.kind]] = piece.gpus
            if not piece.whole:
                rows[cuts[piece.kind, piece.option]] = 1.0
            worth = alike[piece.kind].options[piece.option].value * piece.gpus
            program.column(worth, rows, high=gpus[piece.kind] // piece.gpus, integer=True)
    found = program.solve()
    if found is None:
        return None
    step = len(able)
    return [_pattern(able, found.x[first + at * step : first + (at + 1) * step]) for at in range(count)]
