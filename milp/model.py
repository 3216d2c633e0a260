"""The allocation problem and its answer: which node of the pool works for which trainer until the next event.

Liu et al., "BFTrainer" (arXiv:2106.12091), section 3. Everything here is immutable and checks itself when it is
built, so a solver never meets a malformed problem.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Literal

from milp import fields
from milp.errors import ProblemError

Status = Literal["optimal", "feasible", "kept"]


@dataclass(frozen=True)
class Curve:
    """A trainer's objective per second against its number of nodes, O_j of equations (11)-(12).

    Piecewise linear between the points, constant beyond the last one; starts at (0, 0). It need not be concave
    nor rise throughout. `values` is in objective units per second, usually samples/s.
    """

    nodes: tuple[int, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.nodes) != len(self.values):
            raise ProblemError(f"curve: {len(self.nodes)} node counts but {len(self.values)} objective values")
        for count in self.nodes:
            fields.whole("curve.nodes", count, at_least=0)
        for value in self.values:
            fields.real("curve.objective", value)
        if not self.nodes or self.nodes[0] != 0 or self.values[0] != 0:
            raise ProblemError("curve must start with 0 nodes at objective 0")
        fields.increasing("curve.nodes", self.nodes)

    def __call__(self, count: int) -> float:
        after = bisect_right(self.nodes, count)
        if after == len(self.nodes):
            return self.values[-1]
        left, right = self.nodes[after - 1], self.nodes[after]
        low, high = self.values[after - 1], self.values[after]
        return low + (high - low) * (count - left) / (right - left)

    @classmethod
    def from_json(cls, data: object) -> Curve:
        """Read `{"nodes": [0, 1, 2], "objective": [0, 1.0, 1.9]}`."""
        keys = ("nodes", "objective")
        got = fields.mapping("curve", data, keys, keys)
        return cls(fields.array("curve.nodes", got["nodes"]), fields.array("curve.objective", got["objective"]))

    def to_json(self) -> dict[str, Any]:
        """The shape that `from_json` reads."""
        return {"nodes": list(self.nodes), "objective": list(self.values)}


@dataclass(frozen=True)
class NodeSpec:
    """One node of the pool; nodes of the same `node_class` (such as a GPU type) are interchangeable."""

    name: str
    node_class: str = ""

    def __post_init__(self) -> None:
        fields.text("node: name", self.name)
        if not isinstance(self.node_class, str):
            raise ProblemError(f"node {self.name}: class must be a string, not {self.node_class!r}")

    @classmethod
    def from_json(cls, data: object) -> NodeSpec:
        """Read `"n0"` or `{"name": "n0", "class": "a100"}`."""
        if isinstance(data, str):
            return cls(data)
        got = fields.mapping("node", data, ("name", "class"), ("name",))
        return cls(got["name"], got.get("class", ""))

    def to_json(self) -> str | dict[str, str]:
        """The shape that `from_json` reads, the short one where there is no class."""
        return {"name": self.name, "class": self.node_class} if self.node_class else self.name


@dataclass(frozen=True)
class TrainerSpec:
    """One elastic trainer: what it may use, what a node is worth to it, and what it holds.

    Runs on 0 or nodes_min..nodes_max nodes (N_j^min, N_j^max), where `sizes` is given only on those of them. A
    change of size stalls it for `up_cost_s` or `down_cost_s` (R_j^up, R_j^dw). `current` are the pool nodes that it
    holds now (c_jn), possibly fewer than nodes_min after a preemption. `weight` multiplies its part of the objective.
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

    def __post_init__(self) -> None:
        fields.text("trainer: name", self.name)
        here = f"trainer {self.name}"
        fields.whole(f"{here}: nodes_min", self.nodes_min, at_least=1)
        fields.whole(f"{here}: nodes_max", self.nodes_max, at_least=1)
        if self.nodes_min > self.nodes_max:
            raise ProblemError(f"{here}: nodes_min {self.nodes_min} is above nodes_max {self.nodes_max}")
        for field in ("up_cost_s", "down_cost_s", "weight"):
            fields.real(f"{here}: {field}", getattr(self, field))
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
        """The largest allowed count of `at_most` or fewer nodes."""
        top = min(at_most, self.nodes_max)
        if self.sizes is not None:
            top = max((size for size in self.sizes if size <= top), default=0)
        return top if top >= self.nodes_min else 0

    @property
    def earns_now(self) -> float:
        """O_j(C_j): weighted objective per second at the current count, 0 below nodes_min where it cannot train."""
        held = len(self.current)
        return self.weight * self.curve(held) if held >= self.nodes_min else 0.0

    @classmethod
    def from_json(cls, data: object) -> TrainerSpec:
        """Read one entry of PROBLEM.json's `trainers`; `current`, `sizes` and `weight` may be left out."""
        required = ("name", "nodes_min", "nodes_max", "up_cost_s", "down_cost_s", "curve")
        name = data.get("name") if isinstance(data, Mapping) else None
        here = f"trainer {name}" if name else "trainer"
        got = fields.mapping(here, data, (*required, "current", "sizes", "weight"), required)
        try:
            curve = Curve.from_json(got["curve"])
        except ProblemError as error:
            raise ProblemError(f"{here}: {error}") from None
        sizes = got.get("sizes")
        return cls(
            name=got["name"],
            nodes_min=got["nodes_min"],
            nodes_max=got["nodes_max"],
            up_cost_s=got["up_cost_s"],
            down_cost_s=got["down_cost_s"],
            curve=curve,
            current=fields.array(f"{here}: current", got.get("current", ())),
            sizes=None if sizes is None else fields.array(f"{here}: sizes", sizes),
            weight=got.get("weight", 1.0),
        )

    def to_json(self) -> dict[str, Any]:
        """The shape that `from_json` reads."""
        data: dict[str, Any] = {
            "name": self.name,
            "nodes_min": self.nodes_min,
            "nodes_max": self.nodes_max,
            "up_cost_s": self.up_cost_s,
            "down_cost_s": self.down_cost_s,
            "curve": self.curve.to_json(),
            "current": list(self.current),
        }
        if self.sizes is not None:
            data["sizes"] = list(self.sizes)
        if self.weight != 1.0:
            data["weight"] = self.weight
        return data


