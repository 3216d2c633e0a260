"""The node-level model against the paper's equations, each worked out by hand on a small problem."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from milp import Curve, NodeSpec, Problem, TrainerSpec
from milp.problem import Cap, NodeGroup
from milp.solvers.programs.nodes import Columns, NodeModel, build

pytestmark = pytest.mark.slow

CURVE = Curve((0, 1, 2, 3), (0.0, 2.0, 5.0, 6.0))


@pytest.fixture
def pair(trainer, problem) -> Problem:
    """Four nodes; `a` of 2 or 3 nodes holds n0 and n1, `b` of 1 to 8 holds n2."""
    a = trainer("a", nodes_min=2, nodes_max=3, curve=CURVE, current=("n0", "n1"))
    return problem(4, a, trainer("b", current=("n2",)))


def changed(model: NodeModel, assignment: Mapping[str, Sequence[str]], **values: float) -> list[float]:
    """The point of a map with some of trainer a's variables set otherwise; x3 and u3 are of node n3, w3 of 3 nodes."""
    point = model.point(assignment)
    columns = model.columns["a"]
    for name, value in values.items():
        point[column_of(columns, name)] = value
    return point


def column_of(columns: Columns, name: str) -> int:
    if name == "rate":
        return columns.curve.rate
    if not name[-1].isdigit():
        number: int = getattr(columns, name)
        return number
    several = {"x": columns.x, "u": columns.u, "w": columns.curve.options[0].weights}
    return several[name[0]][int(name[1:])]


NAMES = ["x0", "x1", "x2", "x3", "count", "y_l", "y_u", "u0", "u1", "u2", "u3", "z", "z_u", "z_d", "stall", "rate"]
STAY = {"a": ["n0", "n1"], "b": ["n2"]}
GROWN = {"a": ["n0", "n1", "n3"], "b": ["n2"]}
SHRUNK = {"a": [], "b": ["n2"]}


@pytest.mark.parametrize("sos2", [False, True])
@pytest.mark.parametrize(
    "assignment",
    [
        STAY,
        {"a": [], "b": []},
        GROWN,
        {"a": [], "b": ["n0", "n1", "n2", "n3"]},
        {"a": ["n0", "n1", "n2"], "b": []},
    ],
)
def test_an_allowed_map_keeps_every_equation(pair: Problem, assignment, sos2: bool) -> None:
    model = build(pair, sos2=sos2)
    assert model.linear.violated(model.point(assignment)) == set()
    assert {name: set(nodes) for name, nodes in model.assignment(model.point(assignment)).items()} == {
        name: set(nodes) for name, nodes in assignment.items()
    }


def test_every_equation_of_the_paper_that_is_a_row_is_there(pair: Problem) -> None:
    equations = {row.equation for row in build(pair, sos2=True).linear.rows}
    assert equations == {"(2)", "(4)", "(5)", "(9)", "(10)", "(11)", "(12)", "(14)", "(15)"}


def test_the_variables_of_a_small_problem_are_those_worked_out_by_hand(pair: Problem) -> None:
    # a grows from n0, n1 to n3 as well; b, on n2, stops.
    model = build(pair, sos2=False)
    x = model.point({"a": ["n0", "n1", "n3"], "b": []})
    a, b = ({name: x[column_of(model.columns[j], name)] for name in NAMES} for j in "ab")
    assert list(a.values()) == [1, 1, 0, 1, 3, 0, 0, 0, 0, 0, 1, 0, 1, 0, 10, 6]
    assert list(b.values()) == [0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 1, 5, 0]
    assert [x[w] for w in model.columns["a"].curve.options[0].weights] == [0, 0, 0, 1, 0]


