"""What the nodes of the pool did from one good snapshot to the next: in all, and for each user and account (S10).

An interval is counted once, when its end is seen, as things stood at its beginning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import attrgetter

from bftd.core.domain import Charged, Lease, Settings, Share, Usage
from bftd.core.turn import Turn

# A few polls may fail, and on a busy controller they are far apart; what happened in a longer gap nobody knows.
POLLS_COUNTED = 3


def counted_s(passed_s: float, settings: Settings) -> float:
    """How much of the time between two good snapshots is counted: all of it, or nothing of a gap that is too long."""
    most_s = max(settings.pool.stale_after_s, POLLS_COUNTED * settings.slurm.poll_s)
    return passed_s if 0.0 < passed_s <= most_s else 0.0


def account(turn: Turn, passed_s: float) -> None:
    """Count `passed_s` seconds as things stood at the last snapshot."""
    if passed_s <= 0.0:
        return
    observed = [lease for lease in turn.leases.values() if lease.observed]
    nodes = turn.pool.nodes
    outside = {lease.node for lease in observed if (node := nodes.get(lease.node)) is None or not node.in_pool}
    pool = sum(map(attrgetter("in_pool"), nodes.values())) + len(outside)
    working = [lease for lease in observed if lease.phase == "working"]
    turn.usage = Usage(
        turn.usage.pool_node_seconds + passed_s * pool,
        turn.usage.used_node_seconds + passed_s * len(observed),
        turn.usage.training_node_seconds + passed_s * len(working),
    )
    if turn.explain and observed:
        turn.actions.append(Charged(tuple(_shares(turn, observed, working, passed_s))))


def _shares(turn: Turn, observed: Sequence[Lease], working: Sequence[Lease], passed_s: float) -> Iterable[Share]:
    leaving = [lease for lease in observed if lease.revoked_s is not None]
    used, trained, left = (_by_owner(turn, leases) for leases in (observed, working, leaving))
    for owner, count in used.items():
        yield Share(*owner, passed_s * count, passed_s * trained[owner], passed_s * left[owner])


def _by_owner(turn: Turn, leases: Iterable[Lease]) -> Counter[tuple[str, str]]:
    """How many of these leases each user and account has."""
    owners: Counter[tuple[str, str]] = Counter()
    for id_, count in Counter(map(attrgetter("trainer"), leases)).items():
        trainer = turn.trainers[id_]
        owners[trainer.user, trainer.account] += count
    return owners
