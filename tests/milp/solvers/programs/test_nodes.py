"""The optimum of the node-level model, with every extra constraint, against brute force over all maps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milp import Curve, NodeSpec, Problem, TrainerSpec
from milp.problem import Cap, NodeGroup
from milp.solvers.programs.nodes import NodeModel, build
from milp.solvers.programs.programs import ENGINES
from milp.utility import objective_of

pytestmark = pytest.mark.slow

CLASSES = ("a100", "v100", "h100")
RATES = st.integers(0, 6).map(float) | st.floats(0, 100).map(lambda x: round(x, 7))
SECONDS = st.sampled_from([0.0, 5.0, 30.0]) | st.floats(0, 60).map(lambda x: round(x, 7))
QUIET = settings(max_examples=150, deadline=None)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Up to five nodes and three trainers with every feature there is; the current map may be one no longer allowed."""
    names = [f"n{i}" for i in range(draw(st.integers(0, 5)))]
    nodes = [NodeSpec(name, draw(st.sampled_from(CLASSES))) for name in names]
    if draw(st.booleans()):
        nodes = [NodeSpec(name) for name in names]
    free = draw(st.permutations(names))
    trainers = []
    for index in range(draw(st.integers(1, 3 if len(names) < 5 else 2))):
        held = draw(st.integers(0, len(free)))
        current, free = free[:held], free[held:]
        trainers.append(draw(trainer_specs(f"t{index}", tuple(current))))
    order = draw(st.permutations(names))
    split = draw(st.integers(0, len(order)))
    groups = [NodeGroup(f"g{i}", tuple(part)) for i, part in enumerate((order[:split][:3], order[split:][:2])) if part]
    caps = [Cap(draw(st.integers(0, 5)), user="ann"), Cap(draw(st.integers(0, 5)), account="lab")]
    t_fwd_s = draw(st.sampled_from([0.0, 1.0, 10.0, 120.0]))
    return Problem(
        tuple(nodes),
        tuple(trainers),
        t_fwd_s,
        caps=tuple(caps[: draw(st.integers(0, 2))]),
        groups=tuple(groups[: draw(st.integers(0, 2))]),
    )


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    nodes = sorted(draw(st.sets(st.integers(1, 7), min_size=1, max_size=4)))
    return Curve((0, *nodes), (0.0, *(draw(RATES) for _ in nodes)))


@st.composite
def trainer_specs(draw: st.DrawFn, name: str, current: tuple[str, ...]) -> TrainerSpec:
    low = draw(st.sampled_from([1, 1, 1, 2, 3, 7, 20]))
    high = low + draw(st.integers(0, 5))
    sizes = draw(st.none() | st.sets(st.integers(low, high), min_size=1, max_size=3))
    return TrainerSpec(
        name=name,
        nodes_min=low,
        nodes_max=high,
        up_cost_s=draw(SECONDS),
        down_cost_s=draw(SECONDS),
        curve=draw(curves()),
        current=current,
        sizes=None if sizes is None else tuple(sorted(sizes)),
        weight=draw(st.sampled_from([0.0, 1.0, 1.0, 2.5])),
        class_curves=draw(st.dictionaries(st.sampled_from(CLASSES), curves(), max_size=2)),
        mixes_classes=draw(st.booleans()),
        user=draw(st.sampled_from(["", "ann"])),
        account=draw(st.sampled_from(["", "lab"])),
    )


def every_map(problem: Problem) -> Iterator[dict[str, list[str]]]:
    """Every way to give each node to one trainer or to none, equation (5)."""
    names = [trainer.name for trainer in problem.trainers]
    for owners in itertools.product((None, *names), repeat=len(problem.nodes)):
        yield {
            name: [node.name for node, owner in zip(problem.nodes, owners, strict=True) if owner == name]
            for name in names
        }


def allowed(problem: Problem, assignment: Mapping[str, Sequence[str]], largest_change: float) -> bool:
    """The rules in words, none of them as rows."""
    for trainer in problem.trainers:
        new, old = set(assignment[trainer.name]), set(trainer.current)
        if not trainer.allows(len(new)) or not (new <= old or old <= new):
            return False
        if abs(len(new) - len(old)) > largest_change:
            return False
        if len({problem.class_of[node] for node in new}) > 1 and not trainer.mixes_classes:
            return False
        if any(new & set(group.nodes) and not new >= set(group.nodes) for group in problem.groups):
            return False
    return all(
        sum(len(assignment[t.name]) for t in problem.trainers if cap.covers(t.user, t.account)) <= cap.nodes_max
        for cap in problem.caps
    )


def optimum(problem: Problem, largest_change: float = 99) -> float | None:
    values = [objective_of(problem, one) for one in every_map(problem) if allowed(problem, one, largest_change)]
    return max(values, default=None)


def found(engine: str, problem: Problem, *, paper_big_m: bool = False) -> tuple[NodeModel, tuple[float, ...] | None]:
    """The model and its best point, at a gap of 1e-9; None where no map is allowed."""
    pytest.importorskip({"highs": "highspy", "gurobi": "gurobipy"}[engine])
    model = build(problem, sos2=engine == "gurobi", paper_big_m=paper_big_m)
    solution = ENGINES[engine].optimise(model.linear, None, lambda *_: None, gap=1e-9, time_limit_s=math.inf)
    assert solution.optimal or solution.infeasible
    return model, solution.x


@pytest.mark.parametrize("engine", ENGINES)
@QUIET
@given(problem=problems())
def test_the_optimum_is_the_one_of_brute_force_and_its_map_is_allowed(engine: str, problem: Problem) -> None:
    model, x = found(engine, problem)
    assert x is not None
    assignment = model.assignment(x)
    assert allowed(problem, assignment, 99)
    best = optimum(problem)
    assert model.linear.value(x) == pytest.approx(best, rel=1e-6, abs=1e-5)
    assert objective_of(problem, assignment) == pytest.approx(best, rel=1e-6, abs=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_nodes_min_beyond_all_reason_only_leaves_its_trainer_idle(engine: str, trainer, problem) -> None:
    giant = trainer("giant", nodes_min=10**9, nodes_max=10**9, weight=5.0, current=("n0",))
    model, x = found(engine, problem(5, giant, trainer("a", nodes_max=10**9)))
    assert x is not None
    assert {name: len(nodes) for name, nodes in model.assignment(x).items()} == {"giant": 0, "a": 5}


@pytest.mark.parametrize("engine", ENGINES)
@QUIET
@given(problem=problems())
def test_with_the_papers_big_m_the_optimum_is_the_one_of_its_faults(engine: str, problem: Problem) -> None:
    model, x = found(engine, problem, paper_big_m=True)
    pool = len(problem.nodes)
    has_map = all(trainer.nodes_min <= pool + 1 for trainer in problem.trainers)
    best = optimum(problem, largest_change=(pool + 1) / 2) if has_map else None
    if best is None or x is None:
        assert x is best is None
    else:
        assert model.linear.value(x) == pytest.approx(best, rel=1e-6, abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(problem=problems(), sos2=st.booleans())
def test_a_map_keeps_all_equations_just_where_the_rules_allow_it(problem: Problem, sos2: bool) -> None:
    model = build(problem, sos2=sos2)
    for assignment in every_map(problem):
        point = model.point(assignment)
        assert (model.linear.violated(point) == set()) == allowed(problem, assignment, 99)
        if allowed(problem, assignment, 99):
            assert model.linear.value(point) == pytest.approx(objective_of(problem, assignment), rel=1e-9, abs=1e-6)
            assert model.point(model.assignment(point)) == point
