"""The paper's node-level model: a binary for every trainer and node, equations (1)-(16) row by row.

Liu et al., "BFTrainer" (arXiv:2106.12091), section 3. Equations (3), (6)-(8) and (13) are not linear, or are
intermediate steps: (4), (10) and (14)-(15) are the paper's linear forms of them. Rows that the paper does not have are
tagged with a word.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from milp.problem import Problem, TrainerSpec
from milp.solvers.programs.curve_rows import CurveColumns, add_curve
from milp.solvers.programs.linear import Linear


@dataclass(frozen=True)
class Columns:
    """The variables of one trainer, named as in the paper, as column numbers; `x` and `u` are indexed by pool node.

    `count` is N_j, `stall` is R_j in seconds, `sizes` are binaries of the allowed sizes if the trainer lists any.
    """

    x: tuple[int, ...]
    count: int
    y_l: int
    y_u: int
    u: tuple[int, ...]
    z: int
    curve: CurveColumns
    z_u: int
    z_d: int
    stall: int
    sizes: Mapping[int, int]


@dataclass(frozen=True)
class NodeModel:
    """The model of a problem, and the conversion of maps to its points and back."""

    problem: Problem
    linear: Linear
    columns: Mapping[str, Columns]

    def assignment(self, x: Sequence[float]) -> dict[str, tuple[str, ...]]:
        """Return the nodes of every trainer at a point: nodes held before in their order, then by preference."""
        assignment = {}
        for trainer in self.problem.trainers:
            chosen = [x[column] > 0.5 for column in self.columns[trainer.name].x]
            used = dict.fromkeys(node.name for node, yes in zip(self.problem.nodes, chosen, strict=True) if yes)
            kept = trainer.current if used.keys() >= set(trainer.current) else ()
            assignment[trainer.name] = tuple(dict.fromkeys((*kept, *used)))
        return assignment

    def point(self, assignment: Mapping[str, Collection[str]]) -> list[float]:
        """Return every variable's value under a map; a forbidden map violates exactly the rows that forbid it."""
        x = [0.0] * len(self.linear.objective)
        for trainer in self.problem.trainers:
            for column, value in self._values(trainer, assignment[trainer.name]).items():
                x[column] = float(value)
        return x

    def _values(self, trainer: TrainerSpec, nodes: Collection[str]) -> dict[int, float]:
        columns = self.columns[trainer.name]
        count, held = len(nodes), len(trainer.current)
        grows, shrinks = count > held, count < held
        pool = self.problem.pool
        return {
            **{columns.x[pool[node]]: 1 for node in nodes},
            **{columns.u[pool[node]]: 1 for node in set(nodes) ^ set(trainer.current)},
            columns.count: count,
            columns.y_l: count == 0,
            columns.z: shrinks,
            **columns.curve.point(count, self.problem.classes_of(nodes)),
            columns.z_u: grows,
            columns.z_d: shrinks,
            columns.stall: trainer.up_cost_s * grows + trainer.down_cost_s * shrinks,
            **{column: 1 for size, column in columns.sizes.items() if size == count},
        }


def build(problem: Problem, *, sos2: bool, paper_big_m: bool = False) -> NodeModel:
    """Build the model of `problem`, with curves as special ordered sets if `sos2`, else with binaries of segments.

    `paper_big_m` takes the paper's M for every row, |N| + 1, to show its faults: no trainer can change by more than
    (|N| + 1) / 2 nodes (10), and none with nodes_min above |N| + 1 can be left idle, so that no map is allowed (4).
    """
    linear = Linear()
    columns = {t.name: _trainer(linear, problem, t, sos2=sos2, paper_big_m=paper_big_m) for t in problem.trainers}
    model = NodeModel(problem, linear, columns)
    _node_allocation(model)
    _objective(model)
    _one_class_set(model)
    _caps(model)
    _groups(model)
    return model


