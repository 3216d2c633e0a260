"""The pool and the trainers at one moment: the points that history, the web page and U are made of. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# The states of a node as charts and tables count them; each node of the harvested partitions is in one of these.
REGULAR = "regular"  # a regular job runs there
PLANNED = "planned"  # idle, but kept for or planned for regular work: earmarks, windows that are too short, spares
LEASED = "leased"  # one of our pilots has it, or is about to
IDLE = "idle"  # in the pool and lent to nobody
AWAY = "away"  # down, drained, in quarantine, paused, or not known
NODE_STATES = (REGULAR, PLANNED, LEASED, IDLE, AWAY)


@dataclass(frozen=True, slots=True)
class TrainerPoint:
    """One trainer at a moment: nodes that work, live leases, samples/s (0: not known), saved steps and samples."""

    working: int
    leased: int
    samples_per_s: float
    step: int
    samples: float


@dataclass(frozen=True, slots=True)
class PoolSample:
    """Nodes by state and trainers by id at a time (unix seconds), with the pool's counters in node-seconds so far."""

    at_s: float
    nodes: Mapping[str, int] = field(default_factory=dict)
    trainers: Mapping[str, TrainerPoint] = field(default_factory=dict)
    pool_node_seconds: float = 0.0
    used_node_seconds: float = 0.0
    training_node_seconds: float = 0.0
