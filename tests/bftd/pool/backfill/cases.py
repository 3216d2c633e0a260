"""Short ways to queues and clusters for tests of the planner, and drawn ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from bftd.pool.backfill.model import Booking, Component, JobEnd, Numbering, PlannerOutcome, QueueEntry
from bftd.pool.backfill.planner import simulate
from slurm_plugin.read.types import Scheduler

# A whole minute, so that times of examples can be read.
NOW = 1_699_999_980.0
MINUTE = 60.0


def names(count: int) -> Numbering:
    return Numbering.of(f"n{number}" for number in range(count))


def nodes(*numbers: int) -> int:
    return sum(1 << number for number in set(numbers))


def job(name: str, need: int = 1, minutes: float = 10, allowed: int = -1, **fields: Any) -> QueueEntry:
    """A job of one part; fields of the part and of the job by name."""
    part = {key: fields.pop(key) for key in list(fields) if key in Component.__dataclass_fields__}
    least = fields.pop("least", minutes)
    return QueueEntry(name, (Component(allowed, need, **part),), minutes * MINUTE, least * MINUTE, **fields)


@dataclass
class Cluster:
    """What there is beside the queue; times of `ends`, of one job after another, and bookings are seconds from now."""

    size: int
    ready: int = -1
    ours: int = 0
    ends: Mapping[float, int] | Sequence[tuple[float, int]] = field(default_factory=dict)
    bookings: Sequence[tuple[int, float, float]] = ()
    scheduler: Scheduler = field(default_factory=Scheduler)
    kept: Mapping[str, int] = field(default_factory=dict)
    weights: Sequence[int] | None = None
    backed_off: Collection[str] = ()

    def arguments(self) -> dict[str, Any]:
        everything = (1 << self.size) - 1
        ends = list(self.ends.items()) if isinstance(self.ends, Mapping) else self.ends
        busy = 0
        for _, mask in ends:
            busy |= mask
        return {
            "numbering": names(self.size),
            "ready": self.ready & everything & ~busy if self.ready < 0 else self.ready,
            "ours": self.ours,
            "ends": [JobEnd(NOW + at, mask, (0, number, 0)) for number, (at, mask) in enumerate(ends)],
            "bookings": [Booking(mask, NOW + start, NOW + end) for mask, start, end in self.bookings],
            "now_s": NOW,
            "scheduler": self.scheduler,
            "kept": self.kept,
            "weights": [everything] if self.weights is None else self.weights,
            "backed_off": self.backed_off,
        }

    def look(self, *queue: QueueEntry) -> PlannerOutcome:
        return simulate(list(queue), **self.arguments())


def starts(outcome: PlannerOutcome) -> dict[str, float]:
    """The planned starts, in seconds from now."""
    return {name: plan.start_s - NOW for name, plan in outcome.later.items()}


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Cluster, list[QueueEntry]]:
    """A small cluster and a queue; times meet each other often, and nothing is in order but the limits."""
    size = draw(st.integers(1, 9))
    some = st.integers(0, (1 << size) - 1)
    full = (1 << size) - 1
    seconds = st.one_of(st.integers(-40, 400), st.integers(0, 12).map(lambda minutes: 60 * minutes))
    ready = draw(st.one_of(some, st.just(full)))
    ends: list[tuple[float, int]] = []
    for number in range(size):
        if not ready >> number & 1 and draw(st.integers(0, 5)):
            at = float(draw(seconds))
            ends.append((at, 1 << number))
    bookings = [
        (draw(some), float(start), float(start + draw(st.integers(1, 300))))
        for start in draw(st.lists(seconds, max_size=2))
    ]
    scheduler = Scheduler(
        resolution_s=draw(st.sampled_from((60.0, 60.0, 30.0, 300.0))),
        window_s=draw(st.sampled_from((86_400.0, 900.0, 300.0))),
        one_plan_a_job=draw(st.booleans()),
        array_most=draw(st.integers(1, 3)),
        newer=draw(st.booleans()),
    )
    queue = [draw(jobs(size, str(draw(st.integers(1, 12))))) for _ in range(draw(st.integers(1, 9)))]
    cluster = Cluster(
        size,
        ready,
        draw(some),
        ends,
        bookings,
        scheduler,
        weights=draw(st.sampled_from(([full], [full & 0b10101, full], [full & 0b11, full & 0b1100], []))),
        backed_off=draw(st.sets(st.integers(1, 12).map(str), max_size=1)),
    )
    return cluster, queue


@st.composite
def jobs(draw: st.DrawFn, size: int, name: str) -> QueueEntry:
    full = (1 << size) - 1
    some = st.integers(0, full)
    allowed = draw(st.one_of(st.just(full), st.just(full), some))
    limit = draw(st.sampled_from((60, 120, 180, 300, 310, 600, 1200)))
    rarely = st.integers(0, 5).map(lambda drawn: drawn == 0)
    part = Component(
        allowed,
        draw(st.integers(1, max(1, size))) if draw(st.booleans()) else draw(st.integers(1, 2)),
        required=1 << draw(st.integers(0, size - 1)) if draw(rarely) else 0,
        contiguous=draw(rarely),
        either=(draw(some), draw(some)) if draw(rarely) else (),
        within=draw(st.sampled_from((-1, full, allowed))),
    )
    shows = draw(rarely)
    return QueueEntry(
        name,
        (part,),
        float(limit),
        float(draw(st.sampled_from((60, 120)))) if draw(rarely) else float(limit),
        count=draw(st.integers(1, 4)) if draw(rarely) else 1,
        plan_s=NOW + draw(st.integers(-60, 600)) if shows else None,
        plan=draw(some) if shows else 0,
        barred=draw(rarely),
        reserves=not draw(rarely),
    )