# A map, trainer a's variables that are wrong in it, and the one equation that says so.
LIES = [
    # N_j = 3 and all that follows from it, but two nodes.
    ("(2)", GROWN, {"x3": 0, "u3": 0}),
    # One node is below nodes_min 2, two are not none, none are not two.
    ("(4)", {"a": ["n0"], "b": ["n2"]}, {}),
    ("(4)", STAY, {"y_l": 1}),
    ("(4)", SHRUNK, {"y_l": 0}),
    # Four are above nodes_max 3.
    ("(4)", {"a": ["n0", "n1", "n2", "n3"], "b": []}, {}),
    ("(4)", {"a": ["n0", "n1", "n2", "n3"], "b": []}, {"y_u": 1}),
    ("(4)", STAY, {"y_u": 1}),
    # n2 works for both.
    ("(5)", {"a": ["n0", "n1", "n2"], "b": ["n2"]}, {}),
    # Nodes that differ and are said not to; then the difference is said to be at another node.
    ("(9)", GROWN, {"u3": 0}),
    ("(9)", SHRUNK, {"u0": 0}),
    ("(9)", GROWN, {"u3": 0, "u2": 1}),
    ("(9)", GROWN, {"u3": 0, "u0": 1}),
    # From n0, n1 to n0, n3: as many nodes, but two differ; and whichever way z_j points.
    ("(10)", {"a": ["n0", "n3"], "b": ["n2"]}, {}),
    ("(10)", {"a": ["n0", "n3"], "b": ["n2"]}, {"z": 1}),
    ("(10)", {"a": ["n0", "n2", "n3"], "b": []}, {}),
    # A gain called a loss, and the other way round.
    ("(10)", GROWN, {"z": 1}),
    ("(10)", SHRUNK, {"z": 0}),
    # The weights must sum to 1 and to N_j, and the rate must be theirs.
    ("(11)", SHRUNK, {"w0": 0.5}),
    ("(11)", STAY, {"w2": 0, "w3": 1, "rate": 6}),
    ("(12)", STAY, {"rate": 6}),
    # Seconds lost by growing and by shrinking; none of it is the solver's to choose.
    ("(14)", GROWN, {"stall": 5}),
    ("(14)", STAY, {"stall": 5}),
    ("(15)", GROWN, {"z_u": 0, "stall": 0}),
    ("(15)", GROWN, {"z_d": 1, "z_u": 0, "stall": 5}),
    ("(15)", SHRUNK, {"z_d": 0, "stall": 0}),
    ("(15)", SHRUNK, {"z_d": 0, "z_u": 1, "stall": 10}),
    ("(15)", STAY, {"z_u": 1, "stall": 10}),
    ("(15)", STAY, {"z_d": 1, "stall": 5}),
]


@pytest.mark.parametrize("sos2", [False, True])
@pytest.mark.parametrize(("equation", "assignment", "values"), LIES)
def test_a_point_with_one_fault_breaks_just_the_equation_that_forbids_it(
    pair: Problem, equation: str, assignment, values, sos2: bool
) -> None:
    model = build(pair, sos2=sos2)
    assert model.linear.violated(changed(model, assignment, **values)) == {equation}


@pytest.mark.parametrize(("x", "current", "u"), list(itertools.product((0, 1), ((), ("n0",)), (0, 1))))
def test_equation_9_is_the_truth_table_of_xor(trainer, problem, x: int, current: tuple[str, ...], u: int) -> None:
    model = build(problem(1, trainer(current=current)), sos2=True)
    point = changed(model, {"a": ["n0"] if x else []}, u0=u)
    assert ("(9)" in model.linear.violated(point)) == (u != (x ^ len(current)))


def test_equations_1_and_13_are_the_counts_and_the_stall_of_every_change(trainer, problem) -> None:
    model = build(problem(4, trainer(current=("n1", "n2"))), sos2=True)
    order = ["n1", "n2", "n0", "n3"]
    points = [model.point({"a": order[:count]}) for count in range(5)]
    columns = model.columns["a"]
    assert [point[columns.count] for point in points] == [0, 1, 2, 3, 4]
    assert [point[columns.stall] for point in points] == [5, 5, 0, 10, 10]
    assert all(model.linear.violated(point) == set() for point in points)


def test_a_trainer_that_holds_nothing_pays_for_its_start_but_is_never_said_to_shrink(trainer, problem) -> None:
    model = build(problem(2, trainer()), sos2=True)
    assert changed(model, {"a": ["n0"]})[model.columns["a"].stall] == 10
    assert model.linear.violated(changed(model, {"a": []}, z_d=1, stall=5)) == {"(15)"}


@pytest.mark.parametrize(("sos2", "equation"), [(True, "sos2"), (False, "(11)")])
def test_weights_on_points_that_are_no_neighbours_are_refused(pair: Problem, sos2: bool, equation: str) -> None:
    # Half of 1 and half of 3 nodes make 2, but 2 and 6 a second make 4, not 5; whatever the segments say.
    model = build(pair, sos2=sos2)
    segments = model.columns["a"].curve.options[0].segments
    assert len(segments) == (0 if sos2 else 4)
    for chosen in itertools.product((0, 1), repeat=len(segments)):
        lie = changed(model, STAY, w1=0.5, w2=0, w3=0.5, rate=4)
        for column, value in zip(segments, chosen, strict=True):
            lie[column] = value
        assert model.linear.violated(lie) == {equation}


