"""Simulated training: the machine of a real agent, with a node process and workers that only count steps.

They stand in for torch's own agent and for `elastic.worker`, which fork, and block in threads. A connection proves
itself and is sealed as theirs are. A checkpoint travels as the number of its step. What a script does, and whatever it
comes to, is in `bftd.simulation.world.scripts`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from bftd.simulation.world.machine.loop import Forbidden
from bftd.simulation.world.machine.processes import Process
from bftd.simulation.world.machine.sockets import NetworkLoop, Socket
from bftd.simulation.world.scripts import BATCH, ScriptError, Training, content_of
from bftd.simulation.world.slurmctld import PilotJob
from elastic.base.errors import EXIT_LINK_LOST
from elastic.base.timing import KILLED_S, LEAVE_S, LINK_LOST_S, REPORT_S
from elastic.driver.pilots.launcher import Pilot
from elastic.link.address import split_address
from elastic.link.authentication import Seal
from elastic.link.bulk import UPLOAD
from elastic.link.channel import SealedReader, introduce
from elastic.link.step_barrier import QUESTIONS, StepBarrier
from elastic.link.wire import Message, encode, receive
from elastic.node.agent import Agent
from elastic.node.hang_detection import HangDetector, Vitals
from elastic.node.machine import MemoryKills
from elastic.node.process import NodeProcess

_WARM_S = 2.0
_FORK_S = 0.3
_REJOIN_S = 0.05
_LOOK_S = 0.01
_HEARD_S = 1.0
"""A worker waits this long for the driver to have heard its error."""

_NODE_PID, _FIRST_WORKER_PID = 2, 1000
_NO_GROUPS = Path("/nowhere")
"""No process here is ended for want of memory."""


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


async def serve(
    training: Training,
    secret: str,
    scancel: Callable[[str], None],
    pilot: Pilot,
    say: Callable[[str], None],
    process: Process,
    job: PilotJob,
) -> None:
    """Run the agent of a pilot to its end, as `python -m elastic.node.agent` does; `say` takes what srun prints."""
    agent = Agent(SimulatedMachine(training, secret, scancel, pilot, process, job))
    await agent.run()
    if agent.complaint:
        say(f"bft: {agent.complaint}")
    agent.end()


class _Detector(HangDetector):
    """Hang detection that looks at simulated processes; `known` has each with its parent's id and its beginning."""

    def __init__(self, known: Mapping[int, tuple[Process, int, float]], clock: Callable[[], float]) -> None:
        super().__init__(clock=clock)
        self._known = known
        self.on_this_host = lambda pid, node_pid: pid
        self.vitals_of = self._vitals_of
        self.age_s = lambda seen: clock() - seen.began_s
        self.kill = self._kill

    def _vitals_of(self, pid: int) -> Vitals | None:
        if pid not in self._known or self._known[pid][0].dead:
            return None
        process, parent, began_s = self._known[pid]
        if process.held is None:
            return Vitals("R", parent, began_s, self._clock(), 0)
        return Vitals("D" if process.clings else "T", parent, began_s, 0.0, 0)

    def _kill(self, pid: int, began_s: float) -> bool:
        self._known[pid][0].kill()
        return True


class SimulatedMachine:
    """The machine of a real agent; see elastic.node.machine.Machine."""

    def __init__(
        self,
        training: Training,
        secret: str,
        scancel: Callable[[str], None],
        pilot: Pilot,
        process: Process,
        job: PilotJob,
    ) -> None:
        self.environ: Mapping[str, str] = {
            "BFT_DRIVER": pilot.driver,
            "BFT_SECRET": secret,
            "BFT_LEASE": pilot.lease,
            "SLURMD_NODENAME": job.node,
            "SLURM_JOB_ID": job.id,
        }
        self.pid = int(job.id)
        self.known: dict[int, tuple[Process, int, float]] = {}
        self.detector: HangDetector = _Detector(self.known, asyncio.get_running_loop().time)
        self.memory_kills = MemoryKills(_NO_GROUPS)
        self.training = training
        self.secret = secret
        self.pilot = pilot
        self.process = process
        self.job = job
        self._scancel = scancel

    def variables(self, workers: int) -> Mapping[str, str]:
        """See Machine."""
        return {}

    def interface_of(self, writer: asyncio.StreamWriter | None) -> str | None:
        """See Machine."""
        return "eth0"

    async def start(self, *_: Any) -> tuple[NodeProcess, list[str]]:
        """See Machine."""
        return _Node(self), []

    def probe(self, message: Message, answer: Callable[[Message], None]) -> None:
        """See Machine."""
        raise Forbidden("no trainer here has a shared folder")

    def leave(self, *, cancels: bool) -> None:
        """See Machine; the agent's end is that of all below it."""
        if cancels:
            self._scancel(self.job.id)

    def fork(self, process: Process, pid: int, parent: int) -> None:
        """Take in a new process, which ends with its parent."""
        self.known[pid] = process, parent, asyncio.get_running_loop().time()
        above = self.known[parent][0] if parent in self.known else self.process
        above.on_kill.append(process.kill)


