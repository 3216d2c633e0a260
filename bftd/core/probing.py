"""Trying trainers on fewer nodes for a while, to learn how they scale, where knowing is worth more than the trial.

Nobody has told how such a trainer scales, and it was seen at one size, or at sizes close together. What other trainers
would make of half of its nodes is known as far as their curves are; what it makes of them itself depends on its serial
part. Over what is likely of that part, the gain from deciding with it known is the value of knowing (Howard 1966), a
second of it for each second that the map will hold: as long as it has held by now, or until the trainer ends. It has to
outweigh two resizes and what the nodes would have made meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bftd.core import ending, scaling, sentences
from bftd.core.caps import Ruling
from bftd.core.decisions import Tried
from bftd.core.domain import Assignment, Trainer
from bftd.core.turn import Turn
from milp import Points, interpolate

# A rate is steady by then: the first second is left out, and steps take seconds at most.
MEASURE_S = 20.0
# No trial is longer, however long nodes take to warm up.
PROBE_MOST_S = 120.0
# Trials of one trainer at most: a second one where the first told nothing, as Slurm took nodes meanwhile.
PROBES_MOST = 2
# All trials together leave at least so much of the pool as it is; one alone may be larger.
SHARE_MOST = 0.25


def over(turn: Turn) -> bool:
    """Whether a trial has ended since the last plan was made."""
    ends = (trainer.probe_until_s for trainer in turn.trainers.values() if trainer.probe_until_s is not None)
    return any(end_s <= turn.now for end_s in ends)


def end(turn: Turn) -> None:
    """End the trials whose time is over."""
    for trainer in list(turn.trainers.values()):
        if trainer.probe_until_s is not None and trainer.probe_until_s <= turn.now:
            turn.change(trainer, probe_nodes=0, probe_until_s=None)


def bounded(turn: Turn, trainers: Sequence[Trainer], most: Mapping[str, int]) -> Mapping[str, int]:
    """The most nodes of each trainer, no more than those on which it is tried."""
    now = (turn.trainers[trainer.id] for trainer in trainers)
    tried = {item.id: min(most[item.id], item.probe_nodes) for item in now if item.probe_nodes}
    return {**most, **tried} if tried else most


def said(turn: Turn) -> dict[str, str]:
    """What the trainers are told that give up nodes to be tried on fewer."""
    return {id_: sentences.TRIED for id_, trainer in turn.trainers.items() if trainer.probe_nodes}


@dataclass(frozen=True, slots=True)
class _Trial:
    """A trainer on `held` nodes that could be tried at `nodes`, by which all would gain so much per second."""

    trainer: Trainer
    held: int
    nodes: int
    gain: float
    taker: str


def begin(turn: Turn, ruling: Ruling, held: Assignment, assignment: Assignment, curves: Mapping[str, Points]) -> bool:
    """Begin the trials that are worth it where a plan leaves all as it is; returns whether there is any."""
    if any(set(assignment.get(id_, ())) != set(held.get(id_, ())) for id_ in assignment.keys() | held.keys()):
        return False
    trainers, most = [turn.trainers[trainer.id] for trainer in ruling.admitted], ruling.most
    rates = {trainer.id: _worth(turn, trainer, curves[trainer.id]) for trainer in trainers}
    counts = {trainer.id: len(held.get(trainer.id, ())) for trainer in trainers}
    warm_up_s = max((trainer.knowledge.warm_up_s for trainer in trainers), default=0.0)
    lasts_s = min(warm_up_s + MEASURE_S, PROBE_MOST_S)
    trials = []
    for trainer in trainers:
        if _unknown(trainer, counts):
            trial = _trial(turn, trainer, trainers, rates, counts, most)
            if trial is not None and _pays(turn, trial, rates[trainer.id], lasts_s):
                trials.append(trial)
    room = SHARE_MOST * sum(counts.values()) - sum(
        item.held - item.probe_nodes for item in trainers if item.probe_nodes and item.held > item.probe_nodes
    )
    begun, taking = 0, set[str]()
    for trial in sorted(trials, key=lambda each: -each.gain):
        freed = trial.held - trial.nodes
        alone = not begun and not any(trainer.probe_nodes for trainer in trainers)
        if trial.trainer.id in taking or not (freed <= room or alone):
            continue
        turn.change(
            turn.trainers[trial.trainer.id],
            probe_nodes=trial.nodes,
            probe_until_s=turn.now + lasts_s,
            probes=trial.trainer.probes + 1,
        )
        turn.say(trial.trainer.id, Tried(trial.trainer.name, trial.held, trial.nodes, lasts_s, trial.gain))
        taking.add(trial.taker)
        room -= freed
        begun += 1
    return begun > 0


def _unknown(trainer: Trainer, counts: Mapping[str, int]) -> bool:
    """Whether it was seen where it is, and nowhere from where one could tell how it scales."""
    known, count = trainer.knowledge, counts[trainer.id]
    return (
        known.guessed
        and not trainer.probe_nodes
        and trainer.probes < PROBES_MOST
        and any(size == count for size, _ in known.seen)
        and not scaling.told(known.seen)
    )


def _worth(turn: Turn, trainer: Trainer, points: Points) -> Callable[[int], float]:
    """What so many nodes of the trainer are worth per second, by the objective."""
    objective = turn.settings.decide.objective
    one = interpolate(points, 1)
    scale = 1.0 if objective == "throughput" else 1.0 / one if one > 0 else 0.0
    if objective == "priority":
        scale *= trainer.request.weight
    return lambda nodes: scale * interpolate(points, nodes)


def _trial(
    turn: Turn,
    trainer: Trainer,
    trainers: Sequence[Trainer],
    worth: Mapping[str, Callable[[int], float]],
    counts: Mapping[str, int],
    most: Mapping[str, int],
) -> _Trial | None:
    """At how many nodes it could be tried, and the worth of knowing its serial part per second; None for nothing.

    With the part known, nodes would go to somebody else where that loses less than they make there, or come from
    somebody else where it gains more than they make there.
    """
    count = counts[trainer.id]
    nodes = trainer.sizes.largest(count // 2)
    if not nodes:
        return None
    moved = count - nodes
    takers = {
        item.id: worth[item.id](counts[item.id] + moved) - worth[item.id](counts[item.id])
        for item in trainers
        if item is not trainer and not item.probe_nodes and counts[item.id] + moved <= most[item.id]
    }
    if not takers:
        return None
    taker = max(takers, key=takers.__getitem__)
    taken = takers[taker]
    givers = [
        worth[item.id](counts[item.id]) - worth[item.id](counts[item.id] - moved)
        for item in trainers
        if item is not trainer and counts[item.id] - moved >= item.sizes.low
    ]
    given = min(givers, default=math.inf) if count + moved <= most[trainer.id] else math.inf
    weights = scaling.likely(trainer.knowledge.seen, trainer.knowledge.prior)
    ratios = [[scaling.speed_up(serial, size) for size in (nodes, count, count + moved)] for serial in scaling.SERIAL]
    if turn.settings.decide.objective == "throughput":  # it is known where it is, else with one node
        scales = [worth[trainer.id](count) / here for _, here, _ in ratios]
    else:
        scales = [worth[trainer.id](1)] * len(ratios)
    loses = [scale * (here - fewer) for scale, (fewer, here, _) in zip(scales, ratios, strict=True)]
    gains = [scale * (more - here) for scale, (_, here, more) in zip(scales, ratios, strict=True)]
    gain = _of_knowing(weights, [taken - lost for lost in loses])
    if math.isfinite(given):
        gain += _of_knowing(weights, [got - given for got in gains])
    return _Trial(trainer, count, nodes, gain, taker)


def _of_knowing(weights: Sequence[float], better: Sequence[float]) -> float:
    """How much more a change, `better` by so much, is worth to who knows which of these it is, and may leave it."""
    expected = math.fsum(weight * each for weight, each in zip(weights, better, strict=True))
    knowing = math.fsum(weight * max(0.0, each) for weight, each in zip(weights, better, strict=True))
    return knowing - max(0.0, expected)


def _pays(turn: Turn, trial: _Trial, worth: Callable[[int], float], lasts_s: float) -> bool:
    """Whether what is learned outweighs the trial, for as long as the map can be expected to hold."""
    trainer = trial.trainer
    horizon_s = turn.now - trainer.held_since_s
    end_s = ending.expected_end_s(trainer, turn.now)
    if end_s is not None:
        horizon_s = min(horizon_s, end_s - turn.now)
    knowledge, here = trainer.knowledge, worth(trial.held)
    stall_s = knowledge.down_cost_s(trial.held) + knowledge.up_cost_s(trial.nodes)
    return trial.gain * horizon_s > here * stall_s + (here - worth(trial.nodes)) * lasts_s
