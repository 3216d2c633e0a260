"""The machine of a real agent in the simulated world: a node process, and what the kernel and Slurm do there.

The node process stands in for the real one, which forks; see elastic.backends.torchrun.node.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from bftd.simulation.world.machine.loop import Forbidden
from bftd.simulation.world.machine.processes import Process
from bftd.simulation.world.machine.sockets import NetworkLoop, Socket
from bftd.simulation.world.scripts import Training
from bftd.simulation.world.slurmctld import PilotJob
from bftd.simulation.world.training import Worker
from elastic.base.timing import KILLED_S
from elastic.driver.pilots.launcher import Pilot
from elastic.link.wire import Message, encode, receive
from elastic.node.agent import Agent
from elastic.node.hang_detection import HangDetector, Vitals
from elastic.node.machine import MemoryKills
from elastic.node.process import NodeProcess
from elastic.worker.driver_link import new_page, read_page

_WARM_S = 2.0
_REJOIN_S = 0.05
_NODE_PID, _FIRST_WORKER_PID = 2, 1000
_NO_GROUPS = Path("/nowhere")
"""No process here is ended for want of memory."""


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
        self._page = new_page()
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
            self._worker.leave()

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
        rc, (step, at_s) = worker.process.rc, read_page(self._page)
        if rc == 0:
            self._send({"op": "done", "step": step})
            return not is_told
        if not is_told:
            if rc == -signal.SIGKILL:
                self._machine.training.fails(self._machine.pilot.lease)
            self._send({"op": "exit", "local_rank": 0, "rc": rc, "step": step, "at_s": at_s})
        worker.leave(is_stopped=is_told)
        worker.process.kill()
        await asyncio.sleep(_REJOIN_S if worker.process.dead else KILLED_S)
        return False

    def _fork(self, about: Message) -> Worker:
        machine, pid = self._machine, _FIRST_WORKER_PID + int(about["generation"])
        machine.job.worker = process = Process(f"worker {machine.job.node}", machine.job.node, pid=pid)
        process.print = lambda text: self.output.feed_data(f"{text}\n".encode())
        self._worker = worker = Worker(machine.training, machine.pilot, machine.secret, about, process, self._page)
        machine.fork(process, pid, self.pid)
        worker.start()
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
