"""The independent check of a plan against its problem: only a plan that passes is carried out.

It shares no code with the solvers except equation (16) itself, so a fault in a solver cannot hide here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import get_args

from milp.errors import PlanError
from milp.problem import Plan, Problem, Status
from milp.utility import outcome, relative_gap, rescale_cost

# Summation order moves a sum of floats by far less, a wrong term by far more.
_RELATIVE_TOLERANCE = 1e-9
# A broken plan may break a rule at every node; the message must still fit on a line.
_MOST_VIOLATIONS_TOLD = 5


def verify(problem: Problem, plan: Plan) -> None:
    """Raise `PlanError`, listing the violated rules, unless the problem allows the plan.

    Rules: the plan names exactly the problem's trainers; every node is in the pool and used once (5); counts agree with
    the nodes and are allowed (3); no trainer migrates (6); a trainer's nodes are of classes that it may use, and of one
    class unless it may mix them; caps hold; each group goes whole to one trainer or to none; the objective is that of
    (16) and not above the bound; the gap follows from both.
    """
    violations = list(_name_faults(problem, plan))
    if not violations:
        violations += _node_faults(problem, plan)
        violations += _trainer_faults(problem, plan)
        if len(problem.classes) > 1 or any(trainer.only_classes is not None for trainer in problem.trainers):
            violations += _class_faults(problem, plan)
        violations += _cap_faults(problem, plan)
        violations += _group_faults(problem, plan)
        violations += _objective_faults(problem, plan)
    if violations:
        told = violations[:_MOST_VIOLATIONS_TOLD]
        if len(violations) > len(told):
            told.append(f"and {len(violations) - len(told)} more")
        raise PlanError(tuple(told))


def _name_faults(problem: Problem, plan: Plan) -> Iterator[str]:
    names = {trainer.name for trainer in problem.trainers}
    speaks_of = {"assignment": plan.assignment.keys(), "counts": plan.counts.keys()}
    if plan.reasons:  # empty if sentences were not asked for
        speaks_of["reasons"] = plan.reasons.keys()
    for field, named in speaks_of.items():
        if named != names:
            odd = ", ".join(sorted(named ^ names)[:_MOST_VIOLATIONS_TOLD])
            yield f"{field} and the problem differ in the trainers {odd}"
    if plan.status not in get_args(Status):
        yield f"status {plan.status!r} is none of {', '.join(get_args(Status))}"


def _node_faults(problem: Problem, plan: Plan) -> Iterator[str]:
    left = set(problem.pool)
    left.difference_update(*plan.assignment.values())
    used = sum(map(len, plan.assignment.values()))
    if len(problem.pool) - len(left) == used:  # every assigned node is in the pool and used once
        return
    distinct = Counter(chain.from_iterable(plan.assignment.values()))
    for node, times in distinct.items():
        if times > 1:
            yield f"node {node} is assigned {times} times"
    for node in sorted(distinct.keys() - problem.pool.keys()):
        yield f"node {node} is not in the pool"


def _trainer_faults(problem: Problem, plan: Plan) -> Iterator[str]:
    assignment, counts = plan.assignment, plan.counts
    for trainer in problem.trainers:
        name, held = trainer.name, trainer.current
        nodes = assignment[name]
        if counts[name] != len(nodes):
            yield f"trainer {name} has a count of {counts[name]} but {len(nodes)} nodes"
        if not trainer.allows(len(nodes)):
            yield f"trainer {name} is not allowed a count of {len(nodes)}"
        # One comparison of tuples settles the common cases; the sets are for the rest.
        if nodes[: len(held)] != held:
            old, new = set(held), set(nodes)
            if not (old <= new or new <= old):
                yield f"trainer {name} migrates from {min(old - new)} to {min(new - old)}"


def _class_faults(problem: Problem, plan: Plan) -> Iterator[str]:
    for trainer in problem.trainers:
        classes = {problem.class_of[node] for node in plan.assignment[trainer.name] if node in problem.pool}
        if len(classes) > 1 and not trainer.mixes_classes:
            yield f"trainer {trainer.name} mixes the node classes {', '.join(sorted(classes))}"
        if trainer.only_classes is not None and not classes <= set(trainer.only_classes):
            odd = min(classes.difference(trainer.only_classes))
            yield f"trainer {trainer.name} may not use nodes of the class {odd!r}"


def _cap_faults(problem: Problem, plan: Plan) -> Iterator[str]:
    for cap in problem.caps:
        covered = [t.name for t in problem.trainers if (t.user == cap.user if cap.user else t.account == cap.account)]
        total = sum(len(plan.assignment[name]) for name in covered)
        if total > cap.nodes_max:
            yield f"the {cap} allows {cap.nodes_max} nodes but its trainers get {total}"


def _group_faults(problem: Problem, plan: Plan) -> Iterator[str]:
    for group in problem.groups:
        together = set(group.nodes)
        for name, nodes in plan.assignment.items():
            if 0 < len(together.intersection(nodes)) < len(together):
                yield f"trainer {name} gets part of the group {group.name}"


def _objective_faults(problem: Problem, plan: Plan) -> Iterator[str]:
    if not (math.isfinite(plan.objective) and math.isfinite(plan.bound)):
        yield f"objective {plan.objective} and bound {plan.bound} must be finite"
        return
    earned = lost = 0.0
    for trainer in problem.trainers:
        nodes = plan.assignment[trainer.name]
        earned += outcome(problem, trainer, len(nodes), problem.classes_of(nodes))
        lost += rescale_cost(problem, trainer, len(nodes))
    expected = earned - lost
    tolerance = _RELATIVE_TOLERANCE * (earned + lost)
    if abs(plan.objective - expected) > tolerance:
        yield f"objective is said to be {plan.objective:.9g} but is {expected:.9g}"
    if plan.bound < plan.objective - tolerance:
        yield f"bound {plan.bound:.9g} is below the objective {plan.objective:.9g}"
    gap = relative_gap(plan.objective, plan.bound)
    if not abs(plan.gap - gap) <= _RELATIVE_TOLERANCE:
        yield f"gap is said to be {plan.gap:.3g} but is {gap:.3g}"
