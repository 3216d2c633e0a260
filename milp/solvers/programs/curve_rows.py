"""Equations (11) and (12): a trainer's curve as weights on its points, for each set of classes it may be on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from milp.curves import Curve
from milp.problem import Problem, TrainerSpec
from milp.solvers.programs.linear import Linear
from milp.utility import class_sets


@dataclass(frozen=True)
class CurveOn:
    """The curve for nodes of `classes`: its points N_j^i, their weights w_j^i, the binaries of the segments between.

    `chosen` is the binary that says that the trainer's nodes are of these classes, None if there is no choice.
    `segments` is empty if a special ordered set does their work, or if there is only one.
    """

    classes: frozenset[str]
    curve: Curve
    chosen: int | None
    counts: tuple[int, ...]
    weights: tuple[int, ...]
    segments: tuple[int, ...]

    def point(self, count: int) -> dict[int, float]:
        """Return the nonzero columns when the trainer has `count` nodes of these classes, 0 to the whole pool."""
        end = next(place for place, nodes in enumerate(self.counts) if count <= nodes)
        values = {self.weights[end]: 1.0}
        if end:
            low, high = self.counts[end - 1], self.counts[end]
            share = (count - low) / (high - low)
            values = {self.weights[end - 1]: 1.0 - share, self.weights[end]: share}
        if self.segments:
            values[self.segments[max(end - 1, 0)]] = 1.0
        if self.chosen is not None:
            values[self.chosen] = 1.0
        return values


@dataclass(frozen=True)
class CurveColumns:
    """The columns of a trainer's curve: `rate` is O_j(N_j), unweighted; one of `options` (class sets) is chosen."""

    rate: int
    options: tuple[CurveOn, ...]

    def point(self, count: int, classes: frozenset[str]) -> dict[int, float]:
        """Return the nonzero columns for `count` nodes of exactly `classes`: the fastest option with all of them.

        If no option has them all, so that no map with such nodes is allowed, use an option that has the most of them.
        """
        best = max(self.options, key=lambda option: (len(classes & option.classes), option.curve(count)))
        return {self.rate: best.curve(count), **best.point(count)}


def add_curve(linear: Linear, problem: Problem, trainer: TrainerSpec, count: int, *, sos2: bool) -> CurveColumns:
    """Add the trainer's rate and the rows that tie it to the column `count`, its number of nodes.

    With `sos2` the weights of a curve are a special ordered set of type 2, otherwise binaries of the segments replace
    it.
    """
    choices = class_sets(problem, trainer) or (frozenset[str](),)
    options = tuple(
        _option(linear, problem, trainer, classes, is_choice=len(choices) > 1, sos2=sos2) for classes in choices
    )
    if len(options) > 1:
        linear.row("classes", [(o.chosen, 1.0) for o in options if o.chosen is not None], low=1, high=1)
    for option in options:
        _weights(linear, option, sos2=sos2)
    linear.row("(11)", [*_scaled(options, [o.counts for o in options]), (count, -1.0)], low=0, high=0)
    rate = linear.column(upper=math.inf)
    values = [tuple(map(option.curve, option.counts)) for option in options]
    linear.row("(12)", [*_scaled(options, values), (rate, -1.0)], low=0, high=0)
    return CurveColumns(rate, options)


def _option(
    linear: Linear, problem: Problem, trainer: TrainerSpec, classes: frozenset[str], *, is_choice: bool, sos2: bool
) -> CurveOn:
    curve = trainer.curve_on(classes)
    # The paper's points begin at N_j^min, which leaves none for N_j = 0; a curve's own first point is (0, 0). Its last
    # one may lie within the pool: beyond it the curve is constant.
    top = len(problem.nodes)
    counts = (*(nodes for nodes in curve.nodes if nodes < top), top)
    return CurveOn(
        classes=classes,
        curve=curve,
        chosen=linear.binary() if is_choice else None,
        counts=counts,
        weights=tuple(linear.column() for _ in counts),
        segments=() if sos2 or len(counts) <= 2 else tuple(linear.binary() for _ in counts[1:]),
    )


def _weights(linear: Linear, option: CurveOn, *, sos2: bool) -> None:
    """Make the weights sum to 1 if the option is chosen, and at most two, neighbours, nonzero."""
    total = [(weight, 1.0) for weight in option.weights]
    if option.chosen is None:
        linear.row("(11)", total, low=1, high=1)
    else:
        linear.row("(11)", [*total, (option.chosen, -1.0)], low=0, high=0)
    if sos2 and len(option.weights) > 2:
        linear.sos2.append(option.weights)
    if option.segments:
        linear.row("(11)", [(segment, 1.0) for segment in option.segments], high=1)
        for place, weight in enumerate(option.weights):
            beside = option.segments[max(place - 1, 0) : place + 1]
            linear.row("(11)", [(weight, 1.0), *((segment, -1.0) for segment in beside)], high=0)


def _scaled(options: Sequence[CurveOn], factors: Sequence[Sequence[float]]) -> list[tuple[int, float]]:
    return [
        (weight, factor)
        for option, row in zip(options, factors, strict=True)
        for weight, factor in zip(option.weights, row, strict=True)
    ]
