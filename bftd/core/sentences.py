"""Decisions as sentences for people: `bft explain` prints them."""

from __future__ import annotations

from collections.abc import Sequence

from bftd.core import learn
from bftd.core.domain import Settings, Trainer
from slurm_plugin.nodeset import fold

Points = tuple[tuple[int, float], ...]


def nodes(count: int) -> str:
    """A number of nodes in words."""
    return "1 node" if count == 1 else f"{count} nodes"


def growth(trainer: Trainer, before: int, added: Sequence[str], points: Points, settings: Settings) -> str:
    """Why a trainer starts or grows."""
    after = before + len(added)
    rate = learn.rate(points, after)
    unknown = trainer.knowledge.rate_per_node is None
    about = "" if any(size == after for size, _ in trainer.knowledge.seen) else "about "
    if before < trainer.sizes.low:
        verb = "resumes" if trainer.state == "suspended" else "starts"
        expected = "its speed is not known yet" if unknown else f"{about}{rate:.3g} samples/s expected"
        return f"{trainer.name} {verb} on {nodes(after)} ({fold(added)}): {expected}"
    if unknown:
        return f"{trainer.name} grows from {before} to {nodes(after)} ({fold(added)}): its speed is not known yet"
    gain = rate - learn.rate(points, before)
    return (
        f"{trainer.name} grows from {before} to {nodes(after)} ({fold(added)}): {about}+{gain:.3g} samples/s over "
        f"the next {settings.t_fwd_s:.0f} s outweigh {trainer.knowledge.up_cost_s:.1f} s of stall"
    )


def shrinkage(trainer: Trainer, before: int, dropped: Sequence[str], why: str) -> str:
    """Why a trainer gives nodes back that nobody but bftd asks for."""
    after = before - len(dropped)
    if after == 0:
        return f"{trainer.name} is suspended and gives back {fold(dropped)}: {why}"
    return f"{trainer.name} shrinks from {before} to {nodes(after)}, {fold(dropped)} given back: {why}"


def loss(trainer: Trainer, lost: Sequence[str], left: int, why: str) -> str:
    """Why nodes are taken from a trainer."""
    rest = f"{nodes(left)} left" if left else "none is left"
    return f"{trainer.name} gives back {fold(lost)} ({rest}): {why}"


def beneficiaries(names: Sequence[str]) -> str:
    """Who gets the nodes that a trainer gives up for others."""
    if not names:
        return "fewer nodes are worth more to all trainers together"
    return f"{' and '.join(names)} make{'s' if len(names) == 1 else ''} more of them"


def no_growth(trainer: Trainer, held: int, free: int, points: Points, settings: Settings) -> str:
    """Why a trainer that could take free nodes does not."""
    if held == 0 and free < trainer.sizes.low:
        return f"{trainer.name} waits: {nodes(free) if free else 'no node'} free, it needs {trainer.sizes.low}"
    most = min(trainer.sizes.high, held + free)
    gain = learn.rate(points, most) - learn.rate(points, held)
    return (
        f"{trainer.name} keeps {nodes(held)}: {most - held} more would add {gain:.3g} samples/s, which over the next "
        f"{settings.t_fwd_s:.0f} s does not outweigh {trainer.knowledge.up_cost_s:.1f} s of stall"
    )
