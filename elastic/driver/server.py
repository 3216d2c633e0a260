"""The driver's server: agents and workers connect here, prove that they know the secret, and are handed to the trainer.

A stranger is a connection that has not proved itself yet. It costs little: one line of bounded length for a bounded
time. All are let in at once, so that nobody waits behind connections that say nothing. Their number is limited; beyond
it, strangers are turned away from the source with the most of them, and silent ones sooner than others.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

from elastic.base.errors import WireError
from elastic.base.timing import HANDSHAKE_S, STRANGER_S, STRANGER_SILENT_S
from elastic.link import descriptors
from elastic.link.address import plain
from elastic.link.authentication import HELLO_BYTES, PROOF_BYTES, Examination, Seals
from elastic.link.channel import SealedReader
from elastic.link.peer import Peer
from elastic.link.wire import MAX_LINE_BYTES, Message, no_delay

_BACKLOG = 4096
"""All workers of a large trainer connect at the same moment; the kernel cuts this to its own limit."""

_STRANGERS = 4096
"""The most connections that may be in the middle of their proof."""

_STRANGERS_SHARE = 0.25
"""The strangers' share of the files that may be open: the rest is for agents, workers and the commands of Slurm."""

_AT_ONCE = 64
"""The number of connections accepted before other tasks run, those of training among them."""

_RETRY_S = 0.1
"""The pause after an accept that failed because too many files are open."""

_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Listener(Protocol):
    """The trainer's handling of connections."""

    def connected(self, peer: Peer) -> bool:
        """Whether this peer belongs to the trainer."""

    async def received(self, peer: Peer, message: Message) -> None:
        """Takes one message."""

    def disconnected(self, peer: Peer) -> None:
        """Notes that the peer is gone."""


def listen() -> socket.socket:
    """Returns a socket on a free port of all addresses, IPv4 and IPv6.

    A client that connects waits for a hub: the port can be announced before there is one.
    """
    try:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        listening = socket.create_server(("", 0), family=family, backlog=_BACKLOG, dualstack_ipv6=dual)
    except OSError:  # a kernel may know IPv6 and yet refuse it
        listening = socket.create_server(("", 0), backlog=_BACKLOG)
    listening.setblocking(False)
    return listening


@dataclass(eq=False)
class _Stranger:
    """A connection that has proved nothing yet; one that has sent its hello has a task."""

    sock: socket.socket
    source: str
    since_s: float
    line: bytes = b""
    timer: asyncio.TimerHandle | None = None
    task: asyncio.Task[None] | None = None
    begun: bool = False
    """Whether the task has taken its first step: from then on it closes the socket."""

    greeted: bool = False

    @property
    def may_stay_until_s(self) -> float:
        """The time until which it is not turned away, on the loop's clock."""
        return self.since_s + (STRANGER_S if self.greeted else STRANGER_SILENT_S)


@dataclass
class _Strangers:
    """The current strangers by source, the oldest first; those that have sent nothing are kept apart."""

    silent: dict[str, dict[_Stranger, None]] = field(default_factory=dict)
    greeted: dict[str, dict[_Stranger, None]] = field(default_factory=dict)
    count: int = 0

    def add(self, stranger: _Stranger) -> None:
        self._group(stranger).setdefault(stranger.source, {})[stranger] = None
        self.count += 1

    def remove(self, stranger: _Stranger) -> None:
        """Forgets a stranger, if it is still there."""
        group = self._group(stranger)
        found = group.get(stranger.source, {})
        if stranger in found:
            del found[stranger]
            self.count -= 1
            if not found:
                del group[stranger.source]

    def first_to_go(self) -> _Stranger:
        """Returns the stranger to turn away: the oldest of the largest silent or greeted crowd, by its deadline."""
        crowds = [max(group.values(), key=lambda crowd: len(crowd)) for group in (self.silent, self.greeted) if group]
        return min((next(iter(crowd)) for crowd in crowds), key=lambda stranger: stranger.may_stay_until_s)

    def _group(self, stranger: _Stranger) -> dict[str, dict[_Stranger, None]]:
        return self.greeted if stranger.greeted else self.silent


