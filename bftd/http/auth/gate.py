"""The API's gate: identifies the caller before any handler runs, and proves answers to callers on other hosts."""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from bftd.base.errors import BftError, ConfigError
from bftd.config.keys import ApiConfig, DaemonConfig
from bftd.credentials.munge import MungeError, MungeMissing
from bftd.credentials.proofs import REQUEST_HEADER, SCHEME, RequestCredential
from bftd.http.auth.caller import Caller, Callers
from bftd.http.auth.dns_rebinding import is_own_name
from bftd.http.auth.munge import MungeGate
from bftd.http.body import BodyRefused, read
from bftd.http.connections import ApiConnections, peer_uid
from bftd.http.rate_limit import BYTES_PER_UNIT, Budgets
from bftd.protocol.address import endpoint

log = logging.getLogger("bftd.http")

# aiohttp before 3.14 has no such keys and takes a text; later releases warn about a text.
_CALLER: Any = web.RequestKey("caller", Caller) if hasattr(web, "RequestKey") else "caller"
# If munged or a name service hangs, its callers get an error after this time.
_IDENTIFIED_S = 10.0
_MOST_WAITING = 1_000
# Requests of one address whose credentials wait for munged: nobody knows yet who sent them.
OF_AN_ADDRESS_MOST = 32
_UNKNOWN_BYTES = 2**20
# Callers over their budget get the answer after this delay: answered at once, they would ask again at once.
PUT_OFF_S = 1.0

_T = TypeVar("_T")


class NotKnown(BftError):
    """A request whose sender could not be identified; the answer is `status` and one line, without a proof."""

    def __init__(self, message: str, status: int = 401) -> None:
        super().__init__(message)
        self.status = status


class Authenticator:
    """The gate that identifies callers: on the unix socket by the kernel, on TCP by munge or a private cluster's token.

    Munge and name services are asked in threads, each in its own: however slow they are, the daemon's loop goes on, and
    callers on the unix socket never wait for munged. Raises ConfigError if a configured method cannot work.
    """

    def __init__(self, api: ApiConfig, daemon: DaemonConfig, connections: ApiConnections | None = None) -> None:
        self.connections = ApiConnections() if connections is None else connections
        self.budgets = Budgets()
        self._callers = Callers(daemon.administrators, asyncio.get_running_loop().time)
        self._token = ""
        self._munge: MungeGate | None = None
        self._strangers: Counter[str] = Counter()
        if api.tcp and api.auth == "token":
            self._token = read_token(api.token_file, "[api] token_file")
            log.warning(
                '[api] auth = "token": whoever has the token may do all; this is for private test clusters only'
            )
        elif api.tcp:
            self._munge = MungeGate(api.munge_socket, daemon.user)
        self._munges = _Queue("munge", "munged")
        self._names = _Queue("names", "the name service")

    async def closed(self, _: web.Application) -> None:
        """Let the threads go, once the API is no longer served."""
        self._munges.close()
        self._names.close()

    def middleware(self, units_of: Callable[[web.Request], float]) -> Middleware:
        """Return the middleware before every handler: it sets `caller_of`, or answers that the caller is unknown.

        `units_of` returns the cost of a request beside its body.
        """

        @web.middleware
        async def door(request: web.Request, handler: Handler) -> web.StreamResponse:
            transport = request.transport
            self.connections.began(transport)
            try:
                return await self._let_in(request, handler, units_of(request))
            except NotKnown as unknown:
                return web.json_response({"error": str(unknown)}, status=unknown.status)
            finally:
                self.connections.ended(transport)

        return door

    async def _let_in(self, request: web.Request, handler: Handler, units: float) -> web.StreamResponse:
        caller, claim = await self._identify(request)
        as_caller(request, caller)
        self.connections.prove(request.transport, request.remote if caller.uid is None else caller.uid)
        response: web.StreamResponse | None = self._over_budget(caller, request, units)
        if response is not None:
            await asyncio.sleep(PUT_OFF_S)
        else:
            if claim is not None and caller.uid is not None:
                await self._accept(caller.uid, claim, request)
            response = await handler(request)
        if claim is not None and caller.uid is not None:
            return await self._signed(caller.uid, claim, response)
        return response

    def _over_budget(self, caller: Caller, request: web.Request, units: float) -> web.Response | None:
        length = request.content_length
        if length is None:  # the size of a chunked body is unknown; our own clients send none
            length = _UNKNOWN_BYTES if request.can_read_body else 0
        units += length / BYTES_PER_UNIT
        now_s = asyncio.get_running_loop().time()
        if caller.admin or caller.uid is None or self.budgets.spend(caller.uid, units, now_s):
            return None
        return web.json_response({"error": f"{caller.user} asks too much of the daemon: wait a moment"}, status=429)

    async def _identify(self, request: web.Request) -> tuple[Caller, RequestCredential | None]:
        transport = request.transport
        connection = transport.get_extra_info("socket") if transport is not None else None
        if transport is None or connection is None:
            raise NotKnown("the connection is gone")
        if connection.family == socket.AF_UNIX:
            _refuse_sites(request)
            return await self._named(peer_uid(connection)), None
        shown = request.headers.get(REQUEST_HEADER, "")
        if self._token:
            if not hmac.compare_digest(shown.encode(errors="replace"), f"Bearer {self._token}".encode()):
                raise NotKnown("wrong or missing token: send Authorization: Bearer <content of [api] token_file>")
            return Caller("", admin=True), None
        uid, claim = await self._opened(request, shown, endpoint(transport.get_extra_info("sockname")))
        return await self._named(uid), claim

    async def _opened(self, request: web.Request, shown: str, address: str) -> tuple[int, RequestCredential]:
        if self._munge is None or not shown.startswith(SCHEME):
            raise NotKnown("say who you are with a munge credential: bft and the drivers do, with [api] auth = munge")
        gate, credential, stranger = self._munge, shown[len(SCHEME) :], request.remote or ""
        if self._strangers[stranger] >= OF_AN_ADDRESS_MOST:
            raise NotKnown(f"too many requests of {stranger} wait to be identified: ask again", 503)
        self._strangers[stranger] += 1
        try:
            return await self._munges.run(lambda: gate.open(credential, address, request.method, request.raw_path))
        except MungeMissing as error:
            raise NotKnown(f"the daemon cannot tell who asks: {error}", 503) from None
        except MungeError as error:
            raise NotKnown(str(error)) from None
        finally:
            self._strangers[stranger] -= 1
            self._strangers += Counter()  # drops entries that are zero

    async def _accept(self, uid: int, claim: RequestCredential, request: web.Request) -> None:
        """Read the body, and accept a request once: its number is remembered only now."""
        assert self._munge is not None
        try:
            self._munge.accept(uid, claim, await read(request))
        except MungeError as error:
            raise NotKnown(str(error)) from None
        except BodyRefused as error:
            raise NotKnown(str(error), error.status) from None

    async def _named(self, uid: int) -> Caller:
        known = self._callers.known(uid)
        return known if known is not None else await self._names.run(lambda: self._callers.look_up(uid))

    async def _signed(self, uid: int, claim: RequestCredential, response: web.StreamResponse) -> web.StreamResponse:
        gate = self._munge
        assert gate is not None
        assert isinstance(response, web.Response)
        body = response.body if isinstance(response.body, bytes) else b""
        try:
            response.headers.update(await self._munges.run(lambda: gate.sign(uid, claim, response.status, body)))
        except (MungeError, NotKnown) as error:
            log.warning("an answer could not be proved: %s", error)
            return web.json_response({"error": f"the daemon cannot prove its answer: {error}"}, status=503)
        return response