def test_a_count_between_points_lies_on_the_straight_line(trainer, problem) -> None:
    model = build(problem(8, trainer(curve=Curve((0, 2, 6, 8), (0.0, 4.0, 6.0, 9.0)))), sos2=False)
    point = model.point({"a": ["n0", "n1", "n2"]})
    option = model.columns["a"].curve.options[0]
    assert [point[w] for w in option.weights] == [0, 0.75, 0.25, 0]
    assert [point[b] for b in option.segments] == [0, 1, 0]
    assert point[model.columns["a"].curve.rate] == 4.5
    assert model.linear.violated(point) == set()


def test_a_curve_is_constant_beyond_its_last_point_and_cut_at_the_pool(trainer, problem) -> None:
    short = build(problem(5, trainer(curve=Curve((0, 2), (0.0, 4.0)))), sos2=True)
    assert short.linear.violated(short.point({"a": ["n0", "n1", "n2", "n3", "n4"]})) == set()
    assert short.columns["a"].curve.options[0].counts == (0, 2, 5)
    long = build(problem(5, trainer(curve=Curve((0, 4, 8, 16), (0.0, 4.0, 6.0, 7.0)))), sos2=True)
    assert long.columns["a"].curve.options[0].counts == (0, 4, 5)
    assert long.point({"a": ["n0", "n1", "n2", "n3", "n4"]})[long.columns["a"].curve.rate] == 4.5


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        # 100 s x (5 + 1) a second, nobody changes.
        (STAY, 600),
        # 100 x (6 + 1) less 10 s of a's 5 a second.
        (GROWN, 650),
        # 100 x 1 less 5 s of a's 5 a second.
        (SHRUNK, 75),
        # 100 x 6 less 10 s of a's 5 and 5 s of b's 1.
        ({"a": ["n0", "n1", "n2"], "b": []}, 545),
    ],
)
def test_equation_16_is_what_is_earned_less_what_is_lost_by_stalling(pair: Problem, assignment, value: float) -> None:
    model = build(pair, sos2=True)
    assert model.linear.value(model.point(assignment)) == pytest.approx(value)


def test_a_trainer_left_below_nodes_min_loses_nothing_by_a_stall_and_a_weight_counts_in_both_terms(
    trainer, problem
) -> None:
    starved = build(problem(4, trainer(nodes_min=2, current=("n0",))), sos2=True)
    assert starved.linear.value(starved.point({"a": ["n0", "n1"]})) == 200
    weighty = build(problem(4, trainer(weight=3.0, current=("n0",))), sos2=True)
    assert weighty.linear.value(weighty.point({"a": ["n0", "n1"]})) == 3 * (200 - 10)


def test_what_a_trainer_holds_comes_first_and_a_shrunk_one_is_in_order_of_preference(trainer, problem) -> None:
    model = build(problem(5, trainer(current=("n3", "n1"))), sos2=True)
    for nodes in (("n3", "n1", "n0", "n4"), ("n3", "n1"), ("n3",), ()):
        assert model.assignment(model.point({"a": nodes})) == {"a": nodes}
    three = build(problem(5, trainer(current=("n3", "n1", "n2"))), sos2=True)
    assert three.assignment(three.point({"a": ("n3", "n1")})) == {"a": ("n1", "n3")}


def test_with_the_papers_big_m_a_trainer_changes_by_at_most_half_the_pool_and_one(trainer, problem) -> None:
    # |N| = 5: (|N| + 1) / 2 = 3 nodes, up from none or down from five.
    for current in ((), ("n0", "n1", "n2", "n3", "n4")):
        asked = problem(5, trainer(current=current))
        paper, right = build(asked, sos2=True, paper_big_m=True), build(asked, sos2=True)
        for count in range(6):
            point = paper.point({"a": [f"n{i}" for i in range(count)]})
            assert paper.linear.violated(point) == ({"(10)"} if abs(count - len(current)) > 3 else set())
            assert right.linear.violated(right.point({"a": [f"n{i}" for i in range(count)]})) == set()


