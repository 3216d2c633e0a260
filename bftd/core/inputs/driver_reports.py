"""Reports of drivers, folded into the draft of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from bftd.core.inputs import node_failures, refused_grants
from bftd.core.model import messages, trainer_summary
from bftd.core.model.decisions import Ended, GaveBack, Lost, Noted, Saved
from bftd.core.model.domain import Lease, Trainer
from bftd.core.model.draft import Draft
from bftd.core.scaling import amdahl, learning
from bftd.protocol.changes import ASKED
from bftd.protocol.lease import Phase
from bftd.protocol.reports import (
    CrashReport,
    CurveReport,
    LeaseReport,
    NoteReport,
    ProgressReport,
    Report,
    ResizeReport,
    ResumeReport,
    Summary,
    SuspendReport,
)


def take_all(turn: Draft, trainer_id: str, reports: Iterable[Report]) -> None:
    """Fold in the reports of one request. Nodes that Slurm took are one decision, which no other code records."""
    live = {lease.id: lease.node for lease in turn.leases_of(trainer_id) if lease.live}
    taken: dict[str, str] = {}
    for report in reports:
        take(turn, trainer_id, report)
        if isinstance(report, LeaseReport) and report.state == "leaving" and report.id in live:
            taken[live[report.id]] = report.reason or ASKED
    if taken:
        left = sum(lease.live for lease in turn.leases_of(trainer_id))
        why = "; ".join(sorted(set(taken.values())))
        turn.say(trainer_id, GaveBack(turn.trainers[trainer_id].name, tuple(taken), left, why))


def take(turn: Draft, trainer_id: str, report: Report) -> None:
    """Fold in one report of a driver. A report about a lease that has ended changes nothing."""
    trainer = turn.trainers[trainer_id]
    _HANDLERS[type(report)](turn, trainer, report)
    if turn.explain and not isinstance(report, LeaseReport):
        turn.happened(report.op, trainer_id, report.where, report.about)


def finish(turn: Draft, trainer_id: str, exit_code: int | None, reason: str, summary: Summary) -> None:
    """End a trainer and revoke its leases. Leases that never had a pilot end at once."""
    trainer = turn.trainers.get(trainer_id)
    if trainer is None or not trainer.active:
        return
    for lease in turn.leases_of(trainer_id):
        if refused_grants.unproven(turn, lease):
            refused_grants.count_round(turn, lease)
        if lease.job_id is None:
            turn.end(lease, reason)
        else:
            turn.revoke(lease, reason, vacate=False)
    trainer = turn.trainers[trainer_id]
    known = trainer.knowledge
    turn.scaling = amdahl.remembered(turn.scaling, (known.seen, *known.elsewhere.values()))
    turn.change(
        trainer, state="finished", exit_code=exit_code, finished_s=turn.now, samples_per_s=0.0, unknown_leases=()
    )
    if turn.explain:
        name = trainer.name
        turn.say(trainer_id, Lost(name, reason) if exit_code is None else Ended(name, exit_code, reason, trainer.step))
        data = {
            "exit_code": exit_code,
            "reason": reason,
            "summary": summary.to_json(),
            "was": trainer_summary.of(trainer),
        }
        turn.happened("finished", trainer_id, data=data | {"trainer": _whole(trainer)})
    turn.plan_due = True


def _whole(trainer: Trainer) -> dict[str, Any]:
    """Return what the ledger keeps of a trainer that ended once the state has forgotten it."""
    return {
        "name": trainer.name,
        "user": trainer.user,
        "account": trainer.account,
        "backend": trainer.request.backend,
        "nodes_min": trainer.sizes.low,
        "nodes_max": trainer.sizes.high,
        "arrived_s": trainer.arrived_s,
        "step": trainer.step,
        "samples": trainer.samples,
        "loss": trainer.loss,
        "log": trainer.request.log,
    }


def _lease(turn: Draft, trainer: Trainer, report: LeaseReport) -> None:
    lease = turn.leases.get(report.id)
    if lease is None or lease.trainer != trainer.id:
        if report.state in ("ended", "refused"):
            rest = tuple(unknown for unknown in trainer.unknown_leases if unknown.id != report.id)
            if rest != trainer.unknown_leases:
                turn.change(trainer, unknown_leases=rest, version=trainer.version + 1)
        return
    if turn.explain:
        data = {"lease": lease.id, "state": report.state, "at_s": report.at_s, "reason": report.reason}
        turn.happened("lease", trainer.id, lease.node, data)
    job_id = report.job_id or lease.job_id
    if report.state == "refused":
        _refused(turn, lease, report)
    elif report.state == "ended":
        _ended(turn, turn.change_lease(lease, job_id=job_id), report)
    elif report.state == "leaving":
        _leaving(turn, turn.change_lease(lease, job_id=job_id), report)
    elif report.state in ("placed", "ready", "working"):
        _placed(turn, trainer, lease, report.state, job_id)


def _placed(turn: Draft, trainer: Trainer, lease: Lease, phase: Phase, job_id: str | None) -> None:
    """Note that the pilot runs, is warm, or works."""
    # a lease that was suspended without losing this node works there again
    first_work = phase == "working" and lease.phase != "working" and lease.working_s is None
    placed_s = lease.placed_s if lease.placed_s is not None else turn.now
    working_s = turn.now if phase == "working" and lease.working_s is None else lease.working_s
    shown = lease.shown or turn.settings.trusting
    turn.change_lease(lease, phase=phase, job_id=job_id, placed_s=placed_s, working_s=working_s, shown=shown)
    if shown and not lease.shown:
        refused_grants.proven(turn, lease)
    if phase == "working":
        trainer = turn.trainers[trainer.id]
        if first_work:
            trainer = _first_work(turn, trainer, turn.now - lease.granted_s, lease.granted_s)
        attendance = trainer.attendance.seen(turn.now, works=True)
        turn.change(trainer, state="running", attendance=attendance)


def _first_work(turn: Draft, trainer: Trainer, took_s: float, granted_s: float) -> Trainer:
    """Note that a node takes part for the first time, `took_s` after its grant; after a suspension, as the resume."""
    knowledge, resumed_s = trainer.knowledge, trainer.resumed_s
    if resumed_s is None:
        return turn.change(trainer, resumed_s=turn.now, knowledge=learning.observe_resume(knowledge, took_s))
    if granted_s < resumed_s:  # the node waited for the same state
        return trainer
    return turn.change(trainer, knowledge=learning.observe_warm_up(knowledge, took_s))


def _refused(turn: Draft, lease: Lease, report: LeaseReport) -> None:
    """Note that Slurm refused the pilot: leave the node alone for a while, or the trainer if it is always refused."""
    turn.end(lease, report.reason or "its pilot was refused")
    refused_grants.count(turn, lease)


def _ended(turn: Draft, lease: Lease, report: LeaseReport) -> None:
    if refused_grants.unproven(turn, lease):
        refused_grants.count(turn, lease)
    elif lease.live and (lease.phase in ("granted", "placed") or node_failures.failed_in(turn, lease)):
        # no worker came of it, or its driver gave it back for a failure: do not start the next one in the same second
        turn.back_off(lease.node, turn.trainers[lease.trainer].user)
    began_s, ended_s = _give_back(turn, lease, report.at_s)
    turn.end(replace(lease, asked_back_s=began_s), report.reason or "its driver has ended it", at_s=ended_s)


def _give_back(turn: Draft, lease: Lease, at_s: float) -> tuple[float | None, float]:
    """Return when the give-back of a lease that ended at `at_s`, by the clock of its driver, began and ended.

    No duration is taken from two clocks. What the daemon asked for ends when the daemon hears of it. The driver's clock
    gives a duration only together with the beginning by the same clock. A pilot has not ended before Slurm last showed
    it. So a wrong clock never makes a give-back look shorter.
    """
    began_s = lease.asked_back_s
    if began_s is None or lease.leaving_s is None or at_s <= lease.leaving_s:
        return began_s, turn.now
    took_s = at_s - lease.leaving_s
    began_s = max(lease.granted_s, min(began_s, turn.now - took_s))
    shown_s = turn.pool.time_s if lease.observed else began_s
    return began_s, turn.now if began_s + took_s < shown_s else began_s + took_s


def _leaving(turn: Draft, lease: Lease, report: LeaseReport) -> None:
    """Note that the agent leaves. If bftd did not ask it to, Slurm did, and the give-back began at the agent's time.

    If the agent's clock cannot be right, it began when the pilot was last known to run: a give-back never looks
    shorter.
    """
    if lease.live or (lease.leave_by_s is not None and not lease.vacate):
        if lease.live and refused_grants.unproven(turn, lease):
            refused_grants.count(turn, lease)
        asked_s = report.at_s
        if not lease.granted_s <= asked_s <= turn.now:
            known_s = lease.placed_s if lease.placed_s is not None else lease.granted_s
            asked_s = min(turn.now, max(known_s, turn.pool.time_s) if lease.observed else known_s)
        lease = turn.change_lease(lease, asked_back_s=asked_s, leaving_s=report.at_s)
        lease = turn.revoke(lease, report.reason or ASKED, vacate=True)
        turn.rest(lease.node)
    turn.change_lease(lease, phase="leaving")


def _progress(turn: Draft, trainer: Trainer, report: ProgressReport) -> None:
    knowledge = learning.observe_state(trainer.knowledge, report.save_s, report.state_bytes)
    turn.change(
        trainer,
        # a resumed worker starts from its last commit: earlier reports stay true (S10)
        step=max(trainer.step, report.step),
        samples=max(trainer.samples, report.samples),
        samples_per_s=report.samples_per_s,
        loss=report.loss if report.loss is not None else trainer.loss,
        steps_lost=max(trainer.steps_lost, report.steps_lost),
        state="running" if trainer.active else trainer.state,
        knowledge=learning.observe_rate(
            knowledge, report.nodes, report.samples_per_s, trainer.sizes.high, _class(turn, trainer)
        ),
        total_steps=report.total_steps,
        pace=trainer.pace.with_report(max(report.step, report.live_step), report.steps_per_s, report.nodes),
    )


def _class(turn: Draft, trainer: Trainer) -> str:
    """Return the class of the nodes that a trainer works on; "" if there is one class, or the trainer may mix them."""
    if len(turn.pool.classes) < 2 or trainer.request.requirements.mix:
        return ""
    works = {turn.class_of(lease.node) for lease in turn.leases_of(trainer.id) if lease.phase == "working"}
    return works.pop() if len(works) == 1 else ""


def _resize(turn: Draft, trainer: Trainer, report: ResizeReport) -> None:
    knowledge = learning.observe_resize(trainer.knowledge, report)
    lost = trainer.steps_lost + report.steps_lost
    # a node that came with the resize was not counted as training before its first step
    stalled_s = (report.stall_s or 0.0) * min(report.from_nodes, report.to_nodes)
    turn.change(
        trainer,
        resizes=trainer.resizes + 1,
        steps_lost=lost,
        knowledge=knowledge,
        stalled_node_seconds=trainer.stalled_node_seconds + stalled_s,
    )


def _suspend(turn: Draft, trainer: Trainer, report: SuspendReport) -> None:
    step = max(trainer.step, report.step)
    for lease in turn.leases_of(trainer.id):
        if lease.phase == "working":
            turn.change_lease(lease, phase="ready")
    turn.change(
        trainer,
        state="suspended",
        suspends=trainer.suspends + 1,
        step=step,
        samples_per_s=0.0,
        resumed_s=None,
        pace=trainer.pace.with_report(step, 0.0, 0),
        attendance=trainer.attendance.seen(turn.now, works=False),
    )
    if turn.explain:
        turn.say(trainer.id, Saved(trainer.name, step))


def _resume(turn: Draft, trainer: Trainer, report: ResumeReport) -> None:
    turn.change(trainer, state="running", step=max(trainer.step, report.step))


def _crash(turn: Draft, trainer: Trainer, report: CrashReport) -> None:
    if report.node is not None:
        node_failures.crashed(turn, trainer, report.node)


def _note(turn: Draft, trainer: Trainer, report: NoteReport) -> None:
    if turn.explain:
        turn.say(trainer.id, Noted(trainer.name, report.text))


def _curve(turn: Draft, trainer: Trainer, report: CurveReport) -> None:
    """Take in an estimate of the trainer's speed; the first one may be worth another plan."""
    known = trainer.knowledge
    knowledge = learning.observe_estimates(known, report.estimates)
    if knowledge == known:
        return
    turn.change(trainer, knowledge=knowledge)
    turn.plan_due |= trainer.active and not known.estimates
    if turn.explain:
        turn.say(trainer.id, Noted(trainer.name, messages.curve(knowledge)))


_HANDLERS: dict[type[Report], Callable[[Draft, Trainer, Any], None]] = {
    LeaseReport: _lease,
    ProgressReport: _progress,
    ResizeReport: _resize,
    SuspendReport: _suspend,
    ResumeReport: _resume,
    CrashReport: _crash,
    NoteReport: _note,
    CurveReport: _curve,
}
