"""The trainer as its back-end sees it: counts crashes and lives that failed, and gives up on a hopeless script."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

from bftd.protocol.reports import CrashReport
from elastic.backends import KINDS
from elastic.driver.pilots import Pilot
from elastic.driver.run import Run
from elastic.link.peer import Peer
from elastic.timing import AGREE_S, CRASHES_WITHOUT_A_STEP


class TrainerHost:
    """Carries out what a back-end asks for; see elastic.backends.base.Host."""

    def __init__(self, run: Run) -> None:
        self.settings = run.settings
        self._run = run
        self._life_failures = 0

    def log(self, text: str) -> None:
        """See Host."""
        self._run.log(text)

    def wake(self) -> None:
        """See Host."""
        self._run.wake()

    async def save_state(self, workers: Sequence[Peer], *, graceful: bool) -> None:
        """See Host, and StateSaver.save."""
        asked = False
        if graceful and KINDS[self.settings.backend].saves_together:
            # Who has not agreed on a step is not stopped at one: others would wait for him in the script's own save.
            graceful = asked = await self._run.agreement.agree(workers, pause=True, limit_s=AGREE_S)
        await self._run.saver.save(workers, graceful=graceful, asked=asked)

    def broke(self, step: int, at_s: float) -> None:
        """Notes how far training had come, for what the crash costs."""
        self._run.progress.broke(step, at_s)

    def crashed(self, pilot: Pilot, rc: int) -> None:
        """Counts a worker's end by itself; a script that dies again and again without a step ends the trainer."""
        pilot.failures += 1
        text = f"a worker on {pilot.node} ended with {code_text(rc)}"
        self._run.log(text)
        self._run.report(CrashReport(time.time(), pilot.node, rc, text))
        if pilot.failures >= CRASHES_WITHOUT_A_STEP:
            self.finish(
                _exit_code(rc), f"{CRASHES_WITHOUT_A_STEP} crashes without a step, the last with {code_text(rc)}"
            )

    def life_failed(self, reason: str) -> None:
        """Begins anew, unless that has failed too often without a step."""
        self._life_failures += 1
        self._run.log(reason)
        if self._life_failures >= CRASHES_WITHOUT_A_STEP:
            self.finish(1, reason)
        self._run.wake()

    def stepped(self, pilots: Sequence[Pilot]) -> None:
        """A step ended: what failed before it is forgiven, on all of the trainer's pilots."""
        self._life_failures = 0
        for pilot in pilots:
            pilot.failures = 0

    def finish(self, exit_code: int, reason: str) -> None:
        """See Host."""
        self._run.finish(exit_code, reason)


def code_text(rc: int) -> str:
    """How a process ended, in words."""
    if rc >= 0:
        return f"exit code {rc}"
    try:
        return f"signal {signal.Signals(-rc).name}"
    except ValueError:
        return f"signal {-rc}"


def _exit_code(rc: int) -> int:
    """A worker's end as the job's exit code: shells write signal N as 128 + N."""
    return 128 - rc if rc < 0 else (rc or 1)
