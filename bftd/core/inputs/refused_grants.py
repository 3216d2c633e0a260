"""Grants that came to no pilot: refused by Slurm, never placed, or placed by the driver's word alone.

A driver's word proves no pilot. Only Slurm's does, by showing it in a snapshot. Until then a lease that ends, whatever
its driver says of it, left a node idle for as long as it lasted. At first that is a race lost to Slurm. If it happens
again and again, the user is at a limit, or the driver hangs or lies: its trainer waits, ever longer and in proportion
to the cost of its tries, and then tries with as few nodes as it can.
"""

from __future__ import annotations

from bftd.core.model import timing
from bftd.core.model.domain import Lease, Trainer
from bftd.core.model.draft import Draft, doubling


def proven(turn: Draft, lease: Lease) -> None:
    """Forget the refusals before a pilot that Slurm shows, unless another grant of the same round was refused.

    A trainer's refusals are remembered until it has made up for the time in which its grants left nodes idle. Otherwise
    a driver could place a pilot now and then and leave all other nodes idle for ever.
    """
    turn.backoff.pop(lease.node, None)
    trainer = turn.trainers[lease.trainer]
    if not trainer.refused_rounds:
        return
    turn.plan_due |= trainer.refused_rounds >= timing.REFUSED_ROUNDS  # it may try with more now
    if lease.granted_s > trainer.refused_round_s and _debt_s(turn, trainer) <= 0.0:
        turn.change(trainer, refused_rounds=0)


def unproven(turn: Draft, lease: Lease) -> bool:
    """Whether a lease that ends now came to no pilot, and not by a decision of the daemon."""
    return lease.live and not lease.shown and not turn.settings.trusting


def count(turn: Draft, lease: Lease) -> None:
    """Leave the node of a failed grant alone for a while, or its trainer if its grants always fail."""
    if count_round(turn, lease) >= timing.REFUSED_ROUNDS:
        # a fault of the trainer: its nodes are as good as any, and the next trainer may have them
        turn.backoff.pop(lease.node, None)
    turn.back_off(lease.node, turn.trainers[lease.trainer].user)
    trainer = turn.trainers[lease.trainer]
    turn.change(trainer, idled_s=trainer.idled_s + turn.backoff[lease.node].until_s - turn.now)


def count_round(turn: Draft, lease: Lease) -> int:
    """Count a failed grant against its trainer; grants made together are one round. Returns the number of rounds."""
    trainer = turn.trainers[lease.trainer]
    trainer = turn.change(trainer, idled_s=trainer.idled_s + turn.now - lease.granted_s)
    if lease.granted_s > trainer.refused_round_s:
        rounds = trainer.refused_rounds + 1
        trainer = turn.change(trainer, refused_rounds=rounds, refused_round_s=lease.granted_s)
    if trainer.refused_rounds >= timing.REFUSED_ROUNDS:
        wait_s = doubling(trainer.refused_rounds) * max(1.0, turn.now - lease.granted_s)
        turn.change(trainer, no_growth_until_s=max(trainer.no_growth_until_s, turn.now + wait_s))
    return trainer.refused_rounds


def inherit(turn: Draft, trainer: Trainer) -> None:
    """Let a new trainer inherit the refusals of its user's others: Slurm will refuse this one the same.

    Otherwise a lying driver would come back under another name each time.
    """
    others = [item for item in turn.trainers.values() if item.user == trainer.user and item.id != trainer.id]
    worst = max(others, key=lambda item: item.refused_rounds, default=trainer)
    if worst.refused_rounds:
        turn.change(
            trainer,
            refused_rounds=worst.refused_rounds,
            no_growth_until_s=max(item.no_growth_until_s for item in others),
            idled_s=max(item.idled_s - item.worked_s / timing.IDLED_WEIGHT for item in others),
        )


def _debt_s(turn: Draft, trainer: Trainer) -> float:
    """Return the node-seconds that its grants left idle and its pilots, past and present, have not made up for."""
    leases = turn.leases_of(trainer.id)
    since = (item.placed_s for item in leases if item.shown and item.placed_s is not None)
    worked_s = trainer.worked_s + sum(turn.now - placed_s for placed_s in since)
    return trainer.idled_s - worked_s / timing.IDLED_WEIGHT
