"""Trials of trainers on fewer or more nodes for a while, if learning how they scale is worth more than the trial costs.

Such a trainer has no given curve or estimate, and it was seen at one size, or at sizes close together. The worth of
nodes to the others is known as far as their curves are; their worth to the trainer itself depends on its serial part.
The expected gain from deciding with the serial part known is the value of knowing it (Howard, "Information value
theory", 1966). It counts for each second that the map will hold: as long as it has held so far, or until the trainer
ends. It has to outweigh the stalls of two resizes, and what the nodes would have made meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bftd.core.model import messages
from bftd.core.model.decisions import Tried
from bftd.core.model.domain import Assignment, Trainer
from bftd.core.model.draft import Draft
from bftd.core.planning import eta
from bftd.core.planning.caps import Ruling
from bftd.core.scaling import amdahl
from milp import Points, interpolate

# A rate is steady by then: the first second is left out, and steps take seconds at most.
MEASURE_S = 20.0
# No trial is longer, however long nodes take to warm up.
PROBE_MOST_S = 120.0
# Trials of one trainer at most, each at a size of its own unless Slurm took nodes meanwhile.
PROBES_MOST = 3
# All trials together move at most this share of the nodes in use, or one trial as much as it needs.
SHARE_MOST = 0.25
# A trial is on half of the nodes, or on up to this multiple: a few nodes more would tell almost nothing apart.
UP_TO = 4


def over(turn: Draft) -> bool:
    """Whether a trial has ended since the last plan was made."""
    ends = (trainer.probe_until_s for trainer in turn.trainers.values() if trainer.probe_until_s is not None)
    return any(end_s <= turn.now for end_s in ends)


def end(turn: Draft) -> None:
    """End the trials whose time is over."""
    for trainer in list(turn.trainers.values()):
        if trainer.probe_until_s is not None and trainer.probe_until_s <= turn.now:
            turn.change(trainer, probe_nodes=0, probe_until_s=None)


def sizes(turn: Draft, ruling: Ruling) -> dict[str, int]:
    """Return the number of nodes that each trainer is tried on at present, if it may have that many."""
    trainers = (turn.trainers[trainer.id] for trainer in ruling.admitted)
    return {item.id: item.probe_nodes for item in trainers if 0 < item.probe_nodes <= ruling.most[item.id]}


def reasons(turn: Draft) -> dict[str, str]:
    """Return the reason told to trainers that give up nodes for a trial."""
    names = [trainer.name for trainer in turn.trainers.values() if trainer.probe_nodes]
    return dict.fromkeys(turn.trainers, messages.tried(names)) if names else {}


@dataclass(frozen=True, slots=True)
class _Trial:
    """A trainer on `held` nodes that could be tried at `nodes`.

    Knowing how it scales would gain all trainers `gain` per second; the trial costs `cost` once. Both are in the units
    of the objective.
    """

    trainer: Trainer
    held: int
    nodes: int
    gain: float
    cost: float

    @property
    def moved(self) -> int:
        """The number of nodes that change hands."""
        return abs(self.nodes - self.held)


def begin(turn: Draft, ruling: Ruling, held: Assignment, assignment: Assignment, curves: Mapping[str, Points]) -> bool:
    """Begin the trials that are worth it if a plan leaves all as it is. Returns whether there is any."""
    if any(set(assignment.get(id_, ())) != set(held.get(id_, ())) for id_ in assignment.keys() | held.keys()):
        return False
    trainers = [turn.trainers[trainer.id] for trainer in ruling.admitted]
    if any(trainer.probe_nodes for trainer in trainers) or not any(map(_unknown, trainers)):
        return False
    market = _Market(turn, ruling, curves)
    lasts_s = min(MEASURE_S + max(trainer.knowledge.warm_up_s for trainer in trainers), PROBE_MOST_S)
    worth_it = []
    for trainer in filter(_unknown, trainers):
        horizon_s = _horizon_s(turn, trainer)
        trials = [each for each in market.trials(trainer, lasts_s) if each.gain * horizon_s > each.cost]
        worth_it += [max(trials, key=lambda each: each.gain * horizon_s - each.cost)] if trials else []
    allowance, begun = market.allowance, 0
    for trial in sorted(worth_it, key=lambda each: -each.gain):
        if trial.moved > allowance and begun:
            continue
        id_, name = trial.trainer.id, trial.trainer.name
        turn.change(
            trial.trainer,
            probe_nodes=trial.nodes,
            probe_until_s=turn.now + lasts_s,
            probes=trial.trainer.probes + 1,
        )
        turn.say(id_, Tried(name, trial.held, trial.nodes, lasts_s, trial.gain))
        allowance, begun = allowance - trial.moved, begun + 1
    return begun > 0


def _unknown(trainer: Trainer) -> bool:
    """Whether it was seen at its present size, has no given curve or estimate, and was not tried too often."""
    known = trainer.knowledge
    return known.guessed and trainer.probes < PROBES_MOST and any(size == trainer.held for size, _ in known.seen)


def _new(trainer: Trainer, nodes: int) -> bool:
    """Whether it was seen only at sizes clearly different from `nodes`."""
    return all(amdahl.apart(size, nodes) for size, _ in trainer.knowledge.seen)


def _horizon_s(turn: Draft, trainer: Trainer) -> float:
    """Return how long the trainer's nodes can be expected to stay its own: as long as so far, or until it ends."""
    held_s, end_s = turn.now - trainer.held_since_s, eta.expected_end_s(trainer, turn.now)
    return held_s if end_s is None else min(held_s, end_s - turn.now)


