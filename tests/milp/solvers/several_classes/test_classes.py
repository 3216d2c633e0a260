"""Several node classes: the plan and its bound against brute force on small problems, against `exact` on one class."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milp import Curve, NodeSpec, Problem, TrainerSpec
from milp.solver import Effort
from milp.solvers.one_class.exact import best_counts
from milp.solvers.several_classes.classes import SOLVER
from milp.solvers.several_classes.dual import minimise
from milp.solvers.several_classes.fill import fill, pack
from milp.solvers.several_classes.reduced_cost import within
from milp.solvers.several_classes.search import search
from milp.solvers.several_classes.tables import tabulate
from milp.utility import objective, objective_of
from tests.milp.instances import curves, terms

pytestmark = pytest.mark.slow

MOST_NODES = 7


@st.composite
def problems(draw: st.DrawFn, most_classes: int = 3, most_trainers: int = 3) -> Problem:
    """Maps of one class or several, below nodes_min or above nodes_max; curves alike, of each class, or of some."""
    names = [f"n{i}" for i in range(draw(st.integers(0, MOST_NODES)))]
    classes = [f"c{k}" for k in range(draw(st.integers(1, most_classes)))]
    nodes = tuple(NodeSpec(name, draw(st.sampled_from(classes))) for name in names)
    free = draw(st.permutations(names))
    alike = draw(st.none() | curves())
    trainers = []
    for index in range(draw(st.integers(0, most_trainers))):
        held = draw(st.integers(0, min(3, len(free)))) if draw(st.booleans()) else 0
        current, free = free[:held], free[held:]
        trainers.append(
            TrainerSpec(
                name=f"t{index}",
                **draw(terms(4, MOST_NODES + 1)),
                curve=draw(curves()) if alike is None else alike,
                current=tuple(current),
                class_curves={name: draw(curves()) for name in classes if alike is None and draw(st.booleans())},
            )
        )
    return Problem(nodes, tuple(trainers), draw(st.sampled_from([0.0, 1.0, 10.0, 120.0])))


def _allowed(problem: Problem, trainer: TrainerSpec) -> Iterator[tuple[str, int]]:
    """Every (class, count) of the trainer, straight from the rules: one class, no migration, an allowed count."""
    yield "", 0
    held = [problem.class_of[node] for node in trainer.current]
    for node_class in problem.classes:
        here = held.count(node_class)
        for count in range(1, list(problem.class_of.values()).count(node_class) + 1):
            grows, shrinks = here == len(held) and count >= len(held), count <= here
            if trainer.allows(count) and (grows or shrinks):
                yield node_class, count


def _worth(problem: Problem, trainer: TrainerSpec, node_class: str, count: int) -> float:
    earned = problem.t_fwd_s * trainer.weight * trainer.curve_on({node_class} if count else ())(count)
    change = count - len(trainer.current)
    stall_s = trainer.up_cost_s if change > 0 else trainer.down_cost_s if change < 0 else 0.0
    return earned - problem.earns_now[trainer.name] * stall_s


def best_by_brute_force(problem: Problem) -> float:
    """The largest worth of all plans of one class a trainer."""
    sizes = {name: list(problem.class_of.values()).count(name) for name in problem.classes}
    options = [
        [(name, count, _worth(problem, trainer, name, count)) for name, count in _allowed(problem, trainer)]
        for trainer in problem.trainers
    ]
    best = -float("inf")
    for choice in itertools.product(*options):
        used = {name: sum(count for where, count, _ in choice if where == name) for name in sizes}
        if all(used[name] <= sizes[name] for name in sizes):
            best = max(best, sum(worth for _, _, worth in choice))
    return best


def best_by_full_program(problem: Problem) -> float:
    """The same by dynamic programming over the nodes in use of three classes, nothing left out."""
    sizes = [list(problem.class_of.values()).count(name) for name in problem.classes]
    best = np.zeros([nodes + 1 for nodes in sizes])
    for trainer in problem.trainers:
        after = np.full(best.shape, -np.inf)
        for name, count in _allowed(problem, trainer):
            axis = problem.classes.index(name) if name else 0
            target, source = np.moveaxis(after, axis, 0), np.moveaxis(best, axis, 0)
            worth = _worth(problem, trainer, name, count)
            target[count:] = np.maximum(target[count:], source[: len(source) - count] + worth)
        best = after
    return float(best.max())


def solved(problem: Problem, gap: float = 0.0, time_limit_s: float = math.inf) -> tuple[float, float]:
    """Worth and bound of the solver's plan, after a check of every rule."""
    outcome = SOLVER.run(problem, Effort(gap, time.monotonic() + time_limit_s, time.monotonic))
    used = list(itertools.chain.from_iterable(outcome.assignment.values()))
    assert len(set(used)) == len(used)
    for trainer in problem.trainers:
        nodes = outcome.assignment[trainer.name]
        assert trainer.allows(len(nodes))
        assert len({problem.class_of[node] for node in nodes}) <= 1
        old, new = set(trainer.current), set(nodes)
        assert old <= new or new <= old
    worth = objective_of(problem, outcome.assignment)
    return worth, worth if outcome.bound is None else outcome.bound


