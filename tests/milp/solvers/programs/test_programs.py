"""The mixed-integer programs: equal to brute force and to the exact solver, whatever a problem asks for."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milp import Curve, NodeGroup, NodeSpec, Problem, UnsupportedError, solve, verify
from milp.assignments import keep
from milp.running import gurobi, highs
from milp.solvers.programs import counts, nodes
from milp.utility import objective_of
from tests.milp.instances import every_map, is_allowed, one_class_problems, optimum, problems
from tests.support.messages import pattern

pytestmark = pytest.mark.slow

# The default gap of 1e-4 may stop short of the optimum.
EXACT = 1e-9


def close(value: float) -> object:
    return pytest.approx(value, rel=1e-7, abs=1e-6)


@settings(max_examples=250, deadline=None)
@given(one_class_problems())
def test_exact_and_both_programs_on_highs_agree_on_one_class(problem: Problem) -> None:
    best = solve(problem, "exact").objective
    assert solve(problem, "highs", gap=EXACT).objective == close(best)
    assert solve(problem, "highs-nodes", gap=EXACT).objective == close(best)


@pytest.mark.gurobi
@settings(max_examples=60, deadline=None)
@given(one_class_problems())
def test_gurobi_agrees_with_the_exact_solver_on_both_models(problem: Problem) -> None:
    best = solve(problem, "exact").objective
    assert solve(problem, "gurobi", gap=EXACT).objective == close(best)
    assert solve(problem, "gurobi-nodes", gap=EXACT).objective == close(best)


@settings(max_examples=200, deadline=None)
@given(problems())
def test_the_count_model_finds_the_optimum_of_brute_force_with_classes_mixing_caps_and_groups(problem: Problem) -> None:
    plan = solve(problem, "highs", gap=EXACT)
    assert plan.objective == close(optimum(problem))
    assert plan.bound == close(plan.objective)
    verify(problem, plan)
    assert is_allowed(problem, plan.assignment)


@settings(max_examples=120, deadline=None)
@given(problems())
def test_the_node_model_finds_it_too(problem: Problem) -> None:
    plan = solve(problem, "highs-nodes", gap=EXACT)
    assert plan.objective == close(optimum(problem))
    assert is_allowed(problem, plan.assignment)


@pytest.mark.gurobi
@settings(max_examples=60, deadline=None)
@given(problems())
def test_gurobi_finds_it_too(problem: Problem) -> None:
    best = optimum(problem)
    assert solve(problem, "gurobi", gap=EXACT).objective == close(best)
    assert solve(problem, "gurobi-nodes", gap=EXACT).objective == close(best)


@settings(max_examples=100, deadline=None)
@given(problems(), st.booleans(), st.data())
def test_every_allowed_map_is_a_point_of_both_models_worth_what_equation_16_says(
    problem: Problem, sos2: bool, data: st.DataObject
) -> None:
    assignment = data.draw(st.sampled_from(list(every_map(problem))))
    for model in (counts.build(problem, sos2=sos2), nodes.build(problem, sos2=sos2)):
        point = model.point(assignment)
        assert model.linear.violated(point) == set()
        assert model.linear.value(point) == close(objective_of(problem, assignment))
        found = model.assignment(point)
        assert objective_of(problem, found) == close(objective_of(problem, assignment))
        assert is_allowed(problem, found)


@settings(max_examples=200, deadline=None)
@given(problems())
def test_keeping_is_allowed_and_changes_nothing_that_is_allowed(problem: Problem) -> None:
    kept = keep(problem)
    assert is_allowed(problem, kept)
    now = {trainer.name: trainer.current for trainer in problem.trainers}
    for name, nodes_kept in kept.items():
        assert set(nodes_kept) <= set(now[name])
    if is_allowed(problem, now):
        assert kept == now


@pytest.mark.parametrize("engine", [highs, pytest.param(gurobi, marks=pytest.mark.gurobi)])
def test_an_engine_tells_of_an_infeasible_program_and_of_one_without_integers(engine) -> None:
    from milp.solvers.programs.linear import Linear

    empty = Linear()
    column = empty.column(0, 4, objective=2.0)
    empty.row("", [(column, 2.0)], high=3)
    solution = engine.optimise(empty, None, lambda x, bound: None, gap=EXACT, time_limit_s=math.inf)
    assert solution.optimal
    assert solution.x == close((1.5,))
    assert solution.bound == close(3.0)
    empty.row("", [(column, 1.0)], low=2)
    assert engine.optimise(empty, None, lambda x, bound: None, gap=EXACT, time_limit_s=math.inf).infeasible


@pytest.mark.gurobi
def test_a_program_beyond_the_licence_says_so_and_what_to_use(trainer, problem) -> None:
    many = problem(60, *(trainer(f"t{i}") for i in range(60)))
    with pytest.raises(UnsupportedError, match=pattern("milp.gurobi.licence_too_small")):
        solve(many, "gurobi-nodes")


def test_without_gurobipy_the_error_says_what_to_install_and_what_to_use(trainer, problem, monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"'gurobi' is not ready \(pip install 'bftd\[gurobi\]'\): use exact"):
        solve(problem(2, trainer()), "gurobi")


def test_a_shrinking_trainer_does_not_move_onto_a_free_group_for_another(trainer) -> None:
    slow = tuple(NodeSpec(f"s{i}", "slow") for i in range(3))
    leaf = tuple(NodeSpec(f"f{i}", "fast") for i in range(2))
    # `a` may have 2 nodes and holds the three slow ones, which `b` alone can use: were it to move, all would earn.
    first = trainer("a", nodes_max=2, mixes_classes=True, current=("s0", "s1", "s2"))
    second = trainer("b", nodes_min=3, curve=Curve((0, 8), (0.0, 0.8)))
    moving = Problem((*slow, *leaf), (first, second), 100.0, groups=(NodeGroup("leaf", ("f0", "f1")),))
    for solver in ("highs", "highs-nodes"):
        assert solve(moving, solver).counts == {"a": 2, "b": 0}
        assert set(solve(moving, solver).assignment["a"]) < {"s0", "s1", "s2"}
