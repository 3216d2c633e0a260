"""The shared part of one trainer: its settings, log, progress and checkpoints, the link to the daemon, and its end."""

from __future__ import annotations

import asyncio
import signal
import time
import traceback
from collections.abc import Callable

from bftd.protocol.changes import CANCELLED
from bftd.protocol.reports import NoteReport, Report
from elastic.backends import KINDS
from elastic.base.errors import ElasticError
from elastic.driver.progress.reports import TrainerProgress
from elastic.driver.progress.resize_times import ResizeTimes
from elastic.driver.saving.distributed import DistributedCheckpoints
from elastic.driver.saving.saver import CheckpointSaver
from elastic.driver.saving.step_barrier import SaveRequests
from elastic.driver.settings import DriverSettings
from elastic.link.wire import Message
from elastic.store.store import CheckpointStore
from elastic.store.versions import CheckpointVersions

TAKEN_OVER = "another driver of this trainer has taken over"


class TrainerContext:
    """One run of a trainer; `result` is its exit code and a sentence, set by the first part that ends it."""

    def __init__(
        self,
        settings: DriverSettings,
        log: Callable[[str], None],
        report: Callable[[Report], None],
        show: Callable[[str], None] = print,
    ) -> None:
        """`report` sends a report to the daemon; `show` prints a line of a worker's output."""
        self.settings = settings
        self.log = log
        self.show = show
        self.report = report
        self.store = CheckpointStore(settings.state_dir, self.note, self.fence, settings.name)
        self.versions = CheckpointVersions(self.store, settings.state_dir, settings.spec.state_path, self.note)
        self.saver = CheckpointSaver(self.store)
        self.save_requests = SaveRequests()
        self.progress = TrainerProgress(
            resize_times=ResizeTimes(saves_at_resize=KINDS[settings.backend].saves_together)
        )
        self.distributed = DistributedCheckpoints(
            self.versions, self.saver.note, self.checkpoint_saved, self.progress.resize_times.saved
        )
        self.checkpoint_saved()
        self.result: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        self.cancelled = False
        self.last_words: tuple[str, tuple[str, ...]] = ("", ())
        """If the script's failure ends the trainer: the node of the last failure, and the script's last words there."""
        self._news = asyncio.Event()

    @property
    def step(self) -> int:
        """The step that the trainer would resume at if it lost every node now, as far as that is known."""
        return self.progress.live_step if self.progress.printed else max(self.saved_step, 0)

    @property
    def saved_step(self) -> int:
        """The step of the newest checkpoint of either kind, -1 while there is none."""
        return max(self.store.step, self.versions.step)

    def checkpoint_saved(self) -> None:
        """Notes the newest checkpoint: its progress can no longer be lost, unless a version turns out damaged."""
        newest = max((self.store.step, self.store.samples), (self.versions.step, self.versions.samples))
        if self.progress.kept_step > newest[0]:
            self.progress.went_back(max(newest[0], 0), newest[1])
        self.progress.kept_step = newest[0]
        self.progress.saved(max(newest[0], 0), newest[1])

    async def offer(self) -> Message:
        """Returns the answer to a starting worker about the newest checkpoint, of either kind."""
        return await self.versions.answer(self.store.step) or await self.store.offer()

    def environment(self) -> dict[str, str]:
        """Returns the workers' environment variables for distributed checkpoints."""
        distributed = self.settings.spec.state_path is not None
        return {
            "BFT_STATE_PATH": str(self.versions.home.path),
            "BFT_STATE_BY_PATH": "1" if distributed else "",
            "BFT_STATE_STAGE": self.settings.stage,
        }

    def wake(self) -> None:
        """Makes the one waiting task look again."""
        self._news.set()

    async def news(self) -> None:
        """Waits for the next `wake`."""
        await self._news.wait()
        self._news.clear()

    def note(self, text: str) -> None:
        """Logs a line that also matters outside the job: the daemon gets it too."""
        self.log(text)
        self.report(NoteReport(time.time(), text))

    # -- the end ---

    def cancel(self) -> None:
        """Ends the trainer because Slurm or the user ends its job."""
        self.cancelled = True
        self.finish(128 + signal.SIGTERM, CANCELLED)

    def fence(self) -> None:
        """Ends this driver because another one has taken the trainer over: its checkpoints belong to that one now."""
        self.store.fence()
        self.finish(1, TAKEN_OVER)

    def finish(self, exit_code: int, reason: str) -> None:
        """Ends the trainer; the first call counts."""
        if not self.result.done():
            self.result.set_result((exit_code, reason))

    def failed(self, error: BaseException | None) -> None:
        """Ends the trainer because a task of the driver failed; an ElasticError says what to do."""
        if isinstance(error, ElasticError):
            self.finish(error.exit_code, str(error))
        elif isinstance(error, OSError) and error.errno is not None:
            self.finish(1, f"the driver cannot go on: {error}")
        elif error is not None:
            place = "".join(f" at {at.filename}:{at.lineno}" for at in traceback.extract_tb(error.__traceback__)[-1:])
            self.finish(1, f"a fault of bftd's driver, please report it: {error!r}{place}")
