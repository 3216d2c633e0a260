"""Learning a trainer's scaling curve and resize costs from what its driver reports.

Pure: a `ScalingModel` in, a `ScalingModel` out. The curve starts from the user's own, from an estimate or from how
trainers of this site scale (`bftd.core.scaling.amdahl`). Every size at which the trainer was seen running replaces the
guess there and bends it elsewhere.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from bftd.core.scaling import amdahl, resize_cost
from bftd.core.scaling.amdahl import Weights
from bftd.core.scaling.resize_cost import Stall
from bftd.protocol import bounds
from bftd.protocol.curves import CurveEstimate
from bftd.protocol.registration import Registration
from bftd.protocol.reports import ResizeReport
from milp import Points, interpolate

# Weight of the newest throughput report: one odd window moves the curve by a third, three in a row by two thirds.
RATE_WEIGHT = 0.35
# Warm-ups remembered; their median forgets a single slow start and follows a lasting change within three.
WARM_UPS_KEPT = 5
# Sizes remembered: a curve through this many points is as good as one through all.
SIZES_KEPT = 64
# Costs assumed before any resize was seen, in seconds: listing warm workers, and a shrink that re-forms the ring. The
# time to save and load a checkpoint comes on top as soon as a save was measured.
UNKNOWN_UP_COST_S = 2.0
UNKNOWN_DOWN_COST_S = 1.0
# From the grant of a node to its first step: placing the pilot and importing torch, before any was seen.
UNKNOWN_WARM_UP_S = 10.0


@dataclass(frozen=True, slots=True)
class ScalingModel:
    """The knowledge about one trainer: what its user has `given`, the rates `seen`, and the stalls measured.

    `given` and `seen` are (nodes, samples/s), nodes increasing; costs and stalls are in seconds. `seen` is of the class
    of nodes where it ran last, `node_class`, and `elsewhere` has the rates seen on other classes. `save_s` is how long
    a save takes, None if a resize needs none or none was measured, and `state_bytes` is 0 if unknown.
    `last_resize` is its driver's report of the last one, crashes left out. `estimates` are by class of nodes. `prior`
    is how trainers here scaled before it came.
    """

    given: Points = ()
    seen: Points = ()
    given_up_cost_s: float | None = None
    given_down_cost_s: float | None = None
    given_warm_up_s: float | None = None
    up_stalls: tuple[Stall, ...] = ()
    down_stalls: tuple[Stall, ...] = ()
    warm_ups_s: tuple[float, ...] = ()
    resumes_s: tuple[float, ...] = ()
    save_s: float | None = None
    state_bytes: float = 0.0
    last_resize: ResizeReport | None = None
    node_class: str = ""
    elsewhere: Mapping[str, Points] = field(default_factory=dict)
    estimates: Mapping[str, CurveEstimate] = field(default_factory=dict)
    prior: Weights = ()

    @property
    def guessed(self) -> bool:
        """Whether neither a curve nor an estimate is given, so that rates are guessed at sizes not yet seen."""
        return not self.given and not self.estimates

    @property
    def by_class(self) -> bool:
        """Whether its speed is known on several classes of nodes; otherwise all classes are assumed to be as fast."""
        return bool(self.elsewhere) or len(self.estimates) > 1

    def seen_on(self, node_class: str) -> Points:
        """Return the rates seen on a class of nodes; for a class where it never ran, those of its last class."""
        return self.elsewhere.get(node_class, self.seen) if node_class != self.node_class else self.seen

    def estimated_on(self, node_class: str) -> Points:
        """Return the estimate for a class of nodes, () if there is none; for "", the unknown class, the slowest one."""
        if not self.estimates:
            return ()
        if node_class not in self.estimates:
            if node_class and len(self.estimates) > 1:
                return ()
            return min((each.points for each in self.estimates.values()), key=lambda points: interpolate(points, 1))
        return self.estimates[node_class].points

    def up_cost_s(self, nodes: int) -> float:
        """Return R_j^up of the paper at this size: from the last grow stalls, else as the user said, else a guess."""
        return self._cost_s(self.up_stalls, self.given_up_cost_s, UNKNOWN_UP_COST_S, nodes)

    def down_cost_s(self, nodes: int) -> float:
        """Return R_j^dw of the paper at this size: from the last shrink stalls, else as the user said, else a guess."""
        return self._cost_s(self.down_stalls, self.given_down_cost_s, UNKNOWN_DOWN_COST_S, nodes)

    def _cost_s(self, seen: tuple[Stall, ...], given_s: float | None, unknown_s: float, nodes: int) -> float:
        # a checkpoint is saved before workers end and loaded by the next ones, which takes about as long
        guess_s = None if self.save_s is None else unknown_s + 2.0 * self.save_s
        if seen:
            return resize_cost.cost_s(seen, nodes, self.state_bytes, guess_s)
        if given_s is not None:
            return given_s
        return unknown_s if guess_s is None else guess_s

    @property
    def warm_up_s(self) -> float:
        """Seconds from a node's grant to its part in training: the median of the last, else as given, else a guess."""
        if self.warm_ups_s:
            return statistics.median(self.warm_ups_s)
        return UNKNOWN_WARM_UP_S if self.given_warm_up_s is None else self.given_warm_up_s

    @property
    def resume_s(self) -> float:
        """The same for a start from suspension, which loads a checkpoint; a guess if none was seen."""
        return statistics.median(self.resumes_s) if self.resumes_s else self.warm_up_s + (self.save_s or 0.0)

    @property
    def rate_per_node(self) -> float | None:
        """Median samples/s of one node over the sizes seen, given or estimated; None if nothing is known.

        If the rate was seen, but neither a curve nor an estimate is given, it is the expected rate of one node alone.
        """
        if self.seen and self.guessed:
            size, rate = self.seen[0]
            return rate / amdahl.expected(amdahl.likely(self.seen, self.prior), size)
        known = self.seen or self.given or self.estimated_on(self.node_class)
        points = [(nodes, rate) for nodes, rate in known if nodes > 0 and rate > 0]
        return statistics.median(rate / nodes for nodes, rate in points) if points else None


