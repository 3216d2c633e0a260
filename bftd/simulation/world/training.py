"""Simulated training: workers with a real link to a real driver, that only count steps.

A worker is the process that `elastic.node.workers` makes, with the script in its main thread. What a script does, and
whatever it comes to, is in `bftd.simulation.world.scripts`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from mmap import mmap
from typing import Any, BinaryIO, cast
from unittest import mock

from bftd.simulation.world.machine.fibers import Fiber
from bftd.simulation.world.machine.loop import SimulatedLoop
from bftd.simulation.world.machine.processes import Killed, Process, current_process, exit_here
from bftd.simulation.world.scripts import BATCH, ScriptError, Training, content_of
from elastic.base.errors import EXIT_LINK_LOST, ElasticError, LinkLostError, WireError
from elastic.base.timing import LEAVE_S
from elastic.driver.pilots.launcher import Pilot
from elastic.link import bulk
from elastic.link.wire import Message
from elastic.worker import driver_link, upload
from elastic.worker.driver_link import DriverLink, PendingCheckpoint

_FORK_S = 0.3
_WRITE_S = 1.0
"""Checkpoints take up to this long to be written out, as large ones do."""

_PIECE_BYTES = 640
"""The pieces of checkpoints, which are some of these long."""


@contextlib.contextmanager
def simulated_workers() -> Iterator[None]:
    """Have workers end, print and send as simulated processes do."""
    with (
        mock.patch.object(driver_link, "_exit", exit_here),
        mock.patch.object(driver_link, "_print", lambda text: current_process().print(f"bft: {text}")),
        mock.patch.object(upload, "_yield_to_others"),
        mock.patch.object(bulk, "CHUNK_BYTES", _PIECE_BYTES),
    ):
        yield


class Worker:
    """A worker of torchrun's: `elastic.load`, and then `elastic.step` once a step; saves when bftd asks for it."""

    def __init__(
        self,
        training: Training,
        pilot: Pilot,
        secret: str,
        about: Message,
        process: Process,
        page: mmap,
    ) -> None:
        """`page` takes its last step."""
        self.process = process
        self.process.at_sigterm = self._notice
        self._page = page
        self.over = asyncio.Event()
        self.process.on_kill.append(self.over.set)
        self._training = training
        self._lease = pilot.lease
        self._rank, self._world = int(about["first_rank"]), int(about["world"])
        self._group = training.group(secret, int(about["generation"]), self._world)
        self.process.on_kill.append(self.leave)
        self._environ = {
            "BFT_DRIVER": pilot.driver,
            "BFT_SECRET": secret,
            "BFT_LEASE": pilot.lease,
            "BFT_INCARNATION": str(pilot.incarnation),
            "BFT_LOCAL_RANK": "0",
            "BFT_GENERATION": str(about["generation"]),
        }
        self._main: Fiber
        self._has_handler = False

    def start(self) -> None:
        """Begin."""
        loop = cast(SimulatedLoop, asyncio.get_running_loop())
        self._main = self.process.run(loop.fiber, self._run)
        self.process.run(loop.call_soon, self._main.resume)

    def leave(self, *, is_stopped: bool = False) -> None:
        """Note that the worker leaves its group; `is_stopped`: its driver has stopped it."""
        self._group.left(self._rank, is_stopped=is_stopped)

    def _notice(self) -> None:
        """Handle Slurm's notice, which a worker ignores unless its script has a handler for it."""
        if self._has_handler:
            asyncio.get_running_loop().call_later(self._training.random.uniform(0.0, LEAVE_S), self._end_script)

    def _end_script(self) -> None:
        if not self._main.over:
            self._main.interrupt(SystemExit(0))

    def _run(self) -> None:
        """Do as `elastic.node.workers` does in a fork."""
        time.sleep(_FORK_S)
        try:
            session = DriverLink.connect(self._environ, self._page)
        except (OSError, WireError):
            exit_here(EXIT_LINK_LOST)
        try:
            exit_here(self._trained(session))
        except SystemExit:  # the script's handler is still there when the script is over
            exit_here(1)

    def _trained(self, session: DriverLink) -> int:
        code, well = 0, False
        self._has_handler = self._training.ends_at_notice
        try:
            self._train(session)
            well = True
        except SystemExit:
            pass
        except (ScriptError, ElasticError) as error:
            code = 1
            if not isinstance(error, (ScriptError, LinkLostError)):
                self._training.fails(self._lease)
            session.failed(str(error))
        code = session.ended(code)
        if well:
            self._group.ended_well(self._rank)
        return code

    # -- the script ---

    def _train(self, session: DriverLink) -> None:
        step = self._loaded(session)
        group, barrier, training = self._group, session.step_barrier, self._training
        number, total = 0, training.total_steps
        while step < total:
            step, number = step + 1, number + 1
            group.step(number, step)
            session.set_total(total)
            session.step(step, step * BATCH, self._rank, self._world, None, nodes=self._world)
            barrier.by_clock, barrier.size = True, self._world
            request = barrier.passed(step, time.monotonic())
            group.saves(step, request is not None)
            if request is not None:
                self._save(session, step, pause=request.pause)
            if fault := training.fault_of(self._rank, self._world, step):
                self._fail(fault)
        if self._rank == 0:
            self._save(session, total, pause=False)

    def _loaded(self, session: DriverLink) -> int:
        """Return the step of the checkpoint."""
        download = session.download_checkpoint()
        if download.file is None:
            return self._training.loaded(b"")
        with download.file as file:
            return self._training.loaded(file.read())

    def _save(self, session: DriverLink, step: int, *, pause: bool) -> None:
        if self._rank == 0:
            self._training.saves(step)
            state = _State(content_of(step), self._training.random.uniform(0.0, _WRITE_S))
            kept = lambda: self._training.kept(step)  # noqa: E731
            session.commit(PendingCheckpoint(step, step * BATCH, state.write, state.release, kept=kept))
            if pause:
                session.rest()
            session.upload_soon()
        session.step_barrier.saved(time.monotonic())

    def _fail(self, how: str) -> None:
        if how == "killed":
            self.process.kill_here()
            raise Killed
        if how == "stopped":
            self.process.stop()
            time.sleep(0.0)
            return  # it has been told to go on
        self._training.fails(self._lease)
        if how == "early":
            raise SystemExit(0)
        raise ScriptError("ValueError: a batch of another shape")


class _State:
    """A copy of what a script has saved; its memory has something else once it is released."""

    def __init__(self, content: bytes, write_s: float) -> None:
        self._content = content
        self._write_s = write_s

    def write(self, file: BinaryIO) -> None:
        """Write it."""
        file.write(self._content[:8])
        time.sleep(self._write_s)
        file.write(self._content[8:])

    def release(self) -> None:
        """Use its memory again."""
        self._content = bytes(len(self._content))


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
