"""The pool and the trainers at one moment: the points that history, the web page and U are made of. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from bftd.core.model.domain import PoolNode, State, Trainer

# The states of a node as charts and tables count them; each node of the harvested partitions is in one of these.
REGULAR = "regular"  # a regular job runs there
PLANNED = "planned"  # idle, but kept for or planned for regular work: earmarks, windows that are too short, spares
LEASED = "leased"  # one of our pilots has it, or is about to
IDLE = "idle"  # in the pool and lent to nobody
AWAY = "away"  # down, drained, in quarantine, paused, or not known
NODE_STATES = (REGULAR, PLANNED, LEASED, IDLE, AWAY)

# Slurm's flags of an idle node that may have a job at once, and those of one that regular work has or is about to get.
_HARMLESS = frozenset({"CLOUD", "DYNAMIC_NORM", "DYNAMIC_FUTURE"})
_FLAGS = {"PLANNED": PLANNED, "RESERVED": PLANNED, "COMPLETING": REGULAR}
_BUSY = ("ALLOCATED", "MIXED")
# A finished trainer stays in the samples this long, so that its last progress is in one of them.
FINISHED_FOR_S = 120.0


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


def sample(state: State) -> PoolSample:
    """Return the sample as of the last event: nodes by state, trainers active or just finished, and the counters.

    If the pool's last snapshot is older than `stale_after_s`, the state of its nodes is unknown: all count as away,
    except for leased ones.
    """
    usage = state.usage
    states = dict.fromkeys(NODE_STATES, 0) | Counter(kinds(state).values())
    # a lease may be of a node that the last snapshot does not have
    states[LEASED] = len({lease.node for lease in state.leases.values()})
    return PoolSample(
        state.time_s,
        states,
        _trainers(state),
        usage.pool_node_seconds,
        usage.used_node_seconds,
        usage.training_node_seconds,
    )


def kinds(state: State) -> dict[str, str]:
    """Return the state, one of NODE_STATES, of each node of the last snapshot by name."""
    pool, quarantined = state.pool, state.quarantined
    leased = {lease.node for lease in state.leases.values()}
    known = state.time_s - pool.time_s <= state.settings.pool.stale_after_s
    found = {}
    for name, node in pool.nodes.items():
        if name in leased:
            found[name] = LEASED
        elif not known:
            found[name] = AWAY
        elif node.in_pool:
            found[name] = IDLE
        else:
            found[name] = AWAY if name in pool.barred or name in quarantined else _kind(node)
    return found


def _kind(node: PoolNode) -> str:
    """Return the state of a node that is not leased and not in the pool."""
    kind = _of_slurm(node.state)
    # without a flag it is kept for a job that is to come, one of the spares, or idle for too short a time to be lent
    return PLANNED if kind == IDLE else kind


@lru_cache(maxsize=1 << 10)
def _of_slurm(state: str) -> str:
    """Return the meaning of Slurm's state of a node, with its flags behind plus signs."""
    base, *flags = state.split("+")
    if base in _BUSY:
        return REGULAR
    known = {_FLAGS.get(flag, AWAY) for flag in flags if flag not in _HARMLESS}
    if base != "IDLE" or AWAY in known:
        return AWAY
    return REGULAR if REGULAR in known else PLANNED if known else IDLE


def _trainers(state: State) -> dict[str, TrainerPoint]:
    leased: Counter[str] = Counter()
    working: Counter[str] = Counter()
    for lease in state.leases.values():
        leased[lease.trainer] += lease.live
        working[lease.trainer] += lease.phase == "working"
    return {
        id_: TrainerPoint(working[id_], leased[id_], item.samples_per_s, item.step, item.samples)
        for id_, item in state.trainers.items()
        if _counts(item, state.time_s)
    }


def _counts(item: Trainer, now_s: float) -> bool:
    return item.finished_s is None or now_s - item.finished_s <= FINISHED_FOR_S
