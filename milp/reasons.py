"""Why each trainer got what it got: one sentence a trainer, in the numbers of equation (16)."""

from __future__ import annotations

from collections.abc import Mapping

from milp.model import Problem, TrainerSpec
from milp.objective import outcome, rescale_cost


def explain(problem: Problem, counts: Mapping[str, int]) -> dict[str, str]:
    """One sentence for every trainer: gain over t_fwd against rescale cost, or what stands in the way."""
    free = len(problem.nodes) - sum(counts.values())
    return {trainer.name: _explain(problem, trainer, counts[trainer.name], free) for trainer in problem.trainers}


def _explain(problem: Problem, trainer: TrainerSpec, count: int, free: int) -> str:
    held, t_fwd_s = len(trainer.current), problem.t_fwd_s
    if count > held:
        return _grew(trainer, count, t_fwd_s)
    if count < held:
        return _shrank(trainer, count, t_fwd_s)
    if count:
        return _kept(trainer, free, t_fwd_s)
    return _waits(trainer, free, len(problem.nodes), t_fwd_s)


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


def _gain(trainer: TrainerSpec, count: int, t_fwd_s: float) -> float:
    """What `count` nodes earn over `t_fwd_s` beyond the current ones (which earn nothing below nodes_min)."""
    return outcome(trainer, count, t_fwd_s) - t_fwd_s * trainer.earns_now


def _grew(trainer: TrainerSpec, count: int, t_fwd_s: float) -> str:
    held = len(trainer.current)
    gain, cost = _gain(trainer, count, t_fwd_s), rescale_cost(trainer, count)
    verb = f"grows from {held} to {_nodes(count)}" if held else f"starts on {_nodes(count)}"
    return f"{verb}: gains {gain:.4g} over the next {t_fwd_s:g} s for a rescale cost of {cost:.4g}"


def _shrank(trainer: TrainerSpec, count: int, t_fwd_s: float) -> str:
    held = len(trainer.current)
    verb = f"shrinks from {held} to {_nodes(count)}" if count else f"gives up its {_nodes(held)}"
    if held < trainer.nodes_min:
        return f"{verb}: below its nodes_min of {trainer.nodes_min} it cannot train on them"
    if held > trainer.nodes_max:
        return f"{verb}: its nodes_max is {trainer.nodes_max}"
    if not trainer.allows(held):
        return f"{verb}: {held} is none of its sizes"
    loss, cost = -_gain(trainer, count, t_fwd_s), rescale_cost(trainer, count)
    if loss <= 0:
        return f"{verb}: gains {-loss:.4g} over the next {t_fwd_s:g} s for a rescale cost of {cost:.4g}"
    return (
        f"{verb}: loses {loss:.4g} over the next {t_fwd_s:g} s and {cost:.4g} rescaling; other trainers gain more there"
    )


def _kept(trainer: TrainerSpec, free: int, t_fwd_s: float) -> str:
    held = len(trainer.current)
    verb = f"keeps its {_nodes(held)}"
    if held == trainer.largest_allowed(trainer.nodes_max):
        return f"{verb}: that is its largest size"
    if not free:
        return f"{verb}: no node is free, and none is worth more here than where it is"
    larger = trainer.largest_allowed(held + free)
    if larger <= held:
        return f"{verb}: too few are free ({free}) for its next size"
    gain, cost = _gain(trainer, larger, t_fwd_s), rescale_cost(trainer, larger)
    gain_text = f"gain only {gain:.4g}" if gain <= cost else f"gain {gain:.4g}"
    return f"{verb}: growing to {larger} would {gain_text} over the next {t_fwd_s:g} s for a rescale cost of {cost:.4g}"


def _waits(trainer: TrainerSpec, free: int, pool: int, t_fwd_s: float) -> str:
    smallest = trainer.nodes_min
    if trainer.sizes is not None:
        smallest = min(size for size in trainer.sizes if size >= smallest)
    if smallest > pool:
        return f"waits: it needs {_nodes(smallest)}, the pool has {pool}"
    if smallest > free:
        return f"waits: it needs {_nodes(smallest)}, the trainers that earn more with them leave {free}"
    return f"waits: {_nodes(smallest)} would gain {_gain(trainer, smallest, t_fwd_s):.4g} over the next {t_fwd_s:g} s"