def _trainer(linear: Linear, problem: Problem, trainer: TrainerSpec, *, sos2: bool, paper_big_m: bool) -> Columns:
    # "Sufficiently large (> |N|)", as the paper defines M, is not enough: (10) asks for twice the largest change, and
    # the first row of (4) must bridge nodes_min, which may be above that, to leave a trainer idle.
    big_m = len(problem.nodes) + 1 if paper_big_m else 2 * len(problem.nodes)
    lowest_m = big_m if paper_big_m else max(big_m, trainer.nodes_min)
    x, count = _counts(linear, problem)
    y_l, y_u = _job_size(linear, trainer, count, big_m, lowest_m)
    u = _differences(linear, problem, trainer, x)
    z = _no_migration(linear, trainer, count, u, big_m)
    curve = add_curve(linear, problem, trainer, count, sos2=sos2)
    z_u, z_d, stall = _rescaling(linear, trainer, count, big_m)
    sizes = _sizes(linear, problem, trainer, count)
    return Columns(x, count, y_l, y_u, u, z, curve, z_u, z_d, stall, sizes)


def _counts(linear: Linear, problem: Problem) -> tuple[tuple[int, ...], int]:
    """Add x_jn and N_j, equation (2). C_j of (1) is no variable: it is the length of the trainer's `current`."""
    x = tuple(linear.binary() for _ in problem.nodes)
    count = linear.column(0, len(problem.nodes), integer=True)
    linear.row("(2)", [*((column, 1) for column in x), (count, -1)], low=0, high=0)
    return x, count


def _job_size(linear: Linear, trainer: TrainerSpec, count: int, big_m: int, lowest_m: int) -> tuple[int, int]:
    """Add y_j^l and y_j^u, equation (4), which expresses (3): no nodes, or nodes_min to nodes_max of them.

    The second row is printed with "i - y_j^l", which must be 1 - y_j^l. `lowest_m` is the first row's M; elsewhere a
    large one would only let an engine's rounding of y_j^l pass for a node or more.
    """
    y_l, y_u = linear.binary(), linear.binary()
    linear.row("(4)", [(count, 1), (y_l, lowest_m)], low=trainer.nodes_min)
    linear.row("(4)", [(count, 1), (y_l, big_m)], high=big_m)
    linear.row("(4)", [(count, 1), (y_u, -big_m)], high=trainer.nodes_max)
    linear.row("(4)", [(count, 1), (y_u, big_m)], high=big_m)
    return y_l, y_u


def _node_allocation(model: NodeModel) -> None:
    """Add equation (5): a node works for at most one trainer."""
    for column in zip(*(columns.x for columns in model.columns.values()), strict=True):
        model.linear.row("(5)", [(x, 1) for x in column], high=1)


def _differences(linear: Linear, problem: Problem, trainer: TrainerSpec, x: tuple[int, ...]) -> tuple[int, ...]:
    """Add u_jn, equation (9): whether the new map and the current one differ at the node, x_jn xor c_jn."""
    u = tuple(linear.binary() for _ in x)
    held = set(trainer.current)
    for node, x_n, u_n in zip(problem.nodes, x, u, strict=True):
        c = int(node.name in held)
        linear.row("(9)", [(u_n, 1), (x_n, -1)], high=c)
        linear.row("(9)", [(u_n, 1), (x_n, -1)], low=-c)
        linear.row("(9)", [(u_n, 1), (x_n, 1)], low=c)
        linear.row("(9)", [(u_n, 1), (x_n, 1)], high=2 - c)
    return u


def _no_migration(linear: Linear, trainer: TrainerSpec, count: int, u: tuple[int, ...], big_m: int) -> int:
    """Add z_j, equation (10), which expresses (6): with z_j = 0 all differences are gains, with z_j = 1 all are losses.

    A loss of k nodes makes the first row -k >= k - M, a gain the second k <= M - k: hence M must be 2 |N| or more.
    """
    z = linear.binary()
    held = len(trainer.current)
    linear.row("(10)", [(count, 1), *((column, -1) for column in u), (z, big_m)], low=held)
    linear.row("(10)", [(count, 1), *((column, 1) for column in u), (z, big_m)], high=held + big_m)
    return z


