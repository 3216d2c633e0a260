"""The daemon's HTTP/JSON API, on a unix socket and on TCP; who asks is found out by `bftd.http.gate`."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from bftd import __version__
from bftd.config import ApiConfig
from bftd.core.domain import Finished, Heard, Registered, Reported, Trainer
from bftd.errors import BftError, ConfigError
from bftd.http import bodies
from bftd.http.caller import Caller
from bftd.http.gate import Gate, caller_of
from bftd.http.ownership import objection
from bftd.protocol.bounds import BODY_BYTES_MOST
from bftd.protocol.errors import ProtocolError
from bftd.protocol.reports import Finish, Reports
from bftd.service import status
from bftd.service.live import Service

log = logging.getLogger("bftd.api")

# Longer waits would make a lost driver look alive, shorter ones only cost requests.
LONGEST_WAIT_S = 30.0
# The most events or decisions of the ledger in one answer.
MOST_EVENTS = 10_000

# Far more than anybody trains at once; they only bound what one user can make the daemon remember and wait for. A
# driver has one long poll, and for a while those that it lost with their connections.
MOST_TRAINERS_OF_A_USER = 500
MOST_POLLS_OF_A_TRAINER = 16


class Refused(BftError):
    """A request is answered with an HTTP status and one line."""

    def __init__(self, status_code: int, message: str) -> None:
        super().__init__(message)
        self.status = status_code


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
SERVICE: web.AppKey[Service] = web.AppKey("service", Service)
POLLS: web.AppKey[Counter[str]] = web.AppKey("polls", Counter)


def application(service: Service, gate: Gate) -> web.Application:
    """The API as an aiohttp application for callers that `gate` knows."""
    app = web.Application(middlewares=[gate.middleware(), _errors_as_json], client_max_size=BODY_BYTES_MOST)
    app[SERVICE] = service
    app[POLLS] = Counter()
    app.add_routes(
        [
            web.post("/v1/trainers", _register),
            web.get("/v1/trainers/{id}/leases", _leases),
            web.post("/v1/trainers/{id}/report", _report),
            web.post("/v1/trainers/{id}/finish", _finish),
            web.get("/v1/trainers/{id}/explain", _explain),
            web.get("/v1/status", _status),
            web.post("/v1/tune", _tune),
            web.get("/v1/events", _events),
        ]
    )
    return app


async def listen(service: Service, config: ApiConfig) -> web.AppRunner:
    """Serve on the configured addresses; raises ConfigError with one line where that cannot be."""
    gate = Gate(config, service.config.daemon)
    app = application(service, gate)
    app.on_cleanup.append(gate.closed)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    path = Path(config.socket)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # the ledger's lock says that no other daemon of ours listens there
        await web.UnixSite(runner, str(path)).start()
        path.chmod(0o666)  # who may do what is decided by the caller's uid
    except OSError as error:
        await runner.cleanup()
        raise ConfigError(f"cannot listen on {path}: {error.strerror or error}; see [api] socket") from None
    if config.tcp:
        host, _, port = config.tcp.rpartition(":")
        try:
            await web.TCPSite(runner, host.strip("[]") or None, int(port)).start()
        except (OSError, ValueError, OverflowError) as error:
            await runner.cleanup()
            raise ConfigError(f"cannot listen on {config.tcp}: {error}; [api] tcp is host:port") from None
    return runner


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refused as refused:
        return _error(refused.status, str(refused))
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
    return web.json_response({"error": message}, status=status_code)


async def _body(request: web.Request) -> object:
    try:
        return json.loads(await request.text())
    except (ValueError, RecursionError):
        raise Refused(400, "the body must be JSON") from None


def _own_trainer(request: web.Request) -> tuple[Service, Trainer]:
    """The trainer of the URL, if the caller may act on it."""
    service = request.app[SERVICE]
    caller = caller_of(request)
    id_ = request.match_info["id"]
    trainer = service.state.trainers.get(id_)
    if trainer is None:
        raise Refused(404, f"no trainer {id_} is known: its driver must register")
    if not caller.admin and caller.user != trainer.user:
        raise Refused(403, f"trainer {id_} belongs to {trainer.user}, not to {caller.user}")
    return service, trainer


def _check_epoch(trainer: Trainer, epoch: int) -> None:
    if epoch != trainer.epoch:
        raise Refused(409, f"trainer {trainer.id} has a newer driver (epoch {trainer.epoch}, yours is {epoch}): stop")
    if not trainer.active:
        raise Refused(409, f"trainer {trainer.id} has finished: register again to go on")


def _query(request: web.Request, name: str, default: float, most: float) -> float:
    try:
        value = float(request.query.get(name, default))
    except ValueError:
        value = float("nan")
    if not 0 <= value <= most:
        raise Refused(400, f"{name} must be a number from 0 to {most:g}, not {request.query[name]!r}")
    return value


async def _register(request: web.Request) -> web.Response:
    service = request.app[SERVICE]
    caller = caller_of(request)
    asked = bodies.registration(await _body(request), service.partition, None if caller.admin else caller.user)
    known = service.state.trainers.get(asked.id)
    why_not = objection(asked.id, asked.user, service.job_user(asked.id), known.user if known else None)
    if why_not is not None:
        raise Refused(*why_not)
    if known is None and not caller.admin:
        _check_number(service, caller)
    service.apply(Registered(service.now(), asked))
    return web.json_response(service.welcome(asked.id).to_json())


def _check_number(service: Service, caller: Caller) -> None:
    has = sum(trainer.user == caller.user for trainer in service.state.trainers.values())
    if has >= MOST_TRAINERS_OF_A_USER:
        raise Refused(
            429, f"{caller.user} has {has} trainers, those of the last hour included: wait until some are forgotten"
        )


async def _leases(request: web.Request) -> web.Response:
    """Long poll: answer when the list is another than the driver's, or when the wait is over."""
    polls, id_ = request.app[POLLS], request.match_info["id"]
    if polls[id_] >= MOST_POLLS_OF_A_TRAINER:
        raise Refused(429, f"trainer {id_} is asked for {polls[id_]} times at once: its driver asks once")
    polls[id_] += 1
    try:
        return await _poll(request)
    finally:
        polls[id_] -= 1
        polls += Counter()  # forgets what is down to zero


