"""The view model of a status: a trainer's line and the notices, in the words of every screen, table and page.

The renderers only lay it out. A status is an answer of `GET /v1/status`, perhaps of an older daemon.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bftd.base import format

# The order in which node states are drawn and counted.
NODE_STATES = ("regular", "planned", "leased", "idle", "away")
_STATES = ("running", "waiting", "suspended", "finished")
# The end of a trainer by its exit code: a driver whose job is cancelled ends by SIGTERM.
_ENDS = {None: "lost", 143: "cancelled"}
_AS_SENT = ("id", "name", "user", "account", "backend", "resizes", "suspends", "reason", "on")


@dataclass(frozen=True, slots=True)
class TrainerLine:
    """A trainer in words, "-" for anything unknown.

    `nodes` are those at work, with those it has leased behind "->" if they differ. `ends` is the time of its end, and
    `left` the time until then.
    """

    id: str
    name: str
    user: str
    account: str
    backend: str
    state: str
    nodes: str
    range: str
    step: str
    rate: str
    efficiency: str
    loss: str
    resizes: str
    suspends: str
    elapsed: str
    ends: str
    left: str
    reason: str
    on: str


def trainer_line(trainer: Mapping[str, Any], now_s: float) -> TrainerLine:
    """Return the line of one trainer of an answer."""
    state, code, loss = str(trainer["state"]), trainer.get("exit_code"), trainer.get("loss")
    done = state == "finished"
    working, leased = trainer.get("working", 0), trainer.get("requested", 0)
    low, high, step, steps = (trainer.get(name) for name in ("nodes_min", "nodes_max", "step", "total_steps"))
    rate, end_s = trainer.get("samples_per_s"), trainer.get("finished_s" if done else "expected_end_s")
    return TrainerLine(
        **{name: format.UNKNOWN if (value := trainer.get(name)) in (None, "") else str(value) for name in _AS_SENT},
        state=state if not done else _ENDS.get(code, f"{state} ({code})"),
        nodes=format.UNKNOWN if done else str(working) if working == leased else f"{working}->{leased}",
        range=format.UNKNOWN if low is None else f"{low}-{high}",
        step=format.UNKNOWN if step is None else f"{step}/{steps}" if steps else str(step),
        rate=format.rate(rate) if rate else format.UNKNOWN,
        efficiency=format.percent(trainer.get("efficiency")),
        loss=format.UNKNOWN if loss is None else f"{loss:.4g}",
        elapsed=format.elapsed(trainer.get("arrived_s"), trainer.get("finished_s") if done else now_s),
        ends=format.end(end_s, now_s),
        left=format.UNKNOWN if done or end_s is None else format.span(end_s - now_s),
    )


def state_rank(state: str) -> int:
    """Return the place of trainers in such a state in a list: those that run first, those that ended last."""
    return _STATES.index(state) if state in _STATES else len(_STATES)


def shown(fields: Iterable[str], lines: Sequence[TrainerLine], rare: Sequence[str] = ("account",)) -> list[str]:
    """Return the fields to show: all, but a `rare` one only where it is known of any trainer."""
    known = {name for name in rare for line in lines if getattr(line, name) != format.UNKNOWN}
    return [name for name in fields if name not in rare or name in known]


def node_lines(name: str, node: Mapping[str, Any], leases: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what an answer of `GET /v1/nodes/{name}/explain` says of a node and of its lease among `leases`."""
    kind = f", {node['class']}" if node["class"] else ""
    pool = "in the pool" if node["in_pool"] else "not in the pool"
    yield f"{name} ({node['state']}{kind}) is {pool}: {node['why']}"
    if node["window_s"] is not None:
        yield f"Slurm plans to use it in {node['window_s']:.0f} s"
    if node["trainer"]:
        known = next((lease for lease in leases if lease["lease"] and lease["lease"] == node["lease"]), None)
        whose = "" if known is None or not known["user"] else f" ({known['name']}) of {known['user']}"
        whom = f"{node['trainer']}{whose}"
        yield (
            f"asked back from {whom}" if node["lease_state"] == "revoked" else f"lent to {whom}: {node['lease_state']}"
        )
    if job := node.get("co_located", node.get("beside")):  # daemons of 0.1 send beside
        yield f"job {job} runs on a part of it"
    if node["earmark"] is not None:
        job = f"job {node['earmark']['job']}" if node["earmark"]["job"] else "a job"
        yield f"earmarked for {job} since {format.moment(node['earmark']['since_s'])}"
    yield from (text for text in node["paused"] if text not in node["why"])
    if node["quarantined_until_s"] is not None:
        yield f"in quarantine until {format.moment(node['quarantined_until_s'])}: workers crashed there"
    elif node["failures"]:
        yield f"workers crashed there lately, in {format.counted(node['failures'], 'pilot')}"
    if node["left_out_until_s"] is not None:
        whom = f" to {node['left_out_for']}" if node["left_out_for"] else ""
        yield f"not lent{whom} until {format.moment(node['left_out_until_s'])}: it refused pilots"


def snapshot_age(age_s: float | None) -> str:
    """Return the age of the daemon's snapshot of Slurm."""
    return f"snapshot {'none yet' if age_s is None else f'{age_s:.1f} s old'}"


def alarms(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield what somebody has to look at."""
    yield from (alarm["text"] for alarm in status.get("alarms", ()))
    for stray in status.get("strays", ()):
        from slurm_plugin.nodeset import fold  # loading it takes time, and strays are rare

        whose = f"{stray['user']} ({stray['account']})" if stray.get("account") else stray["user"]
        done = ": bftd has asked Slurm to cancel it" if stray["cancelled"] else ""
        since = format.moment(stray["since_s"])
        yield f"no lease stands behind job {stray['job_id']} of {whose} on {fold(stray['nodes'])} since {since}{done}"
    if failure := status.get("ledger", {}).get("failure"):
        yield failure


def warnings(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield what holds growth back, and what hides or loses anything."""
    if status.get("hold"):
        yield f"nothing grows: {status['hold']}"
    for pause in status.get("pauses", ()):
        back = ", and what was lent is asked back" if pause["release"] else ""
        yield f"{pause['text']} (since {format.moment(pause['since_s'])}{back})"
    for item in (status.get("hours"), status.get("bound"), *status.get("caps", ())):
        if item and item["text"]:
            yield item["text"]
    if silent := status.get("silent"):
        yield f"no word from the driver of {', '.join(silent)}"
    for name, setting in status.get("tuned", {}).items():
        if setting["value"] != setting["file"]:
            yield f"bft tune has set {name} = {setting['value']}; the configuration has {setting['file']}"
    if status.get("ledger", {}).get("full"):
        since = format.minute(status["ledger"]["oldest_event_s"])
        yield f"the ledger has reached [ledger] max_bytes: it has events from {since} on"
