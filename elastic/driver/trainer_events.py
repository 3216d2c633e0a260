"""The trainer as its pilot manager sees it: the training's response to a node that goes."""

from __future__ import annotations

from collections.abc import Sequence

from elastic.backends.base import Backend
from elastic.base.timing import LEAVE_S
from elastic.driver.context import TrainerContext
from elastic.driver.pilots.launcher import Pilot


class TrainerOwner:
    """The owner of the pilots; see elastic.driver.pilots.manager.TrainerEvents."""

    def __init__(self, run: TrainerContext, backend: Backend) -> None:
        self._run = run
        self._backend = backend

    def log(self, text: str) -> None:
        """See TrainerEvents."""
        self._run.log(text)

    def wake(self) -> None:
        """See TrainerEvents."""
        self._run.wake()

    def failed(self, error: BaseException) -> None:
        """See TrainerEvents."""
        self._run.failed(error)

    def lost(self, pilot: Pilot) -> None:
        """Tells progress and the back-end that the pilot's processes are gone."""
        if self._backend.uses(pilot) and not pilot.revoked:
            self._run.progress.broke(-1, 0.0)
        pilot.leaving = True
        pilot.workers.clear()
        self._backend.lost(pilot)
        self._run.wake()

    async def rescue(self, pilot: Pilot, others: Sequence[Pilot]) -> None:
        """Has the last copy of the checkpoint uploaded if this node may hold it."""
        if pilot.workers and not any(other.workers and not other.leaving for other in others):
            workers = list(pilot.workers.values())
            await self._run.saver.save(workers, graceful=False, patient=False, upload_s=LEAVE_S)

    def saving(self) -> bool:
        """See TrainerEvents."""
        return self._run.saver.growing
