"""Checks of every cross-reference of the core's state; tests call `validate_state` after each step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from bftd.core.model import classes, growth_stops
from bftd.core.model.domain import Lease, State, Trainer


class InvalidState(AssertionError):
    """The state breaks one of its invariants."""


def validate_state(state: State) -> None:
    """Raise InvalidState, naming the rule, unless every reference and count of the state is right."""
    _check_leases(state)
    _check_plan(state)
    _check_trainers(state)
    _check_caps(state)
    _check_pauses(state)
    usage = state.usage
    parts_s = usage.training_node_seconds + usage.starting_node_seconds + usage.resizing_node_seconds
    _require(parts_s <= usage.used_node_seconds + 1e-6, "S10: nodes trained, started and resized for longer than held")
    _require(usage.used_node_seconds <= usage.pool_node_seconds + 1e-6, "S10: more held than pool time")
    earmarks = state.earmark_usage
    enough = earmarks.wasted_node_seconds <= earmarks.kept_node_seconds + 1e-6
    _require(enough, "earmarks: more was wasted than was kept")
    _require(len(state.grants) <= state.settings.slurm.submit_rate_per_min, "S8: more grants in a minute than allowed")


def _require(true: bool, rule: str) -> None:
    if not true:
        raise InvalidState(rule)


def _check_leases(state: State) -> None:
    owners = Counter(lease.node for lease in state.leases.values())
    for node, count in owners.items():
        _require(count == 1, f"S4: {node} has {count} leases")
    for id_, lease in state.leases.items():
        _require(lease.id == id_, f"{id_} is filed under another id")
        node, _, number = id_.rpartition(".")
        _require(node == lease.node and int(number) <= state.sequence, f"{id_} is not a number that was handed out")
        _require(lease.trainer in state.trainers, f"{id_} belongs to no known trainer")
        _require(state.trainers[lease.trainer].active or not lease.live, f"{id_} is live but its trainer has finished")
        _require(lease.limit_s >= 60.0 and lease.limit_s % 60.0 == 0.0, f"S1: {id_} has no limit of whole minutes")
        _require(not lease.vacate or not lease.live, f"{id_} is to be vacated but not revoked")
        _require(lease.leave_by_s is None or not lease.live, f"{id_} has a time to leave by but is not revoked")
        _require(
            lease.phase == "granted" or lease.placed_s is not None or not lease.live, f"{id_} works but was not placed"
        )


def _check_plan(state: State) -> None:
    if not state.pool.seen:
        return
    planned = state.planned
    _require(planned.pool_version == state.pool.version, "S5: the plan was made for another pool")
    used = Counter(node for nodes in planned.assignment.values() for node in nodes)
    _require(all(count == 1 for count in used.values()), "S6: the plan uses a node twice")
    for trainer_id, nodes in planned.assignment.items():
        trainer = state.trainers.get(trainer_id)
        _require(trainer is not None, f"S5: the plan names {trainer_id}, which is not known")
        assert trainer is not None
        _require(trainer.sizes.allows(len(nodes)), f"S6: {trainer_id} may not run on {len(nodes)} nodes")
        for node in nodes:
            seen = state.pool.nodes.get(node)
            _require(seen is not None and seen.in_pool, f"S5: {node} is planned but not in the pool")
        _check_classes(state, trainer, nodes)
    for lease in state.leases.values():
        if lease.live:
            wanted = planned.assignment.get(lease.trainer, ())
            _require(lease.node in wanted, f"S5: {lease.id} is live but not part of the plan")


def _check_classes(state: State, trainer: Trainer, nodes: Collection[str]) -> None:
    known, requirements = state.pool.classes, trainer.request.requirements
    kinds = {state.pool.nodes[node].node_class for node in nodes} if known else set()
    _require(
        requirements.mix or len(kinds) < 2, f"S6: {trainer.id} is planned on the classes {', '.join(sorted(kinds))}"
    )
    may_use = classes.usable(known, requirements, trainer.request.partition)
    _require(kinds.issubset(may_use), f"S6: {trainer.id} is planned on nodes that it did not ask for")


def _check_caps(state: State) -> None:
    """After the first snapshot every change of a cap, an account or a lease is followed by a plan in the same step."""
    if not state.pool.seen:
        return
    limits = state.settings
    nodes: Counter[tuple[str, str]] = Counter()
    holders: dict[tuple[str, str], set[str]] = {}
    for lease in state.leases.values():
        if lease.live:
            trainer = state.trainers[lease.trainer]
            for whose in (("user", trainer.user), ("account", trainer.account)):
                nodes[whose] += 1
                holders.setdefault(whose, set()).add(trainer.id)
    most_nodes = {"user": limits.limits.nodes_per_user, "account": limits.limits.nodes_per_account}
    most_trainers = {"user": limits.limits.trainers_per_user, "account": limits.limits.trainers_per_account}
    for (kind, name), count in nodes.items():
        if name and most_nodes[kind]:
            _require(count <= most_nodes[kind], f"caps: {kind} {name} holds {count} of {most_nodes[kind]} nodes")
        if name and most_trainers[kind]:
            count = len(holders[kind, name])
            _require(count <= most_trainers[kind], f"caps: {kind} {name} has {count} trainers with nodes")


def _check_pauses(state: State) -> None:
    for key, pause in state.pauses.items():
        _require(pause.key == key, f"{key} is filed under another key")
    for lease in state.leases.values() if state.pauses else ():
        asked_back = growth_stops.releasing(state.pauses, lease, state.trainers[lease.trainer]) is not None
        _require(not lease.live or not asked_back, f"pauses: {lease.id} is live and was to be given back")


def _check_trainers(state: State) -> None:
    of_trainer: dict[str, list[Lease]] = {}
    for lease in state.leases.values():
        of_trainer.setdefault(lease.trainer, []).append(lease)
    for id_, trainer in state.trainers.items():
        _require(trainer.id == id_, f"{id_} is filed under another id")
        leases = of_trainer.get(id_, ())
        live = sum(lease.live for lease in leases)
        # Reports of drivers are planned for at the next snapshot; a driver below nodes_min suspends by itself at once.
        unplanned = state.plan_due or not state.pool.seen
        _require(trainer.sizes.allows(live) or unplanned, f"L4: {id_} holds {live} nodes, which it cannot run on")
        unknown = {lease.id for lease in trainer.unknown_leases}
        _require(unknown.isdisjoint(lease.id for lease in leases), f"{id_} has an unknown lease that is known")
    arrivals = [trainer.arrived_s for trainer in state.trainers.values()]
    _require(arrivals == sorted(arrivals), "trainers are not in order of arrival")
