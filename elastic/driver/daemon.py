"""The driver's link to bftd: leases come in by long poll, what happened goes out. Training goes on without it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from elastic.driver.transport import Transport
from elastic.errors import DaemonError
from elastic.timing import DAEMON_RETRY_S, LONG_POLL_S

Lease = dict[str, Any]
Event = dict[str, Any]

_BACKLOG = 10_000
"""Events kept while the daemon is away; the oldest progress reports go first."""

_REQUEST_S = 10.0

_ASKED_AGAIN = 10
"""So often the daemon may put a driver off before the user is told; it does so until Slurm has shown it the job."""


class _RefusedError(DaemonError):
    """The daemon found a request wrong: it would be no better the second time."""


class _PutOffError(DaemonError):
    """The daemon cannot answer yet."""


class _Fenced(Exception):
    """Another driver of the same trainer registered: this one has to end."""


class DaemonLink:
    """Registers the trainer, keeps polling for its leases, and delivers its events in order."""

    def __init__(
        self,
        address: str,
        registration: Callable[[], dict[str, Any]],
        on_leases: Callable[[list[Lease]], None],
        on_fenced: Callable[[], None],
        log: Callable[[str], None],
        token: str | None = None,
        munge_socket: str = "",
    ) -> None:
        """`address`, `token` and `munge_socket` as `Transport` takes them; raises UsageError."""
        self._transport = Transport(address, token, munge_socket)
        self._registration = registration
        self._on_leases = on_leases
        self._on_fenced = on_fenced
        self._log = log
        self._events: list[Event] = []
        self._wake = asyncio.Event()
        self._epoch: int | None = None
        self._version = -1
        self._session: aiohttp.ClientSession | None = None

    def report(self, event: Event) -> None:
        """Queues one event; it is delivered once the daemon is there."""
        self._events.append(event)
        if len(self._events) > _BACKLOG:
            progress = next((i for i, old in enumerate(self._events) if old["op"] == "progress"), 0)
            del self._events[progress]
        self._wake.set()

    async def run(self) -> None:
        """Serves until cancelled."""
        async with self._open() as self._session:
            deliverer = asyncio.create_task(self._deliver())
            try:
                await self._poll()
            finally:
                deliverer.cancel()

    async def finish(self, exit_code: int, reason: str, summary: dict[str, Any]) -> None:
        """Delivers what is queued and the end of the trainer; gives up after a moment when the daemon is away."""
        try:
            async with self._open() as session:
                self._session = session
                if self._epoch is None:
                    return
                await asyncio.wait_for(self._flush(), 2.0)
                body = {"epoch": self._epoch, "exit_code": exit_code, "reason": reason, "summary": summary}
                await asyncio.wait_for(self._request("POST", self._path("finish"), body), 2.0)
        except (aiohttp.ClientError, OSError, DaemonError, _Fenced, asyncio.TimeoutError):
            return

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
                    self._log(f"bftd does not answer ({error or type(error).__name__}); training goes on, trying again")
                away = True
                await asyncio.sleep(DAEMON_RETRY_S)
            except DaemonError as error:
                put_off = put_off + 1 if isinstance(error, _PutOffError) else _ASKED_AGAIN
                if put_off >= _ASKED_AGAIN and str(error) != complaint:
                    complaint = str(error)
                    self._log(f"bftd: {error}")
                await asyncio.sleep(DAEMON_RETRY_S)

    async def _register(self) -> None:
        answer = await self._request("POST", "/v1/trainers", self._registration())
        self._epoch, self._version = int(answer["epoch"]), int(answer["version"])
        self._wake.set()
        if answer.get("note"):
            self._log(str(answer["note"]))
        self._on_leases(answer["leases"])

    async def _poll_once(self) -> None:
        query = f"?epoch={self._epoch}&version={self._version}&wait_s={LONG_POLL_S:g}"
        answer = await self._request("GET", self._path("leases") + query)
        if int(answer["version"]) != self._version:
            self._version = int(answer["version"])
            self._on_leases(answer["leases"])

    async def _deliver(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._epoch is None:
                continue
            try:
                await self._flush()
            except (aiohttp.ClientError, OSError, DaemonError, asyncio.TimeoutError):
                await asyncio.sleep(DAEMON_RETRY_S)
                self._wake.set()
            except _Fenced:
                self._on_fenced()
                return

    async def _flush(self) -> None:
        while self._events:
            batch = self._events[:500]
            try:
                await self._send_events(batch)
            except _RefusedError as error:
                if len(batch) == 1:
                    # Sent again it would be refused again, and everything behind it would wait for ever.
                    self._log(f"bftd refused {batch[0]['op']!r}: {error}")
                else:
                    for event in batch:
                        with contextlib.suppress(_RefusedError):
                            await self._send_events([event])
            # Only now: an event that was not delivered is sent again.
            del self._events[: len(batch)]

    async def _send_events(self, batch: list[Event]) -> None:
        await self._request("POST", self._path("report"), {"epoch": self._epoch, "events": batch})

    # -- HTTP ---

    def _path(self, what: str) -> str:
        return f"/v1/trainers/{self._registration()['id']}/{what}"

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


def read_token(path: str | None) -> str | None:
    """The shared token of a daemon that is reached by TCP."""
    return Path(path).read_text().strip() if path else None
