"""The rules for the end of a world: how trainers ended, what they left behind, and what all that cost others."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from bftd.core.model.domain import State
from bftd.simulation.slurm.model import JobRun
from bftd.simulation.world.scripts import BATCH, Training, content_of
from elastic.store.file_names import CheckpointFile
from elastic.store.files import PART

_TRIES = 3
"""A trainer fails for its script only after so many failures."""

_LATER_S = 60.0
_ONE_S = 2 * 3600.0
"""Jobs start earlier or later by chance: on average later by less than this, or one or two of them by hours."""

_COUNTED_S = 12.0
"""The daemon counts a pilot that is gone for at most so long: what passes between two snapshots is counted as one."""

_CHECKPOINTS_MOST = 2
"""A driver that is killed may leave the checkpoint before the last."""

_LOST_S = 120.0
"""Work of a longer time is never lost at once while nothing else is broken: bftd saves now and then."""


@dataclass(frozen=True)
class Ended:
    """A trainer at its end: its driver's exit code and reason, and the steps that the driver counts."""

    id: str
    training: Training
    outcome: tuple[int, str] | None
    step: int
    steps_lost: int


def outcomes(trainers: Sequence[Ended]) -> Iterator[str]:
    """Yield the trainers that ended otherwise than their scripts did."""
    for one in trainers:
        training = one.training
        if one.outcome is None:
            yield f"ends: trainer {one.id} has not ended"
            continue
        code, reason = one.outcome
        if code == 0 and not training.complete:
            yield f"success: trainer {one.id} ended well at step {training.highest}, and its workers did not"
        failed = sum(training.guilty.values())
        if code != 0 and failed < _TRIES:
            yield f"success: trainer {one.id} ended with {code} ({reason}), and its workers failed {failed} times"
        if code == 0 and one.step != training.total_steps:
            yield f"S10: the driver of trainer {one.id} counts {one.step} of {training.total_steps} steps"


def counts(trainers: Sequence[Ended], state: State, *, calm: bool, strict: bool) -> Iterator[str]:
    """Yield the trainers of which the daemon counts something else.

    `calm`: there was no fault; `strict`: only scripts, workers and agents had any.
    """
    for one in trainers:
        trainer, training = state.trainers.get(one.id), one.training
        if trainer is None or one.outcome is None:
            continue
        if trainer.active:
            yield f"ends: trainer {one.id} goes on for the daemon, its driver has ended"
        if trainer.exit_code is not None and trainer.exit_code != one.outcome[0]:
            yield f"success: trainer {one.id} ended with {one.outcome[0]}, for the daemon with {trainer.exit_code}"
        if strict and trainer.exit_code is None:
            yield f"success: nobody told the daemon how trainer {one.id} ended"
        if strict and training.trained_on:
            yield f"S10: trainer {one.id} trains on after all of its workers have trained to the end"
        if calm and training.lost_as_planned:
            yield f"torn: a planned change of trainer {one.id} cost it {training.lost_as_planned} steps"
        if one.outcome[0] != 0 or trainer.exit_code is None:  # or it ended while bftd did not answer
            continue
        if (trainer.step, trainer.samples) != (training.total_steps, BATCH * training.total_steps):
            yield f"S10: trainer {one.id} counts {trainer.step} steps, {trainer.samples:g} samples"
        lost = training.executed - training.highest
        if strict and not lost <= trainer.steps_lost + _unseen(training) <= lost + 2 * _unseen(training):
            yield f"S10: trainer {one.id} lost {lost} steps, and the daemon counts {trainer.steps_lost}"
        if strict and training.redone_s > _LOST_S + 3 * training.step_s:
            yield f"torn: trainer {one.id} did steps of {training.redone_s:.0f} s again"


def _unseen(training: Training) -> int:
    """Return how many steps may be lost without a report: those within a second of each group's end."""
    return 3 * len(training.groups)


def left_behind(folder: Path, trainers: Sequence[Ended]) -> Iterator[str]:
    """Yield files of ended trainers that are left over, or not what was saved."""
    for one in trainers:
        state = folder / f"state-{one.id}"
        names = sorted(path.name for path in state.iterdir()) if state.is_dir() else []
        saved = {name: file for name in names if (file := CheckpointFile.parse(name)) is not None}
        if len(saved) > _CHECKPOINTS_MOST:
            yield f"orphans: trainer {one.id} leaves {len(saved)} checkpoints"
        for name, file in saved.items():
            if (state / name).read_bytes() != content_of(file.step):
                yield f"torn: {name} of trainer {one.id} is not what was saved"
        if parts := [name for name in names if name.endswith(PART)]:
            yield f"orphans: trainer {one.id} leaves {', '.join(parts)}"


def usage(ledger: Path, state: State, node_s: float, pilots: int) -> Iterator[str]:
    """Yield what is wrong with the node-seconds of the ledger; pilots had nodes for `node_s` seconds."""
    used_s = state.usage.used_node_seconds
    if used_s > node_s + _COUNTED_S * pilots:
        yield f"S10: {used_s:.0f} node-seconds are counted as held, and pilots had nodes for {node_s:.0f}"
    with sqlite3.connect(f"file:{ledger}?mode=ro", uri=True) as db:
        (shared_s,) = db.execute("SELECT COALESCE(SUM(used_s), 0) FROM usage").fetchone()
    if shared_s > used_s + 1.0:
        yield f"S10: users' shares are {shared_s:.0f} node-seconds, and all together {used_s:.0f}"


def delays(runs: Sequence[JobRun], without: Sequence[JobRun]) -> Iterator[str]:
    """Yield regular jobs that wait too long; `without` are the same jobs on the same cluster without pilots."""
    late = [run for run in runs if run.first_line_s == float("inf")]
    if late:
        yield f"delay: jobs {', '.join(str(run.job.number) for run in late)} never start"
        return
    later_s = fmean(run.wait_s for run in runs) - fmean(run.wait_s for run in without) if runs else 0.0
    if runs and later_s > max(_LATER_S, _ONE_S / len(runs)):
        yield f"delay: regular jobs wait {later_s:.0f} s longer than without bftd"
