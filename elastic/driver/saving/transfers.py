"""Uploads and downloads of checkpoints between workers and the store, each with a connection and a thread of its own.

The event loop, which answers give-backs, only checks their progress now and then: arriving bytes are a sign of life.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from elastic.base.errors import ElasticError
from elastic.base.timing import CHECKPOINT_SETTLE_S, CHECKPOINT_STALL_S, FAREWELL_S, LAST_CHECKPOINT_S
from elastic.driver.progress.resize_times import number
from elastic.driver.saving.saver import CheckpointSaver
from elastic.link import descriptors
from elastic.link.authentication import Seals
from elastic.link.bulk import DOWNLOAD, UPLOAD, Incoming
from elastic.link.channel import BlockingChannel
from elastic.link.peer import Peer
from elastic.link.wire import Message

_SHARE = 0.25
"""The transfers' share of the files that the driver may open: the rest is for agents, workers and Slurm commands."""

_LOOK_S = 0.25


@dataclass(eq=False)
class _Transfer:
    """One checkpoint on its way since `began_s`; `grown_s` is when more of it was last seen, `whole_s` when all was."""

    worker: Peer
    about: Message
    channel: BlockingChannel
    seen_bytes: int = 0
    whole_s: float = 0.0
    task: asyncio.Task[None] | None = None
    _sent_bytes: int = 0

    def __post_init__(self) -> None:
        self.incoming = Incoming(self.channel, time.monotonic)
        self.began_s = self.grown_s = time.monotonic()

    @property
    def comes(self) -> bool:
        """Whether the worker uploads the checkpoint."""
        return bool(self.about["what"] == UPLOAD)

    @property
    def size_bytes(self) -> int:
        """The bytes that have passed."""
        return self.incoming.size_bytes if self.comes else self._sent_bytes

    def moved(self, size_bytes: int) -> None:
        """Notes the number of bytes sent; called by the transfer's thread."""
        self._sent_bytes = size_bytes


class Transfers:
    """The transfers on connections of role `state`; `accept` is for the hub."""

    def __init__(
        self,
        saver: CheckpointSaver,
        worker_of: Callable[[Message], Peer | None],
        heard: Callable[[Peer], None],
        saved: Callable[[float, int], None],
        offer: Callable[[], Awaitable[Message]],
    ) -> None:
        """`worker_of` finds the present worker that sent a hello; `heard` takes a sign of its life.

        `saved` is called when a checkpoint was stored, with the seconds that it took and its bytes; `offer` returns the
        answer about the checkpoint to begin with.
        """
        self._saver = saver
        self._worker_of = worker_of
        self._heard = heard
        self._saved = saved
        self._offer = offer
        self._all: dict[_Transfer, None] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._most = max(1, int(descriptors.limit() * _SHARE))

    def accept(self, about: Message, seals: Seals, sock: socket.socket) -> None:
        """Starts the transfer of a connection that has proved itself; a worker that is turned away tries again."""
        worker, what = self._worker_of(about), about.get("what")
        if worker is None or what not in (UPLOAD, DOWNLOAD) or len(self._all) >= self._most:
            sock.close()
            return
        for other in self._all:
            # The worker has connected again: its earlier transfer is of no use. So each has one thread each way at
            # most.
            if other.worker is worker and other.about["what"] == what:
                other.channel.hang_up()
        sock.setblocking(True)
        sock.settimeout(CHECKPOINT_STALL_S)
        transfer = _Transfer(worker, about, BlockingChannel(sock, seals))
        self._all[transfer] = None
        transfer.task = asyncio.create_task(self._serve(transfer))

    def answer(self, worker: Peer) -> None:
        """Tells a worker about the checkpoint to begin with, as soon as that is known."""
        task = asyncio.create_task(self._answer(worker))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def close(self) -> None:
        """Ends all transfers."""
        tasks = [transfer.task for transfer in self._all if transfer.task is not None]
        for transfer in self._all:
            transfer.channel.hang_up()
        for task in self._answering:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=FAREWELL_S)

    async def _answer(self, worker: Peer) -> None:
        await self._settled()
        worker.send(await self._offer())

    async def _settled(self) -> None:
        """Waits for the checkpoints of workers that are gone: a complete one may still be on its way to the disk.

        Otherwise some workers of a new group would be offered the checkpoint before it and some this one.
        """
        began_s = time.monotonic()
        while late := [one for one in self._all if one.comes and not self._is_present(one.worker)]:
            now_s = time.monotonic()
            if now_s - began_s > LAST_CHECKPOINT_S:
                return
            for transfer in late:
                if not transfer.incoming.digest and now_s - transfer.grown_s > CHECKPOINT_SETTLE_S:
                    transfer.channel.hang_up()
            tasks = [transfer.task for transfer in late if transfer.task is not None]
            await asyncio.wait(tasks, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)

    def _is_present(self, worker: Peer) -> bool:
        return self._worker_of(worker.hello) is worker

    async def _serve(self, transfer: _Transfer) -> None:
        work = asyncio.ensure_future(self._take(transfer) if transfer.comes else self._give(transfer))
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=_LOOK_S)
                self._look(transfer)
            # Errors of the connection or the file: they were reported already, or the worker tries again.
            with contextlib.suppress(ElasticError, OSError, KeyError, TypeError, ValueError):
                work.result()
        finally:
            work.cancel()
            self._all.pop(transfer, None)
            transfer.channel.hang_up()
            transfer.channel.close()

    def _look(self, transfer: _Transfer) -> None:
        now_s = time.monotonic()
        if transfer.size_bytes != transfer.seen_bytes:
            transfer.seen_bytes, transfer.grown_s = transfer.size_bytes, now_s
            if self._is_present(transfer.worker):
                self._heard(transfer.worker)
            if transfer.comes:
                self._saver.grew(transfer.worker)
        elif transfer.incoming.digest:  # on its way to the disk
            transfer.whole_s = transfer.whole_s or now_s
            if now_s - transfer.whole_s < LAST_CHECKPOINT_S:
                self._saver.grew(transfer.worker)

    async def _take(self, transfer: _Transfer) -> None:
        channel = transfer.channel
        if await self._saver.take(transfer.worker, transfer.about, transfer.incoming):
            took_s, size_bytes = (number(transfer.about.get(name)) or 0.0 for name in ("beside_s", "beside_bytes"))
            self._saved(time.monotonic() - transfer.began_s + took_s, transfer.size_bytes + int(size_bytes))
            channel.send({"op": "kept"})  # into an empty buffer: it does not block

    async def _give(self, transfer: _Transfer) -> None:
        await self._saver.store.send(transfer.channel, transfer.moved)
