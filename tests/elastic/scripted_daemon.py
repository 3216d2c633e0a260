"""A daemon that grants what a test tells it to, over the real wire protocol; a contract test runs on bftd as well."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiohttp import web

from bftd.protocol.errors import Malformed
from bftd.protocol.lease import Leases, LeaseView
from bftd.protocol.registration import Registration, Welcome
from bftd.protocol.reports import Finish, LeaseReport, NoteReport, ProgressReport, Report, Reports, Taken
from tests.elastic.fakes import SomeReport, reports_of


class ScriptedDaemon:
    """Serves the trainers' side of the API on a unix socket from a thread of its own.

    Every trainer gets the same leases: tests run one trainer each.
    """

    def __init__(self, socket_path: Path) -> None:
        self.socket_path = socket_path
        self.reports: list[Report] = []
        self.tails: list[tuple[str, ...]] = []
        self.registrations: list[Registration] = []
        self.finished: Finish | None = None
        self.refused_texts: set[str] = set()
        self.note = ""
        self.min_window_s = 20.0
        self.looked_s: float | None = None
        """When it last looked at Slurm; None is now."""
        self.identity = ""
        self.container = ""
        """How the site starts containers."""
        self.leave_out: set[str] = set()
        """Fields that its answers lack, as those of an older daemon or of a wrong one."""
        self.ends_in_s: float | None = None
        self.slow = False
        self._forgotten = False
        self._leases: dict[str, LeaseView] = {}
        self._version = 0
        self._count = 0
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._runner: web.AppRunner | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> ScriptedDaemon:
        self._thread.start()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def start(self) -> None:
        """Begins to answer."""
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)

    def stop(self) -> None:
        """Stops answering, as a daemon that was killed."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)

    # -- what a test does ---

    def grant(self, *nodes: str, limit_s: float = 3600.0) -> list[str]:
        """Grants one new lease a node and returns the leases' ids."""
        names = []
        with self._lock:
            for node in nodes:
                self._count += 1
                name = f"{node}.{self._count}"
                self._leases[name] = LeaseView(name, node, "granted", False, limit_s, reason="the test says so")
                names.append(name)
            self._version += 1
        return names

    def revoke(self, *nodes: str, vacate: bool = False) -> None:
        """Revokes the leases of these nodes."""
        with self._lock:
            for name, lease in self._leases.items():
                if lease.node in nodes:
                    self._leases[name] = replace(lease, state="revoked", vacate=vacate)
            self._version += 1

    def forget(self) -> None:
        """Knows no trainer any more, until one registers."""
        self._forgotten = True

    def of(self, kind: type[SomeReport], /, **fields: Any) -> list[SomeReport]:
        """The reports of one kind so far, those with the given fields."""
        with self._lock:
            return reports_of(self.reports, kind, **fields)

    def last_reports(self) -> str:
        """The newest reports, for a test that failed."""
        told = [report for report in self.reports if not isinstance(report, ProgressReport)][-30:]
        return "\n".join(map(str, [*told, *self.of(ProgressReport)[-3:]]))

    # -- the API ---

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/trainers", self._register)
        app.router.add_get("/v1/trainers/{id}/leases", self._poll)
        app.router.add_post("/v1/trainers/{id}/report", self._report)
        app.router.add_post("/v1/trainers/{id}/finish", self._finish)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        self.socket_path.unlink(missing_ok=True)
        await web.UnixSite(self._runner, str(self.socket_path)).start()

    async def _stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        # Long polls that outlive the runner would be destroyed pending, with a complaint of asyncio's.
        polls = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)

    async def _register(self, request: web.Request) -> web.Response:
        try:
            self.registrations.append(Registration.from_json(await request.json()))
        except Malformed as error:
            return web.json_response({"error": str(error)}, status=400)
        self._forgotten = False
        welcome = Welcome(len(self.registrations), 1.0, self._listed(), self.note)
        return self._answer(welcome.to_json())

    async def _poll(self, request: web.Request) -> web.Response:
        if self._forgotten:
            return web.json_response({"error": "unknown trainer"}, status=404)
        if int(request.query["epoch"]) != len(self.registrations):
            return web.json_response({"error": "fenced"}, status=409)
        seen, deadline = int(request.query["version"]), time.monotonic() + float(request.query["wait_s"])
        known = len(self.registrations)
        while self._version <= seen and time.monotonic() < deadline and len(self.registrations) == known:
            await asyncio.sleep(0.02)
        if len(self.registrations) != known:
            return web.json_response({"error": "fenced"}, status=409)
        return self._answer(self._listed().to_json())

    async def _report(self, request: web.Request) -> web.Response:
        try:
            reports = Reports.from_json(await request.json())
        except Malformed as error:
            return web.json_response({"error": str(error)}, status=400)
        told = reports.reports
        if self.refused_texts & {report.text for report in told if isinstance(report, NoteReport)}:
            return web.json_response({"error": "this text is refused"}, status=400)
        with self._lock:
            self.reports += told
            self.tails += [] if reports.tail is None else [reports.tail]
            for report in told:
                if isinstance(report, LeaseReport) and report.state in ("ended", "refused"):
                    self._leases.pop(report.id, None)
                    self._version += 1
        while self.slow:
            await asyncio.sleep(0.01)
        taken = Taken(self._version, self.ends_in_s).to_json()
        return web.json_response({name: value for name, value in taken.items() if name not in self.leave_out})

    async def _finish(self, request: web.Request) -> web.Response:
        try:
            self.finished = Finish.from_json(await request.json())
        except Malformed as error:
            return web.json_response({"error": str(error)}, status=400)
        return web.json_response({})

    def _listed(self) -> Leases:
        with self._lock:
            listed = tuple(self._leases.values())
            looked_s = time.time() if self.looked_s is None else self.looked_s
            return Leases(
                self._version,
                self.min_window_s,
                listed,
                self.identity,
                looked_s=looked_s,
                container=self.container,
            )

    def _answer(self, body: dict[str, Any]) -> web.Response:
        return web.json_response({name: value for name, value in body.items() if name not in self.leave_out})
