"""The thread that asks the daemon, so that the screen itself never waits for an answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from bftd.base.errors import ApiError, BftError, DaemonUnreachable
from bftd.client import Client, Explanation, History, Status
from bftd.ui.live.history import PAST_S

# The daemon looks at Slurm once a second; asking more often gives nothing new.
EVERY_S = 1.0
# The selected trainer is explained from the ledger: at once after a new selection, else less often.
_EXPLAIN_EVERY_S = 5.0
# A point of the history covers a minute.
_HISTORY_EVERY_S = 60.0
_HISTORY_STEP_S = 60.0
_SENTENCES = 100


@dataclass(frozen=True, slots=True)
class Look:
    """The results of one round of requests; `problem` is a line if the daemon did not answer."""

    status: Status | None = None
    explanation: Explanation | None = None
    history: History | None = None
    problem: str = ""


class Poller:
    """Asks the daemon every second until stopped, and passes the results to `tell`, called in its thread."""

    def __init__(self, client: Client, show: Callable[[Look], None], every_s: float = EVERY_S) -> None:
        self._client = client
        self._show = show
        self._every_s = every_s
        self._selected = ""
        self._wake = threading.Event()
        self._stopped = False
        self._sent_s: dict[str, float] = {}
        # a thread that waits for an answer must not keep the program from ending
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, without waiting for an answer that is pending."""
        self._stopped = True
        self._wake.set()

    def select(self, trainer: str) -> None:
        """Explain this trainer from now on; "" means none."""
        if trainer != self._selected:
            self._selected = trainer
            self._sent_s.pop("explain", None)
            self._wake.set()

    def hurry(self) -> None:
        """Ask at once: something was changed."""
        self._sent_s.pop("explain", None)
        self._wake.set()

    def _run(self) -> None:
        while not self._stopped:
            self._wake.clear()
            try:
                look = self.look()
            except Exception as error:  # a screen that silently stands still would be worse
                look = Look(problem=f"the daemon's answer is not understood: {type(error).__name__}: {error}")
            if not self._stopped:
                self._show(look)
            self._wake.wait(self._every_s)

    def look(self) -> Look:
        """Ask the daemon once for everything that is due."""
        try:
            status = self._client.status()
        except BftError as error:
            return Look(problem=_problem(error))
        return Look(status, self._explained(), self._remembered(status))

    def _explained(self) -> Explanation | None:
        trainer = self._selected
        if not trainer or not self._due("explain", _EXPLAIN_EVERY_S):
            return None
        try:
            return self._client.explain(trainer, _SENTENCES)
        except BftError:  # the trainer has just gone, or the ledger is busy: the screen keeps its old text
            return None

    def _remembered(self, status: Status) -> History | None:
        if not self._due("history", _HISTORY_EVERY_S):
            return None
        try:
            return self._client.history(status.time_s - PAST_S, status.time_s, _HISTORY_STEP_S)
        except BftError:  # an older daemon has no history
            return None

    def _due(self, request: str, every_s: float) -> bool:
        now_s = time.monotonic()
        if now_s - self._sent_s.get(request, float("-inf")) < every_s:
            return False
        self._sent_s[request] = now_s
        return True


def _problem(error: BftError) -> str:
    """Say in one line why there is no answer."""
    if isinstance(error, DaemonUnreachable):
        return f"{error} (trying again)"
    return f"the daemon refuses: {error} (trying again)" if isinstance(error, ApiError) else str(error)
