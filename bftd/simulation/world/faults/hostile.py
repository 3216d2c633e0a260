"""A hostile user of the site: a process of another uid on the API's socket and on the drivers' ports."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any

from bftd.http.connections import OF_A_USER_MOST
from bftd.simulation.world.machine.network import Address, End, Network
from bftd.simulation.world.machine.processes import Process
from bftd.simulation.world.programs import HOST, SOCKET
from bftd.simulation.world.rules import Violation

UID = 66_666
_MANY = 300
_STAYS_S = 60.0
_NONSENSE = (b"\0" * 64, b"GET", b"\xff\xfe{}\r\n\r\n", b"POST /v1/trainers HTTP/9.9\r\n\r\n", b"{" * 4096 + b"\n")
_NUMBERS: tuple[Any, ...] = (float("nan"), float("inf"), 1e300, -1, 10**40, "1", None, [], {"a": 1})


class HostileUser:
    """One attack's process, and what it says."""

    def __init__(self, network: Network, random: Random) -> None:
        self.process = Process("hostile user", HOST, UID)
        self.network = network
        self.random = random
        self.ends: list[End] = []
        self.refused = 0

    async def connect(self, address: Address) -> End | None:
        """Connect; None if nobody listens."""
        try:
            end = await self.network.connect(address)
        except OSError:
            return None
        self.ends.append(end)
        return end

    async def say(self, data: bytes, address: Address = SOCKET) -> bytes:
        """Send bytes on a connection of their own, and return what comes within a second."""
        end = await self.connect(address)
        if end is None:
            return b""
        end.send(data)
        await asyncio.sleep(1.0)
        return bytes(end.arrived)

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        """Send a request, and return the answer's status and body; 0 and {} if there is none."""
        answer = await self.say(request(method, path, b"" if body is None else json.dumps(body).encode()))
        head, _, content = answer.partition(b"\r\n\r\n")
        with suppress(ValueError, IndexError):
            return int(head.split()[1]), json.loads(content)
        return 0, {}

    async def must_not(self, method: str, path: str, body: Any = None) -> None:
        """Send a request that has to be refused; raises Violation if it is not."""
        status, _ = await self.ask(method, path, body)
        self.refused += 400 <= status < 500
        if 200 <= status < 300:
            raise Violation(f"hostile: {method} {path} of another user is carried out")

    @property
    def open_count(self) -> int:
        """The number of its connections to the API that the daemon keeps open; a stopped one cannot close any."""
        mine = (one for one in self.ends if one.here == SOCKET and one.other.process.held is None)
        return sum(not (one.closed or one.finished or one.error) for one in mine)


