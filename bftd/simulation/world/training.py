"""Simulated training: agents and workers that speak the real protocol with a real driver, and only count steps.

They stand in for `elastic.node` and `elastic.worker`, which fork, and block in threads. A connection proves itself and
is sealed as theirs are. A checkpoint travels as the number of its step. What a script does, and whatever it comes to,
is in `bftd.simulation.world.scripts`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from bftd.simulation.world.machine.processes import Process
from bftd.simulation.world.scripts import BATCH, ScriptError, Training, content_of
from bftd.simulation.world.slurmctld import PilotJob
from elastic.base.timing import BEAT_S, DRIVER_LOST_S, KILLED_S, LEAVE_S, REACH_S, REPORT_S
from elastic.driver.pilots.launcher import Pilot
from elastic.link.address import split_address
from elastic.link.authentication import Seal
from elastic.link.bulk import UPLOAD
from elastic.link.channel import SealedReader, introduce
from elastic.link.step_barrier import QUESTIONS, StepBarrier
from elastic.link.wire import Message, encode

_WARM_S = 2.0
_FORK_S = 0.3
_REJOIN_S = 0.05
_LOOK_S = 0.01
_HEARD_S = 1.0
"""A worker waits this long for the driver to have heard its error."""

_FROZEN_S = 15.0
"""An agent ends a worker that is stopped once it has been silent for this long."""


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


class Agent:
    """The agent of a pilot with its node process and one worker; `serve` returns when its processes have ended."""

    def __init__(self, training: Training, pilot: Pilot, secret: str, scancel: Callable[[str], None]) -> None:
        self._training = training
        self._pilot = pilot
        self._secret = secret
        self._scancel = scancel
        self._link: _Link | None = None
        self._worker: Worker | None = None
        self._over = asyncio.Event()
        self._last: Process | None = None
        self._cancels = False
        self._heard_s = 0.0

    async def serve(self, process: Process, job: PilotJob) -> None:
        """Serve until Slurm, the driver or a loss of the driver ends it."""
        job.notice, self._process = self._notice, process
        process.on_kill.append(self._end_worker)
        serving = asyncio.create_task(self._serve(job))
        await self._over.wait()
        serving.cancel()
        if self._cancels:
            self._scancel(job.id)

    def _notice(self) -> None:
        self._send({"op": "leaving", "at_s": time.time()})
        if self._training.ends_at_notice and self._worker is not None:
            asyncio.get_running_loop().call_later(LEAVE_S / 2, self._worker.end, 0)
        asyncio.get_running_loop().call_later(LEAVE_S, self._over.set)

    async def _serve(self, job: PilotJob) -> None:
        about = {"role": "agent", "lease": self._pilot.lease, "node": job.node, "job_id": job.id, "pid": int(job.id)}
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            self._link = await asyncio.wait_for(_Link.connect(self._pilot, self._secret, about), REACH_S)
        if self._link is not None:
            loop = asyncio.get_running_loop()
            self._heard_s = loop.time()
            watching = asyncio.create_task(self._watch())
            while (message := await self._link.reader.receive()) is not None:
                self._heard_s = loop.time()
                await self._obey(job, message)
            watching.cancel()
        self._cancels = True
        self._over.set()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() - self._heard_s <= DRIVER_LOST_S:
            await asyncio.sleep(BEAT_S)
        self._cancels = True
        self._over.set()

    async def _obey(self, job: PilotJob, message: Message) -> None:
        op = message["op"]
        if op == "configure":
            self._send({"op": "node", "workers_per_node": 1})
            warm_s = _WARM_S * self._training.random.uniform(0.5, 2.0)
            asyncio.get_running_loop().call_later(warm_s, self._send, {"op": "ready"})
        elif op == "beat":
            self._send(message)
        elif op == "look":
            self._look(message)
        elif op in ("go", "end"):
            self._cancels = self._cancels or op == "end"
            self._over.set()
        elif op == "join":
            self._send({"op": "join"})
        elif op == "regroup":
            self._end_worker(is_stopped=True)
            self._rejoin()
        elif op == "rendezvous":
            self._end_worker()
            worker = Worker(self._training, self._pilot, self._secret, message, self._ended)
            self._worker, job.worker = worker, worker.process
            worker.process.on_kill.append(lambda: self._died(worker))
            worker.process.start(self._work, worker)

    def _look(self, message: Message) -> None:
        """Look at a silent worker, and end it if it is stopped."""
        silent_s = float(message["silent_s"])
        if (
            self._worker is not None
            and (self._worker.stopped or self._worker.process.held is not None)
            and silent_s >= _FROZEN_S
        ):
            about = {"verdict": "killed", "silent_s": silent_s, "why": "it is stopped"}
            self._send({"op": "looked", "pid": message["pid"], **about})
            self._worker.process.kill()

    def _ended(self, worker: Worker, rc: int) -> None:
        """Report a worker that has ended by itself."""
        if worker is self._worker:
            self._worker = None
            if rc == 0:
                self._send({"op": "done", "step": worker.step})
            else:
                self._exited(worker, rc)
        worker.process.kill()

    async def _work(self, worker: Worker) -> None:
        with contextlib.suppress(OSError):
            await worker.run()
        worker.process.kill()  # it has come to its end before, or has lost its link to the driver

    def _died(self, worker: Worker) -> None:
        """Report a worker that was killed by others than this agent."""
        if worker is self._worker:
            self._worker = None
            self._training.fails(self._pilot.lease)
            self._exited(worker, -9)

    def _exited(self, worker: Worker, rc: int) -> None:
        exit_ = {"op": "exit", "local_rank": 0, "rc": rc, "step": worker.step, "at_s": time.time()}
        self._process.run(self._send, exit_)
        self._process.run(self._rejoin)

    def _rejoin(self) -> None:
        hangs = self._last is not None and not self._last.dead
        after_s = KILLED_S if hangs else _REJOIN_S
        asyncio.get_running_loop().call_later(after_s, self._send, {"op": "join"})

    def _end_worker(self, *, is_stopped: bool = False) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.leave(is_stopped=is_stopped)
            worker.process.kill()
            self._last = worker.process

    def _send(self, message: Message) -> None:
        if self._link is not None:
            self._link.send(message)


class Worker:
    """A worker of torchrun's: `elastic.load`, and then `elastic.step` once a step; saves when bftd asks for it."""

    def __init__(
        self, training: Training, pilot: Pilot, secret: str, about: Message, ended: Callable[[Worker, int], None]
    ) -> None:
        self.process = Process(f"worker {pilot.node}", pilot.node)
        self.step = -1
        self.stopped = False
        """Whether it does nothing any more, as after SIGSTOP."""

        self._training = training
        self._pilot = pilot
        self._secret = secret
        self._rank, self._world = int(about["first_rank"]), int(about["world"])
        self._generation = int(about["generation"])
        self._group = training.group(secret, self._generation, self._world)
        self.process.on_kill.append(lambda: self._group.left(self._rank))
        self._ended = ended
        self._heard = asyncio.Event()
        self._barrier = StepBarrier()
        self._hello: Message = {
            "role": "worker",
            "lease": pilot.lease,
            "incarnation": pilot.incarnation,
            "local_rank": 0,
            "pid": 1_000 + self._generation,
        }
        self._fetched: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._saved = self._kept = 0
        self._uploading = asyncio.Lock()

    async def run(self) -> None:
        """Train to the end."""
        await asyncio.sleep(_FORK_S)
        link = await _Link.connect(self._pilot, self._secret, self._hello)
        if link is None:
            return
        self._link = link
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
            self.end(rc)

    def leave(self, *, is_stopped: bool) -> None:
        """Note that the worker leaves its group."""
        self._group.left(self._rank, is_stopped=is_stopped)

    def end(self, rc: int) -> None:
        """End by itself."""
        self._ended(self, rc)

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
        elif how == "stopped":
            self.stopped = True
            await asyncio.Event().wait()
        self._training.fails(self._pilot.lease)
        if how == "early":
            self.end(0)
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
            if self.stopped:
                continue
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
