"""The core's state as the API shows it: plain dictionaries, made without I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from bftd.config import keys
from bftd.core import sampling
from bftd.core.inputs import delay_budget
from bftd.core.model import classes, growth_stops, messages, timing
from bftd.core.model.domain import Lease, PoolNode, Settings, State, Trainer
from bftd.core.planning import caps, eta
from bftd.core.scaling import learning
from bftd.protocol.bounds import CLASSES_MOST, NAME_MOST
from bftd.protocol.curves import to_fields
from bftd.protocol.lease import Leases, LeaseView
from bftd.protocol.registration import NodeKind
from bftd.protocol.reports import Taken
from bftd.service import admin_view


def lease(item: Lease, now_s: float) -> LeaseView:
    """Return one lease as its driver sees it."""
    leave_in_s = None if item.leave_by_s is None or item.vacate else max(0.0, item.leave_by_s - now_s)
    return LeaseView(
        id=item.id,
        node=item.node,
        state="granted" if item.live else "revoked",
        vacate=item.vacate,
        limit_s=item.limit_s,
        gres=item.gres,
        gpus=item.gpus,
        reason=item.reason,
        partition=item.partition,
        leave_in_s=leave_in_s,
    )


def leases(state: State, trainer: Trainer, config: keys.Config, now_s: float, daemon: str = "") -> Leases:
    """Return all leases for a trainer's driver, unknown ones included; its pilots name this daemon `daemon`."""
    own = [item for item in state.leases.values() if item.trainer == trainer.id]
    listed = tuple(lease(item, now_s) for item in (*own, *trainer.unknown_leases))
    timeout_s = config.slurm.timeout_s
    looked_s = max(0.0, state.pool.looked_s)
    # a job submitted until then is seen at a poll early enough to free its nodes before the cycle comes
    calm_s = max(0.0, state.pool.cycle_s - timing.LEAVE_AHEAD_S - 2.0 * config.slurm.poll_s)
    return Leases(
        version=trainer.version,
        min_window_s=config.pool.min_window_s,
        leases=listed,
        daemon=daemon,
        timeout_s=timeout_s,
        now_s=now_s,
        looked_s=looked_s,
        calm_s=calm_s,
        container=config.elastic.container,
        stage=config.elastic.stage,
        sizes=trainer.sizes.between(trainer.sizes.low, min(trainer.sizes.high, len(state.pool.nodes))) or trainer.sizes,
    )


def kinds(state: State, item: Trainer) -> tuple[NodeKind, ...]:
    """Return the classes of nodes that a trainer may use, for its driver."""
    known = state.pool.classes
    names = classes.usable(known, item.request.requirements, item.request.partition)
    known_kinds = [known[name] for name in names if len(name) <= NAME_MOST][:CLASSES_MOST]
    return tuple(NodeKind(kind.name, kind.gpus, tuple(sorted(kind.features)), kind.cpus) for kind in known_kinds)


def trainer(state: State, item: Trainer, leases_of: Mapping[str, Sequence[Lease]] | None = None) -> dict[str, Any]:
    """Return one trainer with its planned, requested, observed and working nodes; `leases_of` has the leases of all."""
    own = _by_trainer(state).get(item.id, ()) if leases_of is None else leases_of.get(item.id, ())
    working = sum(lease.phase == "working" for lease in own)
    return {
        "id": item.id,
        "name": item.name,
        "user": item.user,
        "account": item.account,
        "backend": item.request.backend,
        "state": item.state,
        "nodes_min": item.sizes.low,
        "nodes_max": item.sizes.high,
        "planned": len(state.planned.assignment.get(item.id, ())),
        "requested": sum(lease.live for lease in own),
        "observed": sum(lease.observed for lease in own),
        "working": working,
        "step": item.step,
        "samples": item.samples,
        "samples_per_s": item.samples_per_s,
        "total_steps": item.total_steps,
        "expected_end_s": eta.expected_end_s(item, state.time_s),
        "efficiency": learning.efficiency(item.knowledge, item.sizes.high, working, item.samples_per_s),
        "loss": item.loss,
        "log": item.request.log,
        "resizes": item.resizes,
        "suspends": item.suspends,
        "steps_lost": item.steps_lost,
        "exit_code": item.exit_code,
    }