def close(value: float) -> object:
    return pytest.approx(value, rel=1e-9, abs=1e-6)


@settings(max_examples=400, deadline=None)
@given(problems())
def test_at_no_gap_the_plan_is_the_one_of_brute_force_and_the_bound_says_so(problem: Problem) -> None:
    best = best_by_brute_force(problem)
    worth, bound = solved(problem)
    assert worth == close(best)
    assert bound == close(best)


@settings(max_examples=200, deadline=None)
@given(problems(), st.sampled_from([1e-4, 0.03, 0.5]))
def test_plan_and_bound_enclose_the_optimum_and_are_as_close_as_asked(problem: Problem, gap: float) -> None:
    best = best_by_brute_force(problem)
    worth, bound = solved(problem, gap)
    assert worth <= best + 1e-6
    assert bound >= best - 1e-6
    assert bound - worth <= gap * max(abs(bound), abs(worth)) + 1e-6


@settings(max_examples=200, deadline=None)
@given(problems(most_classes=6))
def test_with_no_time_at_all_the_plan_is_allowed_the_bound_true_and_keeping_the_map_no_better(problem: Problem) -> None:
    worth, bound = solved(problem, time_limit_s=0.0)
    assert bound >= best_by_brute_force(problem) - 1e-6
    on_one_class = all(len(problem.classes_of(t.current)) <= 1 for t in problem.trainers)
    if on_one_class and all(trainer.allows(len(trainer.current)) for trainer in problem.trainers):
        assert worth >= objective_of(problem, {trainer.name: trainer.current for trainer in problem.trainers}) - 1e-6


@settings(max_examples=200, deadline=None)
@given(problems(most_classes=1, most_trainers=6))
def test_on_one_class_it_finds_what_exact_finds(problem: Problem) -> None:
    names = [trainer.name for trainer in problem.trainers]
    counts = best_counts(problem) if names else []
    worth, _ = solved(problem)
    assert worth == close(objective(problem, dict(zip(names, counts, strict=True))))


@settings(max_examples=100, deadline=None)
@given(problems(), st.integers(1, 3))
def test_a_search_that_drops_beginnings_still_tells_a_true_ceiling(problem: Problem, states: int) -> None:
    if not problem.nodes or not problem.trainers:
        return
    tables, best = tabulate(problem), best_by_brute_force(problem)
    dual = minimise(tables, lambda: False)
    floor = dual.bound - 0.5 * tables.size
    found = search(tables, dual.prices[None, :], floor, states, lambda: False)
    assert found is not None
    assert max(found.ceiling, floor) >= best - 1e-6 - tables.tie_breaks
    if found.plan is not None:
        assert found.plan.total <= best + 1e-6
        assert (found.plan.used(tables.capacity) <= tables.capacity).all()


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_a_search_with_much_left_open_finds_the_optimum_and_one_cut_short_a_ceiling_above_it(
    seed: int, alike: bool
) -> None:
    problem = random_problem(seed, 7, 45, 3, alike=alike)
    tables, best = tabulate(problem), best_by_full_program(problem)
    dual = minimise(tables, lambda: False)
    floor = min(dual.bound - 0.05 * tables.size, best - 0.01 * tables.size)
    prices = np.stack([dual.prices, 1.1 * dual.prices])
    whole = search(tables, prices, floor, 10**6, lambda: False)
    assert whole is not None
    assert whole.plan is not None
    assert whole.plan.total == close(best)
    assert whole.ceiling == close(best)
    for states in (1, 5, 50):
        cut = search(tables, prices, floor, states, lambda: False)
        assert cut is not None
        assert cut.ceiling >= best - 1e-6


