"""An endpoint is one route: its handler, what it costs, and whether it runs beside the loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import pytest

from bftd.config.keys import ApiConfig, Config
from bftd.http import api
from bftd.http.routes import OVERVIEW_UNITS, ROUTES, Route
from bftd.ledger.file import Ledger
from bftd.service.service import Service

pytestmark = pytest.mark.slow


def test_whatever_reads_much_of_the_daemon_costs_more_than_what_a_driver_does() -> None:
    units = {(route.method, route.path): route.units for route in ROUTES}
    assert {path for (_, path), cost in units.items() if cost == OVERVIEW_UNITS} == {
        "/v1/trainers",
        "/v1/trainers/{id}/explain",
        "/v1/trainers/{id}/change",
        "/v1/nodes/{name}/explain",
        "/v1/status",
        "/v1/history",
        "/v1/events",
        "/v1/pool-trace",
        "/trainers/{id}",
        "/nodes/{name}",
    }
    assert units["POST", "/v1/trainers/{id}/report"] == 1.0


async def test_a_route_that_is_offloaded_keeps_the_loop_free_and_answers_in_json(tmp_path: Path) -> None:
    release = threading.Event()

    def work(body: object, query: Mapping[str, str]) -> object:
        assert release.wait(20)
        return {"body": body, "query": dict(query), "main": threading.current_thread() is threading.main_thread()}

    ledger = Ledger(tmp_path / "ledger")
    service = Service(Config(), ledger, lambda job_ids: None)
    routes = (*ROUTES, Route("POST", "/v1/size", work, 5.0, offload=True))
    runner = await api.listen(service, ApiConfig(str(tmp_path / "socket")), routes)
    try:
        connector = aiohttp.UnixConnector(str(tmp_path / "socket"))
        async with aiohttp.ClientSession(connector=connector) as session:
            slow = asyncio.create_task(session.post("http://bftd/v1/size?nodes=4", json={"model": "m"}))
            begun_s = time.monotonic()
            async with session.get("http://bftd/v1/status") as answer:
                assert answer.status == 200
            assert not slow.done(), f"answered after {time.monotonic() - begun_s:.1f} s"
            release.set()
            async with await slow as answer:
                assert await answer.json() == {"body": {"model": "m"}, "query": {"nodes": "4"}, "main": False}
    finally:
        release.set()
        service.stop()
        await runner.cleanup()
        ledger.close()
