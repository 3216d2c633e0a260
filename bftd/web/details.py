"""The pages of one trainer and of one node, each at one moment; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bftd.base.format import UNKNOWN, clock, counted, duration, minute, size
from bftd.base.view import node_lines, trainer_line
from bftd.web.html import link, table, text
from bftd.web.page import document, ranges
from bftd.web.sections import decisions, joined, tiled

# Nodes of a trainer with a link each.
NODES_MOST = 256
# Decisions that only pass on what the driver of a trainer has told.
_TOLD = ("noted", "saved")
_BACK = "<p><a href=/>All nodes and trainers</a>"
_HIDDEN = (
    "<p class=quiet>Older decisions and all details are for those with the token; on a shell "
    "<code>bft explain {}</code> tells."
)


@dataclass(frozen=True, slots=True)
class Subject:
    """A trainer or a node as its caller may see it.

    `status` is that of `GET /v1/status`, with all nodes. `told` is the answer of the endpoint that explains it: None if
    it is not known, and for a caller who is not identified.
    """

    place: str
    id: str
    status: Mapping[str, Any]
    told: Mapping[str, Any] | None


def trainer_page(shown: Subject, hours: int, charts: str) -> bytes | None:
    """Return the page of a trainer as UTF-8, with `charts` (HTML) of the last `hours`; None if none is known."""
    status, told = shown.status, shown.told or {}
    trainer = next((item for item in status["trainers"] if item["id"] == shown.id), None)
    if trainer is None and not told:
        return None
    said = told.get("decisions", [item for item in status["decisions"] if item["trainer"] == shown.id])
    noted = [item for item in said if _kind(item) in _TOLD]
    parts = []
    if trainer is None:
        name = f"trainer {shown.id}"
        parts.append(("now", "Now", "<p class=quiet>It has ended: the ledger tells of it below."))
    else:
        name = trainer["name"] or shown.id
        own = [item for item in status["nodes"] if item["trainer"] == shown.id]
        parts.append(("now", "Now", tiled(_trainer_tiles(trainer, status["time_s"], shown.told))))
        parts.append(("nodes", "Its nodes", _nodes(own, [item for item in said if item not in noted])))
    if charts:
        parts.append(("past", "Lately", charts))
    if estimates := "".join(f"<p>{text(line)}" for line in _estimates(told.get("trainer") or {})):
        parts.append(("costs", "Speed and resizes", estimates))
    if tail := (told.get("trainer") or {}).get("tail"):
        lines = "\n".join(map(text, tail))
        whole = f"<p class=quiet>The last lines; <code>bft logs -f {text(shown.id)}</code> shows all."
        parts.append(("log", "Log", f"<pre>{lines}</pre>{whole}"))
    if shown.told is not None:
        nothing = "<p class=quiet>Its driver has noted nothing."
        parts.append(("noted", "Noted by its driver", decisions(noted, dated=True) if noted else nothing))
    parts.append(("decisions", "Decisions", decisions([item for item in said if item not in noted], dated=True)))
    nav = ranges(hours) if charts else ""
    return _page(shown, name, f"trainer {shown.id}{_whose(trainer)}", nav, parts)


def node_page(shown: Subject) -> bytes | None:
    """Return the page of a node as UTF-8; None if none is known."""
    status, told = shown.status, shown.told
    node = next((item for item in status["nodes"] if item["name"] == shown.id), None)
    if node is None and told is None:
        return None
    names = {item["id"]: item["name"] for item in status["trainers"]}
    leases = told["leases"] if told else []
    parts = []
    if node is None:
        parts.append(("now", "Now", "<p class=quiet>It is not harvested now."))
    else:
        lines = node_lines(shown.id, told["node"], leases) if told and told["node"] else [f"{shown.id} {node['why']}"]
        facts = "".join(f"<p>{text(line)}" for line in lines)
        parts.append(("now", "Now", tiled(_node_tiles(node, names, told)) + facts))
    if told is not None:
        rows = [_lease(lease) for lease in reversed(leases)]
        head = ["from", "to", "trainer", "user", "gave back in", "why"]
        made = table("Who had it, the last first", head, rows, (4,))
        parts.append(("leases", "Leases", made or "<p class=quiet>No trainer has had it yet."))
        parts.append(("decisions", "Decisions", decisions(told["decisions"], dated=True)))
    return _page(shown, shown.id, "node", "", parts)


def nothing_page(place: str, status: Mapping[str, Any], why: str) -> bytes:
    """Return a page that says that there is no such trainer or node."""
    return document("not known", place, status, "", f"{_BACK}<p>{text(why)}")


def _page(shown: Subject, name: str, what: str, nav: str, parts: Sequence[tuple[str, str, str]]) -> bytes:
    heading = f"{_BACK}<h2 class=subject>{text(name)} <span>{text(what)}</span></h2>"
    hidden = _HIDDEN.format(text(shown.id)) if shown.told is None else ""
    return document(f"{name} · {shown.place}", shown.place, shown.status, nav, heading + joined(parts) + hidden)


def _whose(trainer: Mapping[str, Any] | None) -> str:
    return f" of {trainer['user']}" if trainer and trainer["user"] else ""


def _trainer_tiles(
    trainer: Mapping[str, Any], now_s: float, told: Mapping[str, Any] | None
) -> Iterator[tuple[str, str, str]]:
    """Yield a trainer's tiles; without `told` only those of the main page."""
    line = trainer_line(trainer, now_s)
    yield "State", text(line.state), line.backend if told else ""
    yield "Nodes", text(line.nodes), f"of {line.range}"
    single = told and line.efficiency != UNKNOWN
    yield "Samples/s", line.rate, f"{line.efficiency} of what single nodes would make" if single else ""
    yield (
        "Step",
        text(line.step),
        "its end is not known" if line.left == UNKNOWN else f"ends {line.ends}, in {line.left}",
    )
    if not told:
        return
    costs = (told["trainer"] or {}).get("resize_costs") or {}
    saved_s = next((item["at_s"] for item in reversed(told["decisions"]) if _kind(item) == "saved"), None)
    known = [size(costs["state_bytes"])] if costs.get("state_bytes") else []
    known += [f"saved in {duration(costs['save_s'])}"] if costs.get("save_s") is not None else []
    known += [f"on disk since {clock(saved_s)}"] if saved_s is not None else []
    step = f"step {trainer['step']:,}" if trainer["step"] else "none"
    yield "Checkpoint", step, ", ".join(known) or "the last one that its driver has told of"
    lost = f"{counted(trainer['suspends'], 'suspension')}, {counted(trainer['steps_lost'], 'step')} lost"
    yield "Resizes", f"{trainer['resizes']:,}", lost