def given(request: Registration, prior: Weights = ()) -> ScalingModel:
    """Return the knowledge that a trainer's user gives; `prior` is how trainers here have scaled so far."""
    return ScalingModel(
        given=request.curve,
        given_up_cost_s=request.up_cost_s,
        given_down_cost_s=request.down_cost_s,
        given_warm_up_s=request.warm_up_s,
        estimates=_by_class(request.estimates),
        prior=prior,
    )


def given_again(knowledge: ScalingModel, request: Registration) -> ScalingModel:
    """Return the knowledge once a driver has come back: its new word on the speed counts, measurements stay."""
    learned = replace(knowledge, given=request.curve or knowledge.given)
    return observe_estimates(learned, request.estimates) if request.estimates else learned


def observe_estimates(knowledge: ScalingModel, estimates: Iterable[CurveEstimate]) -> ScalingModel:
    """Replace the estimates of the trainer's speed."""
    return replace(knowledge, estimates=_by_class(estimates))


def _by_class(estimates: Iterable[CurveEstimate]) -> dict[str, CurveEstimate]:
    return {estimate.node_class: estimate for estimate in estimates}


def observe_rate(
    knowledge: ScalingModel,
    nodes: int,
    samples_per_s: float,
    nodes_max: int = bounds.NODES_MOST,
    node_class: str = "",
) -> ScalingModel:
    """Add one report of `samples_per_s` at a constant size of `nodes`.

    Values that make no sense change nothing. Neither does a size above `nodes_max`, at which the trainer cannot have
    run. If SIZES_KEPT are known, a new one replaces the nearest. `node_class` is the class of the nodes if the pool has
    several.
    """
    if not 1 <= nodes <= nodes_max or not math.isfinite(samples_per_s) or samples_per_s <= 0:
        return knowledge
    if node_class and node_class != knowledge.node_class:
        knowledge = _moved(knowledge, node_class)
    seen, point, replaced = knowledge.seen, (nodes, samples_per_s), 0
    at = bisect_left(seen, (nodes, 0.0))
    if at < len(seen) and seen[at][0] == nodes:
        before = seen[at][1]
        point, replaced = (nodes, before + RATE_WEIGHT * (samples_per_s - before)), 1
    elif len(seen) >= SIZES_KEPT:
        neighbours = (near for near in (at - 1, at) if 0 <= near < len(seen))
        at, replaced = min(neighbours, key=lambda near: _apart(seen[near][0], nodes)), 1
    return replace(knowledge, seen=(*seen[:at], point, *seen[at + replaced :]))