def taken(state: State, item: Trainer) -> Taken:
    """Return the answer to a driver's report."""
    end_s = eta.expected_end_s(item, state.time_s)
    return Taken(item.version, None if end_s is None else max(0.0, end_s - state.time_s))


def resize_costs(state: State, item: Trainer) -> dict[str, Any]:
    """Return the estimated costs of a trainer's resizes at its present size, and the cost of the last one."""
    known = item.knowledge
    held = sum(own.live for own in _by_trainer(state).get(item.id, ()))
    last = known.last_resize
    return {
        "nodes": held,
        "up_s": known.up_cost_s(held),
        "down_s": known.down_cost_s(held),
        "resume_s": known.resume_s,
        "save_s": known.save_s,
        "state_bytes": known.state_bytes or None,
        "last": None if last is None else last.about,
        "text": messages.resize_costs(known, held),
    }


def curve(item: Trainer) -> dict[str, Any]:
    """Return the estimated and the measured speed of a trainer, by class of nodes ("" if there is only one)."""
    known = item.knowledge
    seen = {**known.elsewhere, known.node_class: known.seen}
    return {
        "estimates": [estimate.to_json() for estimate in known.estimates.values()],
        "measured": [{"class": name, **to_fields(points)} for name, points in seen.items() if points],
        "learned": to_fields(learning.learned(known, item.sizes.high)),
        "text": messages.curve(known),
    }


def _by_trainer(state: State) -> Mapping[str, Sequence[Lease]]:
    found: dict[str, list[Lease]] = defaultdict(list)
    for item in state.leases.values():
        found[item.trainer].append(item)
    return found


def nodes(state: State) -> list[dict[str, Any]]:
    """Return every node of the harvested partition, with the trainer on it and why it is or is not in the pool."""
    by_node = {lease.node: lease for lease in state.leases.values()}
    counted = sampling.kinds(state)
    return [node(item, by_node.get(name), counted[name]) for name, item in state.pool.nodes.items()]


def node(item: PoolNode, held: Lease | None, kind: str) -> dict[str, Any]:
    """Return one node of the harvested partition, with its lease and the one of NODE_STATES that it counts as."""
    return {
        "name": item.name,
        "state": item.state,
        "class": item.node_class,
        "kind": kind,
        "in_pool": item.in_pool,
        "window_s": item.window_s,
        "trainer": held.trainer if held else None,
        "lease": held.id if held else None,
        "lease_state": None if held is None else held.phase if held.live else "revoked",
        "why": item.why,
    }


def node_details(state: State, name: str, now_s: float) -> dict[str, Any] | None:
    """Return a node's row of the status with details; None for a node that is not harvested.

    `left_out_until_s` is the time until which a node that refused pilots is not lent (to `left_out_for` only, unless
    that is ""); `quarantined_until_s` is the same for a node whose workers crashed. `earmark` is the job that it is
    earmarked for.
    """
    item = state.pool.nodes.get(name)
    if item is None:
        return None
    held = next((lease for lease in state.leases.values() if lease.node == name), None)
    until_s, avoided = state.quarantined.get(name), state.backoff.get(name)
    earmark = next((earmark for earmark in state.pool.earmarks.values() if name in earmark.nodes), None)
    pauses = (growth_stops.of_all(state.pauses), growth_stops.of_node(state.pauses, name))
    return node(item, held, sampling.kinds(state)[name]) | {
        "gres": item.gres,
        "gpus": item.gpus,
        "co_located": item.co_located,
        "beside": item.co_located,  # until 1.1
        "pilot": item.pilot,
        "quarantined_until_s": until_s if until_s is not None and until_s > now_s else None,
        "failures": len(state.failures.get(name, ())),
        "left_out_until_s": avoided.until_s if avoided is not None and avoided.until_s > now_s else None,
        "left_out_for": avoided.user if avoided is not None and avoided.until_s > now_s else "",
        "earmark": None
        if earmark is None
        else {"job": earmark.job, "since_s": earmark.since_s, "due_s": earmark.due_s},
        "paused": [growth_stops.text(pause) for pause in pauses if pause is not None],
    }


