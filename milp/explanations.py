"""The reason for each trainer's count: one sentence per trainer, in the numbers of equation (16)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from milp.problem import Cap, Problem, TrainerSpec
from milp.utility import outcome, rescale_cost


@dataclass(slots=True)
class _Case:
    """One trainer's part of a plan: its new count, its node classes, and the free nodes that it could take.

    `most` is the largest number of pool nodes that it could ever have, `cap` the cap that keeps it from taking free
    nodes.
    """

    problem: Problem
    trainer: TrainerSpec
    count: int
    classes: Collection[str]
    free: int
    most: int
    cap: str

    @property
    def horizon(self) -> str:
        return f"over the next {self.problem.t_fwd_s:g} s"

    def gain(self, count: int) -> float:
        """Return the gain of `count` nodes over t_fwd against the current ones (which earn nothing below nodes_min)."""
        now = self.problem.t_fwd_s * self.problem.earns_now[self.trainer.name]
        return outcome(self.problem, self.trainer, count, self.classes) - now

    def cost(self, count: int) -> float:
        return rescale_cost(self.problem, self.trainer, count)


def explain(problem: Problem, assignment: Mapping[str, Collection[str]]) -> dict[str, str]:
    """Return one sentence for every trainer: gain over t_fwd against rescale cost, or what stands in the way."""
    free = _free(problem, assignment)
    used = {cap: _used(problem, cap, assignment) for cap in problem.caps}
    said = {}
    for trainer in problem.trainers:
        nodes = assignment[trainer.name]
        classes, idle = _free_for(problem, trainer, nodes, free)
        case = _Case(
            problem=problem,
            trainer=trainer,
            count=len(nodes),
            classes=classes,
            free=idle,
            most=_most(problem, trainer),
            cap="",
        )
        for cap, count in used.items():
            if cap.covers(trainer.user, trainer.account) and cap.nodes_max - count < case.free:
                case.free = cap.nodes_max - count
                case.cap = f"the {cap} is {_nodes(cap.nodes_max)}"
        said[trainer.name] = _explain(case)
    return said


def _most(problem: Problem, trainer: TrainerSpec) -> int:
    """Return the most pool nodes that a trainer could have if it were alone."""
    sizes = [size for name, size in problem.class_sizes.items() if trainer.may_use(name)]
    return sum(sizes) if trainer.mixes_classes else max(sizes, default=0)


def _used(problem: Problem, cap: Cap, assignment: Mapping[str, Collection[str]]) -> int:
    """Count the nodes that the plan gives to trainers that a cap covers."""
    return sum(len(assignment[t.name]) for t in problem.trainers if cap.covers(t.user, t.account))


def _free(problem: Problem, assignment: Mapping[str, Collection[str]]) -> Counter[str]:
    """Count the nodes that the plan gives to no trainer, by class."""
    if len(problem.classes) == 1:
        return Counter({problem.classes[0]: len(problem.nodes) - sum(map(len, assignment.values()))})
    used = {node for nodes in assignment.values() for node in nodes}
    return Counter(node.node_class for node in problem.nodes if node.name not in used)


def _free_for(
    problem: Problem, trainer: TrainerSpec, nodes: Collection[str], free: Counter[str]
) -> tuple[Collection[str], int]:
    """Return the classes that the trainer is on or would best start on, and the number of free nodes of them."""
    if len(problem.classes) <= 1 and not problem.kept_out(trainer):
        return problem.classes, free[problem.classes[0]] if problem.classes else 0
    classes: Collection[str] = problem.classes_of(nodes or trainer.current)
    allowed = tuple(filter(trainer.may_use, problem.classes))
    if trainer.mixes_classes:
        return classes or allowed, sum(free[name] for name in allowed)
    if not classes and allowed:
        classes = {max(allowed, key=lambda name: free[name])}
    return classes, sum(free[name] for name in classes)


def _explain(case: _Case) -> str:
    held = len(case.trainer.current)
    if case.count > held:
        return _grew(case)
    if case.count < held:
        return _shrank(case)
    return _kept(case) if case.count else _waits(case)


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


def _gains(case: _Case, gain: float) -> str:
    return f"gains {gain:.4g} {case.horizon} for a rescale cost of {case.cost(case.count):.4g}"


def _grew(case: _Case) -> str:
    held = len(case.trainer.current)
    verb = f"grows from {held} to {_nodes(case.count)}" if held else f"starts on {_nodes(case.count)}"
    return f"{verb}: {_gains(case, case.gain(case.count))}"


def _shrank(case: _Case) -> str:
    trainer, held = case.trainer, len(case.trainer.current)
    verb = f"shrinks from {held} to {_nodes(case.count)}" if case.count else f"gives up its {_nodes(held)}"
    if held < trainer.nodes_min:
        return f"{verb}: below its nodes_min of {trainer.nodes_min} it cannot train on them"
    if held > trainer.nodes_max:
        return f"{verb}: its nodes_max is {trainer.nodes_max}"
    if not trainer.allows(held):
        return f"{verb}: {held} is none of its sizes"
    if not all(map(trainer.may_use, case.problem.classes_of(trainer.current))):
        return f"{verb}: it may not use nodes of that class"
    if len(case.problem.classes_of(trainer.current)) > 1 and not trainer.mixes_classes:
        return f"{verb}: it may not mix node classes"
    loss, cost = -case.gain(case.count), case.cost(case.count)
    if loss <= 0:
        return f"{verb}: {_gains(case, -loss)}"
    why = case.cap or "other trainers gain more there"
    return f"{verb}: loses {loss:.4g} {case.horizon} and {cost:.4g} rescaling; {why}"


def _kept(case: _Case) -> str:
    trainer, held, free = case.trainer, len(case.trainer.current), case.free
    verb = f"keeps its {_nodes(held)}"
    if held == trainer.largest_allowed(trainer.nodes_max):
        return f"{verb}: that is its largest size"
    if not free:
        return f"{verb}: {case.cap or 'no node is free, and none is worth more here than where it is'}"
    larger = trainer.largest_allowed(held + free)
    if larger <= held:
        return f"{verb}: {case.cap or f'too few are free ({free}) for its next size'}"
    gain, cost = case.gain(larger), case.cost(larger)
    gain_text = f"gain only {gain:.4g}" if gain <= cost else f"gain {gain:.4g}"
    return f"{verb}: growing to {larger} would {gain_text} {case.horizon} for a rescale cost of {cost:.4g}"


def _waits(case: _Case) -> str:
    trainer, smallest = case.trainer, case.trainer.nodes_min
    if trainer.sizes is not None:
        smallest = min(size for size in trainer.sizes if size >= smallest)
    if smallest > case.most:
        where = "pool" if len(case.problem.classes) <= 1 or trainer.mixes_classes else "largest class of nodes"
        where = "part of the pool that it may use" if case.problem.kept_out(trainer) else where
        return f"waits: it needs {_nodes(smallest)}, the {where} has {case.most}"
    if smallest > case.free:
        why = case.cap or f"the trainers that earn more with them leave {case.free}"
        return f"waits: it needs {_nodes(smallest)}, {why}"
    return f"waits: {_nodes(smallest)} would gain {case.gain(smallest):.4g} {case.horizon}"
