"""Regular checks for problems, beside everything else that the daemon does, and messages to the site's command."""

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

from bftd.base.errors import LedgerError
from bftd.base.health import SNAPSHOT_WARNING_S, problems
from bftd.service import admin_view, status
from bftd.service.alerts import hook
from bftd.service.alerts.state import Ringing
from bftd.service.service import Service

log = logging.getLogger("bftd")

# An alarm is told within this time; a check takes less than a millisecond. Problems that come and go in between do not
# count.
LOOK_EVERY_S = 2.0
# The ledger keeps the alarms that the site knows of under this name.
_KEPT = "notify"
# A stop waits this long for a command that is being killed.
_STOP_WAIT_S = 2.0


class AlertNotifier:
    """The sender of messages to `[notify] command` when problems begin and end.

    `cluster` returns Slurm's name of the cluster, "" until Slurm has answered.
    """

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
        """Check for as long as the daemon runs."""
        failed = False
        while True:
            try:
                self.look()
                failed = False
            except Exception:  # whatever fails here, the daemon goes on, and tells when it can again
                if not failed:
                    log.exception("nobody is told of alarms as long as this lasts; the rest goes on")
                failed = True
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        """Handle the last message's result, check for problems, and send a message when it is time; does not block."""
        settings, now_s = self._service.config.notify, self._service.now()
        self._take_command(settings.command)
        if self._running is not None and self._running.done():
            self._take_result(_complaint(self._running))
        if self._ringing is None or not self._is_known(now_s):
            return
        self._ringing.hear(now_s, problems(self._shown(now_s)))
        if self._running is None and self._ringing.due(now_s, settings.every_s):
            place = {"host": socket.gethostname(), "cluster": self._cluster(), "partition": self._service.partition}
            news = self._ringing.send(now_s)
            message = {"format": news.pop("format"), **place, **news}
            self._running = self._thread.submit(
                hook.run, self._command, json.dumps(message).encode() + b"\n", self._stop
            )

    def stop(self) -> None:
        """End the running command, and wait until it is gone."""
        self._stop.set()
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._running is not None:
            wait([self._running], timeout=_STOP_WAIT_S)

    def _take_command(self, command: str) -> None:
        """Switch to another command after a reload: its receivers know of no alarms yet."""
        if command == self._command:
            return
        known = {} if self._command else self._service.ledger.kept(_KEPT)  # if this raises, the next check tries again
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
        with suppress(LedgerError):  # a ledger that cannot be written is an alarm itself
            self._service.ledger.keep(_KEPT, self._ringing.kept())

    def _is_known(self, now_s: float) -> bool:
        """Whether problems can be judged: not before the first snapshot, unless that takes too long."""
        if self._since_s is None:
            self._since_s = now_s
        return self._service.core.pool.seen or now_s - self._since_s > SNAPSHOT_WARNING_S

    def _shown(self, now_s: float) -> dict[str, Any]:
        """Return the parts of a status that are checked, made in less than a millisecond."""
        state = self._service.core
        return {
            "snapshot_age_s": now_s - state.pool.time_s if state.pool.seen else None,
            "hold": state.pool.hold,
            "nodes": [{"why": node.why} for node in state.pool.nodes.values() if "quarantine" in node.why],
            "orphan_jobs": status.orphan_jobs(state),
            **admin_view.shown(state, now_s),
            **self._service.condition(),
        }


def _complaint(ended: Future[str]) -> str:
    """Return the result of a message, "" or a complaint, whatever went wrong."""
    error = ended.exception()
    return ended.result() if error is None else f"it could not be run ({error!r})"
