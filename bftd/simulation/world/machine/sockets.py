"""The simulated network as code sees it: sockets, which calls in threads wait for, and what asyncio makes of them."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import socket
import struct
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, BinaryIO, ClassVar
from weakref import WeakValueDictionary

from bftd.simulation.world.machine.fibers import Fiber, Waiters
from bftd.simulation.world.machine.loop import Forbidden, SimulatedLoop
from bftd.simulation.world.machine.network import Address, End, Network
from bftd.simulation.world.machine.processes import current_process

_UCRED = struct.Struct("3i")

_PART_BYTES = 512
"""A call in a thread sends at most this at once, and others run in between; only checkpoints have so much to send."""

_FULL_SHARE = 0.3
"""The share of the parts that wait until they can be sent."""


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
        self._timeout_s: float | None = 0.0
        self._readers: Waiters | None = None
        self.family = socket.AF_UNIX if end is not None and isinstance(end.here, str) else socket.AF_INET
        self._number = next(self._numbers)
        self.known[self._number] = self

    def fileno(self) -> int:
        """Return a number that no real file has."""
        return self._number

    def setblocking(self, flag: bool) -> None:
        """Have calls in threads wait, without end, or not."""
        self._timeout_s = None if flag else 0.0

    def settimeout(self, timeout_s: float | None) -> None:
        """Have calls in threads wait for so long."""
        self._timeout_s = timeout_s

    def accept(self) -> tuple[Socket, Any]:
        """Return the next connection; raises BlockingIOError."""
        if not self.waiting:
            raise BlockingIOError
        end = self.waiting.pop(0)
        return Socket(end), end.there

    def recv(self, size_bytes: int) -> bytes:
        """Return what has arrived; raises BlockingIOError or TimeoutError, or the connection's error."""
        end = self.connected
        while not end.is_readable:
            self._wait(end)
        if end.arrived:
            data = bytes(end.arrived[:size_bytes])
            del end.arrived[:size_bytes]
            return data
        if end.error is not None:
            raise end.error
        return b""

    def _wait(self, end: End) -> None:
        if self._timeout_s == 0.0:
            raise BlockingIOError
        if self._readers is None:
            self._readers = Waiters(end.network.loop)
        end.heard = self._readers.wake
        if not self._readers.wait(self._timeout_s):
            raise TimeoutError("timed out")

    def sendall(self, data: bytes | memoryview) -> None:
        """Send all of it; raises OSError."""
        end, view = self.connected, memoryview(data)
        for start in range(0, len(view), _PART_BYTES):
            network = end.network
            if Fiber.current is not None and network.loop.random.random() < _FULL_SHARE:
                network.loop.pause(network.delay_s())
            if end.error is not None:
                raise end.error
            if end.closed:
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
            part = bytes(view[start : start + _PART_BYTES])
            if network.harm is not None and len(part) == _PART_BYTES:
                part = network.harm(end, part)
            end.send(part)

    def sendfile(self, file: BinaryIO, start: int, size_bytes: int) -> int:
        """Send a part of a file; returns how much there was. Raises OSError."""
        data = os.pread(file.fileno(), size_bytes, start)
        self.sendall(data)
        return len(data)

    def makefile(self, mode: str) -> Reader:
        """Return a reader."""
        return Reader(self)

    def shutdown(self, how: int) -> None:
        """End the connection, and all waits for it."""
        self.connected.close()
        if self._readers is not None:
            self._readers.wake()

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
            self.shutdown(socket.SHUT_RDWR)
        else:
            self.close_listening()


class Reader:
    """Buffered reading from a socket, as `makefile` gives it."""

    def __init__(self, sock: Socket) -> None:
        self._sock = sock
        self._data = b""

    def readline(self, most_bytes: int) -> bytes:
        """See io; raises OSError."""
        while b"\n" not in self._data and len(self._data) < most_bytes:
            data = self._sock.recv(most_bytes)
            if not data:
                break
            self._data += data
        end = self._data.find(b"\n") + 1 or len(self._data)
        return self._taken(min(end, most_bytes))

    def readinto1(self, view: memoryview) -> int:
        """See io; raises OSError."""
        data = self._taken(len(view)) or self._sock.recv(len(view))
        view[: len(data)] = data
        return len(data)

    def _taken(self, size_bytes: int) -> bytes:
        data, self._data = self._data[:size_bytes], self._data[size_bytes:]
        return data

    def close(self) -> None:
        """Do nothing: the socket is closed by itself."""


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

    abort = close

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
        return {"peername": self._end.there, "sockname": self._end.here}.get(name, default)


class NetworkLoop(SimulatedLoop):
    """A loop of simulated time whose connections are those of a simulated `network`."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.network = Network(self)

    def listening_socket(self) -> Socket:
        """Return a listening socket of the current process, on a port of its own."""
        made = Socket(address=(current_process().host, next(self.network.ports)))

        def connected(end: End) -> None:
            made.waiting.append(end)
            made.came()

        self.network.listen(made.address, connected)
        return made

    def connected_socket(self, address: Any, timeout: float | None = None) -> Socket:
        """See socket.create_connection."""
        made = Socket(self.outcome(self.network.connect(address), timeout))
        made.settimeout(timeout)
        return made

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        """See asyncio."""
        sock = Socket.known[fd]

        def call() -> None:
            if sock.reader is call:  # it was not removed since
                callback(*args)

        sock.reader = call
        heard = partial(self.call_soon, call)
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
