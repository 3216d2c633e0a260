"""Doing nothing: the current map as far as it is allowed, the answer when no solver has a better one."""

from __future__ import annotations

from milp.cells import Cell, cells, counts_in, sums
from milp.maps import assign_cells
from milp.problem import Problem, TrainerSpec
from milp.worth import outcome


def keep(problem: Problem) -> dict[str, tuple[str, ...]]:
    """Every trainer keeps its nodes, or the most of them that its sizes and caps allow, earlier trainers first.

    Nobody gets a node that it does not hold, so this costs no solving and is never infeasible.
    """
    parts = cells(problem)
    left = {cap: cap.nodes_max for cap in problem.caps}
    shares: dict[str, tuple[int, ...]] = {}
    for trainer in problem.trainers:
        caps = [cap for cap in problem.caps if cap.covers(trainer.user, trainer.account)]
        at_most = min((left[cap] for cap in caps), default=len(problem.nodes))
        shares[trainer.name] = _share(problem, trainer, parts, at_most)
        for cap in caps:
            left[cap] -= sum(shares[trainer.name])
    return assign_cells(problem, parts, shares)


def _share(problem: Problem, trainer: TrainerSpec, parts: tuple[Cell, ...], at_most: int) -> tuple[int, ...]:
    """The counts per cell that the trainer keeps."""
    held = counts_in(trainer.current, parts)
    # Part of a group is of no use: it goes together or not at all.
    usable = [0 if part.whole and count < len(part.nodes) else count for part, count in zip(parts, held, strict=True)]
    if trainer.mixes_classes or len(problem.classes) == 1:
        return _largest(trainer, parts, usable, at_most)
    kept = []
    for name in problem.classes:
        of_class = [count if part.classes == {name} else 0 for part, count in zip(parts, usable, strict=True)]
        kept.append((_largest(trainer, parts, of_class, at_most), {name}))
    return max(kept, key=lambda share: (outcome(problem, trainer, sum(share[0]), share[1]), sum(share[0])))[0]


def _largest(trainer: TrainerSpec, parts: tuple[Cell, ...], usable: list[int], at_most: int) -> tuple[int, ...]:
    """The most of the `usable` counts that make an allowed size: whole groups, and any part of the rest."""
    loose = sum(count for part, count in zip(parts, usable, strict=True) if not part.whole)
    groups = [place for place, part in enumerate(parts) if part.whole and usable[place]]
    totals = sums(usable[place] for place in groups)
    size = trainer.largest_allowed(min(sum(usable), at_most))
    while size and not any(size - loose <= total <= size for total in totals):
        size = trainer.largest_allowed(size - 1)
    wanted = max((total for total in totals if size - loose <= total <= size), default=0)
    shares = [0] * len(parts)
    for at, place in enumerate(groups):
        if wanted - usable[place] in sums(usable[later] for later in groups[at + 1 :]):
            shares[place] = usable[place]
            wanted -= usable[place]
    left = size - sum(shares)
    for place, part in enumerate(parts):
        if not part.whole:
            shares[place] = min(usable[place], left)
            left -= shares[place]
    return tuple(shares)