def _moved(knowledge: ScalingModel, node_class: str) -> ScalingModel:
    """Return the knowledge once the trainer runs on another class.

    Rates that were seen before any class was named count as seen on this one.
    """
    if not knowledge.node_class:
        return replace(knowledge, node_class=node_class)
    known = {**knowledge.elsewhere, knowledge.node_class: knowledge.seen}
    seen = known.pop(node_class, ())
    return replace(knowledge, seen=seen, node_class=node_class, elsewhere=known)


def observe_resize(knowledge: ScalingModel, report: ResizeReport) -> ScalingModel:
    """Add one resize whose stall was measured.

    Crashes, starts from nothing and stops are not resize costs, so they change nothing. If Slurm took nodes there was
    no time to save; but a plan is charged for a resize that saves first, so the time of a save is added.
    """
    stall_s, nodes = report.stall_s, report.from_nodes
    if report.kind == "crash" or stall_s is None or min(nodes, report.to_nodes) < 1:
        return knowledge
    if not math.isfinite(stall_s) or stall_s < 0:
        return knowledge
    known = replace(observe_state(knowledge, None, report.state_bytes), last_resize=report)
    if report.save_s == 0 and known.save_s is not None:
        stall_s += known.save_s
    stall = (nodes, known.state_bytes, stall_s)
    if report.to_nodes > nodes:
        return replace(known, up_stalls=resize_cost.added(known.up_stalls, stall))
    return replace(known, down_stalls=resize_cost.added(known.down_stalls, stall))


def observe_state(knowledge: ScalingModel, save_s: float | None, state_bytes: float | None) -> ScalingModel:
    """Note how long saves take and how large a checkpoint is; None, and a size of 0, mean unknown."""
    if save_s is None or not math.isfinite(save_s) or save_s < 0:
        save_s = knowledge.save_s
    if state_bytes is None or not math.isfinite(state_bytes) or state_bytes <= 0:
        state_bytes = knowledge.state_bytes
    if (save_s, state_bytes) == (knowledge.save_s, knowledge.state_bytes):
        return knowledge
    return replace(knowledge, save_s=save_s, state_bytes=state_bytes)


def observe_warm_up(knowledge: ScalingModel, duration_s: float) -> ScalingModel:
    """Add one node's time from grant to first step."""
    warm_ups_s = _with(knowledge.warm_ups_s, duration_s)
    return knowledge if warm_ups_s == knowledge.warm_ups_s else replace(knowledge, warm_ups_s=warm_ups_s)


def observe_resume(knowledge: ScalingModel, duration_s: float) -> ScalingModel:
    """Add one start from suspension: the time from the grant of its first node to its first step."""
    return replace(knowledge, resumes_s=_with(knowledge.resumes_s, duration_s))


def _with(durations_s: tuple[float, ...], duration_s: float) -> tuple[float, ...]:
    """Return the last durations with one more, unless it makes no sense."""
    if not math.isfinite(duration_s) or duration_s < 0:
        return durations_s
    return (*durations_s, duration_s)[-WARM_UPS_KEPT:]


