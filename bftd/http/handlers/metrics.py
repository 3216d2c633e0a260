"""Handler for Prometheus's scrapes: made beside the loop from immutable data, and shared by simultaneous callers.

It needs neither Slurm nor the ledger, so that it also works when Slurm hangs or the ledger is full. Nothing in it is
private: no label is a user's, a job's or a trainer's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from bftd import __version__
from bftd.http.request import SERVICE
from bftd.http.response_cache import ResponseCache
from bftd.service.instrumentation import Meters
from bftd.service.metrics.counters import Counters
from bftd.service.metrics.exposition import Exposition
from bftd.service.service import Service

# Callers that ask more often get the same answer again: strangers must not cost more than one answer in this time.
KEPT_S = 0.5
# The two formats, as the client library is asked for them.
_OPENMETRICS, _PROMETHEUS = "application/openmetrics-text; version=1.0.0", "text/plain"


class Scrapes:
    """Answers to scrapes, made one at a time in a thread."""

    def __init__(self, measured: Counters) -> None:
        self._measured = measured
        self._shared = ResponseCache[str, tuple[bytes, str]]("metrics")

    async def answer(self, service: Service, accept: str) -> tuple[bytes, str]:
        """Return the text of all metrics and its content type."""
        form = _OPENMETRICS if "application/openmetrics-text" in accept else _PROMETHEUS

        def prepare() -> Callable[[], tuple[bytes, str]]:
            exposition = Exposition(self._measured, service.figures(), __version__)
            return lambda: exposition.encoded(form)

        return await self._shared.answer(form, prepare, KEPT_S)

    def close(self) -> None:
        """Let the thread go."""
        self._shared.close()


SCRAPES: web.AppKey[Scrapes] = web.AppKey("scrapes", Scrapes)


async def metrics(request: web.Request) -> web.Response:
    """Return all metrics, in Prometheus's format, or as OpenMetrics if that is accepted."""
    accept = request.headers.get("Accept", "")
    body, content_type = await request.app[SCRAPES].answer(request.app[SERVICE], accept)
    return web.Response(body=body, headers={"Content-Type": content_type})


def counting(meters: Meters, path_of: Callable[[web.Request], str]) -> Middleware:
    """Return the outermost middleware, which counts answers; `path_of` returns a request's route, "" without one."""

    @web.middleware
    async def counted(request: web.Request, handler: Handler) -> web.StreamResponse:
        status = 500
        try:
            answer = await handler(request)
            status = answer.status
        except web.HTTPException as error:
            status = error.status
            raise
        except (ConnectionResetError, asyncio.CancelledError):
            status = 499  # web servers use this number for a client that went away
            raise
        finally:
            meters.answered(request.method, path_of(request), status)
        return answer

    return counted
