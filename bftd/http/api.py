"""The daemon's HTTP/JSON API, on a unix socket and on TCP; `bftd.http.auth.gate` identifies callers."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from aiohttp import web

from bftd.base.errors import BftError, ConfigError, LedgerError
from bftd.config.keys import ApiConfig, Config
from bftd.http.auth.gate import Authenticator, read_token
from bftd.http.auth.web import listen_web, web_token
from bftd.http.connections import IDLE_S
from bftd.http.handlers.driver import DRIVERS, NOTES, POLLS, Drivers
from bftd.http.handlers.metrics import SCRAPES, Scrapes, counting
from bftd.http.handlers.status import HISTORY, OVERVIEWS, LedgerQueries
from bftd.http.handlers.web import PAGES, Pages
from bftd.http.note_limit import Notes
from bftd.http.overview import Overviews
from bftd.http.request import BUDGETS, CONNECTIONS, SERVICE, RequestRefused
from bftd.http.routes import ROUTES, WEB_ROUTES, Handler, Route, install, path_of, units_of
from bftd.ledger.reader import LedgerReader
from bftd.protocol.bounds import BODY_BYTES_MOST
from bftd.protocol.errors import ProtocolError
from bftd.protocol.fields import printable
from bftd.service.metrics.counters import Counters
from bftd.service.service import Service

log = logging.getLogger("bftd.api")

# aiohttp's own logger: senders of malformed HTTP get an answer, and logging them would fill the log. We log failures of
# this process ourselves.
_QUIET = logging.getLogger("bftd.http.server")
_QUIET.setLevel(logging.CRITICAL)
# Connections that wait to be accepted, and the number accepted on the unix socket in one round of the loop.
_BACKLOG = 1_024
_TAKEN_AT_ONCE = 8


def check(config: Config) -> None:
    """Read the tokens as a start would; raises ConfigError with one line if a token cannot be used."""
    if config.api.tcp and config.api.auth == "token":
        read_token(config.api.token_file, "[api] token_file")
    if config.web.listen:
        web_token(config.web)


def application(service: Service, gate: Authenticator, routes: Iterable[Route] = ROUTES) -> web.Application:
    """Return the API as an aiohttp application for callers that `gate` identifies."""
    if not isinstance(service.meters, Counters):
        service.meters = Counters()
    doors = [counting(service.meters, path_of), gate.middleware(units_of), _errors_as_json]
    app = web.Application(middlewares=doors, client_max_size=BODY_BYTES_MOST)
    app[SERVICE] = service
    app[BUDGETS] = gate.budgets
    app[CONNECTIONS] = gate.connections
    app[POLLS] = Counter()
    app[NOTES] = Notes()
    app[DRIVERS] = Drivers()
    app[OVERVIEWS] = Overviews()
    app[HISTORY] = LedgerQueries(LedgerReader(service.ledger.path))
    app[SCRAPES] = Scrapes(service.meters)
    app[PAGES] = Pages(LedgerReader(service.ledger.path))
    app.on_cleanup.append(_close)
    install(app, routes)
    return app


async def listen(service: Service, config: ApiConfig, routes: Iterable[Route] = ROUTES) -> web.AppRunner:
    """Serve on the configured addresses; raises ConfigError with one line if that is impossible."""
    gate = Authenticator(config, service.config.daemon)
    app = application(service, gate, routes)
    listening: list[asyncio.Server] = []
    beside: list[web.AppRunner] = []

    async def stop_listening(_: web.Application) -> None:
        gate.connections.stop()
        for server in listening:
            server.close()

    async def clean_up_beside(_: web.Application) -> None:
        for other in beside:
            await other.cleanup()

    app.on_shutdown.append(stop_listening)
    app.on_cleanup.append(clean_up_beside)
    app.on_cleanup.append(gate.closed)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, keepalive_timeout=IDLE_S, logger=_QUIET)
    await runner.setup()
    assert runner.server is not None
    loop, factory = asyncio.get_running_loop(), gate.connections.factory(runner.server)
    path = Path(config.socket)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # the ledger's lock ensures that no other daemon of ours listens there
        unix = socket.socket(socket.AF_UNIX)
        unix.bind(str(path))
        listening.append(await loop.create_unix_server(factory, sock=unix, backlog=_TAKEN_AT_ONCE))
        unix.listen(_BACKLOG)
        path.chmod(0o666)  # the caller's uid decides what they may do
    except OSError as error:
        await runner.cleanup()
        raise ConfigError(f"cannot listen on {path}: {error.strerror or error}; see [api] socket") from None
    if config.tcp:
        host, _, port = config.tcp.rpartition(":")
        try:
            server = await loop.create_server(factory, host.strip("[]") or None, int(port), backlog=_BACKLOG)
            listening.append(server)
        except (OSError, ValueError, OverflowError) as error:
            await runner.cleanup()
            raise ConfigError(f"cannot listen on {config.tcp}: {error}; [api] tcp is host:port") from None
    if service.config.web.listen:
        try:
            other, server = await listen_web(
                service.config.web, gate.connections, WEB_ROUTES, lambda it: _share(app, it)
            )
        except ConfigError:
            await runner.cleanup()
            raise
        beside.append(other)
        listening.append(server)
    return runner


def _share(app: web.Application, other: web.Application) -> None:
    """Give the web page's application the API's objects that its handlers need."""
    other[SERVICE], other[PAGES], other[SCRAPES] = app[SERVICE], app[PAGES], app[SCRAPES]
    other.middlewares.insert(0, counting(app[SERVICE].meters, path_of))


async def _close(app: web.Application) -> None:
    app[OVERVIEWS].close()
    app[PAGES].close()
    app[HISTORY].close()
    app[SCRAPES].close()


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RequestRefused as refused:
        return _error(refused.status, str(refused))
    except LedgerError as error:  # the same request may succeed later
        return _error(503, str(error))
    except (BftError, ProtocolError) as error:
        return _error(400, str(error))
    except web.HTTPException as error:
        return _error(error.status, f"{request.method} {request.path}: {error.reason.lower()}")
    except (ConnectionResetError, asyncio.CancelledError):
        raise
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        return _error(500, "the daemon failed on this request: its log says why")


def _error(status_code: int, message: str) -> web.Response:
    return web.json_response({"error": printable(message)}, status=status_code)
