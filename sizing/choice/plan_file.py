"""Plans as `bft size fit --json` writes them, read for their placement."""

from __future__ import annotations

from sizing.base.json_fields import Fields, decoded
from sizing.choice.place import PlacementRequest
from sizing.memory.peak import guarded_bytes


def asks(text: str, *, name: str = "the plans") -> tuple[PlacementRequest, ...]:
    """Return the requests of the plans in a file, best first; raise UsageError with the place and what to write there.

    Only the fields that a placement needs are read: gpus, tp, partition, gpu_type, nodes, and high_bytes, or peak_bytes
    to which the guard band is added.
    """
    whole = Fields(name, decoded(text, name))
    found = tuple(map(_ask, whole.each("plans")))
    if not found:
        raise whole.wrong("plans", "at least one plan: bft size fit --json writes them")
    return found


def _ask(plan: Fields) -> PlacementRequest:
    gpus, tp = plan.count("gpus", least=1), plan.count("tp", 1, least=1)
    if gpus % tp:
        raise plan.wrong("gpus", f"a multiple of tp={tp}")
    if "dp" in plan and gpus != plan.count("dp", least=1) * tp * plan.count("fsdp", 1, least=1):
        raise plan.wrong("gpus", "dp x tp x fsdp")
    nodes = plan.count("nodes", 0)
    if "high_bytes" in plan:
        need_bytes = plan.count("high_bytes", least=1)
    else:
        need_bytes = guarded_bytes(
            plan.count("peak_bytes", least=1), "formula" if plan.text("origin", "") == "formula" else "traced"
        )
    return PlacementRequest(
        gpus=gpus,
        need_bytes=need_bytes,
        tp=tp,
        partition=plan.text("partition", ""),
        gpu_type=plan.text("gpu_type", ""),
        per_node=gpus // nodes if nodes and gpus % nodes == 0 else 0,
    )
