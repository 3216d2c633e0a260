"""The web page's gate on TCP: read-only, open to callers on this host, and with the token to callers elsewhere.

Nothing that changes anything is served here. A caller without the token must come from this host, ask for it by a name
that no other site can point here (DNS rebinding), and not be forwarded by a proxy.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import time
from collections.abc import Callable, Iterable
from html import escape

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from yarl import URL

from bftd.base.errors import ConfigError
from bftd.config.keys import WebConfig
from bftd.http.auth.caller import Caller
from bftd.http.auth.dns_rebinding import is_own_name
from bftd.http.auth.gate import PUT_OFF_S, as_caller, read_token
from bftd.http.connections import IDLE_S, ApiConnections
from bftd.http.rate_limit import Budgets
from bftd.http.request import CONNECTIONS
from bftd.http.routes import Route, install, units_of
from bftd.protocol.address import split_address

log = logging.getLogger("bftd.http")
_QUIET = logging.getLogger("bftd.http.server")

# Callers who may see what everybody may see, and callers who have shown the token; neither can change anything here.
ANYBODY = Caller("", admin=False)
TRUSTED = Caller("", admin=True)
# A shorter token could be guessed by somebody who tries all day long.
TOKEN_CHARACTERS_LEAST = 16
# A browser that has shown the token is asked again after this time.
COOKIE_S = 7 * 86400
# A forwarded caller does not count as local, although the connection is.
_SENT_ON = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via")
_READING = ("GET", "HEAD")
_BACKLOG = 128


class WebGate:
    """The gate that identifies callers of the page over TCP; raises ConfigError as `web_token` does."""

    def __init__(self, config: WebConfig, connections: ApiConnections, clock: Callable[[], float] = time.time) -> None:
        self._token = web_token(config)
        self._cookie = f"bftd-{config.listen.rpartition(':')[2]}"  # browsers do not distinguish ports of a host
        self._connections = connections
        self._budgets = Budgets()
        self._clock = clock

    def middleware(self) -> Middleware:
        """Return the middleware before every handler: it sets the request's caller, or answers a line of HTML."""

        @web.middleware
        async def door(request: web.Request, handler: Handler) -> web.StreamResponse:
            transport = request.transport
            self._connections.began(transport)
            try:
                return await self._let_in(request, handler)
            except web.HTTPException as error:
                return one_line(error.status, (error.reason or "no").lower(), error.headers.get("Allow", ""))
            except (ConnectionResetError, asyncio.CancelledError):
                raise
            except Exception:
                log.exception("%s %s failed", request.method, request.path)
                return one_line(500, "the daemon failed on this request: its log says why")
            finally:
                self._connections.ended(transport)

        return door

    async def _let_in(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        caller = self._caller(request)
        if caller is TRUSTED:
            self._connections.prove(request.transport, request.remote)
        # each kind has a budget of its own: strangers and people on this host must not keep Prometheus out
        kind = "stranger" if caller is None else "token" if caller.admin else "anybody"
        now_s = asyncio.get_running_loop().time()
        if not self._budgets.spend(hash((kind, request.remote)), units_of(request), now_s):
            await asyncio.sleep(PUT_OFF_S)
            return one_line(429, "too much is asked of the daemon from this address: wait a moment")
        if (shown := request.query.get("token")) is not None:
            return self._exchanged(request, shown)
        if caller is None:
            return one_line(401, self._what_to_do(request))
        if request.method not in _READING:
            return one_line(405, "nothing can be changed here: use bft", "GET, HEAD")
        as_caller(request, caller)
        return await handler(request)

    def _caller(self, request: web.Request) -> Caller | None:
        """Return the caller, None for a stranger."""
        header = request.headers.get("Authorization", "")
        if header:
            return TRUSTED if self._is_token(header.removeprefix("Bearer ").strip()) else None
        if self._is_cookie(request.cookies.get(self._cookie, "")):
            return TRUSTED
        return ANYBODY if self._is_local(request) else None

    def _is_local(self, request: web.Request) -> bool:
        """Whether a request comes from this host and asks for this host."""
        try:
            address = ipaddress.ip_address((request.remote or "").partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        sent_on = any(name in request.headers for name in _SENT_ON)
        return address.is_loopback and is_own_name(request.host) and not sent_on

    def _is_token(self, shown: str) -> bool:
        return bool(self._token) and hmac.compare_digest(shown.encode(errors="replace"), self._token.encode())

    def _exchanged(self, request: web.Request, shown: str) -> web.Response:
        """Exchange the token in a URL for a cookie, so that the token stays in no history and no log."""
        if not self._is_token(shown):
            return one_line(401, "wrong token: it is the line in [web] token_file")
        query = [(name, value) for name, value in request.query.items() if name != "token"]
        there = URL.build(path="/" + request.path.lstrip("/\\"), query=query)  # "//" would lead to another host
        answer = web.Response(status=303, headers={"Location": str(there), "Cache-Control": "no-store"})
        until_s = int(self._clock()) + COOKIE_S
        secure = request.headers.get("X-Forwarded-Proto", "") == "https"
        answer.set_cookie(
            self._cookie, self._sealed(until_s), max_age=COOKIE_S, httponly=True, samesite="Lax", secure=secure
        )
        return answer

    def _sealed(self, until_s: int) -> str:
        """Return a proof, valid until `until_s`, that somebody has shown the token; it does not contain the token."""
        return f"{until_s}.{hmac.new(self._token.encode(), f'web {until_s}'.encode(), hashlib.sha256).hexdigest()}"

    def _is_cookie(self, shown: str) -> bool:
        until = shown.partition(".")[0]
        if not self._token or not (until.isascii() and until.isdecimal() and len(until) < 16):
            return False
        proved = hmac.compare_digest(shown.encode(errors="replace"), self._sealed(int(until)).encode())
        return proved and self._clock() < int(until)

    def _what_to_do(self, request: web.Request) -> str:
        if "Authorization" in request.headers:
            return "wrong token: it is the line in [web] token_file"
        if not self._token:
            return "this page is for its own host only, by the name localhost: use ssh -L, or set [web] token_file"
        return "who are you? Open this address once with ?token= and the line in [web] token_file"


def web_token(config: WebConfig) -> str:
    """Return the page's token, "" without one; raises ConfigError if its file is missing, open to all, or too short."""
    token = read_token(config.token_file, "[web] token_file") if config.token_file else ""
    if token and len(token) < TOKEN_CHARACTERS_LEAST:
        raise ConfigError(
            f"[web] token_file {config.token_file}: the token must have at least {TOKEN_CHARACTERS_LEAST} "
            "characters: `openssl rand -hex 32` makes one"
        )
    return token


async def listen_web(
    config: WebConfig, connections: ApiConnections, routes: Iterable[Route], prepare: Callable[[web.Application], None]
) -> tuple[web.AppRunner, asyncio.Server]:
    """Serve `routes`, which only read, on [web] listen; `prepare` gives the application what its handlers need.

    Raises ConfigError with one line if that is impossible.
    """
    _, host, port = split_address(config.listen)
    gate = WebGate(config, connections)
    app = web.Application(middlewares=[gate.middleware()], client_max_size=1)
    prepare(app)
    app[CONNECTIONS] = connections
    install(app, routes)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, keepalive_timeout=IDLE_S, logger=_QUIET)
    await runner.setup()
    assert runner.server is not None
    factory = connections.factory(runner.server)
    try:
        server = await asyncio.get_running_loop().create_server(factory, host, port, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        await runner.cleanup()
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot listen on {config.listen}: {why}; see [web] listen") from None
    if not config.token_file and not all(_is_loopback(each.getsockname()[0]) for each in server.sockets):
        log.warning("[web] listen is open to other hosts, and all are refused there: set [web] token_file")
    return runner, server


def one_line(status: int, text: str, allow: str = "") -> web.Response:
    """Return a refusal as a page of one line."""
    page = f'<!doctype html><html lang="en"><title>bftd: {status}</title><p>bftd: {escape(text)}\n'
    headers = {"Cache-Control": "no-store", "Content-Security-Policy": "default-src 'none'"}
    if allow:
        headers["Allow"] = allow
    return web.Response(text=page, status=status, content_type="text/html", headers=headers)


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
