"""The driver's link to bftd: leases come in by long poll, reports go out. Training goes on without it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from bftd.protocol.bounds import REPORTS_MOST
from bftd.protocol.errors import Malformed
from bftd.protocol.fields import printable
from bftd.protocol.lease import Leases
from bftd.protocol.registration import NodeKind, Registration, Welcome
from bftd.protocol.reports import NO_SUMMARY, Finish, ProgressReport, Report, Reports, Summary, Taken
from elastic.base.errors import DaemonError
from elastic.base.timing import DAEMON_RETRY_S, LONG_POLL_S, TAIL_S
from elastic.driver.transport import Transport

Answer = TypeVar("Answer")

_BACKLOG = 10_000
"""The most reports kept while the daemon is away; the oldest progress reports are dropped first."""

_REQUEST_S = 10.0

_REASON_MOST = 500
"""The most characters of an error that are shown."""

_ASKED_AGAIN = 10
"""The user is told once the daemon has put the driver off this often; it does so until Slurm has shown it the job."""


class _RefusedError(DaemonError):
    """The daemon rejected a request: repeating it would not help."""


class _PutOffError(DaemonError):
    """The daemon cannot answer yet."""


class _Fenced(Exception):
    """Another driver of the same trainer registered: this one has to end."""


class DaemonLink:
    """The link to the daemon: registers the trainer, polls for its leases, and delivers its reports in order."""

    def __init__(
        self,
        address: str,
        registration: Callable[[], Registration],
        on_leases: Callable[[Leases], None],
        on_fenced: Callable[[], None],
        log: Callable[[str], None],
        token: str | None = None,
        munge_socket: str = "",
        on_classes: Callable[[Sequence[NodeKind]], None] = lambda kinds: None,
        tail: Callable[[], tuple[str, ...]] = lambda: (),
        restarts: int = 0,
    ) -> None:
        """Takes `address`, `token` and `munge_socket` as `Transport` does; raises UsageError.

        `on_classes` gets the classes of nodes that the trainer may use, with each answer to a registration. `tail`
        returns the last lines of the trainer's log, which are sent every TAIL_S at most, and at the end. `restarts`
        is how often Slurm has started the driver's job again.
        """
        self._transport = Transport(address, token, munge_socket)
        self._registration = registration
        self._on_leases = on_leases
        self._on_fenced = on_fenced
        self._on_classes = on_classes
        self._tail = tail
        self._tail_sent: tuple[str, ...] = ()
        self._tail_at_s = float("-inf")
        self._log = log
        self._reports: list[Report] = []
        self._wake = asyncio.Event()
        self._word, self._attempts, self._restarts = secrets.token_hex(8), itertools.count(1), restarts
        self._epoch: int | None = None
        self._version = -1
        self._session: aiohttp.ClientSession | None = None
        self._ends_s: float | None = None

    @property
    def ends_in_s(self) -> float | None:
        """The time until the daemon expects the trainer to end, by its last answer; None if it does not know."""
        return None if self._ends_s is None else max(0.0, self._ends_s - time.monotonic())

    def report(self, report: Report) -> None:
        """Queues one report; it is delivered once the daemon answers."""
        self._reports.append(report)
        if len(self._reports) > _BACKLOG:
            progress = next((i for i, old in enumerate(self._reports) if isinstance(old, ProgressReport)), 0)
            del self._reports[progress]
        self._wake.set()

    async def run(self) -> None:
        """Serves until cancelled, or until another driver takes the trainer over."""
        async with self._open() as self._session:
            deliverer = asyncio.create_task(self._deliver())
            try:
                await self._poll()
            finally:
                deliverer.cancel()

    async def finish(self, exit_code: int, reason: str, summary: Summary) -> None:
        """Delivers the queued reports and the end of the trainer; gives up after a moment when the daemon is away."""
        try:
            async with self._open() as session:
                self._session = session
                if self._epoch is None:
                    return
                self._tail_at_s = float("-inf")
                await asyncio.wait_for(self._flush(), 2.0)
                if self._due_tail() is not None:
                    await asyncio.wait_for(self._send([]), 2.0)
                report = Finish(self._epoch, exit_code, reason, summary)
                await asyncio.wait_for(self._request("POST", self._path("finish"), report.to_json()), 2.0)
        except (aiohttp.ClientError, OSError, DaemonError, _Fenced, asyncio.TimeoutError):
            return

    async def finish_unbegun(self, exit_code: int, reason: str) -> None:
        """Registers a trainer that cannot begin as one that has ended; gives up when the daemon is away.

        The daemon puts it off until Slurm has shown it the job. An older one has to be told the end by itself.
        """
        with contextlib.suppress(aiohttp.ClientError, OSError, DaemonError, _Fenced, asyncio.TimeoutError):
            async with self._open() as self._session:
                for _ in range(_ASKED_AGAIN):
                    with contextlib.suppress(_PutOffError):
                        await asyncio.wait_for(self._register(exit_code=exit_code, reason=reason), 2.0)
                        break
                    await asyncio.sleep(DAEMON_RETRY_S)
            await self.finish(exit_code, reason, NO_SUMMARY)

    # -- polling ---

    async def _poll(self) -> None:
        away = False
        complaint, put_off = "", 0
        while True:
            try:
                if self._epoch is None:
                    await self._register()
                else:
                    await self._poll_once()
                if away:
                    self._log("bftd is back")
                away = False
                complaint, put_off = "", 0
            except _Fenced:
                self._on_fenced()
                return
            except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
                if not away:
                    why = _in_a_line(error) or type(error).__name__
                    self._log(f"bftd does not answer ({why}); training goes on, trying again")
                away = True
                await asyncio.sleep(DAEMON_RETRY_S)
            except DaemonError as error:
                put_off = put_off + 1 if isinstance(error, _PutOffError) else _ASKED_AGAIN
                if put_off >= _ASKED_AGAIN and _in_a_line(error) != complaint:
                    complaint = _in_a_line(error)
                    self._log(f"bftd: {complaint}")
                await asyncio.sleep(DAEMON_RETRY_S)

    async def _register(self, **more: object) -> None:
        # so that the daemon knows a registration that comes after a later one, also of the driver after this one
        own = {"driver": self._word, "attempt": next(self._attempts), "restarts": self._restarts}
        body = self._registration().to_json() | own | more
        welcome = _read(Welcome.from_json, await self._request("POST", "/v1/trainers", body))
        self._epoch, self._version = welcome.epoch, welcome.listed.version
        self._tail_sent, self._tail_at_s = (), float("-inf")  # a restarted daemon has no line of it
        self._wake.set()
        if welcome.note:
            self._log(welcome.note)
        self._on_leases(welcome.listed)
        self._on_classes(welcome.classes)

    async def _poll_once(self) -> None:
        query = f"?epoch={self._epoch}&version={self._version}&wait_s={LONG_POLL_S:g}"
        listed = _read(Leases.from_json, await self._request("GET", self._path("leases") + query))
        if listed.version != self._version:
            self._version = listed.version
            self._on_leases(listed)

    async def _deliver(self) -> None:
        while True:
            # No asyncio.wait_for: in Python 3.11 it may swallow a cancellation, and two would deliver the same.
            timer = asyncio.get_running_loop().call_later(TAIL_S, self._wake.set)
            await self._wake.wait()
            timer.cancel()
            self._wake.clear()
            if self._epoch is None:
                continue
            try:
                await self._flush()
                if self._due_tail() is not None:
                    await self._send([])
            except (aiohttp.ClientError, OSError, DaemonError, asyncio.TimeoutError):
                await asyncio.sleep(DAEMON_RETRY_S)
                self._wake.set()
            except _Fenced:
                self._on_fenced()
                return

    async def _flush(self) -> None:
        while self._reports:
            batch = self._reports[:REPORTS_MOST]
            try:
                await self._send(batch)
            except _RefusedError as error:
                if len(batch) == 1:
                    # It would be refused again, and every report behind it would wait for ever.
                    self._log(f"bftd refused {batch[0].op!r}: {error}")
                else:
                    for report in batch:
                        with contextlib.suppress(_RefusedError):
                            await self._send([report])
            # Deleted only now: a report that was not delivered is sent again.
            del self._reports[: len(batch)]

    async def _send(self, batch: list[Report]) -> None:
        if self._epoch is None:
            raise DaemonError("it does not know this trainer any more; registering again")
        tail = self._due_tail()
        answer = await self._request("POST", self._path("report"), Reports(self._epoch, tuple(batch), tail).to_json())
        if tail is not None:
            self._tail_sent, self._tail_at_s = tail, time.monotonic()
        with contextlib.suppress(Malformed):  # the reports are delivered all the same
            ends_in_s = Taken.from_json(answer).ends_in_s
            self._ends_s = None if ends_in_s is None else time.monotonic() + ends_in_s

    def _due_tail(self) -> tuple[str, ...] | None:
        """Returns the last lines of the log, None if they were sent already or a moment ago."""
        tail = self._tail()
        return tail if tail != self._tail_sent and time.monotonic() - self._tail_at_s >= TAIL_S else None

    # -- HTTP ---

    def _path(self, what: str) -> str:
        return f"/v1/trainers/{self._registration().id}/{what}"

    def _open(self) -> aiohttp.ClientSession:
        return self._transport.session(_REQUEST_S + LONG_POLL_S)

    async def _request(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        assert self._session is not None
        status, answer = await self._transport.request(self._session, method, path, body)
        if status == 409:
            raise _Fenced
        if status == 404 and self._epoch is not None:
            # The daemon lost its ledger: to it this is a new trainer, with leases to adopt.
            self._epoch = None
            raise DaemonError("it does not know this trainer any more; registering again")
        if status == 400:
            raise _RefusedError(str(answer.get("error", "a bad request")))
        if status == 503:
            raise _PutOffError(str(answer.get("error", "it cannot answer yet")))
        if status >= 400:
            raise DaemonError(str(answer.get("error", status)))
        return answer


def _read(read: Callable[[dict[str, Any]], Answer], answer: dict[str, Any]) -> Answer:
    """Reads an answer as a message; raises DaemonError if it is none, so that the daemon is asked again."""
    try:
        return read(answer)
    except Malformed as error:
        raise DaemonError(str(error)) from None


def read_token(path: str | None) -> str | None:
    """Returns the shared token of a daemon that is reached by TCP."""
    return Path(path).read_text().strip() if path else None


def _in_a_line(error: Exception) -> str:
    """Returns an error's text in one line: it may be a whole page from another program."""
    return " ".join(printable(str(error)[:_REASON_MOST]).split())
