"""Looks now and then at what is wrong, beside all that the daemon does, and has the site's command told."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any

from bftd.alarms import hook
from bftd.alarms.ringing import Ringing
from bftd.errors import LedgerError
from bftd.health import SNAPSHOT_WARNING_S, problems
from bftd.service import status, steered
from bftd.service.live import Service

log = logging.getLogger("bftd")

# An alarm is told within so long; a look takes less than a millisecond, and what came and went in between was none.
LOOK_EVERY_S = 2.0
# Where the ledger keeps what the site knows.
_KEPT = "notify"
# A stop waits so long for a command that is being killed.
_STOP_WAIT_S = 2.0


class Notifier:
    """Tells `[notify] command` of what begins and ends; `cluster` is Slurm's own name, "" until it has answered."""

    def __init__(self, service: Service, cluster: Callable[[], str] = lambda: "") -> None:
        self._service = service
        self._cluster = cluster
        self._thread = ThreadPoolExecutor(1, "notify")
        self._running: Future[str] | None = None
        self._stop = threading.Event()
        self._ringing: Ringing | None = None
        self._command = self._complaint = ""
        self._since_s: float | None = None

    async def run(self) -> None:
        """Look for as long as the daemon runs."""
        failed = False
        while True:
            try:
                self.look()
                failed = False
            except Exception:  # whatever is wrong with telling, the daemon goes on, and tells when it can again
                if not failed:
                    log.exception("nobody is told of alarms as long as this lasts; the rest goes on")
                failed = True
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        """See what has become of the last message, what is wrong now, and tell it when it is time; takes no time."""
        settings, now_s = self._service.config.notify, self._service.now()
        self._take_command(settings.command)
        if self._running is not None and self._running.done():
            self._take_result(_complaint(self._running))
        if self._ringing is None or not self._is_known(now_s):
            return
        self._ringing.hear(now_s, problems(self._shown(now_s)))
        if self._running is None and self._ringing.due(now_s, settings.every_s):
            place = {"host": socket.gethostname(), "cluster": self._cluster(), "partition": self._service.partition}
            told = self._ringing.send(now_s)
            message = {"format": told.pop("format"), **place, **told}
            self._running = self._thread.submit(
                hook.run, self._command, json.dumps(message).encode() + b"\n", self._stop
            )

    def stop(self) -> None:
        """End the command that runs, and wait until it is gone."""
        self._stop.set()
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._running is not None:
            wait([self._running], timeout=_STOP_WAIT_S)

    def _take_command(self, command: str) -> None:
        """Go on with another command after a reload: whoever it tells knows nothing yet."""
        if command == self._command:
            return
        known = {} if self._command else self._service.ledger.kept(_KEPT)  # where it raises, it is asked again
        self._command, self._complaint = command, ""
        self._ringing = Ringing(known) if command else None
        if why := hook.objection(command):
            log.warning("nobody is told of alarms: [notify] command: %s", why)
            self._complaint = why

    def _take_result(self, complaint: str) -> None:
        self._running = None
        if complaint:
            if complaint != self._complaint:
                log.warning("[notify] command: %s; what it was to tell is told the next time", complaint)
        elif self._complaint:
            log.info("[notify] command: alarms are told again")
        self._complaint = complaint
        if self._ringing is None:
            return
        if complaint:
            self._ringing.failed()
            return
        self._ringing.delivered()
        with suppress(LedgerError):  # that it cannot be written is an alarm itself
            self._service.ledger.keep(_KEPT, self._ringing.kept())

    def _is_known(self, now_s: float) -> bool:
        """Whether there is something to judge by: before the first snapshot nothing is, for a while."""
        if self._since_s is None:
            self._since_s = now_s
        return self._service.core.pool.seen or now_s - self._since_s > SNAPSHOT_WARNING_S

    def _shown(self, now_s: float) -> dict[str, Any]:
        """What of a status the judgement goes by, made in less than a millisecond."""
        state = self._service.core
        return {
            "snapshot_age_s": now_s - state.pool.time_s if state.pool.seen else None,
            "hold": state.pool.hold,
            "nodes": [{"why": node.why} for node in state.pool.nodes.values() if "quarantine" in node.why],
            "strays": status.strays(state),
            **steered.shown(state, now_s),
            **self._service.condition(),
        }


def _complaint(ended: Future[str]) -> str:
    """What became of a message, whatever went wrong with it."""
    error = ended.exception()
    return ended.result() if error is None else f"it could not be run ({error!r})"
