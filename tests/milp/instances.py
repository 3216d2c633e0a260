"""Random small problems with every feature, and all their allowed maps by brute force."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from milp import Cap, Curve, NodeGroup, NodeSpec, Problem, TrainerSpec
from milp.utility import objective_of

# Maps are enumerated node by node, or count by count where there is but one class.
MOST_NODES = 6
MOST_NODES_OF_ONE_CLASS = 9
# Few distinct numbers make ties and degenerate multipliers common; the awkward ones make rounding visible.
RATES = st.one_of(st.integers(0, 6).map(float), st.floats(0, 100).map(lambda x: round(x, 7)))
SECONDS = st.one_of(st.sampled_from([0.0, 5.0, 30.0]), st.floats(0, 60).map(lambda x: round(x, 7)))


@st.composite
def curves(draw: st.DrawFn, most: int = MOST_NODES) -> Curve:
    """Any shape: concave, convex, dented, falling, flat."""
    nodes = sorted(draw(st.sets(st.integers(1, most + 2), min_size=1, max_size=5)))
    return Curve((0, *nodes), (0.0, *(draw(RATES) for _ in nodes)))


@st.composite
def terms(draw: st.DrawFn, most_min: int, most: int) -> dict[str, Any]:
    """Limits, sizes, costs and weight of a trainer that needs at most `most_min` and uses at most `most` nodes."""
    low = draw(st.integers(1, most_min))
    high = draw(st.integers(low, most))
    sizes = draw(st.none() | st.sets(st.integers(low, high), min_size=1, max_size=3))
    return {
        "nodes_min": low,
        "nodes_max": high,
        "up_cost_s": draw(SECONDS),
        "down_cost_s": draw(SECONDS),
        "sizes": None if sizes is None else tuple(sorted(sizes)),
        "weight": draw(st.sampled_from([0.0, 1.0, 1.0, 1.0, 2.5])),
    }


@st.composite
def one_class_problems(draw: st.DrawFn, max_trainers: int = 4) -> Problem:
    """Small problems; current counts may lie below nodes_min (after a preemption), above nodes_max or between sizes."""
    nodes = [f"n{i}" for i in range(draw(st.integers(0, MOST_NODES_OF_ONE_CLASS)))]
    free = draw(st.permutations(nodes))
    trainers = []
    for index in range(draw(st.integers(0, max_trainers))):
        held = draw(st.integers(0, len(free)))
        current, free = free[:held], free[held:]
        shape = {"curve": draw(curves(MOST_NODES_OF_ONE_CLASS)), "current": tuple(current)}
        trainers.append(TrainerSpec(f"t{index}", **draw(terms(5, MOST_NODES_OF_ONE_CLASS + 1)), **shape))
    t_fwd_s = draw(st.sampled_from([0.0, 1.0, 10.0, 120.0]))
    return Problem(tuple(map(NodeSpec, nodes)), tuple(trainers), t_fwd_s)


@st.composite
def problems(draw: st.DrawFn, max_classes: int = 3, extras: bool = True) -> Problem:
    """Up to three trainers on up to six nodes of several classes; with `extras` also caps, groups and mixing.

    Current maps may break every rule that they can after a preemption or a change of limits: counts below nodes_min or
    above nodes_max, several classes, part of a group, more than a cap allows.
    """
    names = [f"n{i}" for i in range(draw(st.integers(1, MOST_NODES)))]
    classes = "abc"[: draw(st.integers(1, max_classes))]
    nodes = tuple(NodeSpec(name, draw(st.sampled_from(classes))) for name in names)
    free = draw(st.permutations(names))
    trainers = []
    for index in range(draw(st.integers(1, 3))):
        held = draw(st.integers(0, len(free)))
        current, free = free[:held], free[held:]
        trainers.append(
            TrainerSpec(
                name=f"t{index}",
                **draw(terms(3, MOST_NODES + 1)),
                curve=draw(curves()),
                current=tuple(current),
                class_curves={name: draw(curves()) for name in classes if draw(st.booleans())},
                mixes_classes=extras and draw(st.booleans()),
                only_classes=draw(st.none() | st.sets(st.sampled_from("abc"), max_size=2).map(tuple)),
                user=draw(st.sampled_from(["ann", "bob"])),
                account=draw(st.sampled_from(["", "physics"])),
            )
        )
    caps, groups = draw(limits(names)) if extras else ((), ())
    return Problem(nodes, tuple(trainers), draw(st.sampled_from([0.0, 1.0, 10.0, 120.0])), caps, groups)


@st.composite
def limits(draw: st.DrawFn, names: list[str]) -> tuple[tuple[Cap, ...], tuple[NodeGroup, ...]]:
    """Caps of one user, one account, both or nobody, and up to two groups of nodes."""
    caps = [Cap(draw(st.integers(0, 5)), user="ann"), Cap(draw(st.integers(0, 5)), account="physics")]
    shuffled = draw(st.permutations(names))
    cut = sorted(draw(st.lists(st.integers(0, len(names)), min_size=2, max_size=2)))
    parts = [shuffled[: cut[0]], shuffled[cut[0] : cut[1]]]
    groups = tuple(NodeGroup(f"leaf{i}", tuple(part)) for i, part in enumerate(parts) if part and draw(st.booleans()))
    return tuple(cap for cap in caps if draw(st.booleans())), groups


def is_allowed(problem: Problem, assignment: dict[str, tuple[str, ...]]) -> bool:
    """The rules, told once more in the plainest words."""
    for trainer in problem.trainers:
        new, old = set(assignment[trainer.name]), set(trainer.current)
        sized = trainer.sizes is None or len(new) in trainer.sizes
        if new and not (trainer.nodes_min <= len(new) <= trainer.nodes_max and sized):
            return False
        if not (new <= old or new >= old):
            return False
        if not trainer.mixes_classes and len({problem.class_of[node] for node in new}) > 1:
            return False
        if trainer.only_classes is not None and {problem.class_of[node] for node in new} - set(trainer.only_classes):
            return False
        if any(new & set(group.nodes) and not new >= set(group.nodes) for group in problem.groups):
            return False
    for cap in problem.caps:
        mine = [
            t
            for t in problem.trainers
            if (cap.user and t.user == cap.user) or (cap.account and t.account == cap.account)
        ]
        if sum(len(assignment[t.name]) for t in mine) > cap.nodes_max:
            return False
    return True


def every_map(problem: Problem) -> Iterator[dict[str, tuple[str, ...]]]:
    """All allowed maps, node by node."""
    owners = [None, *(trainer.name for trainer in problem.trainers)]
    for choice in itertools.product(owners, repeat=len(problem.nodes)):
        assignment: dict[str, list[str]] = {trainer.name: [] for trainer in problem.trainers}
        for node, owner in zip(problem.nodes, choice, strict=True):
            if owner is not None:
                assignment[owner].append(node.name)
        found = {name: tuple(nodes) for name, nodes in assignment.items()}
        if is_allowed(problem, found):
            yield found


def optimum(problem: Problem) -> float:
    """The best objective of all allowed maps."""
    return max(objective_of(problem, assignment) for assignment in every_map(problem))
