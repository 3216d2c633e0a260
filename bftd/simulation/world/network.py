"""Byte streams between simulated hosts: connections that are slow, cut, or half-open.

A connection is in order and loses nothing while it lasts, as TCP's are. An end whose other end is unreachable learns of
it only by the time-out that it has set (TCP_USER_TIMEOUT), or never.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from bftd.simulation.world.loop import Forbidden, Process, SimulatedLoop, current_process

Address = tuple[str, int] | str
"""A host and a port, or the path of a socket on the host of the caller."""

_TRIP_S = 0.0003
_APART_S = 1e-7
_AGAIN_S, _AGAIN_MOST_S = 0.2, 120.0
_UCRED = struct.Struct("3i")


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
        self._network = network
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
            self._network.forget(self)
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
        if not self._unsent and not self._network.is_cut(self, self.other):
            self._pass_on(act, *arguments)
            return
        self._unsent.append((act, arguments))
        if self.timeout_s is not None and self._timer is None and not self.closed:
            silent = TimeoutError("the other end is silent")
            self._timer = self._network.loop.call_later(self.timeout_s, self.fail, silent)
        if len(self._unsent) == 1:
            self._network.loop.later(_AGAIN_S, self._send_again, 2 * _AGAIN_S)

    def _send_again(self, next_s: float) -> None:
        """Send what could not pass, ever more seldom, as TCP does."""
        if self._unsent and self._network.is_cut(self, self.other):
            self._network.loop.later(next_s, self._send_again, min(2 * next_s, _AGAIN_MOST_S))
            return
        unsent, self._unsent = self._unsent, []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for act, arguments in unsent:
            self._pass_on(act, *arguments)

    def _pass_on(self, act: Callable[..., None], *arguments: Any) -> None:
        loop = self._network.loop
        # timers of the same time are not called in the order in which they were set
        self._last_s = max(self._last_s + _APART_S, loop.time() + self._network.delay_s())
        self._network.run(self._last_s, self.other.process, act, *arguments)


class Socket:
    """A connection's end, or a listening address, as code sees it that handles sockets itself."""

    known: ClassVar[WeakValueDictionary[int, Socket]] = WeakValueDictionary()
    _numbers = itertools.count(1_000_000)

    def __init__(self, end: End | None = None, address: Address = "") -> None:
        self.end = end
        self.address = address
        self.waiting: list[End] = []
        self.came: Callable[[], None] = lambda: None
        self.reader: Callable[[], None] | None = None
        self.close_listening: Callable[[], None] = lambda: None
        self.family = socket.AF_UNIX if end is not None and isinstance(end.here, str) else socket.AF_INET
        self._number = next(self._numbers)
        self.known[self._number] = self

    def fileno(self) -> int:
        """Return a number that no real file has."""
        return self._number

    def setblocking(self, flag: bool) -> None:
        """Do nothing: no call here blocks."""

    def accept(self) -> tuple[Socket, Any]:
        """Return the next connection; raises BlockingIOError."""
        if not self.waiting:
            raise BlockingIOError
        end = self.waiting.pop(0)
        return Socket(end), end.there

    def recv(self, size_bytes: int) -> bytes:
        """Return what has arrived; raises BlockingIOError, or the connection's error."""
        end = self.connected
        if end.arrived:
            data = bytes(end.arrived[:size_bytes])
            del end.arrived[:size_bytes]
            return data
        if end.error is not None:
            raise end.error
        if end.finished or end.closed:
            return b""
        raise BlockingIOError

    @property
    def connected(self) -> End:
        """The end; raises Forbidden for a listening socket."""
        if self.end is None:
            raise Forbidden("a listening socket has no data")
        return self.end

    def getpeername(self) -> Any:
        """Return the address of the other end."""
        return self.connected.there

    def getsockname(self) -> Any:
        """Return the own address."""
        return self.address if self.end is None else self.end.here

    def getsockopt(self, level: int, option: int, size_bytes: int = 0) -> Any:
        """Return the uid behind a socket on the own host."""
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_PEERCRED)
        return _UCRED.pack(1, self.connected.other.process.uid, self.connected.other.process.uid)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Take the time-out after which silence ends the connection; other options change nothing here."""
        if (level, option) == (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT):
            self.connected.timeout_s = value / 1000.0

    def close(self) -> None:
        """Close the connection, or accept no more."""
        if self.end is not None:
            self.end.close()
        else:
            self.close_listening()


class Transport(asyncio.Transport):
    """A connection's end as asyncio's protocols see it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, end: End, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self._loop = loop
        self._end = end
        self._socket = Socket(end)
        self._protocol = protocol
        self._reading = True
        self._closing = self._told = False
        end.heard = self._heard
        protocol.connection_made(self)
        self._heard()

    def _heard(self) -> None:
        self._loop.call_soon(self._pass_on)

    def _pass_on(self) -> None:
        end, protocol = self._end, self._protocol
        if self._closing:
            return
        if end.arrived and self._reading:
            data = bytes(end.arrived)
            end.arrived.clear()
            protocol.data_received(data)  # type: ignore[attr-defined]
        if end.error is not None:
            self._lose(end.error)
        elif end.finished and not end.arrived and self._reading and not self._told:
            self._told = True
            if not protocol.eof_received():  # type: ignore[attr-defined]
                self.close()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self._end.send(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        self._lose(None)

    def abort(self) -> None:
        self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if not self._closing:
            self._closing = True
            self._end.close()
            self._loop.call_soon(self._protocol.connection_lost, error)

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._heard()

    def is_reading(self) -> bool:
        return self._reading

    def get_write_buffer_size(self) -> int:
        return 0

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return 0, 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def can_write_eof(self) -> bool:
        return False

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "socket":
            return self._socket
        found = {"peername": self._end.there, "sockname": self._end.here}
        return found.get(name, default)


@dataclass
class _Listener:
    process: Process
    connected: Callable[[End], None]


@dataclass
class Network:
    """The network of the world, and its connections. `slow` multiplies every delay; `cuts` are pairs of hosts."""

    loop: SimulatedLoop
    slow: float = 1.0
    cuts: set[frozenset[str]] = field(default_factory=set)
    ends: list[End] = field(default_factory=list)
    _listening: dict[tuple[str, Address], _Listener] = field(default_factory=dict)
    _ports: Any = field(default_factory=lambda: itertools.count(20_000))

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

    def addresses(self, host: str) -> tuple[Address, ...]:
        """Return the ports of a host at which somebody listens."""
        return tuple(address for at, address in self._listening if at == host and not isinstance(address, str))

    def listening_socket(self) -> Socket:
        """Return a listening socket of the current process, on a port of its own."""
        made = Socket(address=(current_process().host, next(self._ports)))

        def connected(end: End) -> None:
            made.waiting.append(end)
            made.came()

        self.listen(made.address, connected)
        return made

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
        here: Address = address if isinstance(address, str) else (process.host, next(self._ports))
        mine = End(self, process, here, address)
        theirs = End(self, listener.process, address, here)
        mine.other, theirs.other = theirs, mine
        self.ends.append(mine)
        self.run(loop.time() + self.delay_s(), listener.process, listener.connected, theirs)
        return mine


class NetworkLoop(SimulatedLoop):
    """A loop of simulated time whose connections are those of a simulated `network`."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.network = Network(self)

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        """See asyncio."""
        sock = Socket.known[fd]

        def heard() -> None:
            self.call_soon(call)

        def call() -> None:
            if sock.reader is call:  # it was not removed since
                callback(*args)

        sock.reader = call
        if sock.end is None:
            sock.came = heard
        else:
            sock.end.heard = heard
            if sock.end.is_readable:
                heard()

    def remove_reader(self, fd: Any) -> bool:
        """See asyncio."""
        if (sock := Socket.known.get(fd)) is not None:
            sock.reader, sock.came = None, lambda: None
            if sock.end is not None:
                sock.end.heard = lambda: None
        return True

    async def sock_accept(self, sock: Any) -> Any:
        """See asyncio."""
        while not sock.waiting:
            await self._once(lambda heard: setattr(sock, "came", heard))
        return sock.accept()

    async def sock_recv(self, sock: Any, nbytes: int) -> bytes:
        """See asyncio."""
        while not sock.end.is_readable:
            await self._once(lambda heard: setattr(sock.end, "heard", heard))
        return bytes(sock.recv(nbytes))

    async def sock_sendall(self, sock: Any, data: Any) -> None:
        """See asyncio."""
        sock.end.send(bytes(data))

    async def _once(self, listen: Callable[[Callable[[], None]], None]) -> None:
        future = self.create_future()
        listen(lambda: None if future.done() else future.set_result(None))
        await future

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **more: Any) -> Any:
        """See asyncio."""
        sock = more.get("sock")
        end = await self.network.connect((host, port)) if sock is None else sock.end
        return self._joined(protocol_factory, end)

    async def create_unix_connection(self, protocol_factory: Any, path: Any = None, **more: Any) -> Any:
        """See asyncio."""
        return self._joined(protocol_factory, await self.network.connect(str(path)))

    def _joined(self, protocol_factory: Any, end: End) -> tuple[Transport, Any]:
        protocol = protocol_factory()
        return Transport(self, end, protocol), protocol
