"""Dynamic programming over the nodes in use by class, pruned by bounds at several prices.

The states cover only the trainers that may still end up on different classes. The best that the settled trainers can do
with the rest of each class is looked up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from milp.solvers.arrays import Bools, Floats, Ints
from milp.solvers.several_classes.fixed_class import FixedClass, settle, with_price
from milp.solvers.several_classes.reduced_cost import Choices, within
from milp.solvers.several_classes.tables import ClassTables, Picks

# Pairs of a state and a choice that are processed at once: some 100 MB.
_MOST_PAIRS = 3_000_000


@dataclass(frozen=True)
class BestPlan:
    """The best plan found that is worth more than the floor, if any, and an upper bound for all other plans."""

    plan: Picks | None
    ceiling: float


@dataclass(frozen=True)
class _Core:
    """The result of fixing: open rows that may go to several classes, in `groups` of equal ones; the rest `settled`.

    `rest[k]` (M, C_k + 1) is the most that the settled trainers of class k make of 0..C_k nodes, or the nodes' cost.
    `bounds` (M,) are those of the whole problem.
    """

    choices: Choices
    groups: list[list[int]]
    settled: tuple[FixedClass, ...]
    rest: tuple[Floats, ...]
    bounds: Floats


@dataclass(frozen=True)
class _States:
    """Partial plans of the trainers so far.

    `free` (N, K) are the nodes left by class, `last` (N,) the class of the latest trainer, `closed` (N, K) the classes
    that no later trainer goes to. `worth` (N,) is that of the trainers so far and of those settled on closed classes,
    `hope` (M, N) the bound at every price of the plans that begin like this.
    """

    free: Ints
    last: Ints
    closed: Bools
    worth: Floats
    hope: Floats

    def only(self, which: Ints) -> _States:
        """Return the selected states."""
        return _States(self.free[which], self.last[which], self.closed[which], self.worth[which], self.hope[:, which])


def search(
    tables: ClassTables, prices: Floats, floor: float, most_states: int, is_over: Callable[[], bool]
) -> BestPlan | None:
    """Find the best plan that is worth more than `floor`; return None when `is_over` before the end.

    `prices` (M, K) are prices by class, each of which bounds the plans that a partial plan can lead to. If more than
    `most_states` partial plans are left, the least hopeful are dropped, and the ceiling becomes their highest bound.
    """
    core = _core(tables, prices, floor)
    if core is None:
        return BestPlan(None, floor)
    choices, kinds = core.choices, len(tables.capacity)
    states = _States(
        free=tables.capacity[None, :],
        last=np.zeros(1, np.int64),
        closed=np.zeros((1, kinds), np.bool_),
        worth=np.zeros(1),
        hope=core.bounds[:, None],
    )
    limit = min(most_states, max(_MOST_PAIRS // int(np.bincount(choices.row).max()), 1))
    later = _kinds_after(core, kinds)
    states = _close(states, core, ~later[0][None, :])
    ceiling = floor
    trail: list[tuple[int, Ints, Ints]] = []
    steps = [(row, place, group) for group in core.groups for place, row in enumerate(group)]
    for (row, place, group), needed in zip(steps, later[1:], strict=True):
        if is_over():
            return None
        before, chosen, hope = _promising(states, core, row, floor, alike=place > 0)
        states = _advance(states, choices, before, chosen, hope)
        shut = np.broadcast_to(~needed, states.closed.shape)
        if group is core.groups[-1]:
            # The order of alike trainers is free, so they go by class: earlier classes are closed for the rest.
            shut = shut | (np.arange(kinds) < states.last[:, None])
        states = _close(states, core, shut)
        keep = np.flatnonzero((states.hope >= floor).all(axis=0))
        keep = keep[_distinct(states.only(keep), tables.capacity, in_group=place + 1 < len(group))]
        if len(keep) > limit:
            score = states.hope[:, keep].min(axis=0)
            best = np.argpartition(-score, limit)
            ceiling = max(ceiling, float(score[best[limit:]].max()))
            keep = keep[best[:limit]]
        states = states.only(keep)
        trail.append((row, before[keep], chosen[keep]))
        if not len(keep):
            return BestPlan(None, ceiling)
    at = int(states.worth.argmax())
    plan = _trace(core, trail, at, states.free[at])
    return BestPlan(plan, max(ceiling, plan.total))


def _trace(core: _Core, trail: list[tuple[int, Ints, Ints]], at: int, free: Ints) -> Picks:
    """Return the plan that led to end state `at`, which leaves the nodes `free` to the settled trainers."""
    choices = core.choices
    pick = np.zeros(choices.best.shape[1], np.int64)
    for settled, nodes in zip(core.settled, free.tolist(), strict=True):
        for row, place in settled.pick(nodes).items():
            pick[row] = place
    for row, before, chosen in reversed(trail):
        pick[row], at = chosen[at], int(before[at])
    return Picks(choices.kind[pick], choices.count[pick], choices.worth[pick])


def _core(tables: ClassTables, prices: Floats, floor: float) -> _Core | None:
    """Fix what can be fixed, or return None if no plan worth more than `floor` is left."""
    choices = within(tables, prices, floor)
    while choices.complete:
        open_rows, by_kind = _split(choices, len(tables.capacity))
        settled = tuple(
            settle(choices, rows, nodes) for rows, nodes in zip(by_kind, tables.capacity.tolist(), strict=True)
        )
        rest = tuple(
            np.stack([with_price(s.worth[-1], price) for price in prices[:, kind].tolist()])
            for kind, s in enumerate(settled)
        )
        bounds = choices.best[:, open_rows].sum(axis=1)
        for table in rest:
            bounds = bounds + table[:, -1]
        slack = bounds - floor
        if (slack < 0).any():
            return None
        is_open = np.zeros(len(tables.counts), np.bool_)
        is_open[open_rows] = True
        keep = ~is_open[choices.row] | (choices.losses <= slack[:, None]).all(axis=0)
        if keep.all():
            return _Core(choices, _alike(choices, open_rows), settled, rest, bounds)
        choices = choices.only(keep)
    return None


def _split(choices: Choices, kinds: int) -> tuple[Ints, list[Ints]]:
    """Return rows with choices on several classes, and per class rows with choices only there (first also: on none)."""
    rows = choices.best.shape[1]
    on = np.zeros((rows, kinds), np.bool_)
    some = choices.count > 0
    on[choices.row[some], choices.kind[some]] = True
    several = on.sum(axis=1) > 1
    kind = on.argmax(axis=1)
    return np.flatnonzero(several), [np.flatnonzero(~several & (kind == k)) for k in range(kinds)]


def _alike(choices: Choices, rows: Ints) -> list[list[int]]:
    """Return the rows in groups with the very same choices; those with few choices first, the largest group last."""
    groups: dict[tuple[bytes, bytes, bytes], list[int]] = {}
    for row in rows.tolist():
        part = choices.of(row)
        key = (choices.kind[part].tobytes(), choices.count[part].tobytes(), choices.worth[part].tobytes())
        groups.setdefault(key, []).append(row)
    ordered = sorted(groups.values(), key=lambda group: choices.of(group[0]).stop - choices.of(group[0]).start)
    return sorted(ordered, key=lambda group: len(group) == max(map(len, ordered)) > 1)


def _kinds_after(core: _Core, kinds: int) -> list[Bools]:
    """Return the classes that the open rows from each on may go to, with one more entry for the end."""
    needed = [np.zeros(kinds, np.bool_)]
    for row in reversed([row for group in core.groups for row in group]):
        part = core.choices.of(row)
        now = needed[-1].copy()
        now[core.choices.kind[part][core.choices.count[part] > 0]] = True
        needed.append(now)
    return needed[::-1]


def _promising(states: _States, core: _Core, row: int, floor: float, *, alike: bool) -> tuple[Ints, Ints, Floats]:
    """Return (state, choice) of all continuations that fit the pool and whose bound reaches the floor, and the bounds.

    `alike` says that the trainer before has the same choices, so that this one need not go to an earlier class.
    """
    choices = core.choices
    part = choices.of(row)
    parts = []
    for kind, rest in enumerate(core.rest):
        places = part.start + np.flatnonzero(choices.kind[part] == kind)
        if len(places):
            which = np.flatnonzero(states.last <= kind) if alike else np.arange(len(states.last))
            parts.append(_promising_on(states, which, choices, row, kind, places, rest, floor))
    before, chosen, hope = zip(*parts, strict=True)
    return np.concatenate(before), np.concatenate(chosen), np.concatenate(hope, axis=1)


def _promising_on(
    states: _States, which: Ints, choices: Choices, row: int, kind: int, places: Ints, rest: Floats, floor: float
) -> tuple[Ints, Ints, Floats]:
    free, count, worth = states.free[which, kind], choices.count[places], choices.worth[places]
    # A choice of no nodes is of class 0, which may be closed; it changes nothing there.
    base = states.hope[:, which] - rest[:, free] - choices.best[:, row][:, None]
    left = free[:, None] - count
    ok: Bools = (left >= 0) & (base[0][:, None] + worth + rest[0][np.maximum(left, 0)] >= floor)
    at, column = np.nonzero(ok)
    left = left[at, column]
    for price in range(1, len(rest)):
        keep = base[price][at] + worth[column] + rest[price][left] >= floor
        at, column, left = at[keep], column[keep], left[keep]
    return which[at], places[column], base[:, at] + worth[column] + rest[:, left]


def _advance(states: _States, choices: Choices, before: Ints, chosen: Ints, hope: Floats) -> _States:
    free = states.free[before]
    kind = choices.kind[chosen]
    free[np.arange(len(free)), kind] -= choices.count[chosen]
    return _States(free, kind, states.closed[before], states.worth[before] + choices.worth[chosen], hope)


def _close(states: _States, core: _Core, shut: Bools) -> _States:
    """Give the rest of the classes that are now `shut` (N, K) to the trainers settled there."""
    worth, hope = states.worth.copy(), states.hope.copy()
    for kind, (settled, rest) in enumerate(zip(core.settled, core.rest, strict=True)):
        at = np.flatnonzero(shut[:, kind] & ~states.closed[:, kind])
        free = states.free[at, kind]
        gained = settled.worth[-1][free]
        worth[at] += gained
        hope[:, at] += gained - rest[:, free]
    return _States(states.free, states.last, states.closed | shut, worth, hope)


def _distinct(states: _States, capacity: Ints, *, in_group: bool) -> Ints:
    """Return the best of each set of states that allow the same continuations."""
    if float(np.prod(capacity + 1.0)) * (len(capacity) + 1) >= 2.0**62:
        return np.arange(len(states.last))  # too many classes to tell states apart by one number
    code: Ints = states.last.copy() if in_group else np.zeros(len(states.last), np.int64)
    stride = len(capacity) + 1
    for kind, nodes in enumerate(capacity.tolist()):
        code += np.where(states.closed[:, kind], 0, states.free[:, kind]) * stride
        stride *= nodes + 1
    order = np.lexsort((-states.worth, code))
    code = code[order]
    first = np.ones(len(code), np.bool_)
    first[1:] = code[1:] != code[:-1]
    distinct: Ints = order[first]
    return distinct
