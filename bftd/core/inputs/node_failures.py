"""Crashes of workers: which reports are believed, and when they put a node into quarantine.

A driver is believed about nodes where Slurm showed a pilot of its trainer's, at present or a short while ago. As
scripts fail too, a node is left alone after failures of two users, or of one user again and again.
"""

from __future__ import annotations

from bftd.core.model import timing
from bftd.core.model.decisions import NodeAvoided
from bftd.core.model.domain import Failure, Lease, Trainer
from bftd.core.model.draft import Draft, worked_well

# One user's failures alone keep at most this share of the nodes from others, who might train there well.
SHARE_OF_ONE_USER = 0.1


def crashed(turn: Draft, trainer: Trainer, node: str) -> None:
    """Count a crash against its node, once per lease; enough of them put the node into quarantine."""
    lease = _lease(turn, trainer, node)
    if lease is None:
        return
    settings = turn.settings.pool
    before = () if worked_well(lease, turn.now) else turn.failures.get(node, ())
    recent = [failure for failure in before if _counts(turn, failure) and failure.pilot != lease.id]
    found = (*recent, Failure(lease.id, turn.now, trainer.user))[-settings.quarantine_after :]
    if lease.id in turn.leases:
        turn.change_lease(lease, working_s=None)  # its next worker must show anew that the node is sound
    if not _condemned(turn, found):
        turn.failures[node] = found
        return
    turn.failures.pop(node, None)
    turn.quarantined[node] = turn.now + settings.quarantine_s
    if turn.explain:
        turn.say(None, NodeAvoided(node, settings.quarantine_s, len(found)))


def failed_in(turn: Draft, lease: Lease) -> bool:
    """Whether a crash in this lease's pilot counts against its node."""
    return any(failure.pilot == lease.id for failure in turn.failures.get(lease.node, ()))


def forget(turn: Draft) -> None:
    """Drop the failures that count no more, and the leases that ended too long ago to matter."""
    for node, found in list(turn.failures.items()):
        recent = tuple(failure for failure in found if _counts(turn, failure))
        if recent != found:
            del turn.failures[node]
            if recent:
                turn.failures[node] = recent
    for node, lease in list(turn.ended.items()):
        if not _reported_in_time(turn, lease):
            del turn.ended[node]


def _lease(turn: Draft, trainer: Trainer, node: str) -> Lease | None:
    """Return the trainer's own lease of a node, present or just ended, if Slurm showed its pilot; else None."""
    lease = turn.lease_on(node)
    if lease is None or lease.trainer != trainer.id:
        lease = turn.ended.get(node)
    known = lease is not None and lease.trainer == trainer.id and lease.shown and _reported_in_time(turn, lease)
    return lease if known else None


def _reported_in_time(turn: Draft, lease: Lease) -> bool:
    return lease.ended_s is None or turn.now - lease.ended_s <= timing.ENDED_KEPT_S


def _counts(turn: Draft, failure: Failure) -> bool:
    return bool(failure.user) and turn.now - failure.at_s < turn.settings.pool.quarantine_s


def _condemned(turn: Draft, found: tuple[Failure, ...]) -> bool:
    """Whether failures of different pilots put their node into quarantine."""
    enough = turn.settings.pool.quarantine_after
    users = {failure.user for failure in found}
    if len(users) > 1:
        return len(found) >= max(2, enough - 1)
    if len(found) < enough:
        return False
    if all(trainer.user in users for trainer in turn.trainers.values() if trainer.active):
        return True
    return len(turn.quarantined) < max(1.0, SHARE_OF_ONE_USER * len(turn.pool.nodes))