def curve(
    knowledge: ScalingModel, nodes_max: int, guess_per_node: float = 1.0, node_class: str | None = None
) -> Points:
    """Return the scaling curve (nodes, samples/s), from (0, 0) to `nodes_max`, non-decreasing, piecewise linear.

    `guess_per_node` is the rate of one node of a trainer about which nothing is known. Without a `node_class` it is the
    curve of the class where the trainer ran last.
    """
    name = knowledge.node_class if node_class is None else node_class
    seen = knowledge.seen_on(name)
    if not knowledge.estimates or knowledge.given:
        return _curve(knowledge.given, seen, (), nodes_max, guess_per_node, knowledge.prior)
    estimate = knowledge.estimated_on(name)
    if estimate and name not in (knowledge.node_class, *knowledge.elsewhere):
        # it never ran there: scale the estimate by the ratio of seen to estimated rates elsewhere
        level = _level(knowledge)
        estimate, seen = tuple((nodes, min(rate * level, bounds.NUMBER_MOST)) for nodes, rate in estimate), ()
    return _curve((), seen, estimate, nodes_max, guess_per_node)


def _level(knowledge: ScalingModel) -> float:
    """Return the ratio of seen to estimated rates: the median over all sizes and classes with both, 1 without any."""
    everywhere = {**knowledge.elsewhere, knowledge.node_class: knowledge.seen}
    pairs = ((seen, knowledge.estimated_on(name)) for name, seen in everywhere.items())
    ratios = [ratio for seen, estimate in pairs if seen and estimate for _, ratio in _ratios(seen, estimate)]
    return statistics.median(ratios) if ratios else 1.0


def _ratios(seen: Points, estimate: Points) -> list[tuple[int, float]]:
    """Return the ratio of each rate seen to its estimate."""
    return [(nodes, rate / _shape_at(estimate, nodes)) for nodes, rate in seen]


def learned(knowledge: ScalingModel, nodes_max: int) -> Points:
    """Return the curve of the class where it ran last, () if its speed is unknown and a plan takes a guess."""
    return () if knowledge.rate_per_node is None else curve(knowledge, nodes_max)


def efficiency(knowledge: ScalingModel, nodes_max: int, nodes: int, rate: float) -> float | None:
    """Return the rate on `nodes` nodes relative to as many single ones, by the learned curve; None if undefined."""
    alone = interpolate(known, 1) if (known := learned(knowledge, nodes_max)) else 0.0
    return rate / (nodes * alone) if nodes and rate > 0 and alone > 0 else None


def curves_on(knowledge: ScalingModel, nodes_max: int, node_classes: Iterable[str]) -> tuple[dict[str, Points], float]:
    """Return a trainer's curves on one or more classes of nodes, and the one-node rate of the fastest class."""
    guess = median_rate_per_node((knowledge,))
    curves = {name: curve(knowledge, nodes_max, guess, name) for name in node_classes}
    return curves, max(interpolate(points, 1) for points in curves.values())


@lru_cache(maxsize=1 << 10)
def _curve(
    given: Points, seen: Points, estimate: Points, nodes_max: int, guess_per_node: float, prior: Weights = ()
) -> Points:
    """Return the curve through what is known. It is cached because every plan needs that of every trainer."""
    sizes = {2**power for power in range(nodes_max.bit_length()) if 2**power <= nodes_max}
    sizes |= {nodes for nodes, _ in (*given, *seen, *estimate) if 0 < nodes <= nodes_max} | {nodes_max}
    ordered = sorted(sizes)
    if estimate:
        rated = [_bent(estimate, seen, nodes) for nodes in ordered]
    elif given:
        rated = [_rate_at(given, seen, nodes) for nodes in ordered]
    else:
        weights = amdahl.likely(seen, prior)
        rated = [_guessed_at(seen or ((1, guess_per_node),), nodes, weights) for nodes in ordered]
    # what is seen may be any multiple of what was told: no number beyond its bound may reach a solver
    rates = _non_decreasing(min(rate, bounds.NUMBER_MOST) for rate in rated)
    return ((0, 0.0), *zip(ordered, rates, strict=True))


def median_rate_per_node(all_knowledge: Iterable[ScalingModel]) -> float:
    """Return the median samples/s of one node over the trainers that know something, 1.0 if none does."""
    known = [value for value in (knowledge.rate_per_node for knowledge in all_knowledge) if value is not None]
    return statistics.median(known) if known else 1.0