class Hub:
    """The server for connections that know the trainer's secret."""

    def __init__(
        self,
        listener: Listener,
        secret: str,
        listening: socket.socket,
        log: Callable[[str], None] = lambda _: None,
        transfers: Callable[[Message, Seals, socket.socket], None] | None = None,
    ) -> None:
        """`listening` is a socket from `listen`; `transfers` takes connections of role `state`, and closes them."""
        self._listener = listener
        self._transfers = transfers
        self._secret = secret
        self._log = log
        self._socket: socket.socket | None = listening
        self._tasks: set[asyncio.Task[None]] = set()
        self._strangers = _Strangers()
        self._fewer = asyncio.Event()
        self._most = min(_STRANGERS, max(1, int(descriptors.limit() * _STRANGERS_SHARE)))
        self._accepting = self._spawn(self._accept(listening))

    def close(self) -> None:
        """Accepts no more connections; existing ones stay."""
        if self._socket is not None:
            self._accepting.cancel()
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    async def _accept(self, listening: socket.socket) -> None:
        accepted = 0
        while True:
            await self._place_for_a_stranger()
            try:
                sock, address = await _next_connection(listening)
                self._let_in(sock, str(address[0]))
            except OSError as error:
                # Any other error ends a connection that was waiting.
                crowded = error.errno in _EXHAUSTED
                if crowded and self._strangers.count:
                    self._turn_away(self._strangers.first_to_go())
                await asyncio.sleep(_RETRY_S if crowded else 0)
                continue
            accepted += 1
            if accepted % _AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _place_for_a_stranger(self) -> None:
        while self._strangers.count >= self._most:
            stranger = self._strangers.first_to_go()
            left_s = stranger.may_stay_until_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                self._turn_away(stranger)
                return
            self._fewer.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._fewer.wait(), left_s)

    # -- strangers; one that says nothing costs no task, so that very many of them are let in and out quickly ---

    def _let_in(self, sock: socket.socket, address: str) -> None:
        loop = asyncio.get_running_loop()
        stranger = _Stranger(sock, _source(address), loop.time())
        stranger.timer = loop.call_later(HANDSHAKE_S, self._turn_away, stranger)
        self._strangers.add(stranger)
        loop.add_reader(sock.fileno(), self._hear_stranger, stranger)
        self._hear_stranger(stranger)  # as a rule its hello has come with it

    def _hear_stranger(self, stranger: _Stranger) -> None:
        try:
            data = stranger.sock.recv(HELLO_BYTES - len(stranger.line))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        stranger.line += data
        # A client says nothing more until it is challenged: one that sends more after the line is no peer.
        if not data or b"\n" in stranger.line[:-1] or (len(stranger.line) == HELLO_BYTES and data[-1:] != b"\n"):
            self._turn_away(stranger)
        elif stranger.line.endswith(b"\n"):
            self._forget(stranger)
            stranger.greeted = True
            self._strangers.add(stranger)
            stranger.task = self._spawn(self._serve(stranger))

    def _turn_away(self, stranger: _Stranger) -> None:
        self._forget(stranger)
        if stranger.task is not None:
            stranger.task.cancel()
        if not stranger.begun:
            stranger.sock.close()

    def _forget(self, stranger: _Stranger) -> None:
        """Forgets a stranger, whatever becomes of its connection."""
        self._strangers.remove(stranger)
        if stranger.timer is not None:
            stranger.timer.cancel()
        if stranger.task is None:
            asyncio.get_running_loop().remove_reader(stranger.sock.fileno())
        self._fewer.set()

    async def _serve(self, stranger: _Stranger) -> None:
        sock, stranger.begun = stranger.sock, True
        try:
            about, seals = await asyncio.wait_for(self._examine(stranger), HANDSHAKE_S)
            self._forget(stranger)
            if about.get("role") == "state" and self._transfers is not None:
                self._transfers(about, seals, sock)
                return
            reader, writer = await asyncio.open_connection(sock=sock, limit=MAX_LINE_BYTES)
        except (Exception, asyncio.CancelledError):  # strangers may send anything wrong
            sock.close()
            return
        finally:
            self._forget(stranger)
        if writer.get_extra_info("peername") is None:  # it has hung up already, and would have no address
            writer.close()
            return
        await self._listen(Peer(writer, about, seals.outgoing), SealedReader(reader, seals.incoming))

    async def _examine(self, stranger: _Stranger) -> tuple[Message, Seals]:
        examination = Examination(self._secret, stranger.line)
        await asyncio.get_running_loop().sock_sendall(stranger.sock, examination.challenge)
        return examination.about, examination.seals(await _proof(stranger.sock))

    # -- peers ---

    async def _listen(self, peer: Peer, reader: SealedReader) -> None:
        no_delay(peer.writer)
        peer.watch()
        try:
            if not self._listener.connected(peer):
                return
            while (message := await reader.receive()) is not None:
                await self._hear(peer, message)
        except (WireError, OSError, asyncio.TimeoutError):
            pass
        except asyncio.CancelledError:
            # The driver ends. asyncio would print a cancelled connection as a fault.
            pass
        except Exception as error:
            # One peer's nonsense ends that peer's connection, and no other.
            self._log(f"{_name(peer)} said something that is not understood ({error!r}): its connection is ended")
        finally:
            self._listener.disconnected(peer)
            peer.close()

    async def _hear(self, peer: Peer, message: Message) -> None:
        try:
            await self._listener.received(peer, message)
        except ConnectionError:
            raise
        except OSError as error:
            # For example a disk of the driver's: no fault of the peer.
            self._log(f"{message['op']} of {_name(peer)} was not carried out: {error}")

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _next_connection(listening: socket.socket) -> tuple[socket.socket, Any]:
    try:
        sock, address = listening.accept()
    except BlockingIOError:
        return await asyncio.get_running_loop().sock_accept(listening)
    sock.setblocking(False)
    return sock, address


@lru_cache(maxsize=_STRANGERS)
def _source(address: str) -> str:
    """Returns the source that a stranger counts for: its IPv4 address, or its /64 network for IPv6."""
    bare = plain(address)
    try:
        known = ipaddress.ip_address(bare)
    except ValueError:
        return bare
    return known.exploded[:19] if known.version == 6 else bare


def _name(peer: Peer) -> str:
    """Returns the log's name for an agent or a worker."""
    return f"the {peer.hello.get('role', 'peer')} of {peer.hello.get('lease')}"


async def _proof(sock: socket.socket) -> bytes:
    """Reads exactly a proof: the bytes after it are the peer's first message."""
    proof = b""
    while len(proof) < PROOF_BYTES:
        proof += await _some(sock, PROOF_BYTES - len(proof))
    return proof


async def _some(sock: socket.socket, size_bytes: int) -> bytes:
    data = await asyncio.get_running_loop().sock_recv(sock, size_bytes)
    if not data:
        raise WireError("a connection ended before it proved anything")
    return data
