"""What drivers report, folded into the draft of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bftd.core import learn, timing
from bftd.core.decisions import Ended, Lost, NodeAvoided, Noted, Saved
from bftd.core.domain import Failure, Lease, Trainer
from bftd.core.turn import Turn, doubling
from bftd.protocol.lease import Phase
from bftd.protocol.reports import (
    CrashReport,
    LeaseReport,
    NoteReport,
    ProgressReport,
    Report,
    ResizeReport,
    ResumeReport,
    Summary,
    SuspendReport,
)


def take(turn: Turn, trainer_id: str, report: Report) -> None:
    """Fold in one report of a driver. A report about a lease that has ended changes nothing."""
    trainer = turn.trainers[trainer_id]
    _HANDLERS[type(report)](turn, trainer, report)
    if turn.explain and not isinstance(report, LeaseReport):
        turn.happened(report.op, trainer_id, report.where, report.about)


def finish(turn: Turn, trainer_id: str, exit_code: int | None, reason: str, summary: Summary) -> None:
    """End a trainer and revoke its leases. Those that never had a pilot end at once."""
    trainer = turn.trainers.get(trainer_id)
    if trainer is None or not trainer.active:
        return
    for lease in turn.leases_of(trainer_id):
        if lease.job_id is None:
            turn.end(lease, reason)
        else:
            turn.revoke(lease, reason, vacate=False)
    trainer = turn.trainers[trainer_id]
    turn.change(trainer, state="finished", exit_code=exit_code, finished_s=turn.now, samples_per_s=0.0, strays=())
    if turn.explain:
        name = trainer.name
        turn.say(trainer_id, Lost(name, reason) if exit_code is None else Ended(name, exit_code, reason))
        told = {"exit_code": exit_code, "reason": reason, "summary": summary.to_json()}
        turn.happened("finished", trainer_id, data=told)
    turn.plan_due = True


def _lease(turn: Turn, trainer: Trainer, report: LeaseReport) -> None:
    lease = turn.leases.get(report.id)
    if lease is None or lease.trainer != trainer.id:
        if report.state in ("ended", "refused"):
            rest = tuple(stray for stray in trainer.strays if stray.id != report.id)
            if rest != trainer.strays:
                turn.change(trainer, strays=rest, version=trainer.version + 1)
        return
    if turn.explain:
        data = {"lease": lease.id, "state": report.state, "at_s": report.at_s, "reason": report.reason}
        turn.happened("lease", trainer.id, lease.node, data)
    job_id = report.job_id or lease.job_id
    if report.state == "refused":
        _refused(turn, trainer, lease, report)
    elif report.state == "ended":
        _ended(turn, turn.change_lease(lease, job_id=job_id), report)
    elif report.state == "leaving":
        _leaving(turn, turn.change_lease(lease, job_id=job_id), report)
    elif report.state in ("placed", "ready", "working"):
        _placed(turn, trainer, lease, report.state, job_id)


def _placed(turn: Turn, trainer: Trainer, lease: Lease, phase: Phase, job_id: str | None) -> None:
    """The pilot runs, is warm, or works."""
    first_work = phase == "working" and lease.phase != "working"
    placed_s = lease.placed_s if lease.placed_s is not None else turn.now
    turn.change_lease(lease, phase=phase, job_id=job_id, placed_s=placed_s)
    turn.backoff.pop(lease.node, None)
    if trainer.refused_rounds:
        turn.change(trainer, refused_rounds=0)
    if phase == "working":
        trainer = turn.trainers[trainer.id]
        knowledge = trainer.knowledge
        if first_work:
            knowledge = learn.observe_warm_up(knowledge, turn.now - lease.granted_s)
        turn.change(trainer, state="running", knowledge=knowledge)


def _refused(turn: Turn, trainer: Trainer, lease: Lease, report: LeaseReport) -> None:
    """Slurm did not grant the pilot: leave the node alone for a while, or the trainer if it is always refused."""
    turn.end(lease, report.reason or "its pilot was refused")
    trainer = turn.trainers[trainer.id]
    if lease.granted_s > trainer.refused_round_s:  # the leases granted together count as one round
        rounds = trainer.refused_rounds + 1
        trainer = turn.change(trainer, refused_rounds=rounds, refused_round_s=lease.granted_s)
    if trainer.refused_rounds < timing.REFUSED_ROUNDS:
        turn.back_off(lease.node)
        return
    # a limit of the user's or the account's: its nodes are as good as any, and the next trainer may have them
    turn.change(trainer, no_growth_until_s=turn.now + doubling(trainer.refused_rounds))
    turn.backoff.pop(lease.node, None)
    turn.back_off(lease.node)


def _ended(turn: Turn, lease: Lease, report: LeaseReport) -> None:
    if lease.live and lease.phase in ("granted", "placed"):
        turn.back_off(lease.node)  # it came to nothing: do not start the next one in the same second
    turn.end(lease, report.reason or "its driver has ended it", at_s=report.at_s)


def _leaving(turn: Turn, lease: Lease, report: LeaseReport) -> None:
    """The agent leaves. If nobody here asked it to, Slurm did: then the give-back began when the agent said so."""
    if lease.live:
        asked_s = min(turn.now, report.at_s)
        lease = turn.change_lease(lease, asked_back_s=asked_s)
        lease = turn.revoke(lease, report.reason or "Slurm asked the pilot to leave", vacate=True)
        turn.rest(lease.node)
    turn.change_lease(lease, phase="leaving")


def _progress(turn: Turn, trainer: Trainer, report: ProgressReport) -> None:
    turn.change(
        trainer,
        # a resumed worker starts from its last commit: what was reported before stays true (S10)
        step=max(trainer.step, report.step),
        samples=max(trainer.samples, report.samples),
        samples_per_s=report.samples_per_s,
        loss=report.loss if report.loss is not None else trainer.loss,
        steps_lost=max(trainer.steps_lost, report.steps_lost),
        state="running" if trainer.active else trainer.state,
        knowledge=learn.observe_rate(
            trainer.knowledge, report.nodes, report.samples_per_s, trainer.sizes.high, _class(turn, trainer)
        ),
    )


def _class(turn: Turn, trainer: Trainer) -> str:
    """The class of the nodes that a trainer works on; "" where the pool has one, or the trainer may mix them."""
    if len(turn.pool.classes) < 2 or trainer.request.wish.mix:
        return ""
    works = {turn.class_of(lease.node) for lease in turn.leases_of(trainer.id) if lease.phase == "working"}
    return works.pop() if len(works) == 1 else ""


def _resize(turn: Turn, trainer: Trainer, report: ResizeReport) -> None:
    knowledge = trainer.knowledge
    if report.kind != "crash" and report.stall_s is not None:
        knowledge = learn.observe_stall(knowledge, report.from_nodes, report.to_nodes, report.stall_s)
    lost = trainer.steps_lost + report.steps_lost
    turn.change(trainer, resizes=trainer.resizes + 1, steps_lost=lost, knowledge=knowledge)


def _suspend(turn: Turn, trainer: Trainer, report: SuspendReport) -> None:
    step = max(trainer.step, report.step)
    turn.change(trainer, state="suspended", suspends=trainer.suspends + 1, step=step, samples_per_s=0.0)
    if turn.explain:
        turn.say(trainer.id, Saved(trainer.name, step))


def _resume(turn: Turn, trainer: Trainer, report: ResumeReport) -> None:
    turn.change(trainer, state="running", step=max(trainer.step, report.step))


def _crash(turn: Turn, trainer: Trainer, report: CrashReport) -> None:
    """Count the crash against its node. Enough failures of different pilots there put the node into quarantine."""
    node = report.node
    if node is None:
        return
    lease = next((lease for lease in turn.leases_of(trainer.id) if lease.node == node), None)
    pilot = (lease.job_id or lease.id) if lease is not None else f"{trainer.id}@{turn.now}"
    settings = turn.settings
    recent = [
        failure
        for failure in turn.failures.get(node, ())
        if turn.now - failure.at_s < settings.pool.quarantine_s and failure.pilot != pilot
    ]
    turn.failures[node] = (*recent, Failure(pilot, turn.now))
    if len(turn.failures[node]) >= settings.pool.quarantine_after:
        turn.quarantined[node] = turn.now + settings.pool.quarantine_s
        del turn.failures[node]
        if turn.explain:
            turn.say(None, NodeAvoided(node, settings.pool.quarantine_s, settings.pool.quarantine_after))


def _note(turn: Turn, trainer: Trainer, report: NoteReport) -> None:
    if turn.explain:
        turn.say(trainer.id, Noted(trainer.name, report.text))


_HANDLERS: dict[type[Report], Callable[[Turn, Trainer, Any], None]] = {
    LeaseReport: _lease,
    ProgressReport: _progress,
    ResizeReport: _resize,
    SuspendReport: _suspend,
    ResumeReport: _resume,
    CrashReport: _crash,
    NoteReport: _note,
}