class _Node(NodeProcess):
    """A node process of torchrun with one worker at a time; see elastic.backends.torchrun.node."""

    def __init__(self, machine: SimulatedMachine) -> None:
        super().__init__(None, asyncio.StreamReader())
        self.pid = _NODE_PID
        self._machine = machine
        self.process = Process(f"node {machine.job.node}", machine.job.node)
        machine.fork(self.process, self.pid, machine.pid)
        machine.job.node_process = self.process
        self._worker: Worker | None = None
        self._ended = asyncio.Event()
        self.process.on_kill.append(self._end)
        network = cast(NetworkLoop, asyncio.get_running_loop()).network
        ours, theirs = network.pair(machine.process, self.process)
        self._link = Socket(ours)
        self.process.start(self._run, Socket(theirs)).add_done_callback(_failed)

    # -- as its agent sees it ---

    @property
    def is_over(self) -> bool:
        """See NodeProcess."""
        return self.process.dead

    async def linked(self) -> Any:
        """See NodeProcess."""
        return self._link

    async def wait(self) -> int:
        """See NodeProcess."""
        await self._ended.wait()
        return -signal.SIGKILL

    def kill(self) -> None:
        """See NodeProcess."""
        self.process.kill()

    def _end(self) -> None:
        self._ended.set()
        self.output.feed_eof()
        if self._worker is not None:
            self._worker.leave(is_stopped=False)

    # -- what it does ---

    async def _run(self, sock: Any) -> None:
        reader, self._writer = await asyncio.open_connection(sock=sock)
        self._reader = reader
        await asyncio.sleep(_WARM_S * self._machine.training.random.uniform(0.5, 2.0))
        self._send({"op": "ready"})
        with contextlib.suppress(EOFError):
            await self._heard("join")
            while True:
                if await self._train():
                    await self._heard("join", "regroup")
        self.process.kill()

    async def _train(self) -> bool:
        """Come to the rendezvous and have a worker train; returns whether to wait now, as it has trained to the end."""
        self._send({"op": "join"})
        worker = self._fork(await self._heard("rendezvous"))
        told = asyncio.create_task(self._heard("regroup"))
        over = asyncio.create_task(worker.over.wait())
        await asyncio.wait({told, over}, return_when=asyncio.FIRST_COMPLETED)
        is_told = told.done()
        over.cancel()
        if not told.cancel():
            told.result()
        await asyncio.wait({told})  # two cannot read at once
        if worker.rc == 0:
            self._send({"op": "done", "step": worker.step})
            return not is_told
        if not is_told:
            if worker.rc == -signal.SIGKILL:
                self._machine.training.fails(self._machine.pilot.lease)
            self._send({"op": "exit", "local_rank": 0, "rc": worker.rc, "step": worker.step, "at_s": time.time()})
        worker.leave(is_stopped=is_told)
        worker.process.kill()
        await asyncio.sleep(_REJOIN_S if worker.process.dead else KILLED_S)
        return False

    def _fork(self, about: Message) -> Worker:
        machine, pid = self._machine, _FIRST_WORKER_PID + int(about["generation"])
        self._worker = worker = Worker(machine.training, machine.pilot, machine.secret, about, pid)
        machine.fork(worker.process, pid, self.pid)
        machine.job.worker = worker.process
        worker.process.start(worker.run).add_done_callback(_failed)
        return worker

    async def _heard(self, *ops: str) -> Message:
        """Return the driver's next message with one of these `op`; raises EOFError if the agent is gone."""
        while (message := await receive(self._reader)) is not None:
            if message["op"] in ops:
                return message
        raise EOFError

    def _send(self, message: Message) -> None:
        self._writer.write(encode(message))


def _failed(task: asyncio.Task[None]) -> None:
    """Raise what a task has raised: it ends the world."""
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


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
