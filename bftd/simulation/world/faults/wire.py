"""Requests of simulated drivers that are lost or doubled on their way, or go between two versions of bftd."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

import aiohttp

from bftd.protocol.errors import ProtocolError
from elastic.base.errors import DaemonError
from elastic.driver.transport import Transport

_NEW: Mapping[str, Collection[str]] = {
    "registration": ("estimates", "log", "resizable", "driver", "attempt", "restarts"),
    "progress": ("total_steps", "steps_per_s", "live_step"),
    "finish": ("summary",),
    "report": ("tail",),
    "list": (
        *("daemon", "timeout_s", "now_s", "looked_s", "calm_s", "container", "stage"),
        *("nodes_min", "nodes_max", "classes", "note", "ends_in_s"),
    ),
    "lease": ("leave_in_s",),
}
"""The keys that an older bftd neither sends nor reads, by the message; see the docstrings of `bftd.protocol`."""

_NEW_REPORT = "curve"
_REGISTERS = "/v1/trainers"
_LATE_S = 5.0


@dataclass
class Mail:
    """The fate of all drivers' requests: shares of those whose answers are lost, and of doubled ones.

    A request is doubled as the daemon sees it: at once, or a while after others that came later. `older_daemon`: the
    daemon is of the release before; drivers may be so too, each for itself.
    """

    random: Random
    lost: float = 0.0
    doubled: float = 0.0
    older_daemon: bool = False
    answers_lost: int = 0
    requests_doubled: int = 0


class MailedTransport(Transport):
    """A driver's transport whose requests go through the `mail`; `older`: the driver is of the release before."""

    def __init__(self, address: str, mail: Mail, *, older: bool) -> None:
        super().__init__(address)
        self._mail = mail
        self._older = older
        self._late: set[asyncio.Task[None]] = set()

    async def request(
        self, session: aiohttp.ClientSession, method: str, path: str, body: Any
    ) -> tuple[int, dict[str, Any]]:
        """See Transport."""
        mail = self._mail
        between = self._older or mail.older_daemon
        if between:
            if mail.older_daemon and not self._older and _is_unknown(body):
                return 400, {"error": f"report: op must be another one, not {_NEW_REPORT!r}"}
            body = _older(path, body)
        plain = between and path == _REGISTERS  # an older daemon takes each for another driver's
        if mail.random.random() < mail.doubled and not plain:
            mail.requests_doubled += 1
            after_s = mail.random.choice((0.0, mail.random.expovariate(1 / _LATE_S)))
            late = asyncio.create_task(self._again(after_s, session.timeout.total or _LATE_S, method, path, body))
            self._late.add(late)
            late.add_done_callback(self._late.discard)
        status, answer = await super().request(session, method, path, body)
        if mail.lost and mail.random.random() < mail.lost:
            mail.answers_lost += 1
            raise ConnectionResetError("the connection ended before the answer came")
        return status, _older_answer(answer) if between else answer

    async def _again(self, after_s: float, within_s: float, method: str, path: str, body: Any) -> None:
        await asyncio.sleep(after_s)
        with suppress(aiohttp.ClientError, OSError, DaemonError, ProtocolError, asyncio.TimeoutError):
            async with self.session(within_s) as session:
                await super().request(session, method, path, body)


def _is_unknown(body: Any) -> bool:
    return isinstance(body, dict) and any(one.get("op") == _NEW_REPORT for one in body.get("events", ()))


def _older(path: str, body: Any) -> Any:
    """Return a request's body as between a driver and a daemon of which one is older."""
    if not isinstance(body, dict):
        return body
    kind = {"finish": "finish", "report": "report"}.get(path.rpartition("/")[2], "registration")
    body = _without(body, _NEW[kind])
    if "events" in body:
        known = [one for one in body["events"] if one["op"] != _NEW_REPORT]
        body["events"] = [_without(one, _NEW["progress"]) if one["op"] == "progress" else one for one in known]
    return body


def _older_answer(answer: dict[str, Any]) -> dict[str, Any]:
    answer = _without(answer, _NEW["list"])
    if isinstance(listed := answer.get("leases"), list):
        answer["leases"] = [_without(one, _NEW["lease"]) for one in listed]
    return answer


def _without(data: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name not in names}
