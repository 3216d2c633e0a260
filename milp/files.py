"""Reading and writing of PROBLEM.json and its answer, as decoded JSON; reading checks every field.

Fields that have a default in the classes of `milp.problem` may be left out. No file is touched here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from milp import fields
from milp.curves import Curve
from milp.errors import ProblemError
from milp.problem import Cap, NodeGroup, NodeSpec, Plan, Problem, TrainerSpec

_REQUIRED_OF_A_TRAINER = ("name", "nodes_min", "nodes_max", "up_cost_s", "down_cost_s", "curve")
_OPTIONAL_OF_A_TRAINER = (
    "current", "sizes", "weight", "class_curves", "mixes_classes", "only_classes", "user", "account",
)  # fmt: skip


# -- reading ---


def problem_from_json(data: object) -> Problem:
    """Read a decoded PROBLEM.json; any fault raises a `ProblemError` that names the trainer and the field."""
    keys = ("nodes", "t_fwd_s", "trainers")
    got = fields.mapping("the problem", data, (*keys, "caps", "groups"), keys)
    return Problem(
        nodes=tuple(map(_node, fields.array("nodes", got["nodes"]))),
        trainers=tuple(map(_trainer, fields.array("trainers", got["trainers"]))),
        t_fwd_s=_amount(got["t_fwd_s"]),
        caps=tuple(map(_cap, fields.array("caps", got.get("caps", ())))),
        groups=tuple(map(_group, fields.array("groups", got.get("groups", ())))),
    )


def _node(data: object) -> NodeSpec:
    """Read `"n0"` or `{"name": "n0", "class": "a100"}`."""
    if isinstance(data, str):
        return NodeSpec(data)
    got = fields.mapping("node", data, ("name", "class"), ("name",))
    return NodeSpec(got["name"], got.get("class", ""))


def _trainer(data: object) -> TrainerSpec:
    """Read one entry of `trainers`."""
    name = data.get("name") if isinstance(data, Mapping) else None
    here = f"trainer {name}" if name and isinstance(name, str) else "trainer"
    known = (*_REQUIRED_OF_A_TRAINER, *_OPTIONAL_OF_A_TRAINER)
    got = fields.mapping(here, data, known, _REQUIRED_OF_A_TRAINER)
    class_curves = got.get("class_curves", {})
    class_curves = fields.mapping(f"{here}: class_curves", class_curves, class_curves, ())
    curve = _curve(here, got["curve"])
    by_class = {name: _curve(f"{here}: class_curves {name}", points) for name, points in class_curves.items()}
    sizes, only_classes = got.get("sizes"), got.get("only_classes")
    return TrainerSpec(
        name=got["name"],
        nodes_min=got["nodes_min"],
        nodes_max=got["nodes_max"],
        up_cost_s=_amount(got["up_cost_s"]),
        down_cost_s=_amount(got["down_cost_s"]),
        curve=curve,
        current=fields.array(f"{here}: current", got.get("current", ())),
        sizes=None if sizes is None else fields.array(f"{here}: sizes", sizes),
        weight=_amount(got.get("weight", 1.0)),
        class_curves=by_class,
        mixes_classes=got.get("mixes_classes", False),
        only_classes=None if only_classes is None else fields.array(f"{here}: only_classes", only_classes),
        user=got.get("user", ""),
        account=got.get("account", ""),
    )


def _curve(where: str, data: object) -> Curve:
    """Read `{"nodes": [0, 1, 2], "objective": [0, 1.0, 1.9]}`."""
    keys = ("nodes", "objective")
    try:
        got = fields.mapping("curve", data, keys, keys)
        values = fields.array("curve.objective", got["objective"])
        return Curve(fields.array("curve.nodes", got["nodes"]), tuple(map(_amount, values)))
    except ProblemError as error:
        raise ProblemError(f"{where}: {error}") from None


def _amount(value: Any) -> Any:
    """Return an amount as a float if JSON has it as a whole number too large for one to be exact."""
    if isinstance(value, int) and not isinstance(value, bool) and 2**53 < value < 2**1023:
        return float(value)
    return value


def _cap(data: object) -> Cap:
    """Read `{"user": "alice", "nodes_max": 16}` or the same with `account`."""
    got = fields.mapping("cap", data, ("user", "account", "nodes_max"), ("nodes_max",))
    return Cap(got["nodes_max"], got.get("user", ""), got.get("account", ""))


def _group(data: object) -> NodeGroup:
    """Read `{"name": "leaf3", "nodes": ["n0", "n1"]}`."""
    keys = ("name", "nodes")
    got = fields.mapping("group", data, keys, keys)
    return NodeGroup(got["name"], fields.array("group: nodes", got["nodes"]))


# -- writing ---


def problem_to_json(problem: Problem) -> dict[str, Any]:
    """Return the problem as `problem_from_json` reads it; trainers' fields that have their default are left out."""
    data: dict[str, Any] = {
        "nodes": [{"name": n.name, "class": n.node_class} if n.node_class else n.name for n in problem.nodes],
        "t_fwd_s": problem.t_fwd_s,
        "trainers": [_trainer_to_json(trainer) for trainer in problem.trainers],
    }
    if problem.caps:
        data["caps"] = [_cap_to_json(cap) for cap in problem.caps]
    if problem.groups:
        data["groups"] = [{"name": group.name, "nodes": list(group.nodes)} for group in problem.groups]
    return data


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Return the answer of `bft solve --json`."""
    return {
        "status": plan.status,
        "solver": plan.solver,
        "failed": dict(plan.failed),
        "objective": plan.objective,
        "bound": plan.bound,
        "gap": plan.gap,
        "wall_ms": plan.wall_s * 1000,
        "counts": dict(plan.counts),
        "assignment": {name: list(nodes) for name, nodes in plan.assignment.items()},
        "reasons": dict(plan.reasons),
    }


def _trainer_to_json(trainer: TrainerSpec) -> dict[str, Any]:
    data: dict[str, Any] = {
        "name": trainer.name,
        "nodes_min": trainer.nodes_min,
        "nodes_max": trainer.nodes_max,
        "up_cost_s": trainer.up_cost_s,
        "down_cost_s": trainer.down_cost_s,
        "curve": _curve_to_json(trainer.curve),
        "current": list(trainer.current),
    }
    if trainer.sizes is not None:
        data["sizes"] = list(trainer.sizes)
    if trainer.only_classes is not None:
        data["only_classes"] = list(trainer.only_classes)
    if trainer.class_curves:
        data["class_curves"] = {name: _curve_to_json(curve) for name, curve in trainer.class_curves.items()}
    for name, default in (("weight", 1.0), ("mixes_classes", False), ("user", ""), ("account", "")):
        if getattr(trainer, name) != default:
            data[name] = getattr(trainer, name)
    return data


def _curve_to_json(curve: Curve) -> dict[str, Any]:
    return {"nodes": list(curve.nodes), "objective": list(curve.values)}


def _cap_to_json(cap: Cap) -> dict[str, Any]:
    return {**({"user": cap.user} if cap.user else {"account": cap.account}), "nodes_max": cap.nodes_max}