def _kind(decision: Mapping[str, Any]) -> str:
    return str((decision.get("decision") or {}).get("kind", ""))


def _nodes(own: Sequence[Mapping[str, Any]], said: Sequence[Mapping[str, Any]]) -> str:
    """Return the nodes that a trainer has, each with the state of its lease unless a worker trains there."""
    if not own:
        return f"<p>It has none now. {text(said[-1]['text']) if said else ''}"
    states = ("" if node["lease_state"] == "working" else f" ({node['lease_state']})" for node in own)
    links = [link("nodes", node["name"]) + text(state) for node, state in zip(own[:NODES_MOST], states, strict=False)]
    left = len(own) - NODES_MOST
    return f"<p>{', '.join(links)}" + (f"<p class=quiet>{left:,} more are not shown here." if left > 0 else "")


def _estimates(details: Mapping[str, Any]) -> Iterator[str]:
    for field in ("curve", "resize_costs"):
        if said := (details.get(field) or {}).get("text"):
            yield said


def _node_tiles(
    node: Mapping[str, Any], names: Mapping[str, str], told: Mapping[str, Any] | None
) -> Iterator[tuple[str, str, str]]:
    """Yield a node's tiles; without `told` only those of the main page."""
    yield "State", text(node["kind"]), " ".join((node["state"], node["class"])) if told else ""
    leases = told["leases"] if told else []
    lease = next((item for item in leases if item["lease"] and item["lease"] == node["lease"]), None)
    since = f"since {minute(lease['granted_s'])}, " if lease and lease["granted_s"] is not None else ""
    id_ = node["trainer"]
    whose = link("trainers", id_, names[id_]) if id_ in names else text(id_ or "nobody")
    yield "Lent to", whose, f"{since}{node['lease_state']}" if id_ else ""
    if told:
        window_s = node["window_s"]
        plan = "Slurm plans no use of it" if window_s is None else f"Slurm plans to use it in {duration(window_s)}"
        yield "In the pool", "yes" if node["in_pool"] else "no", plan


def _lease(lease: Mapping[str, Any]) -> list[str]:
    known = lease["lease"] is not None and lease["trainer"]
    end = "now" if lease["ended_s"] is None else minute(lease["ended_s"])
    why = lease["why_revoked"] or (lease["why"] if lease["ended_s"] is None else "")
    return [
        minute(lease["granted_s"]),
        end,
        link("trainers", lease["trainer"], lease["name"] or "") if known else text(lease["name"] or UNKNOWN),
        text(lease["user"] or UNKNOWN),
        UNKNOWN if lease["give_back_s"] is None else f"{lease['give_back_s']:.2f} s",
        f"<span class=on>{text(why)}</span>",
    ]
