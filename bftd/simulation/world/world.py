"""A whole site in one process: a daemon, drivers and a queue of regular jobs, for some hours, from a seed.

The same seed and settings give the same log, byte for byte.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from unittest import mock

import milp
from bftd.config.keys import Config
from bftd.simulation.slurm.model import SimulatedJob
from bftd.simulation.world.checks import Checks, Violation
from bftd.simulation.world.cluster import SimulatedCluster
from bftd.simulation.world.faults import Fault, Solver, drawn, strike
from bftd.simulation.world.loop import BEGIN_S, Process, simulated
from bftd.simulation.world.network import NetworkLoop
from bftd.simulation.world.programs import HOST, SimulatedDaemon, SimulatedDriver, TrainerOrder
from bftd.simulation.world.scripts import Training
from bftd.simulation.world.workloads import WORKLOADS

_MEMORY = "/dev/shm"
_HOUR_S = 3600.0
_FIRST_TRAINER = 9_000_001
_FIRST_UID = 70_001
_LOOK_S = 10.0
_MOST_NODES = 64
EVENTS_BETWEEN = 1024
"""Whether there is enough is asked after so many events."""

_END_WITHIN_S = 2 * _HOUR_S
_JOBS_END_WITHIN_S = 72 * _HOUR_S
_GONE_WITHIN_S = 240.0
_KILL_WAIT_S = 30.0
_SRUN_S = 0.015


@dataclass(frozen=True)
class WorldSettings:
    """A world: its seed, nodes, trainers, and the hours for which regular jobs come.

    Each trainer's script has `steps` steps, of `step_s` seconds on one node. `faults` are kinds of `faults.KINDS` that
    strike in these hours, each `apart_s` apart on average; with a `history`, those of it strike in place of drawn ones.
    `workload` names the regular jobs, of which only those numbered `jobs` come, if given. `chance` numbers the courses
    that delays and the like may take with all that.
    """

    seed: int
    hours: float = 1.0
    nodes: int = 8
    trainers: int = 2
    steps: int = 2000
    step_s: float = 8.0
    faults: tuple[str, ...] = ()
    apart_s: float = 300.0
    workload: str = "steady"
    history: tuple[Fault, ...] | None = None
    jobs: tuple[int, ...] | None = None
    chance: int = 0

    def all_faults(self) -> tuple[Fault, ...]:
        """Return the faults that strike."""
        if self.history is not None:
            return self.history
        return drawn(self.faults, self.apart_s, self.hours * _HOUR_S, f"{self.seed} faults")

    def all_jobs(self) -> list[SimulatedJob]:
        """Return the regular jobs that come."""
        jobs = WORKLOADS[self.workload](Random(f"{self.seed} jobs"), self.nodes, self.hours)
        return jobs if self.jobs is None else [job for job in jobs if job.number in self.jobs]


class Stopped(Exception):
    """Whoever runs the world has had enough of it."""


@dataclass
class WorldResult:
    """The course of a world: its log, and the rule that broke, "" if all held or the world was `stopped` before."""

    log: list[str] = field(default_factory=list)
    events: int = 0
    simulated_s: float = 0.0
    violation: str = ""
    stopped: bool = False
    struck: list[str] = field(default_factory=list)
    """The kinds of the faults that struck, in order."""

    @property
    def rule(self) -> str:
        """The name of the rule that broke: what the violation says first, without numbers."""
        return re.sub(r"\b\d[\d.]*(, \d[\d.]*)*", "N", self.violation.partition(": ")[0])

    @property
    def digest(self) -> str:
        """The SHA-256 of the log."""
        return hashlib.sha256("\n".join(self.log).encode()).hexdigest()


def run(settings: WorldSettings, enough: Callable[[], bool] = lambda: False) -> WorldResult:
    """Run a world to its end, to the first rule that breaks, or until there is `enough`, which is asked now and then.

    Code that raises what it should not breaks a rule, too.
    """
    result = WorldResult()
    loop = NetworkLoop(Random(f"{settings.seed} chance {settings.chance}"))

    def log(who: str, text: str) -> None:
        result.log.append(f"{loop.wall() - BEGIN_S:012.6f} {who}: {text}")

    solver = Solver()
    memory = _MEMORY if os.path.isdir(_MEMORY) else None  # nothing here has to survive this process
    with (
        tempfile.TemporaryDirectory(prefix="bft-world-", dir=memory) as folder,
        simulated(loop),
        _daemon_log(log),
        mock.patch.object(milp, "solve", solver),
    ):
        world = _World(loop, settings, Path(folder), log, result.struck, enough, solver)
        try:
            loop.run_until_complete(world.live())
        except Violation as violation:
            result.violation = str(violation)
            log("world", result.violation)
        except Stopped:
            result.stopped = True
        except Exception as error:
            result.violation = f"crash in {_place(error)}: {type(error).__name__}: {error}"
            log("world", "".join(traceback.format_exception(error)))
        result.events, result.simulated_s = loop.events, loop.wall() - BEGIN_S
        world.end()
        loop.shut()
    return result


def _place(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).stem}.{last.name}"


class _World:
    def __init__(
        self,
        loop: NetworkLoop,
        settings: WorldSettings,
        folder: Path,
        log: Callable[[str, str], None],
        struck: list[str],
        enough: Callable[[], bool],
        solver: Solver,
    ) -> None:
        self.struck = struck
        self._solver = solver
        self._enough = enough
        self._loop = loop
        self._settings = settings
        self._folder = folder
        self.log = log
        self.network = loop.network
        self.host = HOST
        self._orders = [self._order(number) for number in range(settings.trainers)]
        self._drivers: dict[str, SimulatedDriver] = {}
        self._daemon: SimulatedDaemon | None = None
        self._cluster: SimulatedCluster

    async def live(self) -> None:
        """Go through the hours, and then wait for every trainer's end."""
        loop, settings = self._loop, self._settings
        self._cluster = SimulatedCluster(
            loop, settings.nodes, settings.all_jobs(), lambda text: self.log("slurm", text)
        )
        daemon, drivers = (lambda: self._daemon), self._drivers
        self._checks = Checks(loop, self.network, self._cluster, self._orders, drivers, daemon, self.struck)
        loop.after_event = self._look
        self._start_daemon()
        for order in self._orders:
            self._start_driver(order)
        striking = asyncio.create_task(strike(self, settings.all_faults()))
        striking.add_done_callback(self._failed)
        await asyncio.sleep(settings.hours * _HOUR_S)
        striking.cancel()
        await asyncio.wait({striking})  # each fault mends what it has broken
        await self._recover()
        ends_s, jobs_end_s = loop.time() + _END_WITHIN_S, loop.time() + _JOBS_END_WITHIN_S
        while left := [order.job_id for order in self._orders if self._outcome(order) is None]:
            if self._cluster.has_jobs and loop.time() < jobs_end_s:
                ends_s, jobs_end_s = loop.time() + _END_WITHIN_S, loop.time() + _JOBS_END_WITHIN_S
            if loop.time() > ends_s:
                raise Violation(f"trainers {', '.join(left)} have not ended {_END_WITHIN_S:.0f} s after the last job")
            await asyncio.sleep(_LOOK_S)
        await asyncio.sleep(_GONE_WITHIN_S)
        self._log_ends()
        self._checks.look_at_ends(self._folder)

    def _look(self) -> None:
        self._checks.look()
        if not self._loop.events % EVENTS_BETWEEN and self._enough():
            raise Stopped

    async def _recover(self) -> None:
        """Mend what is broken: from now on nothing hinders the trainers."""
        self.network.slow = 1.0
        self._cluster.recover()
        self.network.cuts.clear()
        if self._daemon is None:
            self._start_daemon()
        for order in self._orders:
            if order.job_id not in self._drivers:
                self._start_driver(order)

    # -- what faults do; see faults.Site ---

    async def restart_daemon(self, after_s: float) -> None:
        """See faults.Site."""
        assert self._daemon is not None
        self.log("fault", f"bftd is killed, for {after_s:.1f} s")
        self._daemon.process.kill()
        self._daemon = None
        await asyncio.sleep(after_s)
        self._start_daemon()

    async def restart_driver(self, random: Random, after_s: float) -> None:
        """See faults.Site."""
        alive = self._with_driver()
        if not alive:
            return
        order = random.choice(alive)
        self.log("fault", f"driver {order.job_id} is killed, for {after_s:.1f} s")
        self._drivers.pop(order.job_id).process.kill()
        del self._cluster.drivers[order.job_id]
        await asyncio.sleep(after_s)
        self._start_driver(order)

    def _with_driver(self) -> list[TrainerOrder]:
        alive = {id_ for id_, driver in self._drivers.items() if not driver.process.dead}
        return [order for order in self._orders if order.job_id in alive]

    async def cancel_driver(self, random: Random, requeue_after_s: float | None) -> None:
        """See faults.SlurmSite."""
        alive = self._with_driver()
        if not alive:
            return
        order = random.choice(alive)
        driver = self._drivers[order.job_id]
        self.log("fault", f"driver {order.job_id} is cancelled{' and requeued' if requeue_after_s is not None else ''}")
        if requeue_after_s is None:
            self._checks.cancelled.add(order.job_id)
        else:
            del self._drivers[order.job_id]
        driver.process.go_on()
        if driver.trainer is None:
            driver.process.kill()
        else:
            driver.process.run(driver.trainer.run.cancel)
        for pilot in self._cluster.pilots.values():
            if pilot.user == str(order.uid) and pilot.step is not None:
                self._loop.later(_SRUN_S, pilot.step.kill)  # its srun, a step of the driver's job, ends it
        ends_s = self._loop.time() + _KILL_WAIT_S
        try:
            while not driver.process.dead and self._loop.time() < ends_s:
                await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            driver.process.kill()
            raise
        driver.process.kill()
        driver.outcome = driver.outcome or (137, "killed")
        self._cluster.drivers.pop(order.job_id, None)
        if requeue_after_s is not None:
            await asyncio.sleep(requeue_after_s)
            self._start_driver(order)

    async def no_answers(self, for_s: float) -> None:
        """See faults.Site."""
        self.log("fault", f"slurmctld answers nothing for {for_s:.1f} s")
        self._cluster.away = True
        await asyncio.sleep(for_s)
        self._cluster.come_back()

    async def cut_off_node(self, random: Random, for_s: float) -> None:
        """See faults.Site."""
        node = random.choice(self._cluster.nodes)
        self.log("fault", f"{node} is cut off for {for_s:.1f} s")
        cut = frozenset({node, HOST})
        self.network.cuts.add(cut)
        await asyncio.sleep(for_s)
        self.network.cuts.discard(cut)

    def kill_agent(self, random: Random) -> None:
        """See faults.Site."""
        self._kill_one(random, self.processes("agent"))

    def kill_worker(self, random: Random) -> None:
        """See faults.Site."""
        self._kill_one(random, self.processes("worker"))

    def processes(self, kind: str) -> list[Process]:
        """See faults.Site."""
        pilots = self._cluster.pilots.values()
        found: dict[str, Iterable[Process | None]] = {
            "daemon": [self._daemon.process if self._daemon is not None else None],
            "driver": [driver.process for driver in self._drivers.values() if driver.outcome is None],
            "agent": [pilot.step for pilot in pilots],
            "worker": [pilot.worker for pilot in pilots],
        }
        return [process for process in found[kind] if process is not None and not process.dead]

    @property
    def cluster(self) -> SimulatedCluster:
        """See faults.Site."""
        return self._cluster

    async def break_solver(self, for_s: float, random: Random) -> None:
        """See faults.Site."""
        self.log("fault", f"the solver fails for {for_s:.1f} s")
        self._solver.fails = random
        try:
            await asyncio.sleep(for_s)
        finally:
            self._solver.fails = None

    def break_script(self, random: Random) -> None:
        """See faults.Site."""
        running = [order for order in self._orders if order.training.can_fail]
        if running:
            order = random.choice(running)
            self.log("fault", f"the script of {order.job_id} gets a fault: {order.training.give_fault(random)}")

    def _kill_one(self, random: Random, processes: Sequence[Process]) -> None:
        if processes:
            process = random.choice(processes)
            self.log("fault", f"{process.name} is killed")
            process.kill()

    def end(self) -> None:
        """End every process."""
        for driver in self._drivers.values():
            driver.process.kill()
        if self._daemon is not None:
            self._daemon.process.kill()

    def _outcome(self, order: TrainerOrder) -> tuple[int, str] | None:
        driver = self._drivers.get(order.job_id)
        return None if driver is None else driver.outcome

    def _start_daemon(self) -> None:
        self.log("world", "bftd starts")
        self._daemon = SimulatedDaemon(self._loop, self._cluster, self._folder, Config())
        self._daemon.task.add_done_callback(self._failed)

    def _start_driver(self, order: TrainerOrder) -> None:
        name = f"driver {order.job_id}"
        self._cluster.drivers[order.job_id] = str(order.uid)
        self.log("world", f"{name} starts")

        def log(text: str) -> None:
            self.log(name, text)
            self._checks.heard(text)

        driver = SimulatedDriver(self._loop, self._cluster, self._folder, order, log)
        driver.task.add_done_callback(lambda task: self._driver_over(order, task))
        self._drivers[order.job_id] = driver

    def _driver_over(self, order: TrainerOrder, task: asyncio.Task[None]) -> None:
        self._failed(task)
        self._cluster.drivers.pop(order.job_id, None)

    def _failed(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    def _log_ends(self) -> None:
        for order in self._orders:
            training, step = order.training, self._checks.counted.get(order.job_id, (0, 0.0))[0]
            outcome = self._outcome(order)
            self.log("world", f"{order.job_id} {outcome}, {training.highest} steps in {training.executed}, {step}")

    def _order(self, number: int) -> TrainerOrder:
        settings, random = self._settings, Random(f"{self._settings.seed} trainer {number}")
        training = Training(settings.steps, settings.step_s, random, ends_at_notice=random.random() < 1 / 3)
        most = random.randint(2, max(2, min(_MOST_NODES, settings.nodes)))
        spec = f"{random.randint(1, min(2, most))}-{most}"
        return TrainerOrder(str(_FIRST_TRAINER + number), _FIRST_UID + number, spec, training)


class _Handler(logging.Handler):
    def __init__(self, log: Callable[[str, str], None]) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log("bftd", f"{record.levelname} {record.getMessage()}")


@contextmanager
def _daemon_log(log: Callable[[str, str], None]) -> Iterator[None]:
    logger, handler = logging.getLogger("bftd"), _Handler(log)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
