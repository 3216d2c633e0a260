"""The allocation problem and its answer: a trainer for each node of the pool until the next event.

Liu et al., "BFTrainer" (arXiv:2106.12091), section 3. Everything here is immutable and checks itself when it is built,
so a solver never meets a malformed problem.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, combinations
from operator import attrgetter
from typing import Literal

from milp import fields
from milp.curves import Curve, slowest
from milp.errors import ProblemError

Status = Literal["optimal", "feasible", "kept"]


@dataclass(frozen=True)
class NodeSpec:
    """One node of the pool; nodes of the same `node_class` (such as a GPU type) are interchangeable."""

    name: str
    node_class: str = ""

    def __post_init__(self) -> None:
        fields.text("node: name", self.name)
        fields.text(f"node {self.name}: class", self.node_class, empty=True)


@dataclass(frozen=True)
class TrainerSpec:
    """One elastic trainer: the nodes it may use, their worth to it, and the nodes it holds.

    It runs on 0 or nodes_min..nodes_max nodes (N_j^min, N_j^max); if `sizes` is given, only on those of them. A change
    of size stalls it for `up_cost_s` or `down_cost_s` (R_j^up, R_j^dw). `current` lists the pool nodes that it holds
    now (c_jn), possibly fewer than nodes_min after a preemption. `weight` multiplies its part of the objective.

    `class_curves` holds the curves of node classes on which it is faster or slower than `curve` says. All its nodes are
    of one class, unless `mixes_classes`: then it runs at the rate of its slowest class. If `only_classes` is given, it
    gets only nodes of these classes. It counts towards the caps of `user` and `account`.
    """

    name: str
    nodes_min: int
    nodes_max: int
    up_cost_s: float
    down_cost_s: float
    curve: Curve
    current: tuple[str, ...] = ()
    sizes: tuple[int, ...] | None = None
    weight: float = 1.0
    class_curves: Mapping[str, Curve] = field(default_factory=dict)
    mixes_classes: bool = False
    only_classes: tuple[str, ...] | None = None
    user: str = ""
    account: str = ""

    def __post_init__(self) -> None:
        fields.text("trainer: name", self.name)
        here = f"trainer {self.name}"
        fields.whole(f"{here}: nodes_min", self.nodes_min, at_least=1)
        fields.whole(f"{here}: nodes_max", self.nodes_max, at_least=1)
        if self.nodes_min > self.nodes_max:
            raise ProblemError(f"{here}: nodes_min {self.nodes_min} is above nodes_max {self.nodes_max}")
        for attribute in ("up_cost_s", "down_cost_s", "weight"):
            fields.real(f"{here}: {attribute}", getattr(self, attribute))
        for attribute in ("user", "account"):
            fields.text(f"{here}: {attribute}", getattr(self, attribute), empty=True)
        if not isinstance(self.mixes_classes, bool):
            raise ProblemError(f"{here}: mixes_classes must be true or false, not {self.mixes_classes!r}")
        for node_class in self.only_classes or ():
            fields.text(f"{here}: only_classes", node_class, empty=True)
        for node in self.current:
            fields.text(f"{here}: current", node)
        if len(set(self.current)) < len(self.current):
            raise ProblemError(f"{here}: current lists node {fields.first_repeated(self.current)} twice")
        if self.sizes is not None:
            self._check_sizes(f"{here}: sizes", self.sizes)

    def _check_sizes(self, where: str, sizes: tuple[int, ...]) -> None:
        for size in sizes:
            fields.whole(where, size, at_least=1)
        fields.increasing(where, sizes)
        if not any(self.nodes_min <= size <= self.nodes_max for size in sizes):
            raise ProblemError(
                f"{where} has none between nodes_min {self.nodes_min} and nodes_max {self.nodes_max}: add one"
            )

    def allows(self, count: int) -> bool:
        """Whether the trainer may be given `count` nodes, equation (3)."""
        if count == 0:
            return True
        return self.nodes_min <= count <= self.nodes_max and (self.sizes is None or count in self.sizes)

    def largest_allowed(self, at_most: int) -> int:
        """Return the largest allowed count of at most `at_most` nodes."""
        top = min(at_most, self.nodes_max)
        if self.sizes is not None:
            top = max((size for size in self.sizes if size <= top), default=0)
        return top if top >= self.nodes_min else 0

    def may_use(self, node_class: str) -> bool:
        """Whether the trainer may get nodes of a class."""
        return self.only_classes is None or node_class in self.only_classes

    def curve_on(self, classes: Collection[str]) -> Curve:
        """Return the curve on nodes of these classes; with several classes, the slowest."""
        if not self.class_curves or not classes:
            return self.curve
        return slowest([self.class_curves.get(name, self.curve) for name in classes])


@dataclass(frozen=True)
class Cap:
    """A limit on the nodes of all trainers of one user, or of one account, together."""

    nodes_max: int
    user: str = ""
    account: str = ""

    def __post_init__(self) -> None:
        fields.text("cap: user", self.user, empty=True)
        fields.text("cap: account", self.account, empty=True)
        if bool(self.user) == bool(self.account):
            raise ProblemError("cap: give either a user or an account")
        fields.whole(f"{self}: nodes_max", self.nodes_max, at_least=0)

    def __str__(self) -> str:
        return f"cap of user {self.user}" if self.user else f"cap of account {self.account}"

    def covers(self, user: str, account: str) -> bool:
        """Whether a trainer of this user and account counts towards the cap."""
        return self.user == user if self.user else self.account == account


@dataclass(frozen=True)
class NodeGroup:
    """Nodes that one trainer gets all together or nobody gets, such as those of a leaf switch."""

    name: str
    nodes: tuple[str, ...]

    def __post_init__(self) -> None:
        fields.text("group: name", self.name)
        for node in self.nodes:
            fields.text(f"group {self.name}: nodes", node)
        if not self.nodes:
            raise ProblemError(f"group {self.name}: nodes must name at least one node")
        if (repeated := fields.first_repeated(self.nodes)) is not None:
            raise ProblemError(f"group {self.name}: nodes lists node {repeated} twice")


@dataclass(frozen=True)
class Problem:
    """The node pool, the trainers with the map they hold, and how long the pool is assumed to last.

    `nodes` (the paper's N) are in order of preference: a growing trainer takes the first free ones, a shrinking trainer
    gives up the last ones. Earlier `trainers` (J) go first: of equal plans, the one that serves an earlier trainer is
    taken. `t_fwd_s` is T^fwd. `caps` and `groups` are limits that the paper does not have.
    """

    nodes: tuple[NodeSpec, ...]
    trainers: tuple[TrainerSpec, ...]
    t_fwd_s: float
    caps: tuple[Cap, ...] = ()
    groups: tuple[NodeGroup, ...] = ()

    def __post_init__(self) -> None:
        fields.real("t_fwd_s", self.t_fwd_s)
        if len(self.pool) < len(self.nodes):
            raise ProblemError(f"nodes: name {fields.first_repeated(n.name for n in self.nodes)} is there twice")
        names = [trainer.name for trainer in self.trainers]
        if len(set(names)) < len(names):
            raise ProblemError(f"trainer {fields.first_repeated(names)}: name is there twice")
        if len(self.held) < sum(len(trainer.current) for trainer in self.trainers):
            node = fields.first_repeated(chain.from_iterable(t.current for t in self.trainers))
            holders = [t.name for t in self.trainers if node in t.current]
            raise ProblemError(f"trainer {holders[1]}: current node {node} is held by trainer {holders[0]} too")
        if not self.held <= self.pool.keys():
            for trainer in self.trainers:
                for node in trainer.current:
                    if node not in self.pool:
                        raise ProblemError(f"trainer {trainer.name}: current node {node} is not among the nodes")
        if (cap := fields.first_repeated((cap.user, cap.account) for cap in self.caps)) is not None:
            raise ProblemError(f"caps: {Cap(0, *cap)} is there twice")
        self._check_groups()

    def _check_groups(self) -> None:
        if (name := fields.first_repeated(group.name for group in self.groups)) is not None:
            raise ProblemError(f"group {name}: name is there twice")
        group_of: dict[str, str] = {}
        for group in self.groups:
            for node in group.nodes:
                if node not in self.pool:
                    raise ProblemError(f"group {group.name}: node {node} is not among the nodes")
                if node in group_of:
                    raise ProblemError(f"group {group.name}: node {node} is in group {group_of[node]} too")
                group_of[node] = group.name

    @cached_property
    def pool(self) -> dict[str, int]:
        """Node name to its place in the order of preference."""
        return dict(zip(map(attrgetter("name"), self.nodes), range(len(self.nodes)), strict=True))

    @cached_property
    def held(self) -> frozenset[str]:
        """Names of all nodes in the current map."""
        return frozenset(chain.from_iterable(trainer.current for trainer in self.trainers))

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Node classes in the pool, in order of first appearance."""
        return tuple(self.class_sizes)

    @cached_property
    def class_sizes(self) -> Counter[str]:
        """Number of nodes of each class in the pool."""
        names = dict.fromkeys(map(attrgetter("node_class"), self.nodes))
        if len(names) == 1:  # nearly always so, and twice as fast as counting
            return Counter(dict.fromkeys(names, len(self.nodes)))
        return Counter(map(attrgetter("node_class"), self.nodes))

    @cached_property
    def class_of(self) -> dict[str, str]:
        """Node name to its class."""
        return {node.name: node.node_class for node in self.nodes}

    def kept_out(self, trainer: TrainerSpec) -> bool:
        """Whether the pool has a class that the trainer may not use."""
        return trainer.only_classes is not None and not all(map(trainer.may_use, self.class_sizes))

    def classes_of(self, nodes: Iterable[str]) -> frozenset[str]:
        """Return the classes of the nodes, as far as they are in the pool."""
        if len(self.class_sizes) == 1:
            return self._all_classes
        return frozenset(self.class_of[node] for node in nodes if node in self.class_of)

    @cached_property
    def _all_classes(self) -> frozenset[str]:
        return frozenset(self.class_sizes)

    @cached_property
    def binding_caps(self) -> tuple[Cap, ...]:
        """The caps that are lower than the number of nodes that their trainers could use."""
        return tuple(cap for cap in self.caps if cap.nodes_max < self._could_use(cap))

    @cached_property
    def capped_rows(self) -> tuple[tuple[frozenset[int], int], ...]:
        """The binding caps as (rows of the trainers that they cover, nodes_max)."""
        return tuple(
            (frozenset(row for row, t in enumerate(self.trainers) if cap.covers(t.user, t.account)), cap.nodes_max)
            for cap in self.binding_caps
        )

    @cached_property
    def caps_cross(self) -> bool:
        """Whether two binding caps overlap and neither covers all trainers of the other."""
        covered = [rows for rows, _ in self.capped_rows]
        return any(one & other and not (one <= other or other <= one) for one, other in combinations(covered, 2))

    def _could_use(self, cap: Cap) -> int:
        covered = (trainer for trainer in self.trainers if cap.covers(trainer.user, trainer.account))
        return min(len(self.nodes), sum(trainer.nodes_max for trainer in covered))

    @cached_property
    def earns_now(self) -> dict[str, float]:
        """O_j(C_j) by trainer: weighted objective per second on its current nodes, 0 below nodes_min."""
        return {trainer.name: self._earns_now(trainer) for trainer in self.trainers}

    def _earns_now(self, trainer: TrainerSpec) -> float:
        held = len(trainer.current)
        if held < trainer.nodes_min:
            return 0.0
        return trainer.weight * trainer.curve_on(self.classes_of(trainer.current))(held)


@dataclass(frozen=True)
class Plan:
    """The answer: nodes per trainer, their worth by equation (16), and the reason for each trainer's count.

    `bound` is a proven upper bound of the optimum and `gap` = (bound - objective) / max(|bound|, |objective|).
    `status`: "optimal" (gap within the requested one), "feasible" (not proven), "kept" (no map better than the current
    one was found in time, so it stays). `reasons` is empty if sentences were not asked for. `failed` maps each solver
    that `solver` stood in for to the reason. `distrusted` lists solvers whose engine reported a wrong value for a
    point. `verified_for` is the very problem that `milp.solve` has verified the plan for, None for any other plan. It
    is no argument: neither `replace` nor a plan made by hand sets it.
    """

    assignment: Mapping[str, tuple[str, ...]]
    counts: Mapping[str, int]
    objective: float
    bound: float
    gap: float
    status: Status
    solver: str
    wall_s: float
    reasons: Mapping[str, str]
    failed: Mapping[str, str] = field(default_factory=dict)
    distrusted: tuple[str, ...] = ()
    verified_for: Problem | None = field(default=None, init=False, repr=False, compare=False)