async def _poll(request: web.Request) -> web.Response:
    service, trainer = _own_trainer(request)
    epoch = int(_query(request, "epoch", -1.0 if "epoch" not in request.query else 0.0, 1e15))
    version = int(_query(request, "version", 0.0, 1e15))
    _check_epoch(trainer, epoch)
    service.apply(Heard(service.now(), trainer.id))
    end = asyncio.get_running_loop().time() + min(_query(request, "wait_s", 0.0, 1e9), LONGEST_WAIT_S)
    while not service.stopping:
        changed = service.changed(trainer.id)
        current = service.state.trainers.get(trainer.id)
        if current is None:
            raise Refused(404, f"trainer {trainer.id} is no longer known: its driver must register")
        _check_epoch(current, epoch)
        left_s = end - asyncio.get_running_loop().time()
        if current.version != version or left_s <= 0:
            break
        try:
            await asyncio.wait_for(changed.wait(), left_s)
        except asyncio.TimeoutError:
            continue
    if service.stopping:
        raise Refused(503, "the daemon is stopping: ask again")
    service.apply(Heard(service.now(), trainer.id))
    return web.json_response(status.leases(service.state, service.state.trainers[trainer.id]).to_json())


async def _report(request: web.Request) -> web.Response:
    service, trainer = _own_trainer(request)
    told = Reports.from_json(await _body(request))
    _check_epoch(trainer, told.epoch)
    service.apply(Reported(service.now(), trainer.id, told.reports))
    return web.json_response({"version": service.state.trainers[trainer.id].version})


async def _finish(request: web.Request) -> web.Response:
    service, trainer = _own_trainer(request)
    told = Finish.from_json(await _body(request))
    if told.epoch == trainer.epoch and not trainer.active:
        return web.json_response({})  # the answer to an earlier try was lost
    _check_epoch(trainer, told.epoch)
    service.apply(Finished(service.now(), trainer.id, told.exit_code, told.reason, told.summary))
    return web.json_response({})


async def _explain(request: web.Request) -> web.Response:
    service, caller = request.app[SERVICE], caller_of(request)
    id_ = request.match_info["id"]
    limit = int(_query(request, "limit", 50.0, MOST_EVENTS))
    decisions = service.ledger.decisions(id_, limit)
    trainer = service.state.trainers.get(id_)
    if trainer is None and not decisions:
        raise Refused(404, f"no trainer {id_} is known: `bft status` lists those there are")
    shown = None if trainer is None else _visible(caller, status.trainer(service.state, trainer))
    told = [{name: value for name, value in item.items() if name != "trainer"} for item in decisions]
    return web.json_response({"trainer": shown, "decisions": told})


async def _status(request: web.Request) -> web.Response:
    """What everybody may see, as with squeue: who trains on what; not how a training goes, which is its user's."""
    service, caller = request.app[SERVICE], caller_of(request)
    shown = service.overview(__version__)
    return web.json_response(shown | {"trainers": [_visible(caller, item) for item in shown["trainers"]]})


def _visible(caller: Caller, shown: dict[str, Any]) -> dict[str, Any]:
    return shown if caller.admin or caller.user == shown["user"] else shown | {"loss": None}


async def _tune(request: web.Request) -> web.Response:
    service = request.app[SERVICE]
    caller = caller_of(request)
    if not caller.admin:
        raise Refused(
            403, f"only administrators may tune the daemon, and {caller.user} is none ([daemon] administrators)"
        )
    service.tune(bodies.tuned(await _body(request)))
    return web.json_response({"settings": status.settings(service.state.settings)})


async def _events(request: web.Request) -> web.Response:
    """The ledger's events: all of them for administrators, those of his own trainers for anybody else."""
    service, caller = request.app[SERVICE], caller_of(request)
    after, limit = int(_query(request, "after", 0.0, 1e15)), int(_query(request, "limit", 1000.0, MOST_EVENTS))
    own = None if caller.admin else [item.id for item in service.state.trainers.values() if item.user == caller.user]
    return web.json_response({"events": service.ledger.events(after, limit, own)})