class _Market:
    """The worth of nodes to the admitted trainers, and the price at which others would give or take some."""

    def __init__(self, turn: Draft, ruling: Ruling, curves: Mapping[str, Points]) -> None:
        self._trainers = [turn.trainers[trainer.id] for trainer in ruling.admitted]
        self._most = ruling.most
        self._by_samples = turn.settings.decide.objective == "throughput"
        weighted = turn.settings.decide.objective == "priority"
        self._worth = {item.id: self._of(item, curves[item.id], weighted) for item in self._trainers}
        self.allowance = int(SHARE_MOST * sum(item.held for item in self._trainers))

    def _of(self, trainer: Trainer, points: Points, weighted: bool) -> Callable[[int], float]:
        one = interpolate(points, 1)
        scale = 1.0 if self._by_samples else (trainer.request.weight if weighted else 1.0) / one if one > 0 else 0.0
        return lambda nodes: scale * interpolate(points, nodes)

    def trials(self, trainer: Trainer, lasts_s: float) -> list[_Trial]:
        """Return a trainer's trials for which another trainer would take its nodes, or give some."""
        sizes, held = trainer.sizes, trainer.held
        found = []
        fewer = sizes.largest(held // 2)
        if fewer and _new(trainer, fewer) and (price := self._offered(trainer, held - fewer)) > 0:
            lost = self._worth[trainer.id](held) - self._worth[trainer.id](fewer)
            gain = self._knowing(trainer, fewer, lambda loss, nodes: price * nodes + loss)
            found.append(self._trial(trainer, fewer, gain, lost * lasts_s))
        reach = min(UP_TO * held, self._most[trainer.id], held + max(1, self.allowance))
        more = sizes.largest(reach)
        if more > held and _new(trainer, more) and (price := self._asked(trainer, more - held)) < math.inf:
            wanted = {sizes.largest(min(held + step * (more - held), self._most[trainer.id])) for step in (1, 2, 4)}
            gain = max(self._knowing(trainer, size, lambda win, nodes: win - price * nodes) for size in wanted)
            found.append(self._trial(trainer, more, gain, price * (more - held) * lasts_s))
        return found

    def _trial(self, trainer: Trainer, nodes: int, gain: float, lost: float) -> _Trial:
        known, held = trainer.knowledge, trainer.held
        stall_s = known.down_cost_s(max(nodes, held)) + known.up_cost_s(min(nodes, held))
        return _Trial(trainer, held, nodes, gain, lost + 2.0 * stall_s * self._worth[trainer.id](held))

    def _offered(self, trainer: Trainer, nodes: int) -> float:
        """Return the most that another trainer makes of each of `nodes` more nodes; 0 if none may have more."""
        best = 0.0
        for item in self._trainers:
            more = min(nodes, self._most[item.id] - item.held)
            if item.id != trainer.id and more > 0 and item.held:
                best = max(best, (self._worth[item.id](item.held + more) - self._worth[item.id](item.held)) / more)
        return best

    def _asked(self, trainer: Trainer, nodes: int) -> float:
        """Return the least that another trainer loses for each of `nodes` nodes; infinity if none has any to spare."""
        least = math.inf
        for item in self._trainers:
            fewer = min(nodes, item.held - item.sizes.low)
            if item.id != trainer.id and fewer > 0:
                least = min(least, (self._worth[item.id](item.held) - self._worth[item.id](item.held - fewer)) / fewer)
        return least

    def _knowing(self, trainer: Trainer, nodes: int, better: Callable[[float, int], float]) -> float:
        """Return how much more the choice of going to `nodes` is worth if the serial part is known first.

        `better` gives the gain of the choice, from what it adds to the trainer's own worth and how many nodes move.
        """
        weights = amdahl.likely(trainer.knowledge.seen, trainer.knowledge.prior)
        here = self._worth[trainer.id](trainer.held)
        one = self._worth[trainer.id](1)
        chances = []
        for serial in amdahl.SERIAL:
            up, there = amdahl.speed_up(serial, trainer.held), amdahl.speed_up(serial, nodes)
            # samples/s are known at the present size, the speed-up is 1 with one node
            chances.append(better((there - up) * (here / up if self._by_samples else one), abs(nodes - trainer.held)))
        expected = math.fsum(weight * each for weight, each in zip(weights, chances, strict=True))
        knowing = math.fsum(weight * max(0.0, each) for weight, each in zip(weights, chances, strict=True))
        return knowing - max(0.0, expected)
