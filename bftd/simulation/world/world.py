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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from bftd.simulation.slurm.model import SimulatedJob
from bftd.simulation.world.checks import Checks
from bftd.simulation.world.cluster import SimulatedCluster
from bftd.simulation.world.faults.kinds import Fault, drawn, strike
from bftd.simulation.world.machine.disk import simulated_files
from bftd.simulation.world.machine.loop import BEGIN_S, simulated
from bftd.simulation.world.machine.processes import process_or_none
from bftd.simulation.world.machine.sockets import NetworkLoop
from bftd.simulation.world.machine.sqlite_files import simulated_sqlite
from bftd.simulation.world.programs import TrainerOrder
from bftd.simulation.world.rules import Violation
from bftd.simulation.world.scripts import Training
from bftd.simulation.world.site import RunningSite
from bftd.simulation.world.training import simulated_workers
from bftd.simulation.world.workloads import WORKLOADS

_MEMORY = "/dev/shm"
_FOLDER = "/world"
"""The name in the log of the folder with all files."""

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

    @property
    def ends_within_s(self) -> float:
        """The time after the last job within which every trainer ends."""
        alone_s = self.steps * self.step_s
        return _END_WITHIN_S + alone_s / 2 + 2 * self.trainers * alone_s / self.nodes

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
    memory = _MEMORY if os.path.isdir(_MEMORY) else None  # nothing here has to survive this process
    with tempfile.TemporaryDirectory(prefix="bft-world-", dir=memory) as folder:

        def log(who: str, text: str) -> None:
            result.log.append(f"{loop.wall() - BEGIN_S:012.6f} {who}: {text.replace(folder, _FOLDER)}")

        with _simulated(loop, log):
            _live(_World(loop, settings, Path(folder), log, result.struck, enough), loop, log, result)
    return result


def _live(world: _World, loop: NetworkLoop, log: Callable[[str, str], None], result: WorldResult) -> None:
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
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._folder = folder
        self._log = log
        self._enough = enough
        orders = [self._order(number) for number in range(settings.trainers)]
        cluster = SimulatedCluster(loop, settings.nodes, settings.all_jobs(), lambda text: log("slurm", text))
        self._site = RunningSite(loop, cluster, folder, orders, log, struck)
        self._checks = self._site.checks = Checks(loop, loop.network, cluster, orders, self._site)

    async def live(self) -> None:
        """Go through the hours, and then wait for every trainer's end."""
        loop, settings, site = self._loop, self._settings, self._site
        loop.after_event = self._look
        site.start()
        striking = asyncio.create_task(strike(site, settings.all_faults()))
        striking.add_done_callback(site.failed)
        await asyncio.sleep(settings.hours * _HOUR_S)
        striking.cancel()
        await asyncio.wait({striking})  # each fault mends what it has broken
        site.recover()
        ends_s, jobs_end_s = loop.time() + settings.ends_within_s, loop.time() + _JOBS_END_WITHIN_S
        while left := [order.job_id for order in site.orders if site.outcome(order) is None]:
            if site.cluster.has_jobs and loop.time() < jobs_end_s:
                ends_s, jobs_end_s = loop.time() + settings.ends_within_s, loop.time() + _JOBS_END_WITHIN_S
            if loop.time() > ends_s:
                raise Violation(
                    f"trainers {', '.join(left)} have not ended {settings.ends_within_s:.0f} s after the last job"
                )
            await asyncio.sleep(_LOOK_S)
        await asyncio.sleep(_GONE_WITHIN_S)
        self._log_ends()
        self._checks.look_at_ends(self._folder)

    def _look(self) -> None:
        self._checks.look()
        if not self._loop.events % EVENTS_BETWEEN and self._enough():
            raise Stopped

    def end(self) -> None:
        """End every process."""
        self._site.end()

    def _log_ends(self) -> None:
        for order in self._site.orders:
            training, step = order.training, self._checks.counted.get(order.job_id, (0, 0.0))[0]
            outcome = self._site.outcome(order)
            self._log("world", f"{order.job_id} {outcome}, {training.highest} steps in {training.executed}, {step}")

    def _order(self, number: int) -> TrainerOrder:
        settings, random = self._settings, Random(f"{self._settings.seed} trainer {number}")
        training = Training(settings.steps, settings.step_s, random, ends_at_notice=random.random() < 1 / 3)
        most = random.randint(min(2, settings.nodes), min(_MOST_NODES, settings.nodes))
        spec = f"{random.randint(1, min(2, most))}-{most}"
        return TrainerOrder(str(_FIRST_TRAINER + number), _FIRST_UID + number, spec, training)


class _Handler(logging.Handler):
    def __init__(self, log: Callable[[str, str], None]) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        if (process := process_or_none()) is not None and process.dead:
            return
        self._log("bftd", f"{record.levelname} {record.getMessage()}")


@contextmanager
def _simulated(loop: NetworkLoop, log: Callable[[str, str], None]) -> Iterator[None]:
    with simulated(loop), simulated_files(), simulated_sqlite(), simulated_workers(), _daemon_log(log):
        yield


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
