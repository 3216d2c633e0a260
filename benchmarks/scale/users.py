"""Users of `benchmarks.scale.hostile`: ten who do harm, each in his own way, and one who trains.

    python -m benchmarks.scale.users WAY SOCKET UID SECONDS

becomes the uid, does it for so long, and prints what it was answered as a line of JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

CONNECTIONS = 64
_BIG = 64 * 2**20


class Line:
    """One connection at a time: requests go out as they are given, however wrong."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, method: str, target: str, body: bytes = b"") -> int:
        """One request; the status of the answer, 0 where there is none."""
        head = f"{method} {target} HTTP/1.1\r\nHost: bftd\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        try:
            if self._writer is None:
                self._reader, self._writer = await asyncio.open_unix_connection(self._path, limit=_BIG)
            self._writer.write(head + body)
            await self._writer.drain()
            return await self._status()
        except (OSError, asyncio.IncompleteReadError, ValueError):
            self.close()
            await asyncio.sleep(0.01)
            return 0

    async def _status(self) -> int:
        assert self._reader is not None
        head = await self._reader.readuntil(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        await self._reader.readexactly(int(fields.get("content-length", 0)))
        if fields.get("connection", "").lower() == "close":
            self.close()
        return int(lines[0].split()[1])

    def close(self) -> None:
        """Hang up."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


class User:
    """A uid with his trainer, and what he was answered."""

    def __init__(self, path: str, uid: int, seconds: float) -> None:
        self.path = path
        self.uid = uid
        self.end_s = time.monotonic() + seconds
        self.statuses: Counter[int] = Counter()
        self.took_s: list[float] = []

    @property
    def on(self) -> bool:
        """Whether it is not over yet."""
        return time.monotonic() < self.end_s

    async def ask(self, line: Line, method: str, target: str, body: Any = b"") -> int:
        """One request, counted and timed; a body that is no bytes goes as JSON."""
        begun_s = time.perf_counter()
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        status = await line.ask(method, target, sent)
        self.statuses[status] += 1
        self.took_s.append(time.perf_counter() - begun_s)
        return status

    def trainer(self, name: str, **fields: Any) -> dict[str, Any]:
        """A registration of one's own."""
        told = {"id": f"run-{self.uid}-{name}", "backend": "torchrun", "nodes_min": 1, "nodes_max": 64}
        return {**told, "user": str(self.uid), **fields}

    async def flood(self, one: Callable[[Line, int], Awaitable[Any]]) -> None:
        """Do one thing again and again on as many connections as there may be."""

        async def again(number: int) -> None:
            line = Line(self.path)
            while self.on:
                await one(line, number)
            line.close()

        await asyncio.gather(*map(again, range(CONNECTIONS)))


def _report(*events: dict[str, Any]) -> dict[str, Any]:
    return {"epoch": 1, "events": [{"at_s": 1.0, **event} for event in events]}


async def progress(user: User) -> None:
    """Progress at sizes that the trainer never had."""
    await user.ask(Line(user.path), "POST", "/v1/trainers", user.trainer("p", nodes_max=10**6))
    path, count = f"/v1/trainers/run-{user.uid}-p/report", iter(range(1, 10**9))

    async def one(line: Line, _: int) -> None:
        events = [
            {"op": "progress", "step": 1, "samples": 1, "samples_per_s": 1.0, "nodes": next(count) % 10**6}
            for _ in range(500)
        ]
        await user.ask(line, "POST", path, _report(*events))
        await user.ask(line, "POST", path, _report(*events * 8))

    await user.flood(one)


async def held(user: User) -> None:
    """Leases that nobody granted, as many as a body takes, and a poll that lists them."""

    async def one(line: Line, number: int) -> None:
        name = f"h{number}"
        for count in (4_900, 100_000):
            leases = [{"id": f"n{index}.1", "job_id": "1"} for index in range(count)]
            await user.ask(line, "POST", "/v1/trainers", user.trainer(name, nodes_max=10**6, held=leases))
        await user.ask(line, "GET", f"/v1/trainers/run-{user.uid}-{name}/leases?epoch=1&version=0&wait_s=0")

    await user.flood(one)


async def notes(user: User) -> None:
    """Long notes, and crashes on every node."""
    await user.ask(Line(user.path), "POST", "/v1/trainers", user.trainer("n"))
    path = f"/v1/trainers/run-{user.uid}-n/report"
    said = _report(*({"op": "note", "text": "x\x1b[2J" * 300} for _ in range(300)))
    crashes = _report(*({"op": "crash", "node": f"n{index}", "rc": -9, "text": "y" * 500} for index in range(500)))

    async def one(line: Line, _: int) -> None:
        await user.ask(line, "POST", path, said)
        await user.ask(line, "POST", path, crashes)

    await user.flood(one)


async def bodies(user: User) -> None:
    """Bodies as large as they may be, and larger, of what takes longest to decode."""
    lists = b"[" + b"[]," * 40_000 + b"[]]"

    async def one(line: Line, number: int) -> None:
        await user.ask(line, "POST", "/v1/trainers", lists[: 10**6] if number % 2 else lists * 40)
        await user.ask(line, "POST", "/v1/trainers", user.trainer("b", sizes=list(range(1, 4_000)), nodes_max=10**4))
        await user.ask(line, "POST", "/v1/trainers", b"\xc3\xa9\x07" * 300_000)

    await user.flood(one)


async def idle(user: User) -> None:
    """Connections on which nothing comes."""
    opened: list[asyncio.StreamWriter] = []
    while user.on:
        with contextlib.suppress(OSError):
            opened.append((await asyncio.open_unix_connection(user.path))[1])
        user.statuses[len(opened) > CONNECTIONS] += 1
        if len(opened) > 500:
            for writer in opened:
                writer.close()
            opened.clear()
        await asyncio.sleep(0.002)


async def drops(user: User) -> None:
    """Heads and bodies that come a letter at a time."""

    async def one(line: Line, number: int) -> None:
        head = b"GET /v1/status HTTP/1.1\r\nHost: b\r\nX: " + b"x" * 10_000
        if number % 2:
            head = b"POST /v1/trainers HTTP/1.1\r\nHost: b\r\nContent-Length: 1000000\r\n\r\n" + b"[" * 10_000
        with contextlib.suppress(OSError):
            writer = (await asyncio.open_unix_connection(user.path))[1]
            for index in range(len(head)):
                writer.write(head[index : index + 1] if index > 60 else head[:60] if index == 0 else b"")
                await writer.drain()
                if not user.on:
                    break
                await asyncio.sleep(0.02)
            writer.close()
        await asyncio.sleep(0.01)

    await user.flood(one)


async def scraping(user: User) -> None:
    """The status again and again, by half of the connections without reading it."""

    async def one(line: Line, number: int) -> None:
        if number % 2:
            await user.ask(line, "GET", "/v1/status" + ("?nodes=folded" if number % 4 == 1 else ""))
            return
        with contextlib.suppress(OSError):
            writer = (await asyncio.open_unix_connection(user.path))[1]
            writer.write(b"GET /v1/status HTTP/1.1\r\nHost: b\r\n\r\n")
            await asyncio.sleep(2.0)
            writer.close()

    await user.flood(one)


async def history(user: User) -> None:
    """All that the ledger has, again and again."""
    await user.ask(Line(user.path), "POST", "/v1/trainers", user.trainer("e"))

    async def one(line: Line, number: int) -> None:
        await user.ask(line, "GET", f"/v1/events?after={number}&limit=10000")
        await user.ask(line, "GET", f"/v1/trainers/run-site-{number}/explain?limit=10000")

    await user.flood(one)


async def unknown(user: User) -> None:
    """What is not there."""

    async def one(line: Line, number: int) -> None:
        await user.ask(line, "GET", f"/v1/trainers/run-none-{number}/leases?epoch=1&version=0&wait_s=30")
        await user.ask(line, "POST", f"/v1/trainers/run-none-{number}/report", _report())
        await user.ask(line, "DELETE", "/v1/nothing")

    await user.flood(one)


async def registrations(user: User) -> None:
    """As many trainers as there may be, each as large as it may be, and long polls for them."""
    curve = {"nodes": list(range(1, 257)), "samples_per_s": [float(size) for size in range(1, 257)]}

    async def one(line: Line, number: int) -> None:
        for index in range(number, 520, CONNECTIONS):
            name = f"r{index}"
            told = user.trainer(name, sizes=list(range(1, 2_000)), nodes_max=10**4, curve=curve)
            await user.ask(line, "POST", "/v1/trainers", told)
            await user.ask(line, "GET", f"/v1/trainers/run-{user.uid}-{name}/leases?epoch=1&version=0&wait_s=0")
            if not user.on:
                return

    await user.flood(one)


async def training(user: User) -> None:
    """Two drivers' worth of reports and polls, and a look at the status now and then."""
    line = Line(user.path)
    name = f"good{os.getpid()}"
    register = user.trainer(name, nodes_max=4)
    while await user.ask(line, "POST", "/v1/trainers", register) != 200 and user.on:
        await asyncio.sleep(0.1)
    path, step = f"/v1/trainers/run-{user.uid}-{name}", 0
    while user.on:
        step += 1
        told = {"op": "progress", "step": step, "samples": step, "samples_per_s": 9.0, "nodes": 1, "loss": 0.5}
        await user.ask(line, "POST", f"{path}/report", _report(told))
        await user.ask(line, "GET", f"{path}/leases?epoch=1&version=0&wait_s=0")
        if step % 20 == 0:
            await user.ask(line, "GET", "/v1/status?nodes=folded")
        await asyncio.sleep(0.1)


WAYS: dict[str, Callable[[User], Awaitable[None]]] = {
    way.__name__: way
    for way in (progress, held, notes, bodies, idle, drops, scraping, history, unknown, registrations, training)
}


def main() -> None:
    """Become the user and do it."""
    way, path, uid, seconds = sys.argv[1:]
    os.setgroups([])
    os.setgid(int(uid))
    os.setuid(int(uid))
    user = User(path, int(uid), float(seconds))
    if way != "training":
        os.nice(10)  # where processors are few, it is not the users' own work that is to be measured

    async def limited() -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(WAYS[way](user), float(seconds) + 1.0)

    asyncio.run(limited())
    print(json.dumps({"statuses": dict(user.statuses), "took_s": user.took_s}))


if __name__ == "__main__":
    main()
