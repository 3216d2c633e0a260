"""torch's TCPStore in a place that only this process can reach.

The store authenticates nobody and listens only on a TCP port: it supports neither a socket path with permissions nor a
port with a secret. If the user may not have a network of their own (elastic.backends.torchrun.store), the store
gets a socket made here, with a filter: the kernel drops every packet that does not come from 127.0.0.1 and one
particular source port. That port is bound, on all addresses, as long as the store lives, and a port can only be shared
with sockets of the same user, so no other user can send from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import ipaddress
import itertools
import os
import socket
import struct
from datetime import timedelta
from typing import Any

from elastic.backends.torchrun.peer_process import owner

_SOURCE = "127.0.0.1"
"""torch looks up the name of a connecting address: this one is in every host's own table."""

_DOOR = "127.0.0.2"
"""The address that the store's own client connects to, on the store's port: its source port cannot be set in torch."""

_FIRST_TARGET = ipaddress.IPv4Address("127.1.0.0")
"""All connections have the same source, so each has its own target; all of 127.0.0.0/8 is this host."""

_SO_ATTACH_FILTER = 26
"""Linux's number on all of its architectures except two old ones; Python has no name for it."""

_PIECE_BYTES = 1 << 16

_TIMEOUT = timedelta(seconds=30)


class HiddenStore:
    """One TCPStore and the only way to it."""

    def __init__(self, alone: bool = False) -> None:
        """`alone`: no other process is in this process's network."""
        self._alone = alone
        self._source = _shared_socket()
        self._source.bind(("0.0.0.0", 0))
        self._targets = itertools.count(1)
        self._port = 0
        self._store: Any = None

    async def open(self) -> None:
        """Start the store; raises OSError, ImportError without torch, and RuntimeError if torch fails."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        listening, door = _shared_socket(), _shared_socket()
        try:
            if not self._alone:
                _admit(listening, self._source.getsockname()[1])
            listening.bind(("0.0.0.0", 0))
            listening.listen(socket.SOMAXCONN)
            self._port = listening.getsockname()[1]
            door.bind((_DOOR, self._port))
            door.listen()
            # From here on torch owns the descriptor.
            number = listening.detach()
        finally:
            listening.close()
        door.setblocking(False)
        guarding = asyncio.create_task(self._let_own_client_in(door))
        try:
            self._store = await asyncio.to_thread(
                TCPStore,
                _DOOR,
                self._port,
                is_master=True,
                wait_for_workers=False,
                timeout=_TIMEOUT,
                master_listen_fd=number,
            )
        finally:
            guarding.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await guarding
            door.close()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a new connection to the store; raises OSError."""
        sock = _shared_socket()
        try:
            sock.bind((_SOURCE, self._source.getsockname()[1]))
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            target = str(_FIRST_TARGET + next(self._targets))
            await asyncio.get_running_loop().sock_connect(sock, (target, self._port))
            return await asyncio.open_connection(sock=sock)
        except BaseException:
            sock.close()
            raise

    def close(self) -> None:
        """End the store."""
        self._store = None
        self._source.close()

    async def _let_own_client_in(self, door: socket.socket) -> None:
        """Forward the traffic between torch's constructor and its own store; strangers are rejected."""
        loop = asyncio.get_running_loop()
        while True:
            sock, _ = await loop.sock_accept(door)
            if owner(sock) == os.getuid():
                break
            sock.close()
        near = await asyncio.open_connection(sock=sock)
        far = await self.connect()
        try:
            await asyncio.gather(_copy(near[0], far[1]), _copy(far[0], near[1]))
        finally:
            near[1].close()
            far[1].close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_PIECE_BYTES):
        writer.write(data)
        await writer.drain()


def _shared_socket() -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return sock


def _admit(listening: socket.socket, source_port: int) -> None:
    """Drop all packets that do not come from 127.0.0.1 and this port; accepted connections inherit the filter."""
    program = [
        (0x28, 0, 0, 0),  # load the half-word at 0 of the TCP header: the source port
        (0x15, 0, 3, source_port),  # the next instruction if it is this one, else to the last
        (0x20, 0, 0, 0xFFF0000C),  # load the word at 12 of the IP header: the source address
        (0x15, 0, 1, int(ipaddress.IPv4Address(_SOURCE))),
        (0x06, 0, 0, 0xFFFFFFFF),  # take the packet, whole
        (0x06, 0, 0, 0),  # drop it
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *instruction) for instruction in program))
    about = struct.pack("@HP", len(program), ctypes.addressof(code))
    try:
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, about)
    except OSError as error:
        text = "this kernel lets users have neither a network namespace nor a socket filter, so others could reach it"
        raise OSError(error.errno, f"{text}; allow user namespaces there (user.max_user_namespaces)") from error
