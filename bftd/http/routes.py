"""Every endpoint of the API: one line each, with its handler and its cost.

A handler is a coroutine on the loop that serves give-backs. With `offload` it is a plain function that may take its
time: it runs in a thread, gets the decoded body and the query, and returns the answer's JSON.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from bftd.http.handlers import control, driver, history, metrics, query, status
from bftd.http.handlers import web as web_handlers
from bftd.http.request import THREADS, body_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
SlowHandler = Callable[[object, Mapping[str, str]], Any]

# In units of one small request; see bftd.http.rate_limit. A status of a large cluster costs as much as many of them.
OVERVIEW_UNITS = 20.0
# Months of usage are read in a thread: that takes time, but not the loop's.
USAGE_UNITS = 10.0
# Made in a thread, and shared for a moment.
METRICS_UNITS = 2.0
# Made in a thread, and shared for some seconds.
PAGE_UNITS = 5.0

_ROUTE: web.AppKey[dict[object, Route]] = web.AppKey("route", dict)


@dataclass(frozen=True)
class Route:
    """One endpoint; `units` is what a request takes from its caller's budget, beside its body."""

    method: str
    path: str
    handler: Handler | SlowHandler
    units: float = 1.0
    offload: bool = False


# The pages for people and Prometheus, on the unix socket and on [web] listen; nothing here changes anything.
WEB_ROUTES = (
    Route("GET", "/", web_handlers.page, PAGE_UNITS),
    Route("HEAD", "/", web_handlers.page, PAGE_UNITS),
    Route("GET", "/trainers/{id}", web_handlers.trainer, OVERVIEW_UNITS),
    Route("GET", "/nodes/{name}", web_handlers.node, OVERVIEW_UNITS),
    Route("GET", "/metrics", metrics.metrics, METRICS_UNITS),
)
ROUTES = (
    Route("POST", "/v1/trainers", driver.register),
    Route("GET", "/v1/trainers/{id}/leases", driver.leases),
    Route("POST", "/v1/trainers/{id}/report", driver.report),
    Route("POST", "/v1/trainers/{id}/finish", driver.finish),
    Route("POST", "/v1/trainers/{id}/change", control.change, OVERVIEW_UNITS),
    Route("GET", "/v1/trainers/{id}/explain", status.explain, OVERVIEW_UNITS),
    Route("GET", "/v1/trainers", query.trainers, OVERVIEW_UNITS),
    Route("GET", "/v1/nodes/{name}/explain", query.explain_node, OVERVIEW_UNITS),
    Route("GET", "/v1/status", status.status, OVERVIEW_UNITS),
    Route("POST", "/v1/tune", status.tune),
    Route("POST", "/v1/pause", control.pause),
    Route("POST", "/v1/resume", control.resume),
    Route("GET", "/v1/usage", history.usage, USAGE_UNITS),
    Route("GET", "/v1/history", history.history, OVERVIEW_UNITS),
    Route("GET", "/v1/pool-trace", history.trace, OVERVIEW_UNITS),
    Route("GET", "/v1/events", status.events, OVERVIEW_UNITS),
    *WEB_ROUTES,
)


def install(app: web.Application, routes: Iterable[Route]) -> None:
    """Serve these routes."""
    app[_ROUTE] = {}
    app[THREADS] = ThreadPoolExecutor(2, "offloaded")
    for route in routes:
        handler: Any = _offloaded(route.handler) if route.offload else route.handler
        app[_ROUTE][handler] = route
        app.router.add_route(route.method, route.path, handler)
    app.on_cleanup.append(_let_threads_go)


def units_of(request: web.Request) -> float:
    """Return a request's cost beside its body; a request without a route costs as much as a status."""
    route = request.app[_ROUTE].get(request.match_info.handler)
    return OVERVIEW_UNITS if route is None else route.units


def path_of(request: web.Request) -> str:
    """Return the path of a request's route as in the table, "" if there is no route."""
    route = request.app[_ROUTE].get(request.match_info.handler)
    return "" if route is None else route.path


def _offloaded(work: Any) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        body = await body_of(request) if request.can_read_body else None
        threads = request.app[THREADS]
        answer = await asyncio.get_running_loop().run_in_executor(threads, work, body, dict(request.query))
        return web.json_response(answer)

    return handler


async def _let_threads_go(app: web.Application) -> None:
    app[THREADS].shutdown(wait=False, cancel_futures=True)
