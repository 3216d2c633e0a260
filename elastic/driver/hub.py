"""The driver's server: agents and workers connect here, prove that they know the secret, and are handed to the trainer.

Strangers cost little: one line of bounded length and a bounded time each. All who come are let in at once, so that
nobody waits behind others who say nothing. There are at most so many; then those make room who come from where most
strangers come from, who has said nothing before others.
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

from elastic.errors import WireError
from elastic.link import descriptors
from elastic.link.address import plain
from elastic.link.channel import SealedReader
from elastic.link.peer import Peer
from elastic.link.seal import HELLO_BYTES, PROOF_BYTES, Examination, Seals
from elastic.link.wire import MAX_LINE_BYTES, Message, no_delay
from elastic.timing import HANDSHAKE_S, STRANGER_S, STRANGER_SILENT_S

_BACKLOG = 4096
"""All workers of a large trainer connect in the same moment; the kernel cuts this to its own limit."""

_STRANGERS = 4096
"""Connections that may be in the middle of their proof."""

_STRANGERS_SHARE = 0.25
"""Of the files that may be open: the rest is for agents, workers and the commands of Slurm."""

_AT_ONCE = 64
"""So many are accepted before those that are let in are heard, and training goes on."""

_RETRY_S = 0.1
"""After an accept that failed because there are too many files open."""

_NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Listener(Protocol):
    """What the trainer does with connections."""

    def connected(self, peer: Peer) -> bool:
        """Whether this peer belongs to the trainer."""

    async def received(self, peer: Peer, message: Message) -> None:
        """Takes one message."""

    def disconnected(self, peer: Peer) -> None:
        """The peer is gone."""


def listen() -> socket.socket:
    """A socket on a free port of all addresses, IPv4 and IPv6.

    Who connects waits for a hub: the port can be told before there is one.
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
    """A connection that has proved nothing yet; one that has said its hello has a task."""

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
        """Until then it is not turned away, on the loop's clock."""
        return self.since_s + (STRANGER_S if self.greeted else STRANGER_SILENT_S)


@dataclass
class _Strangers:
    """Those of the moment, by where they come from; the oldest first, those that have said nothing apart."""

    silent: dict[str, dict[_Stranger, None]] = field(default_factory=dict)
    greeted: dict[str, dict[_Stranger, None]] = field(default_factory=dict)
    count: int = 0

    def add(self, stranger: _Stranger) -> None:
        self._group(stranger).setdefault(stranger.source, {})[stranger] = None
        self.count += 1

    def remove(self, stranger: _Stranger) -> None:
        """Lets go of one, if it is there still."""
        group = self._group(stranger)
        found = group.get(stranger.source, {})
        if stranger in found:
            del found[stranger]
            self.count -= 1
            if not found:
                del group[stranger.source]

    def first_to_go(self) -> _Stranger:
        """Who makes room: the oldest of the largest crowd from one place, a silent one if its time is up."""
        crowds = [max(group.values(), key=lambda crowd: len(crowd)) for group in (self.silent, self.greeted) if group]
        return min((next(iter(crowd)) for crowd in crowds), key=lambda stranger: stranger.may_stay_until_s)

    def _group(self, stranger: _Stranger) -> dict[str, dict[_Stranger, None]]:
        return self.greeted if stranger.greeted else self.silent


class Hub:
    """Accepts connections that know the trainer's secret."""

    def __init__(
        self,
        listener: Listener,
        secret: str,
        listening: socket.socket,
        log: Callable[[str], None] = lambda _: None,
        states: Callable[[Message, Seals, socket.socket], None] | None = None,
    ) -> None:
        """`listening` is what `listen` made; `states` takes connections of role `state`, and closes them."""
        self._listener = listener
        self._states = states
        self._secret = secret
        self._log = log
        self._socket: socket.socket | None = listening
        self._tasks: set[asyncio.Task[None]] = set()
        self._strangers = _Strangers()
        self._fewer = asyncio.Event()
        self._most = min(_STRANGERS, max(1, int(descriptors.limit() * _STRANGERS_SHARE)))
        self._accepting = self._spawn(self._accept(listening))

    def close(self) -> None:
        """Accepts nobody any more; who is connected stays so."""
        if self._socket is not None:
            self._accepting.cancel()
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    async def _accept(self, listening: socket.socket) -> None:
        accepted = 0
        while True:
            await self._room_for_a_stranger()
            try:
                sock, address = await _next_connection(listening)
                self._let_in(sock, str(address[0]))
            except OSError as error:
                # Else it was the end of a connection that was waiting.
                crowded = error.errno in _NO_ROOM
                if crowded and self._strangers.count:
                    self._turn_away(self._strangers.first_to_go())
                await asyncio.sleep(_RETRY_S if crowded else 0)
                continue
            accepted += 1
            if accepted % _AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _room_for_a_stranger(self) -> None:
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
        self._hear_stranger(stranger)  # its hello has come with it, as a rule

    def _hear_stranger(self, stranger: _Stranger) -> None:
        try:
            data = stranger.sock.recv(HELLO_BYTES - len(stranger.line))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        stranger.line += data
        # It says nothing more until it is challenged: what follows the line is no peer's.
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
        """Lets go of a stranger, whatever is to become of it."""
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
            if about.get("role") == "state" and self._states is not None:
                self._states(about, seals, sock)
                return
            reader, writer = await asyncio.open_connection(sock=sock, limit=MAX_LINE_BYTES)
        except (Exception, asyncio.CancelledError):  # what strangers say, in whatever way it is wrong
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
            # The driver ends. asyncio would print a connection that was cancelled as a fault.
            pass
        except Exception as error:
            # One peer's nonsense is that peer's end, and no other's.
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
            # A disk of the driver's, say: no fault of the peer.
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
    """Where strangers come from, to be counted together: an address, or the network that one owner has of IPv6."""
    bare = plain(address)
    try:
        known = ipaddress.ip_address(bare)
    except ValueError:
        return bare
    return known.exploded[:19] if known.version == 6 else bare


def _name(peer: Peer) -> str:
    """An agent or a worker, as the log names it."""
    return f"the {peer.hello.get('role', 'peer')} of {peer.hello.get('host') or peer.hello.get('lease')}"


async def _proof(sock: socket.socket) -> bytes:
    """Exactly a proof: what follows it is the peer's first message."""
    proof = b""
    while len(proof) < PROOF_BYTES:
        proof += await _some(sock, PROOF_BYTES - len(proof))
    return proof


async def _some(sock: socket.socket, size_bytes: int) -> bytes:
    data = await asyncio.get_running_loop().sock_recv(sock, size_bytes)
    if not data:
        raise WireError("a connection ended before it proved anything")
    return data
