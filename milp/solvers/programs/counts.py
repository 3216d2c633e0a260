"""The count model: a trainer's next moves as pieces of (16), and the blocks of the pool as capacities.

On interchangeable nodes equations (5)-(10) only limit counts, so there are no variables for nodes: only a binary for
every piece (segment of the curve, changed or not), of which a trainer takes at most one, and the count within it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from milp.assignments import NodeBlock, assign_blocks, blocks, counts_in
from milp.problem import Problem, TrainerSpec
from milp.solvers.programs.linear import Linear
from milp.utility import Piece, idle_worth, pieces

Expression = list[tuple[int, float]]


@dataclass
class _Run:
    """Neighbouring pieces: one of `picks` is 1 if the trainer's count is here, and `columns` give the exact count.

    With a binary per segment that is one piece, and its column counts from `low`; with ordered sets there is one pick
    and a weight for every point.
    """

    pieces: tuple[Piece, ...]
    picks: tuple[int, ...]
    columns: tuple[int, ...]

    @property
    def picked(self) -> Expression:
        return [(column, 1.0) for column in self.picks]


@dataclass
class _Part:
    """One trainer's columns: its runs, its count, and its count in every block, as sums of columns."""

    runs: list[_Run] = field(default_factory=list)
    count: Expression = field(default_factory=list)
    shares: list[Expression] = field(default_factory=list)


@dataclass(frozen=True)
class CountModel:
    """The program of a problem, and the conversion of its points to maps and back."""

    problem: Problem
    parts: tuple[NodeBlock, ...]
    linear: Linear
    trainers: Mapping[str, _Part]
    sos2: bool

    def assignment(self, x: Sequence[float]) -> dict[str, tuple[str, ...]]:
        """Return the nodes of every trainer at a point that an engine found."""
        shares = {
            name: [round(sum(factor * x[column] for column, factor in share)) for share in part.shares]
            for name, part in self.trainers.items()
        }
        return assign_blocks(self.problem, self.parts, shares)

    def point(self, assignment: Mapping[str, Sequence[str]]) -> list[float]:
        """Return the columns' values for an allowed map, for an engine to start from."""
        x = [0.0] * len(self.linear.objective)
        for trainer in self.problem.trainers:
            nodes = assignment[trainer.name]
            part = self.trainers[trainer.name]
            if nodes:
                self._pick(x, part, trainer, nodes)
            for block, share, count in zip(self.parts, part.shares, counts_in(nodes, self.parts), strict=True):
                if len(share) == 1:  # a column of its own, not the sum of the runs' columns
                    x[share[0][0]] = 1.0 if block.whole and count else float(count)
        return x

    def _pick(self, x: list[float], part: _Part, trainer: TrainerSpec, nodes: Sequence[str]) -> None:
        count, classes = len(nodes), self.problem.classes_of(nodes)
        change = (count > len(trainer.current)) - (count < len(trainer.current))
        fitting = [
            (piece.worth_low + piece.slope * (count - piece.low), run, place)
            for run in part.runs
            for place, piece in enumerate(run.pieces)
            if piece.change == change and classes <= piece.classes and piece.low <= count <= piece.high
        ]
        _, run, place = max(fitting, key=lambda entry: entry[0])
        piece = run.pieces[place]
        if not self.sos2:
            x[run.picks[place]] = 1.0
            x[run.columns[place]] = count - piece.low
            return
        x[run.picks[0]] = 1.0
        above = (count - piece.low) / (piece.high - piece.low) if piece.high > piece.low else 0.0
        x[run.columns[place]] = 1.0 - above
        if above:
            x[run.columns[place + 1]] = above
        x[part.count[0][0]] = count


def build(problem: Problem, *, sos2: bool) -> CountModel:
    """Build the count model; curves are special ordered sets (11)-(12) if `sos2`, else a binary per segment."""
    linear = Linear()
    parts = blocks(problem)
    add_trainer = _ordered_sets if sos2 else _segments
    trainers: dict[str, _Part] = {}
    for trainer in problem.trainers:
        part = trainers[trainer.name] = _Part()
        idle = idle_worth(problem, trainer)
        linear.constant += idle
        add_trainer(linear, part, pieces(problem, trainer), idle)
        linear.row("(3)", [term for run in part.runs for term in run.picked], high=1)
        _add_shares(linear, problem, parts, trainer, part)
    for place, block in enumerate(parts):
        # A share counts nodes even for a group, all of whose nodes go to one trainer.
        terms = [term for part in trainers.values() for term in part.shares[place]]
        linear.row("(5)", terms, high=len(block.nodes))
    for cap in problem.caps:
        covered = [t.name for t in problem.trainers if cap.covers(t.user, t.account)]
        linear.row("caps", [term for name in covered for term in trainers[name].count], high=cap.nodes_max)
    return CountModel(problem, parts, linear, trainers, sos2)