def request(method: str, path: str, body: bytes = b"", length: int | None = None) -> bytes:
    """Return a request's bytes; `length` is what it says of its body, true if not given."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body


async def attack(network: Network, random: Random, log: Callable[[str], None]) -> None:
    """Attack once in a way that is drawn, and go after a while; raises Violation if a limit does not hold."""
    user = HostileUser(network, random)
    name, way = random.choice(tuple(_WAYS.items()))
    log(f"a hostile user: {name}")
    done = asyncio.get_running_loop().create_future()

    async def work() -> None:
        try:
            await way(user)
            await asyncio.sleep(random.expovariate(1 / _STAYS_S))
        finally:
            if not done.done():
                done.set_result(None)

    task = user.process.start(work)
    try:
        await done
    except asyncio.CancelledError:
        user.process.kill()
        raise
    most = user.open_count
    user.process.kill()
    if not task.cancelled():
        task.result()
    log(f"the hostile user goes, with {most} connections open and {user.refused} requests refused")
    if most > OF_A_USER_MOST:
        raise Violation(f"hostile: {most} connections of one user are open")


async def _nonsense(user: HostileUser) -> None:
    for address in (SOCKET, *user.network.addresses(HOST)):
        for data in _NONSENSE:
            await user.say(data, address)


async def _silence(user: HostileUser) -> None:
    for address in (SOCKET, *user.network.addresses(HOST)):
        for _ in range(_MANY):
            if (end := await user.connect(address)) is not None and user.random.random() < 0.5:
                end.send(user.random.choice(_NONSENSE)[:3])


async def _halves(user: HostileUser) -> None:
    for _ in range(_MANY):
        if (end := await user.connect(SOCKET)) is not None:
            end.send(request("POST", "/v1/trainers", b'{"id": "', length=1000))


async def _bodies(user: HostileUser) -> None:
    for body, length in (
        (b"[" * 100_000, None),
        (b"[" + b"0," * 2_000_000 + b"0]", None),
        (b"x" * 1_000_000, 10**12),
        (b'{"id": 1e999}', None),
        (b"9" * 1_000_000, None),
    ):
        await user.say(request("POST", "/v1/trainers", body, length))


async def _flood(user: HostileUser) -> None:
    for _ in range(_MANY):
        end = await user.connect(SOCKET)
        if end is not None:
            body = json.dumps(_registration(f"run-x-1.u{UID}.{user.random.getrandbits(32):x}")).encode()
            end.send(request("POST", "/v1/trainers", body))


async def _others(user: HostileUser) -> None:
    _, status = await user.ask("GET", "/v1/status")
    for trainer in status.get("trainers", ()):
        if trainer["id"].startswith("run-"):
            continue
        path = f"/v1/trainers/{trainer['id']}"
        await user.must_not("POST", "/v1/trainers", _registration(trainer["id"]))
        await user.must_not("POST", "/v1/trainers", _registration(trainer["id"]) | {"user": trainer.get("user")})
        for epoch in (0, 1, 2, 3):
            await user.must_not("POST", f"{path}/finish", {"epoch": epoch, "exit_code": 0, "reason": "over"})
            await user.must_not("POST", f"{path}/report", {"epoch": epoch, "events": [_progress(10**6, 1e9)]})
            await user.must_not("GET", f"{path}/leases?epoch={epoch}&version=0&wait_s=1e300")
        await user.must_not("POST", f"{path}/change", {"weight": 100, "nodes_min": 1, "nodes_max": 1})
    for path, body in (("pause", {"why": "mine"}), ("resume", {}), ("tune", {"decide.t_fwd_s": 1.0})):
        await user.must_not("POST", f"/v1/{path}", body)


async def _liar(user: HostileUser) -> None:
    """Register a trainer of its own, claim anything for it, and take nodes without using them."""
    id_ = f"run-login1-1.u{UID}.{user.random.getrandbits(32):x}"
    _, welcome = await user.ask("POST", "/v1/trainers", _registration(id_))
    epoch, path = welcome.get("epoch", 1), f"/v1/trainers/{id_}"
    for number in range(20):
        _, listed = await user.ask("GET", f"{path}/leases?epoch={epoch}&version=0&wait_s=0")
        reports: list[Any] = [_progress(user.random.choice(_NUMBERS), user.random.choice(_NUMBERS))]
        reports += [_progress(number + 1, 1e15) | {"samples_per_s": 1e12, "nodes": 1, "window_s": 60.0}]
        for lease in listed.get("leases", ()):
            state = user.random.choice(("placed", "ready", "working", "refused", "ended", "leaving"))
            job_id = str(user.random.randint(5_000_001, 5_000_010))
            reports.append({"op": "lease", "at_s": 1e12, "id": lease["id"], "state": state, "job_id": job_id})
        for report in reports:
            await user.ask("POST", f"{path}/report", {"epoch": epoch, "events": [report]})
    if user.random.random() < 0.5:
        await user.ask("POST", f"{path}/finish", {"epoch": epoch, "exit_code": 0, "reason": "over"})


async def _questions(user: HostileUser) -> None:
    for _ in range(_MANY):
        if (end := await user.connect(SOCKET)) is not None:
            for _ in range(10):
                end.send(request("GET", user.random.choice(("/v1/status", "/v1/history", "/metrics", "/v1/nodes"))))


async def _hello(user: HostileUser) -> None:
    for address in user.network.addresses(HOST):
        for role in ("agent", "worker", "state"):
            hello = {"op": "hello", "role": role, "lease": "n1.1", "node": "n1", "job_id": "5000001", "nonce": "0" * 64}
            end = await user.connect(address)
            if end is not None:
                end.send(json.dumps(hello).encode() + b"\n")
                await asyncio.sleep(0.1)
                end.send(b"0" * 64 + json.dumps({"op": "done", "step": 10**6}).encode() + b"\n")


def _registration(id_: str) -> dict[str, Any]:
    return {"protocol": 2, "id": id_, "name": "mine", "backend": "torchrun", "nodes_min": 1, "nodes_max": 100_000}


def _progress(step: Any, samples: Any) -> dict[str, Any]:
    return {"op": "progress", "at_s": 1e12, "step": step, "samples": samples}


_WAYS: dict[str, Callable[[HostileUser], Awaitable[None]]] = {
    "sends nonsense": _nonsense,
    "opens connections and says nothing": _silence,
    "sends halves of requests": _halves,
    "sends bodies without an end": _bodies,
    "registers trainers": _flood,
    "acts for others' trainers": _others,
    "lies about its own trainer": _liar,
    "asks and does not listen": _questions,
    "says that it is an agent": _hello,
}
