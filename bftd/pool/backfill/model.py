"""The input of the copy of Slurm's planner: jobs to place, and the nodes to place them on, as sets in one number.

A set of nodes is an int, a *mask*, in which each node of the `Numbering` has its bit: sets of thousands of nodes are
then intersected and counted in a microsecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import compress
from operator import or_

_DIGITS = bytes.maketrans(b"01", b"\0\1")


def union(masks: Iterable[int]) -> int:
    """Return all nodes of some sets."""
    return reduce(or_, masks, 0)


def lowest(mask: int, count: int) -> int:
    """Return the first `count` nodes of a set that has at least as many."""
    low, high = 0, mask.bit_length()
    while low < high:
        middle = (low + high) // 2
        if (mask & ((1 << middle) - 1)).bit_count() < count:
            low = middle + 1
        else:
            high = middle
    return mask & ((1 << low) - 1)


@dataclass(frozen=True, slots=True)
class Numbering:
    """The nodes by number, in Slurm's own order: neighbours have neighbouring numbers."""

    names: tuple[str, ...]
    bit: Mapping[str, int]

    @classmethod
    def of(cls, names: Iterable[str]) -> Numbering:
        """Number nodes in the order in which Slurm lists them."""
        listed = tuple(names)
        return cls(listed, {name: 1 << index for index, name in enumerate(listed)})

    def mask(self, names: Iterable[str]) -> int:
        """Return the set of some nodes; names without a number are left out."""
        found = 0
        for name in names:
            found |= self.bit.get(name, 0)
        return found

    def of_mask(self, mask: int) -> tuple[str, ...]:
        """Return the names of a set, in order."""
        return tuple(compress(self.names, bin(mask)[:1:-1].encode().translate(_DIGITS)))


Rank = tuple[int, int, int]
"""The place of a job among those that end at the same time; see `rank`."""


@dataclass(frozen=True, slots=True)
class JobEnd:
    """The nodes (`mask`, 0 for those of others) that a running job leaves at `at_s`, by its limit, and its `rank`."""

    at_s: float
    mask: int
    rank: Rank = (0, 0, 0)


def rank(job_id: str) -> Rank:
    """Return the sort key by which Slurm lists jobs: by submission, a task of an array by its start."""
    whole, _, task = job_id.partition("_")
    first = whole.partition("+")[0]
    number = int(first) if first.isdecimal() else 0
    return (1, number, int(task) if task.isdecimal() else 0) if task else (0, number, 0)


@dataclass(frozen=True, slots=True)
class Component:
    """The nodes that a job, or one component of a heterogeneous job, needs at once: `need` of the nodes `allowed`.

    All of `required` are among them. `either` are sets one of which must hold all nodes (features like "[a|b]"), () if
    any may be mixed. `shared` are nodes in use on which it fits beside others: it can start there as well, and no
    node is earmarked. On the nodes of `yields` it fits once our pilot has left, which shares them with others.
    `together` such jobs fit on one idle node, 1 if it shares with no job. `within` are the nodes of its partition,
    whatever else it asks for: Slurm looks for later starts where any of these becomes free.
    """

    allowed: int
    need: int
    required: int = 0
    contiguous: bool = False
    either: tuple[int, ...] = ()
    shared: int = 0
    together: int = 1
    within: int = -1
    yields: int = 0


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """One entry of the planner's queue: a job in one of its partitions, or the waiting tasks of an array.

    `count` tasks may start, one after another. All `parts` must start at once. The job runs for `limit_s`, or for as
    little as `least_s` if that lets it start earlier. `plan` are the nodes on which Slurm shows that it will start at
    `plan_s`. A `barred` entry cannot start now, as far as is known: only its shown plan counts.
    """

    id: str
    parts: tuple[Component, ...]
    limit_s: float
    least_s: float
    count: int = 1
    plan_s: float | None = None
    plan: int = 0
    barred: bool = False
    # Whether Slurm would plan it for later (bf_min_age_reserve, bf_min_prio_reserve); else it only starts now or not.
    reserves: bool = True


@dataclass(frozen=True, slots=True)
class Booking:
    """Nodes that are reserved for a time (a reservation of Slurm's), in unix seconds."""

    mask: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class PlannedStart:
    """A start that the copy works out for later."""

    start_s: float
    mask: int


@dataclass(frozen=True, slots=True)
class PlannerOutcome:
    """The result of the copy: the nodes by job of what could start now, and the plans of what could start later.

    The nodes of a start are those to be left free for it, 0 if it fits on nodes in use. Of `queued` entries,
    `looked` were looked at; `cut` says in words why not all, "" if all were.
    """

    now: Mapping[str, int] = field(default_factory=dict)
    later: Mapping[str, PlannedStart] = field(default_factory=dict)
    looked: int = 0
    queued: int = 0
    cut: str = ""
