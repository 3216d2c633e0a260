"""The limits that the site sets on the pool: pauses, the hours of harvesting, and a bound on all trainers together.

A barred node leaves the pool like a node that Slurm needs, except that nobody waits for it. A pause with `release` asks
nodes back at once, as Slurm would: they are then free within the bound that is set for giving back.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

from bftd.core.model import classes, growth_stops, messages
from bftd.core.model.decisions import Decision, GaveBack, GrowthPaused, PauseLifted, Stays, Waits
from bftd.core.model.domain import PoolNode, Settings, Trainer
from bftd.core.model.draft import Draft
from bftd.core.model.pause import Pause, Paused, Unpaused
from bftd.core.planning import caps
from bftd.core.planning.node_order import by_preference


def pause(turn: Draft, event: Paused) -> None:
    """Take in what an administrator paused; a second pause of the same thing replaces the first."""
    turn.pauses.update((item.key, item) for item in event.pauses)
    first, what = event.pauses[0], growth_stops.what(event.pauses)
    turn.say(None, GrowthPaused(first.by, what, first.why, first.release))
    turn.happened("paused", data=_pause_data(first.by, event.pauses) | {"why": first.why, "release": first.release})
    released, new = release(turn), {item.key: item for item in event.pauses}
    held = turn.live_nodes()
    for trainer in list(turn.trainers.values()):
        item = growth_stops.of_all(new) or growth_stops.of_trainer(new, trainer)
        if trainer.active and item is not None:
            why = growth_stops.text(item)
            if trainer.id not in released and trainer.last_reason != why:
                turn.say(trainer.id, _stays(trainer, len(held.get(trainer.id, ())), why))
            turn.change(trainer, last_reason=why)
    turn.plan_due = True


def lift(turn: Draft, event: Unpaused) -> None:
    """Take in that an administrator lifted pauses; barred nodes are in the pool again at the next snapshot."""
    lifted = [turn.pauses.pop(key) for key in event.keys if key in turn.pauses]
    if lifted:
        turn.say(None, PauseLifted(event.by, growth_stops.what(lifted)))
        turn.happened("resumed", data=_pause_data(event.by, lifted))
        turn.plan_due = True


def _pause_data(by: str, pauses: Iterable[Pause]) -> dict[str, object]:
    return {"by": by, "what": [{"kind": item.kind, "name": item.name} for item in pauses]}


def _stays(trainer: Trainer, held: int, why: str) -> Decision:
    return Stays(trainer.name, held, why) if held else Waits(trainer.name, why)


def release(turn: Draft) -> set[str]:
    """Ask back the nodes that pauses with `release` cover. Returns the trainers that were told so."""
    if not any(item.release for item in turn.pauses.values()):
        return set()
    lost: dict[tuple[str, str], list[str]] = defaultdict(list)
    for lease in list(turn.leases.values()):
        item = growth_stops.releasing(turn.pauses, lease, turn.trainers[lease.trainer])
        if item is None or lease.vacate:
            continue
        why = growth_stops.text(item)
        if lease.live:
            lost[lease.trainer, why].append(lease.node)
        turn.revoke(lease, why, vacate=True)
    kept = turn.live_nodes()
    for (trainer, why), nodes in lost.items():
        left = len(kept.get(trainer, ()))
        turn.say(trainer, GaveBack(turn.trainers[trainer].name, tuple(nodes), left, why))
    return {trainer for trainer, _ in lost}


def apply(turn: Draft, before: Set[str] = frozenset()) -> None:
    """Take barred nodes out of the draft's pool; a barred node stays barred until the next snapshot.

    `before` are the nodes that were barred at the last one.
    """
    barred = _barred(turn)
    over, bound = _beyond_bound(turn, barred, before)
    if not (over or barred or bound != turn.pool.bound):
        return
    nodes = dict(turn.pool.nodes)
    for name, why in (barred | over).items():
        nodes[name] = replace(nodes[name], in_pool=False, why=why)
    out, beyond = turn.pool.barred | barred.keys() | over.keys(), turn.pool.beyond | over.keys()
    turn.pool = replace(turn.pool, nodes=nodes, barred=out, bound=bound, beyond=beyond)


def _barred(turn: Draft) -> dict[str, str]:
    """Return the nodes that pauses and hours bar, each with the reason. Lent nodes stay, except at closing time."""
    halt = turn.halt
    if not halt and not any(item.kind == "node" for item in turn.pauses.values()):
        return {}
    closing = growth_stops.closed(turn.settings, turn.now)
    lent = {} if closing else {lease.node: lease for lease in turn.leases.values() if lease.live}
    found = {}
    for name, node in turn.pool.nodes.items():
        if not node.in_pool or name in lent:
            continue
        item = growth_stops.of_node(turn.pauses, name)
        if item is not None:
            found[name] = f"is paused by {item.by}: {item.why}"
        elif halt:
            found[name] = f"is idle, but {halt}" if node.pilot is None else f"runs a pilot, but {halt}"
    return found


def _beyond_bound(turn: Draft, barred: dict[str, str], before: Set[str]) -> tuple[dict[str, str], str]:
    """Return the nodes beyond the bound on all trainers together, each with the reason, and the sentence for trainers.

    Nodes that trainers hold stay first, so that no trainer moves; then the nodes that were free to use before.
    """
    most, by = bound(turn.settings, len(turn.pool.nodes))
    if most is None:
        return {}, turn.pool.bound
    pool = [node for node in turn.pool.nodes.values() if node.in_pool and node.name not in barred]
    leases = {lease.node: lease for lease in turn.leases.values()}
    order = {name: place for place, name in enumerate(by_preference(turn.pool.nodes))}
    places = {name: place for place, name in enumerate(_best_kept(turn, order))}

    def usefulness(node: PoolNode) -> tuple[int, bool, bool, int]:
        place = places.get(node.name, len(places))
        return place, turn.backs_off(node.name), node.name in before, order[node.name]

    taken = [node for node in pool if node.name in leases]
    free = [node for node in pool if node.name not in leases]
    # a node that is being given back is taken until it is free, even if it is out of the pool by now
    left = max(0, most - len(leases))
    if len(taken) <= most and len(free) <= left:
        return {}, turn.pool.bound
    over = sorted(taken, key=usefulness)[most:] + _unchosen(turn, sorted(free, key=usefulness), left)
    text = messages.bounded(most, by)
    return {node.name: f"stays free: {text}" for node in over}, text


def _unchosen(turn: Draft, free: list[PoolNode], count: int) -> list[PoolNode]:
    """Return the free nodes, sorted best first, without the `count` to offer.

    On several classes the trainers choose in turn among the nodes that they may use, each first its least number. If
    they choose fewer than `count`, the best of the others fill up the offer.
    """
    if len(turn.pool.classes) < 2:
        return free[count:]
    queues: dict[str, deque[tuple[int, PoolNode]]] = defaultdict(deque)
    for rank, node in enumerate(free):
        queues[node.node_class].append((rank, node))
    chosen: set[str] = set()

    def choose(kinds: Iterable[str], wanted: int) -> None:
        for _ in range(wanted):
            kind = min((name for name in kinds if queues[name]), key=lambda name: queues[name][0][0])
            chosen.add(queues[kind].popleft()[1].name)

    held = turn.live_nodes()
    ruling = caps.rule(turn, held, count + sum(map(len, held.values())))
    wanting: deque[tuple[tuple[str, ...], int]] = deque()
    for trainer in ruling.admitted:
        mine = held.get(trainer.id, ())
        first, most = max(0, trainer.sizes.low - len(mine)), ruling.most[trainer.id] - len(mine)
        kinds = _kinds(turn, trainer, mine, {name: len(queue) for name, queue in queues.items()}, first)
        if most > 0 and first <= min(count - len(chosen), sum(len(queues[name]) for name in kinds)):
            choose(kinds, first)
            wanting.append((kinds, most - first))
    while wanting and len(chosen) < count:
        kinds, more = wanting.popleft()
        if more > 0 and any(queues[name] for name in kinds):
            choose(kinds, 1)
            wanting.append((kinds, more - 1))
    rest = [node for node in free if node.name not in chosen]
    return rest[count - len(chosen) :]


def _kinds(turn: Draft, trainer: Trainer, mine: tuple[str, ...], free: dict[str, int], wanted: int) -> tuple[str, ...]:
    """Return the classes that a trainer may be lent more of: unless it mixes, only one, that of its nodes if any."""
    requirements = trainer.request.requirements
    names = tuple(
        name for name in classes.usable(turn.pool.classes, requirements, trainer.request.partition) if name in free
    )
    if requirements.mix:
        return names
    if mine:
        return tuple({turn.class_of(node) for node in mine}.intersection(names))
    return tuple(name for name in names if free[name] >= wanted)[:1]


def _best_kept(turn: Draft, order: Mapping[str, int]) -> list[str]:
    """Return the nodes that trainers hold, in the order in which they are to be kept.

    Each trainer's least number comes first, by arrival, so that a lower bound suspends as few trainers as possible.
    """
    held = {
        id_: sorted(nodes, key=lambda name: order.get(name, len(order))) for id_, nodes in turn.live_nodes().items()
    }
    trainers = [trainer for trainer in turn.trainers.values() if trainer.id in held]
    least = [name for trainer in trainers for name in held[trainer.id][: trainer.sizes.low]]
    return least + [name for trainer in trainers for name in held[trainer.id][trainer.sizes.low :]]


def bound(settings: Settings, partition_size: int) -> tuple[int | None, str]:
    """Return the most nodes that all trainers together may have, and the key that says so; None without a bound."""
    pool = settings.pool
    bounds = [(pool.max_nodes, f"max_nodes = {pool.max_nodes}")] if pool.max_nodes else []
    if pool.max_share < 1.0:
        # a share of whole nodes: a rounding error of the float must not cost a node
        share = int(pool.max_share * partition_size + 1e-6)
        bounds.append((share, f"max_share = {pool.max_share:g}"))
    return min(bounds) if bounds else (None, "")
