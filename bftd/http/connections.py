"""Limits on connections per user, their time-outs, and the order in which their data is read.

A `Door` stands between each connection and aiohttp's own protocol. It closes connections that bring no request, and
passes data on in turns: one holder's, then the next one's, one in each round of the loop. So no burst of requests keeps
the loop from its other work, and a user who floods the daemon waits behind their own requests. On the unix socket a
holder is a user, whose uid the kernel tells. On TCP the holder is a peer's address, and its connections are strangers
until a request on one of them has proved who sends it; from then on that connection is the user's. A stranger takes
only another stranger's place.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Any

# A driver has two connections: one waits for leases, one reports. aiohttp's client keeps idle ones for 15 s.
OF_A_USER_MOST = 64
OF_A_USER_ON_TCP_MOST = 1_024
# A genuine stranger proves itself within milliseconds: the oldest strangers of an address make way for new ones.
OF_AN_ADDRESS_MOST = 1_024
# Shares of all connections that may be open; the rest is left to the unix socket.
_STRANGERS_SHARE = 1 / 4
_PROVED_SHARE = 1 / 2
# From one request to the next, and from the first byte to the end of a request's head.
IDLE_S = 30.0
FIRST_REQUEST_S = 10.0
# Files that Slurm's commands, the ledger and the log need, of those that this process may open.
RESERVED_FILES = 128
_FOR_THE_TRUSTED = 32
# An answer that nobody reads stays in memory: one holder's answers may fill this much before the holder must read them.
UNREAD_BYTES_MOST = 8 * 2**20

_SWEEP_S = 1.0
# The pieces passed on in one round of the loop: a request takes a few milliseconds at most, and those of a round add
# up.
_IN_A_ROUND = 1
_UCRED = struct.Struct("3i")  # pid, uid, gid


class ApiConnections:
    """All open connections of the API by their holders."""

    def __init__(self, files_most: int | None = None) -> None:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if files_most is None else files_most
        self.most = max(8, files - RESERVED_FILES)
        self.turns = _Turns()
        self._open: dict[Hashable, OrderedDict[Door, None]] = {}
        self._doors: dict[Any, Door] = {}
        # on TCP: the strangers, oldest first, and the connections whose senders are proved
        self._strangers: OrderedDict[Door, None] = OrderedDict()
        self._proved: set[Door] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._stopped = False
        # The connections of root and of the daemon's own user have no limit per holder: they must get through to help.
        self._trusted: frozenset[Hashable] = frozenset({0, os.geteuid()})

    def __len__(self) -> int:
        return len(self._doors)

    def factory(self, server: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """Return a protocol factory for a listening socket in front of `server`, which is aiohttp's."""
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)
        return lambda: Door(self, server)

    def admit(self, door: Door, transport: asyncio.Transport) -> bool:
        """Accept a new connection if its holder may have one more."""
        if self._stopped:
            return False
        door.holder = holder_of(transport)
        local = isinstance(door.holder, int)
        if not (self._admits_user(door.holder) if local else self._admits_stranger(door.holder)):
            return False
        self._open.setdefault(door.holder, OrderedDict())[door] = None
        self._doors[door.proxy] = door
        if not local:
            self._strangers[door] = None
        return True

    def prove(self, transport: object, who: Hashable) -> None:
        """Assign a TCP connection to the user who has proved their identity on it, by a uid or another name.

        If that user has too many, and all are in use, it stays a stranger's, and is served until its place is needed.
        """
        door = self._doors.get(transport)
        if door is None or door not in self._strangers:
            return
        holder = ("proved", who)
        mine = self._open.get(holder, OrderedDict())
        has_most = who not in self._trusted and len(mine) >= self._at_most(OF_A_USER_ON_TCP_MOST)
        if (has_most or len(self._proved) >= self.most * _PROVED_SHARE) and not self._close_one_idle(mine):
            return
        self.forget(door)
        door.holder = holder
        self._open.setdefault(holder, OrderedDict())[door] = None
        self._doors[door.proxy] = door
        self._proved.add(door)

    def forget(self, door: Door) -> None:
        """Forget a connection that has ended."""
        self._doors.pop(door.proxy, None)
        self._strangers.pop(door, None)
        self._proved.discard(door)
        mine = self._open.get(door.holder)
        if mine is not None:
            mine.pop(door, None)
            if not mine:
                del self._open[door.holder]

    def began(self, transport: object) -> None:
        """Note that the whole head of a request has come on a connection."""
        if (door := self._doors.get(transport)) is not None:
            door.requests += 1
            door.since_s, door.limit_s = float("inf"), IDLE_S

    def ended(self, transport: object) -> None:
        """Note that a request on a connection was answered."""
        if (door := self._doors.get(transport)) is not None:
            door.since_s = asyncio.get_running_loop().time()

    def unread_bytes(self, transport: object) -> int:
        """Return the bytes of answers that the holder of a connection has not read yet."""
        door = self._doors.get(transport)
        mine = self._open.get(door.holder, ()) if door is not None else ()
        return sum(other.proxy.get_write_buffer_size() for other in mine)

    async def turn(self, transport: object) -> None:
        """Wait for the next turn of a connection's holder: work of some milliseconds is done in one turn."""
        door = self._doors.get(transport)
        if self._stopped or door is None:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        self.turns.wait(door.holder, lambda: None if woken.done() else woken.set_result(None))
        await woken

    def stop(self) -> None:
        """Pass nothing on any more, and stop watching connections."""
        self._stopped = True
        self.turns.stop()
        if self._sweeper is not None:
            self._sweeper.cancel()

    def _at_most(self, most: int) -> int:
        """Return the limit of one holder, lowered if few files may be open."""
        return min(most, self.most // 4)

    def _admits_user(self, uid: Hashable) -> bool:
        mine = self._open.get(uid, OrderedDict())
        trusted = uid in self._trusted
        is_full = len(self) >= self.most + (_FOR_THE_TRUSTED if trusted else 0)
        has_most = not trusted and len(mine) >= self._at_most(OF_A_USER_MOST)
        return not (is_full or has_most) or self._close_one_idle(mine)

    def _admits_stranger(self, address: Hashable) -> bool:
        of_address = self._open.get(address, OrderedDict())
        if len(of_address) >= self._at_most(OF_AN_ADDRESS_MOST):
            self._close_oldest(of_address)
        elif self._strangers and len(self._strangers) >= self.most * _STRANGERS_SHARE:
            self._close_oldest(self._strangers)
        return len(self) < self.most

    def _close_oldest(self, strangers: OrderedDict[Door, None]) -> None:
        door = next(iter(strangers))
        door.close()
        self.forget(door)

    def _close_one_idle(self, mine: OrderedDict[Door, None]) -> bool:
        """Make way among a holder's connections by closing an idle one; returns False if there is none."""
        idle = next((door for door in mine if door.idle), None)
        if idle is None:
            return False
        idle.close()
        self.forget(idle)
        return True

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for door in list(self._doors.values()):
            if now_s - door.since_s > door.limit_s:
                door.close()
        self._sweeper = loop.call_later(_SWEEP_S, self._sweep)


def holder_of(transport: asyncio.BaseTransport) -> Hashable:
    """Return the uid at the other end of a unix socket, or a TCP peer's address; None if it is gone already."""
    connection = transport.get_extra_info("socket")
    if connection is None:
        return None
    if connection.family == socket.AF_UNIX:
        return peer_uid(connection)
    name = transport.get_extra_info("peername")
    return str(name[0]) if name else None


class Door(asyncio.Protocol):
    """One connection: passes data on to aiohttp's protocol when it is its holder's turn."""

    def __init__(self, connections: ApiConnections, server: Callable[[], asyncio.Protocol]) -> None:
        self.holder: Hashable = None
        self.requests = 0
        self.limit_s = FIRST_REQUEST_S
        self.since_s = asyncio.get_running_loop().time()
        self.proxy: _Transport
        self._connections = connections
        self._server = server
        self._inner: asyncio.Protocol | None = None

    @property
    def idle(self) -> bool:
        """Whether a request was answered on it and none has come since."""
        return self.requests > 0 and self.since_s < float("inf")

    def close(self) -> None:
        """End the connection now."""
        self.proxy.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        assert isinstance(transport, asyncio.Transport)
        self.proxy = _Transport(transport)
        if self._connections.admit(self, transport):
            self._inner = self._server()
            self._inner.connection_made(self.proxy)
        else:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Keep the received data until its holder's turn, and read no more until then."""
        self.proxy.hold(True)
        self._connections.turns.wait(self.holder, lambda: self._pass_on(data))

    def eof_received(self) -> bool | None:
        """End the connection: HTTP has no use for a half-closed one."""
        return None

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio."""
        self._connections.forget(self)
        if self._inner is not None:
            self._inner.connection_lost(error)
            self._inner = None

    def pause_writing(self) -> None:
        """See asyncio."""
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """See asyncio."""
        if self._inner is not None:
            self._inner.resume_writing()

    def _pass_on(self, data: bytes) -> None:
        if self._inner is not None:
            self._inner.data_received(data)
            self.proxy.hold(False)


class _Turns:
    """Waiting work by holder: one piece of each in turn, a fixed number of pieces in each round of the loop."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Hashable, deque[Callable[[], None]]] = OrderedDict()
        self._scheduled = False
        self._stopped = False

    def wait(self, holder: Hashable, work: Callable[[], None]) -> None:
        if self._stopped:
            return
        self._waiting.setdefault(holder, deque()).append(work)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._round)

    def stop(self) -> None:
        self._waiting.clear()
        self._stopped = True

    def _round(self) -> None:
        self._scheduled = bool(self._waiting)
        if not self._scheduled:
            return
        asyncio.get_running_loop().call_soon(self._round)
        for _ in range(min(_IN_A_ROUND, len(self._waiting))):
            holder, waiting = self._waiting.popitem(last=False)
            work = waiting.popleft()
            if waiting:
                self._waiting[holder] = waiting
            work()