def _segments(linear: Linear, part: _Part, options: Sequence[Piece], idle: float) -> None:
    """Add (11)-(12), (16) with a binary for every piece, and the count's distance from the piece's low end."""
    for piece in options:
        width = piece.high - piece.low
        pick = linear.binary(piece.worth_low - idle)
        above = linear.column(0.0, width, integer=True, objective=piece.slope)
        if width:
            linear.row("(11)", [(above, 1.0), (pick, -width)], high=0)
        part.runs.append(_Run((piece,), (pick,), (above,)))
        part.count += [(pick, piece.low), (above, 1.0)]


def _ordered_sets(linear: Linear, part: _Part, options: Sequence[Piece], idle: float) -> None:
    """Add (11)-(12), (16) with weights on the points of every run of neighbouring pieces; the weights are an SOS2."""
    top = max((piece.high for piece in options), default=0)
    count = linear.column(0.0, top, integer=True)
    weighted: Expression = []
    for run in _neighbours(options):
        pick = linear.binary(-idle)
        points = [(run[0].low, run[0].worth_low)]
        points += [(piece.high, piece.worth_high) for piece in run if piece.high > piece.low]
        weights = tuple(linear.column(objective=worth) for _, worth in points)
        linear.row("(11)", [*((weight, 1.0) for weight in weights), (pick, -1.0)], low=0, high=0)
        if len(weights) > 2:
            linear.sos2.append(weights)
        weighted += [(weight, nodes) for weight, (nodes, _) in zip(weights, points, strict=True)]
        part.runs.append(_Run(tuple(run), (pick,), weights))
    linear.row("(11)", [*weighted, (count, -1.0)], low=0, high=0)
    part.count = [(count, 1.0)]


def _neighbours(options: Sequence[Piece]) -> list[list[Piece]]:
    """Return the pieces in runs, each piece beginning at the count at which the one before it ends."""
    runs: list[list[Piece]] = []
    for _, same in groupby(options, key=lambda piece: (piece.classes, piece.change)):
        for piece in same:
            follows = runs and runs[-1][-1].high == piece.low and piece.low < piece.high
            if follows and (runs[-1][-1].classes, runs[-1][-1].change) == (piece.classes, piece.change):
                runs[-1].append(piece)
            else:
                runs.append([piece])
    return runs


def _add_shares(
    linear: Linear, problem: Problem, parts: Sequence[NodeBlock], trainer: TrainerSpec, part: _Part
) -> None:
    """Add the trainer's count in every block, with no migration (6) block by block."""
    if len(parts) == 1 and not parts[0].whole:
        part.shares = [part.count]
        return
    for block in parts:
        if block.whole:
            part.shares.append([(linear.binary(), float(len(block.nodes)))])
        else:
            part.shares.append([(linear.column(0.0, len(block.nodes), integer=True), 1.0)])
    linear.row("(2)", [*(term for share in part.shares for term in share), *_negative(part.count)], low=0, high=0)
    held = counts_in(trainer.current, parts)
    for block, share, had in zip(parts, part.shares, held, strict=True):
        column, limit = share[0][0], 1 if block.whole else len(block.nodes)
        here = [term for run in part.runs if block.classes <= run.pieces[0].classes for term in run.picked]
        linear.row("classes", [(column, 1.0), *((pick, -limit) for pick, _ in here)], high=0)
        # Upper limit of a shrinking trainer and lower limit of all others, in units of the column. Part of a group is
        # not a share: it is filled up or given up.
        had_whole = limit if had == len(block.nodes) else 0 if block.whole else had
        least = limit if block.whole and had else had
        grows = [pick for run in part.runs if run.pieces[0].change > 0 for pick in run.picks]
        stays = [pick for run in part.runs if run.pieces[0].change == 0 for pick in run.picks]
        linear.row("(10)", [(column, 1.0), *((pick, -least) for pick in (*grows, *stays))], low=0)
        linear.row("(10)", [(column, 1.0), *((pick, had_whole - limit) for pick in grows)], high=had_whole)


def _negative(terms: Expression) -> Expression:
    return [(column, -factor) for column, factor in terms]
