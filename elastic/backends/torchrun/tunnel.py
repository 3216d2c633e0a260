"""python -m elastic.backends.torchrun.tunnel: the way from a node's workers to their group's store beside the driver.

Workers are given an address on their own node as the store's. Only a process of the same user may connect there; the
connection then goes on, sealed, to the driver's host, where it proves that it knows the trainer's secret. It is a
separate process so that the node process, which forks workers, has no second thread whose locks a fork might copy.

    open  ->  generation, address, port: the place of this generation's store      <-  opened: port on this node
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from typing import Any

from elastic.backends.torchrun.peer_process import owner
from elastic.backends.torchrun.sealed_stream import seal, unseal
from elastic.base.errors import WireError
from elastic.base.timing import CONNECT_S, HANDSHAKE_S
from elastic.link.channel import SealedReader, introduce
from elastic.link.child_process import die_with_parent
from elastic.link.peer import Peer
from elastic.link.wire import MAX_LINE_BYTES, Message, decode, encode, no_delay, receive

ADDRESS = "127.0.0.1"
"""The address at which workers look for their store: no other host can reach it."""

_BACKLOG = 1024


class Tunnel:
    """The process, as the node process sees it; it is started when it is needed, and again if it has ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process unless it runs; raises OSError."""
        if self._process is not None and self._process.poll() is None:
            return
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # It runs in the user's folder, and must import nothing from there.
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )

    def open(self, generation: int, address: str, port: int) -> int:
        """Return the port on this node that leads to a generation's store, and to no older one; raises OSError."""
        self.start()
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"op": "open", "generation": generation, "address": address, "port": port}
        self._process.stdin.write(encode(order))
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise ConnectionError("the way to torchrun's store ended by itself")
        return int(decode(line)["port"])

    def processes(self) -> tuple[int, ...]:
        """Return the id of the process, if there is one: it belongs to no worker."""
        return () if self._process is None else (self._process.pid,)

    def close_in_child(self) -> None:
        """Close the pipes to the process in a worker, which needs only the connections that it carries."""
        if self._process is not None:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.close()
            self._process.stdout.close()


class _Carrier:
    """The inside of the process: one generation at a time."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._target: Message = {}

    async def open(self, target: Message) -> int:
        """Leave the previous generation, whose workers have ended, and return a port that leads to this one's store."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        self._target = target
        self._server = await asyncio.start_server(self._carry, ADDRESS, 0, backlog=_BACKLOG)
        return int(self._server.sockets[0].getsockname()[1])

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if owner(writer.get_extra_info("socket")) == os.getuid():
                no_delay(writer)
                await self._carry_on(reader, writer)
        except (WireError, OSError, asyncio.TimeoutError) as error:
            reason = str(error) or "no answer in time"
            print(f"bft: no way to torchrun's store: {reason}", file=sys.stderr, flush=True)
        except asyncio.CancelledError:
            # asyncio would report a cancelled connection as a fault.
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _carry_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = str(self._target["address"]), int(self._target["port"])
        about: Message = {
            "role": "store",
            "lease": os.environ["BFT_LEASE"],
            "generation": int(self._target["generation"]),
        }
        far_reader, far_writer = await asyncio.wait_for(
            asyncio.open_connection(host, port, limit=MAX_LINE_BYTES), CONNECT_S
        )
        try:
            no_delay(far_writer)
            seals = await asyncio.wait_for(
                introduce(far_reader, far_writer, os.environ["BFT_SECRET"], about), HANDSHAKE_S
            )
            if seals is None:
                raise WireError("it hung up")
            sending = asyncio.create_task(seal(reader, Peer(far_writer, about, seals.outgoing)))
            hearing = asyncio.create_task(_hear(SealedReader(far_reader, seals.incoming), writer))
            # Once one end hangs up, nothing from the other is needed.
            await _first_of(sending, hearing)
        finally:
            far_writer.close()


async def _hear(sealed: SealedReader, plain: asyncio.StreamWriter) -> None:
    while (message := await sealed.receive()) is not None:
        await unseal(message, plain)


async def _first_of(*tasks: asyncio.Task[None]) -> None:
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            # A worker that is killed resets its connection: that is no fault of the tunnel.
            if isinstance(result, WireError):
                raise result


async def _serve() -> None:
    carrier = _Carrier()
    commands = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while (message := await receive(commands)) is not None:
        port = await carrier.open(message)
        sys.stdout.buffer.write(encode({"op": "opened", "port": port}))
        sys.stdout.buffer.flush()


def main() -> None:
    """Serve until standard input ends."""
    die_with_parent()
    # Slurm's notice reaches every process of the pilot; the agent ends this one with the node process.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(_serve())


if __name__ == "__main__":
    main()