@dataclass(frozen=True)
class Problem:
    """The node pool, the trainers with the map they hold, and how long the pool is assumed to last.

    `nodes` (the paper's N) are in order of preference: growing takes the earlier-listed free ones first, shrinking
    gives up the later-listed ones first. `trainers` (J) are first come first: of equal plans the one that serves an
    earlier trainer is taken. `t_fwd_s` is T^fwd.
    """

    nodes: tuple[NodeSpec, ...]
    trainers: tuple[TrainerSpec, ...]
    t_fwd_s: float

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

    @cached_property
    def pool(self) -> dict[str, int]:
        """Node name to its place in the order of preference."""
        return {node.name: place for place, node in enumerate(self.nodes)}

    @cached_property
    def held(self) -> frozenset[str]:
        """Names of all nodes in the current map."""
        return frozenset(chain.from_iterable(trainer.current for trainer in self.trainers))

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Node classes in the pool, in order of first appearance."""
        return tuple(dict.fromkeys(node.node_class for node in self.nodes))

    @classmethod
    def from_json(cls, data: object) -> Problem:
        """Read a decoded PROBLEM.json; any fault is a `ProblemError` that names the trainer and the field."""
        keys = ("nodes", "t_fwd_s", "trainers")
        got = fields.mapping("the problem", data, keys, keys)
        return cls(
            nodes=tuple(map(NodeSpec.from_json, fields.array("nodes", got["nodes"]))),
            trainers=tuple(map(TrainerSpec.from_json, fields.array("trainers", got["trainers"]))),
            t_fwd_s=got["t_fwd_s"],
        )

    def to_json(self) -> dict[str, Any]:
        """The shape of PROBLEM.json."""
        return {
            "nodes": [node.to_json() for node in self.nodes],
            "t_fwd_s": self.t_fwd_s,
            "trainers": [trainer.to_json() for trainer in self.trainers],
        }


@dataclass(frozen=True)
class Plan:
    """The answer: nodes per trainer, what equation (16) says it is worth, and why each trainer got what it got.

    `bound` is a proven upper bound of the optimum and `gap` = (bound - objective) / max(|bound|, |objective|).
    `status`: "optimal" (gap within what was asked), "feasible" (not proven), "kept" (nothing better than the current
    map was found in time, so it stays).
    """

    assignment: dict[str, tuple[str, ...]]
    counts: dict[str, int]
    objective: float
    bound: float
    gap: float
    status: Status
    solver: str
    wall_s: float
    reasons: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """The answer of `bft solve --json`."""
        return {
            "status": self.status,
            "solver": self.solver,
            "objective": self.objective,
            "bound": self.bound,
            "gap": self.gap,
            "wall_ms": self.wall_s * 1000,
            "counts": dict(self.counts),
            "assignment": {name: list(nodes) for name, nodes in self.assignment.items()},
            "reasons": dict(self.reasons),
        }