def _rate_at(shape: Points, seen: Points, nodes: int) -> float:
    """Return the rate at one size: the user's shape scaled to pass through every size seen."""
    if not seen:
        return _shape_at(shape, nodes)
    (first_nodes, first_rate), (last_nodes, last_rate) = seen[0], seen[-1]
    if nodes < first_nodes:
        return first_rate * _relative(shape, nodes, first_nodes)
    if nodes <= last_nodes:
        return interpolate(seen, nodes) if len(seen) > 1 else last_rate
    return last_rate * _relative(shape, nodes, last_nodes)


def _guessed_at(seen: Points, nodes: int, weights: Weights) -> float:
    """Return the rate at a size without a given curve: through every size seen, elsewhere by likely serial parts.

    Between two sizes the time of a sample is linear in 1 / nodes, as under Amdahl's law.
    """
    at = bisect_left(seen, (nodes, 0.0))
    if at == 0 or at == len(seen):
        size, rate = seen[min(at, len(seen) - 1)]
        return rate * amdahl.expected(weights, nodes) / amdahl.expected(weights, size)
    (low, slow), (high, fast) = seen[at - 1], seen[at]
    part = (1.0 / nodes - 1.0 / high) / (1.0 / low - 1.0 / high)
    return 1.0 / (part / slow + (1.0 - part) / fast)


def _bent(estimate: Points, seen: Points, nodes: int) -> float:
    """Return the estimate at one size, corrected by the ratios of seen to estimated rates.

    Outside the sizes seen, the ratio is that of the nearest. Between two, it is interpolated in the logarithm of the
    size, so that the curve passes through each rate seen without a step beside it.
    """
    rate = _shape_at(estimate, nodes)
    if not seen:
        return rate
    ratios = [(math.log(size), ratio) for size, ratio in _ratios(seen, estimate)]
    at = bisect_left(ratios, (math.log(nodes), 0.0))
    if at == 0 or at == len(ratios):
        return rate * ratios[min(at, len(ratios) - 1)][1]
    (before, low), (after, high) = ratios[at - 1], ratios[at]
    return rate * (low + (high - low) * (math.log(nodes) - before) / (after - before))


def _apart(one: int, other: int) -> float:
    """Return the distance of two sizes, as the ratio of the larger to the smaller."""
    return max(one, other) / min(one, other)


def _relative(shape: Points, nodes: int, reference: int) -> float:
    """Return the speed of `nodes` nodes relative to `reference` by the shape; linear where the shape says nothing."""
    at_reference = _shape_at(shape, reference)
    return _shape_at(shape, nodes) / at_reference if at_reference > 0 else nodes / reference


def _shape_at(shape: Points, nodes: int) -> float:
    """Return the rate of a shape through the origin, continued beyond its last point with its fitted efficiency."""
    last_nodes, last_rate = shape[-1]
    if nodes <= last_nodes:
        return interpolate(((0, 0.0), *(point for point in shape if point[0] > 0)), nodes)
    return float(last_rate * (nodes / last_nodes) ** _efficiency(shape))


def _efficiency(points: Points) -> float:
    """Return the exponent e of rate ~ nodes**e, a least-squares fit on logarithms, within [0, 1]; 1 for one point."""
    logs = [(math.log(nodes), math.log(rate)) for nodes, rate in points if nodes > 0 and rate > 0]
    if len(logs) < 2:
        return 1.0
    slope, _ = statistics.linear_regression([x for x, _ in logs], [y for _, y in logs])
    return min(1.0, max(0.0, slope))


def _non_decreasing(rates: Iterable[float]) -> list[float]:
    """Return the closest non-decreasing sequence in the least-squares sense (pool adjacent violators)."""
    blocks: list[tuple[float, int]] = []
    for value in rates:
        block = (value, 1)
        while blocks and blocks[-1][0] > block[0]:
            mean, size = blocks.pop()
            block = ((mean * size + block[0] * block[1]) / (size + block[1]), size + block[1])
        blocks.append(block)
    return [mean for mean, size in blocks for _ in range(size)]
