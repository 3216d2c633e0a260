"""python -m elastic.backends.torchrun.store: torchrun's store, beside the driver: no pool node can take it along.

It reads `open` lines on standard input and answers each with the port at which the nodes' tunnels reach a fresh store,
once they have proved that they know the trainer's secret. An old generation's keys cannot interfere with a new one's.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import signal
import socket
import struct
import sys
from importlib import import_module

from elastic.backends.torchrun.private_store import HiddenStore
from elastic.backends.torchrun.sealed_stream import seal, unseal
from elastic.driver.server import Hub, listen
from elastic.link import descriptors
from elastic.link.child_process import die_with_parent
from elastic.link.peer import Peer
from elastic.link.wire import MAX_LINE_BYTES, Message, encode, receive

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP_AND_RUNNING = 0x1 | 0x40


class Relay:
    """The hub's listener: carries each connection to the store of the generation that it asks for."""

    def __init__(self, alone: bool) -> None:
        """`alone`: no other process is in this process's network."""
        self._alone = alone
        self._stores: dict[int, HiddenStore] = {}
        self._to_store: dict[Peer, asyncio.Future[asyncio.StreamWriter]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, generation: int) -> None:
        """Open a generation's store, and close those older than the previous one; raises OSError."""
        store = HiddenStore(self._alone)
        await store.open()
        self._stores[generation] = store
        # The previous one may still have clients that are being stopped.
        for old in sorted(self._stores)[:-2]:
            self._stores.pop(old).close()

    def connected(self, peer: Peer) -> bool:
        """Take a tunnel's hello; one of a generation that is over is rejected."""
        store = self._stores.get(int(peer.hello.get("generation", -1)))
        if peer.hello.get("role") != "store" or store is None:
            return False
        self._to_store[peer] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._from_store(peer, store))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def received(self, peer: Peer, message: Message) -> None:
        """Forward a worker's message to its store."""
        await unseal(message, await self._to_store[peer])

    def disconnected(self, peer: Peer) -> None:
        """Close the connection to the store of a worker that is gone, or whose node is."""
        to_store = self._to_store.pop(peer, None)
        if to_store is None or to_store.cancel():
            return
        if to_store.exception() is None:
            to_store.result().close()

    async def _from_store(self, peer: Peer, store: HiddenStore) -> None:
        """Forward the store's answers until one of the ends closes."""
        ready = self._to_store[peer]
        try:
            reader, writer = await store.connect()
        except OSError as error:
            if not ready.done():
                ready.set_exception(ConnectionError(str(error)))
                ready.exception()  # a worker that sends nothing more never retrieves it
            peer.close()
            return
        if ready.done():  # the worker went away meanwhile
            writer.close()
            return
        ready.set_result(writer)
        with contextlib.suppress(OSError):
            await seal(reader, peer)
        peer.close()


async def _serve(listening: socket.socket, alone: bool) -> None:
    relay = Relay(alone)
    hub: Hub | None = None
    port = listening.getsockname()[1]
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    _send({"op": "ready"})
    while (message := await receive(commands)) is not None:
        generation = int(message["generation"])
        # The secret comes this way because others can read the command line and files.
        hub = hub or Hub(relay, str(message["secret"]), listening)
        try:
            await relay.open(generation)
        except (OSError, RuntimeError) as error:
            _send({"op": "failed", "text": str(error).splitlines()[0]})
            continue
        _send({"op": "opened", "generation": generation, "port": port})


def _send(message: Message) -> None:
    sys.stdout.buffer.write(encode(message))
    sys.stdout.buffer.flush()


def leave_hosts_network() -> bool:
    """Move this process, which must still be single-threaded, to a network with only a loopback; returns success.

    No other process on the host can reach sockets that listen in it. A user may make one if the kernel lets them have a
    user namespace. Sockets stay in the network that they were made in, so one that was opened before still serves the
    host's. The parent-death signal is reset by this.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        return False
    with socket.socket() as sock:
        # If this fails, nothing in this network can be reached, and there is no way back.
        fcntl.ioctl(sock.fileno(), _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP_AND_RUNNING))
    return True


def main() -> None:
    """Serve until standard input ends."""
    # Nodes connect from the host's network; the stores are kept out of it, if this user may.
    listening = listen()
    alone = leave_hosts_network()
    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Each worker connection needs three descriptors: the usual limit of 1024 would suffice for a few hundred workers.
    descriptors.raise_limit()
    try:
        import_module("torch.distributed")
    except ImportError:
        # The driver reports it in one line.
        raise SystemExit(1) from None
    asyncio.run(_serve(listening, alone))


if __name__ == "__main__":
    main()