def _rescaling(linear: Linear, trainer: TrainerSpec, count: int, big_m: int) -> tuple[int, int, int]:
    """Add z_j^u, z_j^d and R_j, equations (14) and (15), which express (13): seconds lost by growing or by shrinking.

    (15) leaves the solver no choice: N_j > C_j forces z_j^u = 1 by the first row, N_j <= C_j forces 0 by the second;
    N_j < C_j forces z_j^d = 1 by the fourth, N_j >= C_j, and so C_j = 0, forces 0 by the third. An M of |N| would do.
    (14) is printed with a sum over all trainers, but R_j is one trainer's.
    """
    z_u, z_d = linear.binary(), linear.binary()
    held = len(trainer.current)
    linear.row("(15)", [(count, 1), (z_u, held - big_m)], high=held)
    linear.row("(15)", [(count, 1), (z_u, -(held + 1))], low=0)
    linear.row("(15)", [(count, 1), (z_d, big_m - (held - 1))], high=big_m)
    linear.row("(15)", [(count, 1), (z_d, held)], low=held)
    stall = linear.column(upper=max(trainer.up_cost_s, trainer.down_cost_s))
    linear.row("(14)", [(stall, -1), (z_u, trainer.up_cost_s), (z_d, trainer.down_cost_s)], low=0, high=0)
    return z_u, z_d, stall


def _objective(model: NodeModel) -> None:
    """Set equation (16): all earnings in T^fwd, less those that stalled trainers miss at their current nodes' rate.

    The paper's f_j is its O_j; f_j(C_j) is 0 for a trainer that a preemption left below nodes_min, because it stands
    still.
    """
    problem, linear = model.problem, model.linear
    for trainer in problem.trainers:
        columns = model.columns[trainer.name]
        linear.objective[columns.curve.rate] = problem.t_fwd_s * trainer.weight
        linear.objective[columns.stall] = -problem.earns_now[trainer.name]


def _sizes(linear: Linear, problem: Problem, trainer: TrainerSpec, count: int) -> dict[int, int]:
    """Add a binary for every listed size that fits the pool: the count is the chosen one, or 0 if none is."""
    if trainer.sizes is None:
        return {}
    sizes = {size: linear.binary() for size in trainer.sizes if size <= len(problem.nodes)}
    linear.row("sizes", [*((column, size) for size, column in sizes.items()), (count, -1)], low=0, high=0)
    linear.row("sizes", [(column, 1) for column in sizes.values()], high=1)
    return sizes


def _one_class_set(model: NodeModel) -> None:
    """Restrict a trainer's nodes to classes of its chosen set."""
    for columns in model.columns.values():
        options = columns.curve.options
        for node, x in zip(model.problem.nodes, columns.x, strict=True):
            if len(options) == 1 and node.node_class in options[0].classes:
                continue
            on = [(o.chosen, -1) for o in options if o.chosen is not None and node.node_class in o.classes]
            model.linear.row("classes", [(x, 1), *on], high=0)


def _caps(model: NodeModel) -> None:
    """Limit the trainers of a user or an account together to their cap."""
    for cap in model.problem.caps:
        capped = [trainer for trainer in model.problem.trainers if cap.covers(trainer.user, trainer.account)]
        model.linear.row("caps", [(model.columns[t.name].count, 1) for t in capped], high=cap.nodes_max)


def _groups(model: NodeModel) -> None:
    """Give a trainer all nodes of a group or none."""
    pool = model.problem.pool
    for group in model.problem.groups:
        for columns in model.columns.values():
            for one, next_one in pairwise(group.nodes):
                model.linear.row("groups", [(columns.x[pool[one]], 1), (columns.x[pool[next_one]], -1)], low=0, high=0)