@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_the_dual_bound_is_no_higher_than_at_any_prices_around(seed: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    tables = tabulate(random_problem(seed, 12, 120, classes))
    dual = minimise(tables, lambda: False)
    for _ in range(50):
        prices = dual.prices * rng.uniform(0.5, 1.5, classes)
        best = (tables.worths - prices[tables.kinds] * tables.counts).max(axis=1).sum()
        assert best + prices @ tables.capacity >= dual.bound - 2e-7 * tables.size


@pytest.mark.parametrize("seed", range(4))
def test_exactly_the_choices_within_the_slack_survive_fixing(seed: int) -> None:
    problem = random_problem(seed, 8, 60, 3)
    tables = tabulate(problem)
    dual = minimise(tables, lambda: False)
    floor = dual.bound - 0.03 * tables.size
    found = within(tables, dual.prices[None, :], floor)
    place = {name: kind for kind, name in enumerate(problem.classes)}
    expected = set()
    for row, trainer in enumerate(problem.trainers):
        scores = {
            (place.get(name, 0), count): _worth(problem, trainer, name, count) - dual.prices[place.get(name, 0)] * count
            for name, count in _allowed(problem, trainer)
        }
        expected |= {(row, *c) for c, score in scores.items() if max(scores.values()) - score <= dual.bound - floor}
    assert set(zip(found.row.tolist(), found.kind.tolist(), found.count.tolist(), strict=True)) == expected


@pytest.mark.parametrize("seed", range(4))
def test_filling_only_improves_a_plan_and_stays_within_the_pool(seed: int) -> None:
    tables = tabulate(random_problem(seed, 12, 120, 3))
    start = minimise(tables, lambda: True).plan
    filled = fill(tables, start)
    assert filled.total > start.total
    packed = pack(tables, minimise(tables, lambda: False).prices)
    for plan in (filled, packed, fill(tables, packed)):
        assert (plan.used(tables.capacity) <= tables.capacity).all()


@pytest.mark.parametrize(("trainers", "nodes", "classes"), [(35, 800, 3), (20, 300, 2), (25, 400, 6), (12, 4000, 6)])
@pytest.mark.parametrize("alike", [False, True])
def test_larger_problems_get_an_allowed_plan_with_a_true_bound(
    trainers: int, nodes: int, classes: int, alike: bool
) -> None:
    problem = random_problem(7, trainers, nodes, classes, alike=alike)
    worth, bound = solved(problem, 1e-4, time_limit_s=1.0)
    assert worth <= bound * (1 + 1e-9)
    assert bound - worth <= 0.2 * bound


def test_of_two_trainers_the_one_that_gains_more_from_the_fast_class_gets_it(trainer) -> None:
    nodes = tuple(NodeSpec(f"n{i}", "fast" if i < 4 else "slow") for i in range(8))
    four = {"nodes_min": 4, "nodes_max": 4}
    slow = Curve((0, 4), (0.0, 4.0))
    little = trainer("little", curve=slow, class_curves={"fast": Curve((0, 4), (0.0, 5.0))}, **four)
    much = trainer("much", curve=slow, class_curves={"fast": Curve((0, 4), (0.0, 9.0))}, **four)
    outcome = SOLVER.run(Problem(nodes, (little, much), 100.0), Effort(0.0))
    assert outcome.assignment == {"little": ("n4", "n5", "n6", "n7"), "much": ("n0", "n1", "n2", "n3")}


def test_a_trainer_stays_on_the_class_that_it_holds_however_fast_the_other_is(trainer) -> None:
    nodes = (NodeSpec("n0", "slow"), NodeSpec("n1", "slow"), NodeSpec("n2", "fast"))
    held = trainer(current=("n0",), class_curves={"fast": Curve((0, 8), (0.0, 800.0))})
    assert SOLVER.run(Problem(nodes, (held,), 100.0), Effort(0.0)).assignment == {"a": ("n0", "n1")}


def random_problem(seed: int, trainers: int, nodes: int, classes: int, *, alike: bool = False) -> Problem:
    """Dented curves of every class and maps on one; `alike`: the same curve for all and no map, where ties abound."""
    rng = random.Random(seed)
    node_class = [rng.randrange(classes) for _ in range(nodes)]
    free = [[f"n{i}" for i in range(nodes) if node_class[i] == k] for k in range(classes)]

    def curve() -> Curve:
        points = sorted(rng.sample(range(1, 60), 5))
        return Curve((0, *points), (0.0, *(rng.uniform(0, 10) for _ in points)))

    shared = {f"c{k}": curve() for k in range(classes)}
    specs = []
    for index in range(trainers):
        low, kind = 7 if alike else rng.randint(1, 15), rng.randrange(classes)
        held = 0 if alike else rng.randint(0, nodes // trainers)
        current, free[kind] = tuple(free[kind][:held]), free[kind][held:]
        own = shared if alike else {name: curve() for name in shared}
        costs = (30.0, 10.0) if alike else (rng.uniform(0, 60), rng.uniform(0, 20))
        specs.append(TrainerSpec(f"t{index}", low, low + 40, *costs, own["c0"], current, class_curves=own))
    return Problem(tuple(NodeSpec(f"n{i}", f"c{k}") for i, k in enumerate(node_class)), tuple(specs), 60.0)