@pytest.mark.parametrize(("nodes_min", "broken"), [(4, set()), (5, {"(4)"})])
def test_with_the_papers_big_m_a_nodes_min_above_the_pool_and_one_allows_no_map(
    trainer, problem, nodes_min: int, broken: set[str]
) -> None:
    asked = problem(3, trainer(nodes_min=nodes_min))
    paper, right = build(asked, sos2=True, paper_big_m=True), build(asked, sos2=True)
    assert paper.linear.violated(changed(paper, {"a": []})) == broken
    assert paper.linear.violated(changed(paper, {"a": []}, y_l=0)) == {"(4)"}
    assert right.linear.violated(right.point({"a": []})) == set()


@pytest.mark.parametrize("count", range(5))
def test_only_listed_sizes_are_allowed(trainer, problem, count: int) -> None:
    model = build(problem(4, trainer(sizes=(1, 3, 8))), sos2=True)
    point = model.point({"a": [f"n{i}" for i in range(count)]})
    assert model.linear.violated(point) == (set() if count in (0, 1, 3) else {"sizes"})


def test_two_sizes_at_once_do_not_add_up_to_a_third(trainer, problem) -> None:
    model = build(problem(4, trainer(sizes=(1, 3))), sos2=True)
    point = model.point({"a": ["n0", "n1", "n2", "n3"]})
    for column in model.columns["a"].sizes.values():
        point[column] = 1
    assert model.linear.violated(point) == {"sizes"}


def test_a_cap_counts_the_nodes_of_all_trainers_that_it_covers(trainer, problem) -> None:
    mine = [trainer(name, user="ann", account="lab") for name in "ab"]
    asked = replace(problem(4, *mine, trainer("c", account="lab")), caps=(Cap(2, user="ann"), Cap(3, account="lab")))
    model = build(asked, sos2=True)
    for counts, broken in (((1, 1, 1), False), ((2, 1, 0), True), ((0, 2, 1), False), ((1, 1, 2), True)):
        free = iter(["n0", "n1", "n2", "n3"])
        point = model.point({name: list(itertools.islice(free, n)) for name, n in zip("abc", counts, strict=True)})
        assert model.linear.violated(point) == ({"caps"} if broken else set())


def test_nodes_of_a_group_go_to_one_trainer_or_to_nobody(trainer, problem) -> None:
    asked = replace(problem(4, trainer("a"), trainer("b")), groups=(NodeGroup("leaf", ("n0", "n2", "n3")),))
    model = build(asked, sos2=True)
    for a, b, broken in (
        (["n0", "n2", "n3"], ["n1"], False),
        (["n1"], [], False),
        (["n0", "n2"], ["n3"], True),
        (["n0", "n2"], [], True),
        (["n3"], [], True),
    ):
        assert model.linear.violated(model.point({"a": a, "b": b})) == ({"groups"} if broken else set())


def on_classes(classes: str, *trainers: TrainerSpec) -> Problem:
    """A node of every class in the word, n0, n1, ..."""
    return Problem(tuple(NodeSpec(f"n{i}", name) for i, name in enumerate(classes)), trainers, 100.0)


SLOW = {"v": Curve((0, 8), (0.0, 4.0))}


def test_a_trainer_is_on_one_class_at_the_rate_of_that_class(trainer) -> None:
    model = build(on_classes("avav", trainer(class_curves=SLOW)), sos2=True)
    for nodes, value in ((["n0", "n2"], 200), (["n1", "n3"], 100), ([], 0)):
        point = model.point({"a": nodes})
        assert model.linear.violated(point) == set()
        assert model.linear.value(point) == value
    assert model.linear.violated(model.point({"a": ["n0", "n1"]})) == {"classes"}


def test_a_trainer_on_a_slow_class_cannot_claim_the_rate_of_a_fast_one(trainer) -> None:
    model = build(on_classes("avav", trainer(class_curves=SLOW)), sos2=True)
    fast, slow = model.point({"a": ["n0", "n2"]}), model.point({"a": ["n1", "n3"]})
    for column in (*model.columns["a"].x, *model.columns["a"].u):
        fast[column] = slow[column]
    assert model.linear.violated(fast) == {"classes"}


def test_a_mixing_trainer_runs_at_the_rate_of_its_slowest_class(trainer) -> None:
    model = build(on_classes("avav", trainer(class_curves=SLOW, mixes_classes=True)), sos2=True)
    for nodes, value in ((["n0", "n2"], 200), (["n0", "n1"], 100), (["n0", "n1", "n2", "n3"], 200)):
        point = model.point({"a": nodes})
        assert model.linear.violated(point) == set()
        assert model.linear.value(point) == value