def earmarks(state: State) -> list[dict[str, Any]]:
    """Return the nodes earmarked for jobs that can start there; those in `leaving` had pilots when they were chosen."""
    return [
        {
            "job": earmark.job,
            "nodes": list(earmark.nodes),
            "since_s": earmark.since_s,
            "leaving": list(earmark.leaving),
            "due_s": earmark.due_s,
        }
        for earmark in state.pool.earmarks.values()
    ]


def earmark_usage(state: State) -> dict[str, Any]:
    """Return the results and costs of all earmarks so far."""
    usage = state.earmark_usage
    return {
        "made": usage.made,
        "started": usage.started,
        "wasted": usage.wasted,
        "kept_node_seconds": usage.kept_node_seconds,
        "wasted_node_seconds": usage.wasted_node_seconds,
    }


def orphan_jobs(state: State) -> list[dict[str, Any]]:
    """Return the jobs that no lease stands behind; `since_s` is their start in Slurm, or when they were first seen."""
    return [
        {
            "job_id": orphan.job.id,
            "user": orphan.job.user,
            "account": orphan.job.account,
            "nodes": list(orphan.job.nodes),
            "since_s": orphan.seen_s if orphan.job.start_s is None else orphan.job.start_s,
            "cancelled": orphan.cancelled_s is not None,
        }
        for orphan in state.orphan_jobs.values()
        if orphan.named
    ]


def settings(item: Settings) -> dict[str, Any]:
    """Return the settings that `bft tune` changes."""
    return {key.name: getattr(getattr(item, key.section), key.name) for key in keys.tunable()}


def tuned(set_: Mapping[str, Any], config: keys.Config) -> dict[str, dict[str, Any]]:
    """Return the keys that `bft tune` has set, each with its value and the configuration's value that it hides."""
    return {
        key.name: {"value": set_[key.name], "file": keys.value_of(config, key)}
        for key in keys.tunable()
        if key.name in set_
    }


def percentiles(durations_s: Sequence[float]) -> dict[str, float | int | None]:
    """Return median, 99th percentile (nearest rank) and maximum; None if nothing was measured."""
    ordered = sorted(durations_s)
    count = len(ordered)

    def rank(share: float) -> float | None:
        return ordered[min(count - 1, max(0, -int(-share * count // 1) - 1))] if count else None

    return {"p50": rank(0.5), "p99": rank(0.99), "max": ordered[-1] if count else None, "count": count}


def overview(
    state: State,
    now_s: float,
    version: str,
    mode: str,
    decisions: Sequence[dict[str, Any]],
    give_backs_s: Sequence[float],
) -> dict[str, Any]:
    """Return all of `GET /v1/status`."""
    usage, leases_of = state.usage, _by_trainer(state)
    return {
        "time_s": now_s,
        "version": version,
        "mode": mode,
        "snapshot_age_s": now_s - state.pool.time_s if state.pool.seen else None,
        "hold": state.pool.hold,
        "nodes": nodes(state),
        "trainers": [trainer(state, item, leases_of) for item in state.trainers.values()],
        "orphan_jobs": (orphans := orphan_jobs(state)),
        "strays": orphans,  # until 1.1
        "earmarks": earmarks(state),
        "earmark_usage": earmark_usage(state),
        "earmarks_wary": state.pool.wary,
        "delays": delay_budget.shown(state, now_s),
        "caps": caps.at_caps(state),
        **admin_view.shown(state, now_s),
        "decisions": list(decisions),
        "give_back_s": percentiles(give_backs_s),
        "pool_node_seconds": usage.pool_node_seconds,
        "held_node_seconds": usage.used_node_seconds,
        "training_node_seconds": usage.training_node_seconds,
        "starting_node_seconds": usage.starting_node_seconds,
        "resizing_node_seconds": usage.resizing_node_seconds,
        "used_node_seconds": usage.used_node_seconds,
        "settings": settings(state.settings),
    }
