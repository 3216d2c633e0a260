"""The effect of a clock change on the state: every stored time moves with the clock, and the pool must be seen anew.

Decisions go by ages, which must not change because somebody set the clock or the host slept. Slurm's own times (planned
starts, submissions) are left alone: they are compared with the present wall clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf
from typing import TypeVar

from bftd.core.model.domain import Backoff, Earmark, Failure, Lease, Planned, State, Trainer
from bftd.core.model.foreign_jobs import OrphanJob
from bftd.core.model.solvers import FailedSolver
from bftd.core.model.timing import BACKOFF_MOST_S
from bftd.core.scaling.pace import Attendance
from bftd.protocol.bounds import EPOCHS_OF_A_BLOCK

# More than a daemon grants leases in the seconds whose steps can be lost.
_SKIPPED = 10_000

# The fields that hold a time; all other numbers of these classes are durations, counts or rates.
PAST: Mapping[type, tuple[str, ...]] = {
    State: ("time_s", "watched_s"),
    Lease: ("granted_s", "placed_s", "revoked_s", "asked_back_s", "missed_s", "cancelled_s", "working_s", "ended_s"),
    Trainer: ("arrived_s", "heard_s", "finished_s", "refused_round_s", "resumed_s", "resume_lent_s", "held_since_s"),
    Attendance: ("since_s",),
    Planned: ("time_s",),
    Failure: ("at_s",),
    OrphanJob: ("seen_s", "cancelled_s"),
    Earmark: ("since_s",),
}
# Times until which something is left alone.
AHEAD: Mapping[type, tuple[str, ...]] = {
    Lease: ("leave_by_s",),
    Earmark: ("due_s",),
    Trainer: ("no_growth_until_s", "probe_until_s"),
    Backoff: ("until_s",),
    FailedSolver: ("until_s",),
}


_Timed = TypeVar(
    "_Timed", State, Lease, Trainer, Planned, Failure, OrphanJob, Backoff, Earmark, Attendance, FailedSolver
)


def moved(state: State, by_s: float) -> State:
    """Return the state with every stored time moved by `by_s`, and the pool unseen until the next snapshot."""

    def at(item: _Timed) -> _Timed:
        names = (*PAST.get(type(item), ()), *AHEAD.get(type(item), ()))
        times = {name: getattr(item, name) for name in names}
        return replace(item, **{name: time_s + by_s for name, time_s in times.items() if time_s is not None})

    def trainer(item: Trainer) -> Trainer:
        unknown, attendance = tuple(map(at, item.unknown_leases)), at(item.attendance)
        return replace(at(item), unknown_leases=unknown, attendance=attendance)

    return replace(
        at(state),
        pool=replace(
            state.pool,
            time_s=-inf,
            looked_s=-inf,
            cycle_s=-inf,
            earmarks={job: at(earmark) for job, earmark in state.pool.earmarks.items()},
        ),
        trainers={id_: trainer(item) for id_, item in state.trainers.items()},
        leases={id_: at(item) for id_, item in state.leases.items()},
        planned=at(state.planned),
        backoff={node: at(item) for node, item in state.backoff.items()},
        failures={node: tuple(map(at, items)) for node, items in state.failures.items()},
        quarantined={node: until_s + by_s for node, until_s in state.quarantined.items()},
        orphan_jobs={id_: at(item) for id_, item in state.orphan_jobs.items()},
        ended={node: at(item) for node, item in state.ended.items()},
        grants=tuple(at_s + by_s for at_s in state.grants),
        cancels=state.cancels.moved(by_s),
        delays=state.delays.moved(by_s),
        failed_solvers={name: at(item) for name, item in state.failed_solvers.items()},
    )


def restored(state: State, now_s: float, quarantine_s: float, *, steps_lost: bool = False) -> State:
    """Return the state of a ledger in the form that a daemon starting at `now_s` may use.

    The clock may have been set back while no daemon ran. Times that then lie in the future are moved to now, and
    nothing is left alone for longer than a fresh back-off or quarantine would last. With `steps_lost` the last steps
    may be missing: no number that they gave out is given out again.
    """
    if steps_lost:
        state = _skipped(state)
    newest_s = max(_past(state), default=-inf)
    if newest_s > now_s:
        state = moved(state, now_s - newest_s)
    latest_s = now_s + BACKOFF_MOST_S
    return replace(
        state,
        trainers={
            id_: item if item.no_growth_until_s <= latest_s else replace(item, no_growth_until_s=latest_s)
            for id_, item in state.trainers.items()
        },
        backoff={node: replace(item, until_s=min(item.until_s, latest_s)) for node, item in state.backoff.items()},
        quarantined={node: min(until_s, now_s + quarantine_s) for node, until_s in state.quarantined.items()},
        grants=tuple(min(at_s, now_s) for at_s in state.grants),
    )


def _skipped(state: State) -> State:
    """Return the state with numbers of leases, lists and drivers beyond all that lost steps can have used."""
    trainers = {
        id_: replace(
            item,
            epoch=(item.epoch // EPOCHS_OF_A_BLOCK + 1) * EPOCHS_OF_A_BLOCK,
            version=item.version + _SKIPPED,
        )
        for id_, item in state.trainers.items()
    }
    return replace(state, sequence=state.sequence + _SKIPPED, trainers=trainers)


def _past(state: State) -> Iterator[float]:
    """Yield every time at which the state says that something happened, except when drivers were last heard."""
    items = [*state.trainers.values(), *state.leases.values()]
    items += [failure for failures in state.failures.values() for failure in failures]
    for item in items:
        for name in PAST[type(item)]:
            if name != "heard_s" and (time_s := getattr(item, name)) is not None:
                yield time_s
