"""The decision core: `step(state, event) -> (state, actions)`.

Pure: no clock, no I/O, no randomness; time comes in on the event, and the same state and event always give the same
answer. The invariants that `bftd.core.invariants.validate_state` checks hold after every step: a node has one owner
(S4), every live lease is part of the last plan (S5), which was made for the observed pool, and counts are monotone
(S10). One ordering keeps them: an event first changes the observations, those revoke and end leases, and only then a
new plan is made and carried out. So a plan never sees a node that is already lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import milp
from bftd.core.inputs import clock_shift, driver_reports, earmarks, observation, refused_grants
from bftd.core.model.domain import Action, Lease, State, Trainer
from bftd.core.model.draft import Draft, is_silent
from bftd.core.model.events import (
    ClockSet,
    Configured,
    Event,
    Finished,
    Heard,
    PoolObserved,
    Registered,
    Reported,
    RequestChanged,
    Tick,
)
from bftd.core.model.foreign_jobs import Cancels
from bftd.core.model.pause import Paused, Unpaused
from bftd.core.planning import admin_limits, caps, first_nodes, probing
from bftd.core.planning.planning import Solve, replan
from bftd.core.scaling import amdahl, learning
from bftd.protocol.registration import Held, Registration

# A driver that lies about its leases must not make the next lease numbers so long that other drivers' are refused.
_LARGEST_NUMBER = 10**12

# Unknown leases that are listed as revoked; a driver gives back leases that no list names, so the others need no place.
_UNKNOWN_MOST = 500

_PLANNED_AT_ONCE = (PoolObserved, Registered, RequestChanged, Configured, Paused)


def step(state: State, event: Event, solve: Solve = milp.solve) -> tuple[State, tuple[Action, ...]]:
    """Fold one event into the state. Returns the next state and the actions to carry out, in order."""
    return fold(state, (event,), solve)


def fold(
    state: State, events: Sequence[Event], solve: Solve = milp.solve, *, explain: bool = True, plan: bool = True
) -> tuple[State, tuple[Action, ...]]:
    """Fold events that come together, and plan at most once for all of them.

    Without `explain` there are no decisions and nothing for the ledger, only what is to be done. Without `plan` a
    trainer that registers waits for the next snapshot. An event about an unknown trainer changes nothing. Nothing is
    planned before the first snapshot, so that what a restarted daemon finds in its ledger stays until the pool says
    otherwise. Reports of drivers are planned for at the next snapshot: if Slurm takes eight pilots, that makes eight
    reports, and only Slurm knows where their nodes went. The pilots of a trainer that has finished also take a while to
    end. Bars by the site itself are planned for at once, even while Slurm does not answer.
    """
    for event in events:
        if isinstance(event, ClockSet):  # first of all: the times of all others are by the new clock
            state = clock_shift.moved(state, event.by_s)
    turn = Draft(state, max(event.time_s for event in events), explain=explain)
    for event in events:
        _HANDLERS[type(event)](turn, event)
    outdated = turn.now - turn.planned.time_s >= turn.settings.decide.t_fwd_s
    outdated = outdated or first_nodes.fall_due(turn) or probing.over(turn)
    planned_now = any(isinstance(event, _PLANNED_AT_ONCE) for event in events) and plan
    barred_now = turn.pool.barred != state.pool.barred
    if turn.pool.seen and (((turn.plan_due or outdated) and planned_now) or barred_now):
        _apply_admin_limits(turn)
        replan(turn, solve)
        turn.plan_due = False
    return turn.close()


def _on_pool(turn: Draft, event: PoolObserved) -> None:
    observation.observe(turn, event.view)


def _on_tick(turn: Draft, event: Tick) -> None:
    """Take nodes back at closing time, and nodes whose time to leave is over.

    `Draft.may_grow` notices that a snapshot has become too old to grow on.
    """
    _apply_admin_limits(turn)
    earmarks.leave(turn)


def _on_paused(turn: Draft, event: Paused) -> None:
    admin_limits.pause(turn, event)
    _apply_admin_limits(turn)


def _apply_admin_limits(turn: Draft) -> None:
    """Keep barred nodes out of the pool, and take back those that are lent."""
    if turn.pool.seen:
        before = turn.pool
        admin_limits.apply(turn, before.barred)
        if turn.pool.barred != before.barred:
            observation.record_change(turn, before)
            observation.take_back_lost_nodes(turn)


def _on_clock_set(turn: Draft, event: ClockSet) -> None:
    turn.happened("clock_set", data={"by_s": event.by_s})


def _on_configured(turn: Draft, event: Configured) -> None:
    turn.settings = event.settings
    turn.failed_solvers = {}  # the fault may be mended, or the solver no longer asked for
    turn.plan_due = True
    _apply_admin_limits(turn)
    if event.reloaded:
        turn.alarms.clear()
        turn.cancels = Cancels()


def _on_registered(turn: Draft, event: Registered) -> None:
    """Take in a driver that came, for the first time or again, and sort out the leases that it still holds."""
    request, before = event.request, turn.trainers.get(event.request.id)
    if before is None:
        knowledge = learning.given(request, amdahl.prior(turn.scaling))
        trainer = Trainer(_lasting(request), turn.now, knowledge, heard_s=turn.now, held_since_s=turn.now)
        turn.trainers[trainer.id] = trainer
        refused_grants.inherit(turn, trainer)
        trainer = turn.trainers[trainer.id]
        turn.happened("registered", trainer.id, data={"name": trainer.name, "user": trainer.user})
    else:
        trainer = _returned(turn, before, request)
    turn.change(trainer, account=caps.account_of(turn, trainer) or (before.account if before is not None else ""))
    known = {held.id: held for held in request.held if turn.leases.get(held.id, None) is not None}
    for lease in turn.leases_of(trainer.id):
        held = known.get(lease.id)
        if held is not None:
            turn.adopt(lease, held.job_id)
        elif lease.live or lease.job_id is None:
            if refused_grants.unproven(turn, lease):
                refused_grants.count(turn, lease)
            turn.cancel_pilot(lease, "its driver came back without it")
            turn.end(lease, "its driver came back without it")
    unknown = [
        held for held in request.held if held.id not in turn.leases or turn.leases[held.id].trainer != trainer.id
    ]
    _list_unknown(turn, trainer.id, unknown)
    turn.plan_due = True


def _lasting(request: Registration) -> Registration:
    """Return the lasting part of a registration: leases and estimates are kept elsewhere."""
    return replace(request, held=(), estimates=())


def _returned(turn: Draft, before: Trainer, request: Registration) -> Trainer:
    """Take back a driver of a known trainer. A new epoch fences the old driver; learned knowledge stays."""
    learned = learning.given_again(before.knowledge, request)
    if before.state == "finished":  # the job was requeued: it queues again, behind those that came meanwhile
        del turn.trainers[before.id]
    trainer = replace(
        before,
        request=replace(
            _lasting(request),
            user=before.user,
            sizes=before.own_sizes or request.sizes,
            weight=request.weight if before.own_weight is None else before.own_weight,
        ),
        knowledge=learned,
        epoch=before.epoch + 1,
        version=before.version + 1,
        heard_s=turn.now,
        state="waiting" if before.state == "finished" else before.state,
        arrived_s=turn.now if before.state == "finished" else before.arrived_s,
        held_since_s=turn.now if before.state == "finished" else before.held_since_s,
        exit_code=None,
        finished_s=None,
        # the workers of a driver that brings no pilots along load its checkpoint
        resumed_s=before.resumed_s if request.held or not before.step else None,
        unknown_leases=(),
    )
    turn.trainers[trainer.id] = trainer
    turn.happened("registered_again", trainer.id, data={"epoch": trainer.epoch})
    return trainer


def _on_request_changed(turn: Draft, event: RequestChanged) -> None:
    trainer = turn.trainers.get(event.trainer)
    if trainer is None or not trainer.active:
        return
    sizes = event.sizes or trainer.own_sizes
    weight = trainer.own_weight if event.weight is None else event.weight
    request = replace(
        trainer.request,
        sizes=sizes or trainer.request.sizes,
        weight=trainer.request.weight if weight is None else weight,
    )
    turn.change(trainer, request=request, own_sizes=sizes, own_weight=weight, version=trainer.version + 1)
    data = {"nodes_min": request.sizes.low, "nodes_max": request.sizes.high, "weight": request.weight}
    turn.happened("changed", trainer.id, data=data)
    turn.plan_due = True


def _list_unknown(turn: Draft, trainer_id: str, unknown: list[Held]) -> None:
    """List leases that the daemon does not know as revoked, and never hand out their numbers again."""
    for held in unknown:
        number = held.id.rpartition(".")[2]
        if number.isdecimal() and int(number) <= _LARGEST_NUMBER:
            turn.sequence = max(turn.sequence, int(number))
    leases = tuple(
        Lease(
            id=held.id,
            node=held.node,
            trainer=trainer_id,
            granted_s=turn.now,
            limit_s=0.0,
            reason="the daemon does not know this lease",
            phase="placed",
            job_id=held.job_id,
            revoked_s=turn.now,
        )
        for held in unknown[:_UNKNOWN_MOST]
    )
    turn.change(turn.trainers[trainer_id], unknown_leases=leases)


def _on_heard(turn: Draft, event: Heard) -> None:
    trainer = turn.trainers.get(event.trainer)
    if trainer is not None:
        _hear(turn, trainer)


def _hear(turn: Draft, trainer: Trainer) -> None:
    """Note that a driver is there; a trainer whose driver was silent may have nodes again."""
    turn.plan_due |= trainer.active and is_silent(trainer, turn.now, turn.settings)
    turn.change(trainer, heard_s=turn.now)


def _on_reported(turn: Draft, event: Reported) -> None:
    trainer = turn.trainers.get(event.trainer)
    if trainer is None:
        return
    _hear(turn, trainer)
    driver_reports.take_all(turn, event.trainer, event.reports)


def _on_finished(turn: Draft, event: Finished) -> None:
    driver_reports.finish(turn, event.trainer, event.exit_code, event.reason, event.summary)


_HANDLERS: dict[type, Callable[[Draft, Any], None]] = {
    PoolObserved: _on_pool,
    Tick: _on_tick,
    ClockSet: _on_clock_set,
    Configured: _on_configured,
    Registered: _on_registered,
    RequestChanged: _on_request_changed,
    Heard: _on_heard,
    Reported: _on_reported,
    Finished: _on_finished,
    Paused: _on_paused,
    Unpaused: admin_limits.lift,
}