def _refuse_sites(request: web.Request) -> None:
    """Refuse requests that a web site makes a browser send to the unix socket, which `ssh -L` can expose to a desktop.

    Commands and drivers send no Origin, and a browser sends one with every request that changes anything.
    """
    if "Origin" in request.headers or request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        raise NotKnown("a web site may ask nothing here", 403)
    if not is_own_name(request.host):
        raise NotKnown("ask for localhost: under another name a web site could ask", 403)


class _Queue:
    """Threads that query one service of the host, and the work that waits for them."""

    def __init__(self, name: str, asks: str) -> None:
        self._threads = ThreadPoolExecutor(4, name)
        self._asks = asks
        self._waiting = 0

    async def run(self, work: Callable[[], _T]) -> _T:
        """Run `work` in a thread; raises NotKnown if too much waits already, or if it takes too long."""
        if self._waiting >= _MOST_WAITING:
            raise NotKnown("too many requests wait to be identified: ask again", 503)
        self._waiting += 1
        try:
            done = asyncio.get_running_loop().run_in_executor(self._threads, work)
            return await asyncio.wait_for(done, _IDENTIFIED_S)
        except asyncio.TimeoutError:
            raise NotKnown(f"{self._asks} of the daemon's host does not answer: ask again", 503) from None
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Let the threads go."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def caller_of(request: web.Request) -> Caller:
    """Return the sender of a request that passed a gate."""
    caller: Caller = request[_CALLER]
    return caller


def as_caller(request: web.Request, caller: Caller) -> None:
    """Tell a request's handler who sent it; for gates."""
    request[_CALLER] = caller


def read_token(path: str, key: str) -> str:
    """Return the token in a file that only its owner and group may read; raises ConfigError, which names the `key`."""
    try:
        file = Path(path)
        token = file.read_text(encoding="utf-8").strip()
        mode = file.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"cannot read {key} {path}: {reason}") from None
    if not token:
        raise ConfigError(f"{key} {path} is empty: write a long random line into it")
    if mode & 0o007:
        raise ConfigError(f"{key} {path} is open to all users of this host: chmod 600 it")
    return token
