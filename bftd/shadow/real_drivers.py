"""The real drivers that come in shadow mode: answered like any, known to all commands, and never lent a node.

They live in a separate state of the core, which never receives a snapshot: so nothing is planned for them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from bftd.core.model import timing
from bftd.core.model.domain import State, Trainer
from bftd.core.model.events import Event
from bftd.core.step import fold

SENTENCE = "bftd runs in shadow mode: it grants nothing"


class RealDrivers:
    """The drivers that have registered and were heard of since."""

    def __init__(self) -> None:
        self.state = State()

    def apply(self, event: Event) -> list[Trainer]:
        """Apply an event of a driver; returns the trainers that are new."""
        before = self.state.trainers
        self.state, _ = fold(self.state, (event,), explain=False)
        return [trainer for id_, trainer in self.state.trainers.items() if id_ not in before]

    def forget_silent(self, now_s: float, job_ids: Collection[str]) -> None:
        """Drop trainers whose driver is silent and whose job is gone, unless they ended only a short time ago."""
        staying = {
            id_: trainer
            for id_, trainer in self.state.trainers.items()
            if id_ in job_ids or now_s - trainer.heard_s <= timing.DRIVER_SILENT_S or _just_ended(trainer, now_s)
        }
        if len(staying) < len(self.state.trainers):
            self.state = replace(self.state, trainers=staying)


def _just_ended(trainer: Trainer, now_s: float) -> bool:
    return trainer.finished_s is not None and now_s - trainer.finished_s <= timing.FORGET_FINISHED_S
