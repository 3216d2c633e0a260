"""Byte streams between simulated hosts: connections that are slow, cut, or half-open.

A connection is in order and loses nothing while it lasts, as TCP's are. An end whose other end is unreachable learns of
it only by the time-out that it has set (TCP_USER_TIMEOUT), or never.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bftd.simulation.world.machine.loop import SimulatedLoop
from bftd.simulation.world.machine.processes import Process, current_process

Address = tuple[str, int] | str
"""A host and a port, or the path of a socket on the host of the caller."""

_TRIP_S = 0.0003
_APART_S = 1e-7
_AGAIN_S, _AGAIN_MOST_S = 0.2, 120.0


class End:
    """One end of a connection, of one process: arrived bytes, and whoever reads them."""

    of_kernel = True

    def __init__(self, network: Network, process: Process, here: Address, there: Address) -> None:
        self.process = process
        self.here = here
        self.there = there
        self.other: End
        self.arrived = bytearray()
        self.finished = self.closed = False
        self.error: OSError | None = None
        self.timeout_s: float | None = None
        self.heard: Callable[[], None] = lambda: None
        self.network = network
        self._last_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._unsent: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        process.on_kill.append(self.close)

    @property
    def is_readable(self) -> bool:
        """Whether a read returns at once, with data or without."""
        return bool(self.arrived) or self.finished or self.closed or self.error is not None

    def send(self, data: bytes) -> None:
        """Send bytes; those to an end that is gone are lost, and one that is out of reach has them later."""
        if not self.closed and self.error is None:
            self._deliver(self.other.take, bytes(data))

    def close(self) -> None:
        """Close the end; the other one learns it after what was sent before."""
        if not self.closed:
            self.closed = True
            self.network.forget(self)
            self._deliver(self.other.finish)

    def take(self, data: bytes) -> None:
        """Take bytes that have arrived."""
        if self.closed:
            self._deliver(self.other.fail, ConnectionResetError("the other end is closed"))
        elif self.error is None:
            self.arrived += data
            self.heard()

    def finish(self) -> None:
        """Note that nothing more comes."""
        if not (self.closed or self.finished):
            self.finished = True
            self.heard()

    def fail(self, error: OSError) -> None:
        """Note that the connection is broken."""
        if not self.closed and self.error is None:
            self.error = error
            self._unsent.clear()
            self.heard()

    def _deliver(self, act: Callable[..., None], *arguments: Any) -> None:
        if not self._unsent and not self.network.is_cut(self, self.other):
            self._pass_on(act, *arguments)
            return
        self._unsent.append((act, arguments))
        if self.timeout_s is not None and self._timer is None and not self.closed:
            silent = TimeoutError("the other end is silent")
            self._timer = self.network.loop.call_later(self.timeout_s, self.fail, silent)
        if len(self._unsent) == 1:
            self.network.loop.later(_AGAIN_S, self._send_again, 2 * _AGAIN_S)

    def _send_again(self, next_s: float) -> None:
        """Send what could not pass, ever more seldom, as TCP does."""
        if self._unsent and self.network.is_cut(self, self.other):
            self.network.loop.later(next_s, self._send_again, min(2 * next_s, _AGAIN_MOST_S))
            return
        unsent, self._unsent = self._unsent, []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for act, arguments in unsent:
            self._pass_on(act, *arguments)

    def _pass_on(self, act: Callable[..., None], *arguments: Any) -> None:
        loop = self.network.loop
        # timers of the same time are not called in the order in which they were set
        self._last_s = max(self._last_s + _APART_S, loop.time() + self.network.delay_s())
        self.network.run(self._last_s, self.other.process, act, *arguments)


@dataclass
class _Listener:
    process: Process
    connected: Callable[[End], None]


@dataclass
class Network:
    """The network of the world, and its connections. `slow` multiplies every delay; `cuts` are pairs of hosts.

    `harm` is called for each part of a checkpoint, and returns what becomes of it.
    """

    loop: SimulatedLoop
    slow: float = 1.0
    harm: Callable[[End, bytes], bytes] | None = None
    cuts: set[frozenset[str]] = field(default_factory=set)
    ends: list[End] = field(default_factory=list)
    _listening: dict[tuple[str, Address], _Listener] = field(default_factory=dict)
    ports: Any = field(default_factory=lambda: itertools.count(20_000))

    def delay_s(self) -> float:
        """Return how long the next bytes take."""
        return self.slow * self.loop.random.expovariate(1.0 / _TRIP_S)

    def run(self, at_s: float, process: Process, act: Callable[..., None], *arguments: Any) -> None:
        """Have something happen to a process at a time, whatever process runs now."""
        process.run(self.loop.call_at, at_s, act, *arguments)

    def is_cut(self, one: End, other: End) -> bool:
        """Whether nothing passes between two ends."""
        return bool(self.cuts) and frozenset({one.process.host, other.process.host}) in self.cuts

    def forget(self, end: End) -> None:
        """Forget a closed end."""
        if end in self.ends:
            self.ends.remove(end)

    def reset(self, end: End) -> None:
        """Break a connection for both of its ends."""
        for one in (end, end.other):
            self.run(self.loop.time(), one.process, one.fail, ConnectionResetError("the connection was reset"))

    def listen(self, address: Address, connected: Callable[[End], None]) -> None:
        """Have the current process called with each connection to an address of its host."""
        process = current_process()
        key = process.host, address
        self._listening[key] = listener = _Listener(process, connected)

        def stop() -> None:
            if self._listening.get(key) is listener:
                del self._listening[key]

        process.on_kill.append(stop)

    def pair(self, one: Process, other: Process, here: Address = "", there: Address = "") -> tuple[End, End]:
        """Return the two ends of a new connection; without addresses it is one of a host's own, as of a socketpair."""
        ends = End(self, one, here, there), End(self, other, there, here)
        ends[0].other, ends[1].other = ends[1], ends[0]
        return ends

    def addresses(self, host: str) -> tuple[Address, ...]:
        """Return the ports of a host at which somebody listens."""
        return tuple(address for at, address in self._listening if at == host and not isinstance(address, str))

    async def connect(self, address: Address) -> End:
        """Connect the current process; raises OSError."""
        process, loop = current_process(), self.loop
        host = process.host if isinstance(address, str) else address[0]
        await asyncio.sleep(self.delay_s())
        if frozenset({process.host, host}) in self.cuts:
            await asyncio.sleep(60.0)
            raise TimeoutError(110, "Connection timed out")
        listener = self._listening.get((host, address))
        if listener is None or listener.process.dead:
            raise ConnectionRefusedError(111, f"nobody listens at {address}")
        here: Address = address if isinstance(address, str) else (process.host, next(self.ports))
        mine, theirs = self.pair(process, listener.process, here, address)
        self.ends.append(mine)
        self.run(loop.time() + self.delay_s(), listener.process, listener.connected, theirs)
        return mine
