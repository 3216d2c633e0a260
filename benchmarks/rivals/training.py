"""The costs of training, the same for every system, and its outcome: pure, from the processes' logs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Literal

End = Literal["alive", "asked", "lost"]


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that each node needs: for a step, to start a process, to regroup with others, and to save.

    A second stands for about twenty, as the stream is that much faster than a real one: 40 s for a start, 10 s to
    regroup, 4 s for a save. A node makes one sample a step, alone or in a group of any size. `life_s` is the mean time
    from a start on a node of the scavenger partition to the preemption, by which all choose how often to save.
    """

    step_s: float = 0.5
    start_s: float = 2.0
    regroup_s: float = 0.5
    checkpoint_s: float = 0.2
    life_s: float = 40.0

    @property
    def save_every(self) -> int:
        """Steps from one save to the next: Young and Daly's interval."""
        return max(1, round(math.sqrt(2.0 * self.checkpoint_s * self.life_s) / self.step_s))

    def told(self) -> dict[str, float]:
        """All of it, for files."""
        return {**asdict(self), "save_every": self.save_every}


@dataclass(frozen=True, slots=True)
class Spell:
    """One process in a group of `size` nodes: the times of its steps, in seconds after the stream's start.

    `saved` is how many of them were in a checkpoint when it ended: because the driver had asked it to stop, which it
    does after a save, or because it lost the node; or it has not ended.
    """

    group: str
    size: int
    steps_s: tuple[float, ...]
    saved: int
    end: End


@dataclass(frozen=True, slots=True)
class Group:
    """The common steps of `size` nodes, and how many of them were kept."""

    size: int
    steps_s: tuple[float, ...]
    kept: int

    def told(self) -> dict[str, Any]:
        """All of it, for files."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Trained:
    """Samples that were computed, and those of them that a preemption took."""

    computed: int
    lost: int

    @property
    def kept(self) -> int:
        """The rest."""
        return self.computed - self.lost


def spells(lines: Iterable[str], alive: bool, begin_s: float) -> list[Spell]:
    """Read the log of a process, which is `alive` or has ended; the stream began at `begin_s` (unix seconds)."""
    found: list[Spell] = []
    for line in lines:
        at, _, what = line.partition(" ")
        word, *words = what.split()
        if word == "spell":
            found.append(Spell(words[0], int(words[1]), (), 0, "alive" if alive else "lost"))
            steps: list[float] = []
            continue
        last = found.pop()
        if word == "step":
            steps.append(round(float(at) - begin_s, 3))
        saved = len(steps) if word == "save" else last.saved
        found.append(Spell(last.group, last.size, tuple(steps), saved, "asked" if word == "stop" else last.end))
    return found


def groups(every: Iterable[Spell]) -> list[Group]:
    """Put members together: they keep step, and where one lost its node its group goes back to the last save."""
    found = []
    for _, members in groupby(sorted(every, key=lambda spell: spell.group), key=lambda spell: spell.group):
        found.append(_group(list(members)))
    return found


def _group(members: Sequence[Spell]) -> Group:
    size = members[0].size
    if len(members) < size:  # one lost its node before it began
        return Group(size, (), 0)
    common = min(len(member.steps_s) for member in members)
    broken = any(member.end == "lost" for member in members)
    kept = min(common, *(member.saved for member in members)) if broken else common
    steps_s = tuple(max(member.steps_s[number] for member in members) for number in range(common))
    return Group(size, steps_s, kept)


def trained(every: Iterable[Group], until_s: float) -> Trained:
    """The samples from the stream's start to `until_s`."""
    computed = lost = 0
    for group in every:
        inside = [0.0 <= at_s <= until_s for at_s in group.steps_s]
        computed += group.size * sum(inside)
        lost += group.size * sum(inside[group.kept :])
    return Trained(computed, lost)