class _Transport(asyncio.Transport):
    """A connection as aiohttp sees it; both aiohttp and the door may stop reading."""

    def __init__(self, real: asyncio.Transport) -> None:
        super().__init__()
        self._real = real
        self._held = self._paused = False

    def hold(self, held: bool) -> None:
        """Stop reading while it is held."""
        self._held = held
        self._settle()

    def pause_reading(self) -> None:
        self._paused = True
        self._settle()

    def resume_reading(self) -> None:
        self._paused = False
        self._settle()

    def _settle(self) -> None:
        if self._real.is_closing():
            return
        if self._held or self._paused:
            self._real.pause_reading()
        else:
            self._real.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._real.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._real.is_closing()

    def is_reading(self) -> bool:
        return self._real.is_reading()

    def close(self) -> None:
        self._real.close()

    def abort(self) -> None:
        self._real.abort()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._real.write(data)

    def writelines(self, list_of_data: Any) -> None:
        self._real.writelines(list_of_data)

    def get_write_buffer_size(self) -> int:
        return self._real.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._real.set_write_buffer_limits(high, low)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._real.get_write_buffer_limits()

    def can_write_eof(self) -> bool:
        return self._real.can_write_eof()

    def write_eof(self) -> None:
        self._real.write_eof()

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._real.get_protocol()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._real.set_protocol(protocol)


def peer_uid(peer: socket.socket) -> int:
    """Return the uid that connected; the kernel fills in SO_PEERCRED, which cannot be forged."""
    _, uid, _ = _UCRED.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(uid)
