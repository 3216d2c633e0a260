"""Simulated training: workers that speak the real protocol with a real driver, and only count steps.

They stand in for `elastic.worker`, which blocks in threads. A connection proves itself and is sealed as theirs are. A
checkpoint travels as the number of its step. What a script does, and whatever it comes to, is in
`bftd.simulation.world.scripts`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

from bftd.simulation.world.machine.processes import Process
from bftd.simulation.world.scripts import BATCH, ScriptError, Training, content_of
from elastic.base.errors import EXIT_LINK_LOST
from elastic.base.timing import LEAVE_S, LINK_LOST_S, REPORT_S
from elastic.driver.pilots.launcher import Pilot
from elastic.link.address import split_address
from elastic.link.authentication import Seal
from elastic.link.bulk import UPLOAD
from elastic.link.channel import SealedReader, introduce
from elastic.link.step_barrier import QUESTIONS, StepBarrier
from elastic.link.wire import Message, encode

_FORK_S = 0.3
_LOOK_S = 0.01
_HEARD_S = 1.0
"""A worker waits this long for the driver to have heard its error."""


class _Link:
    """A sealed connection to the driver."""

    def __init__(self, reader: SealedReader, writer: asyncio.StreamWriter, seal: Seal) -> None:
        self.reader = reader
        self.writer = writer
        self._seal = seal

    @classmethod
    async def connect(cls, pilot: Pilot, secret: str, about: Message) -> _Link | None:
        """Connect to the driver; None if it hangs up. Raises OSError."""
        host, port = split_address(pilot.driver)
        reader, writer = await asyncio.open_connection(host, port)
        seals = await introduce(reader, writer, secret, about)
        return None if seals is None else cls(SealedReader(reader, seals.incoming), writer, seals.outgoing)

    def send(self, message: Message) -> None:
        """Send one message."""
        if not self.writer.is_closing():
            self.writer.write(self._seal.line(encode(message)))


class Worker:
    """A worker of torchrun's: `elastic.load`, and then `elastic.step` once a step; saves when bftd asks for it."""

    def __init__(self, training: Training, pilot: Pilot, secret: str, about: Message, pid: int) -> None:
        self.process = Process(f"worker {pilot.node}", pilot.node)
        self.process.at_sigterm = self._notice
        self.step = -1
        self.rc: int = -signal.SIGKILL
        self.over = asyncio.Event()
        self.process.on_kill.append(self.over.set)
        self._training = training
        self._pilot = pilot
        self._secret = secret
        self._rank, self._world = int(about["first_rank"]), int(about["world"])
        self._generation = int(about["generation"])
        self._group = training.group(secret, self._generation, self._world)
        self.process.on_kill.append(lambda: self._group.left(self._rank))
        self._heard = asyncio.Event()
        self._barrier = StepBarrier()
        self._hello: Message = {
            "role": "worker",
            "lease": pilot.lease,
            "incarnation": pilot.incarnation,
            "local_rank": 0,
            "pid": pid,
        }
        self._fetched: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._saved = self._kept = 0
        self._uploading = asyncio.Lock()

    async def run(self) -> None:
        """Train to the end, or until the link to the driver is lost."""
        await asyncio.sleep(_FORK_S)
        link = None
        with contextlib.suppress(OSError):
            link = await _Link.connect(self._pilot, self._secret, self._hello)
        if link is not None:
            self._link = link
            await self._train_and_listen(link)
        await asyncio.sleep(LINK_LOST_S)
        self._end(EXIT_LINK_LOST)

    async def _train_and_listen(self, link: _Link) -> None:
        training = asyncio.create_task(self._load_and_train())
        listening = asyncio.create_task(self._listen())
        await asyncio.wait({training, listening}, return_when=asyncio.FIRST_COMPLETED)
        if training.done():
            error, rc = training.exception(), 0
            if isinstance(error, ScriptError):
                rc = 1
                link.send({"op": "error", "text": str(error)})
                await asyncio.wait({asyncio.create_task(self._heard.wait()), listening}, timeout=_HEARD_S)
            elif error is not None:
                raise error
            self._end(EXIT_LINK_LOST if rc and listening.done() else rc)

    def leave(self, *, is_stopped: bool) -> None:
        """Note that the worker leaves its group."""
        self._group.left(self._rank, is_stopped=is_stopped)

    def _end(self, rc: int) -> None:
        if not self.process.dead:
            self.rc = rc
            self.process.kill()

    def _notice(self) -> None:
        """Handle Slurm's notice, which a worker ignores unless its script has a handler for it."""
        if self._training.ends_at_notice:
            asyncio.get_running_loop().call_later(LEAVE_S / 2, self._end, 0)

    async def _load_and_train(self) -> None:
        self._link.send({"op": "fetch"})
        fetched = await self._fetched
        try:
            step = self._training.loaded(fetched)
        except ScriptError:
            self._training.fails(self._pilot.lease)
            raise
        self._barrier.by_clock = True
        await self._train(step)

    async def _train(self, step: int) -> None:
        group, loop = self._group, asyncio.get_running_loop()
        reported_s, number, total = loop.time(), 0, self._training.total_steps
        while step < total:
            step, number = step + 1, number + 1
            await group.step(number, step)
            self.step = step
            self._barrier.size = self._world
            while self._barrier.is_undecided(step):
                await asyncio.sleep(_LOOK_S)
            request = self._barrier.passed(step, loop.time())
            group.saves(step, request is not None)
            if number == 1 or (self._rank == 0 and loop.time() - reported_s >= REPORT_S):
                reported_s = loop.time()
                self._report(step, first=number == 1)
            if request is not None:
                await self._save(step, pause=request.pause)
            if fault := self._training.fault_of(self._rank, self._world, step):
                await self._fail(fault)
        if self._rank == 0:
            self._saved = total
            self._training.saves(total)
            await self._upload()
            self._report(total, first=False)
        group.ended_well(self._rank)

    async def _fail(self, how: str) -> None:
        if how == "killed":
            self.process.kill()
            await asyncio.sleep(0)
        if how == "stopped":
            self.process.stop()
            await asyncio.sleep(0)
            return  # it has been told to go on
        self._training.fails(self._pilot.lease)
        if how == "early":
            self._end(0)
            await asyncio.sleep(0)
        raise ScriptError("ValueError: a batch of another shape")

    async def _save(self, step: int, *, pause: bool) -> None:
        if self._rank == 0:
            self._saved = step
            self._training.saves(step)
            if pause:
                self._report(step, first=False)
                await self._upload()
                self._link.send({"op": "paused"})
                await asyncio.Event().wait()
            self._ship = asyncio.create_task(self._upload())
        self._barrier.saved(asyncio.get_running_loop().time())

    def _report(self, step: int, *, first: bool) -> None:
        message: Message = {
            "op": "step",
            "first": first,
            "step": step,
            "samples": step * BATCH,
            "saved_step": self._saved,
            "saved_samples": self._saved * BATCH,
            "rank": self._rank,
            "size": self._world,
            "nodes": self._world,
            "loss": None,
            "steps_lost": 0,
            "at_s": time.time(),
            "total_steps": self._training.total_steps,
        }
        self._link.send({**message, "generation": str(self._generation)} if first else message)

    async def _listen(self) -> None:
        while (message := await self._link.reader.receive()) is not None:
            op = message["op"]
            if op == "ping":
                self._link.send({"op": "pong"})
            elif op == "heard":
                self._heard.set()
            elif op == "ship":
                self._ship = asyncio.create_task(self._shipped())
            elif op in QUESTIONS:
                if answer := self._barrier.answer(message):
                    self._link.send(answer)
            elif op == "fetched" and not self._fetched.done():
                self._fetched.set_result(message)

    async def _shipped(self) -> None:
        if self._saved and self._saved != self._kept:
            await self._upload()
        else:
            self._link.send({"op": "shipped", "step": self._saved} if self._saved else {"op": "nothing_saved"})

    async def _upload(self) -> None:
        async with self._uploading:
            step = self._saved
            what = {"role": "state", "what": UPLOAD, "step": step, "samples": step * BATCH, "last": True}
            with contextlib.suppress(OSError):
                link = await _Link.connect(self._pilot, self._secret, {**self._hello, **what})
                if link is not None and await link.reader.receive() is not None:
                    self._kept = step
                    self._training.kept(step)


class StateOfStep:
    """The content of a checkpoint, as the store receives it."""

    def __init__(self, step: int) -> None:
        self._data = content_of(step)
        self.size_bytes = 0
        self.digest = ""

    def pieces(self) -> Iterator[memoryview]:
        """See elastic.store.store.Content."""
        self.size_bytes = len(self._data)
        yield memoryview(self._data)
        self.digest = hashlib.sha256(self._data).hexdigest()


class Companion:
    """The store beside the driver, which gives each generation a port; see elastic.backends.helper_process."""

    def __init__(self, on_message: Callable[[Message], None], *_: Any) -> None:
        self._on_message = on_message
        self.last_line = ""

    async def start(self, *_: Any, **__: Any) -> None:
        """Be ready after a while."""
        asyncio.get_running_loop().call_later(1.0, self._on_message, {"op": "ready"})

    def send(self, message: Message) -> None:
        """Open a generation's store."""
        opened = {"op": "opened", "generation": message["generation"], "port": 29_500}
        asyncio.get_running_loop().call_later(0.01, self._on_message, opened)

    async def stop(self) -> None:
        """End."""
