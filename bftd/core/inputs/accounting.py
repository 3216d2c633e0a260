"""The use of the pool's nodes between two good snapshots: in all, and per user and account (S10).

An interval is counted once, when its end is seen, by the state at its beginning. How long a resize stalled training is
known only when training goes on. That time has been counted as training by then, so the training that follows is
counted as the stall.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from bftd.core.model.domain import Charged, Lease, NodeUsage, Settings, UsageShare
from bftd.core.model.draft import Draft

# A few polls may fail, and on a busy controller they are far apart. What happened in a longer gap is unknown.
POLLS_COUNTED = 3
# The phases of a lease whose pilot runs and whose workers have ended no step of the present group.
STARTING = ("granted", "placed", "ready")


def counted_s(passed_s: float, settings: Settings) -> float:
    """Return the seconds between two good snapshots that are counted: all of them, or 0 if the gap is too long."""
    most_s = max(settings.pool.stale_after_s, POLLS_COUNTED * settings.slurm.poll_s)
    return passed_s if 0.0 < passed_s <= most_s else 0.0


def account(turn: Draft, passed_s: float) -> None:
    """Count `passed_s` seconds by the state at the last snapshot."""
    if passed_s <= 0.0:
        return
    observed = [lease for lease in turn.leases.values() if lease.observed]
    nodes = turn.pool.nodes
    outside = {lease.node for lease in observed if (node := nodes.get(lease.node)) is None or not node.in_pool}
    pool = sum(map(attrgetter("in_pool"), nodes.values())) + len(outside)
    working = Counter(lease.trainer for lease in observed if lease.phase == "working")
    stalled_s = _stalled_s(turn, working, passed_s)
    starting = sum(lease.live and lease.phase in STARTING for lease in observed)
    turn.usage = NodeUsage(
        turn.usage.pool_node_seconds + passed_s * pool,
        turn.usage.used_node_seconds + passed_s * len(observed),
        turn.usage.training_node_seconds + passed_s * working.total() - sum(stalled_s.values()),
        turn.usage.starting_node_seconds + passed_s * starting,
        turn.usage.resizing_node_seconds + sum(stalled_s.values()),
    )
    if turn.explain and observed:
        training_s = {id_: passed_s * count - stalled_s.get(id_, 0.0) for id_, count in working.items()}
        turn.actions.append(Charged(tuple(_shares(turn, observed, training_s, passed_s))))


def _stalled_s(turn: Draft, working: Mapping[str, int], passed_s: float) -> dict[str, float]:
    """Return the node-seconds of each trainer's working nodes that count as the stalls its driver has reported."""
    stalled_s = {}
    for id_, count in working.items():
        trainer = turn.trainers[id_]
        if trainer.stalled_node_seconds > 0.0:
            stalled_s[id_] = min(trainer.stalled_node_seconds, passed_s * count)
            turn.change(trainer, stalled_node_seconds=trainer.stalled_node_seconds - stalled_s[id_])
    return stalled_s


def _shares(
    turn: Draft, observed: Sequence[Lease], training_s: Mapping[str, float], passed_s: float
) -> Iterable[UsageShare]:
    held = Counter(map(attrgetter("trainer"), observed))
    leaving = Counter(lease.trainer for lease in observed if lease.revoked_s is not None)
    owners: dict[tuple[str, str], tuple[float, float, float]] = {}
    for id_, count in held.items():
        trainer = turn.trainers[id_]
        own = (passed_s * count, training_s.get(id_, 0.0), passed_s * leaving[id_])
        before = owners.get((trainer.user, trainer.account), (0.0, 0.0, 0.0))
        owners[trainer.user, trainer.account] = (before[0] + own[0], before[1] + own[1], before[2] + own[2])
    for owner, sums in owners.items():
        yield UsageShare(*owner, *sums)
