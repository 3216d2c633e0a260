"""The running programs of a simulated world with their hosts, and what faults do to them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import inf
from pathlib import Path
from random import Random

from bftd.config.keys import Config
from bftd.simulation.world.checks import Checks
from bftd.simulation.world.cluster import SimulatedCluster
from bftd.simulation.world.faults.kinds import Solver
from bftd.simulation.world.faults.wire import Mail
from bftd.simulation.world.machine.disk import DISKS, HOME, LEDGER, Disk
from bftd.simulation.world.machine.processes import Killed, Process
from bftd.simulation.world.machine.sockets import NetworkLoop
from bftd.simulation.world.programs import HOST, SimulatedDaemon, SimulatedDriver, TrainerOrder
from bftd.simulation.world.rules import Violation

_SYSTEMD_S = 5.0
_FLUSHED_S = 10.0
"""A step that the ledger has taken this long ago is on the disk: SQLite's log is written back every few seconds."""

_SETTLED_S = 60.0
"""Delays by a disk, a clock or a lost answer are made up for within this time."""

_KILL_WAIT_S = 30.0
_SRUN_S = 0.015


class RunningSite:
    """The programs of a world and what they run on, as faults strike them; see `faults.Site`."""

    checks: Checks

    def __init__(
        self,
        loop: NetworkLoop,
        cluster: SimulatedCluster,
        folder: Path,
        orders: Sequence[TrainerOrder],
        log: Callable[[str, str], None],
        struck: list[str],
    ) -> None:
        """The caller sets `checks`, which look at this site, before anything starts."""
        self.cluster = cluster
        self.orders = orders
        self.drivers: dict[str, SimulatedDriver] = {}
        self.struck = struck
        self.log = log
        self.network = loop.network
        self.clocks = loop.clocks
        self.host = HOST
        random = Random(loop.random.getrandbits(64))
        self.disks = {name: Disk(Random(random.getrandbits(64))) for name in DISKS}
        self.mail = Mail(Random(random.getrandbits(64)))
        self.older_drivers = False
        self._restarts: Counter[str] = Counter()
        self._loop = loop
        self._folder = folder
        self._solver = Solver()
        self._daemon: SimulatedDaemon | None = None
        self._ended_s = self._unsound_s = -inf

    @property
    def daemon(self) -> SimulatedDaemon | None:
        """The daemon, if it runs."""
        return None if self._daemon is None or self._daemon.process.dead else self._daemon

    def is_sound(self) -> bool:
        """Whether no host hinders its programs, and none has for a while."""
        disks = any(disk.in_trouble or disk.slow != 1.0 or disk.kill_in is not None for disk in self.disks.values())
        if disks or self.clocks or self.mail.lost or self.mail.doubled:
            self._unsound_s = self._loop.time()
        return self._loop.time() - self._unsound_s > _SETTLED_S

    # -- starts and ends ---

    def start(self) -> None:
        """Start the daemon and all drivers."""
        self._start_daemon()
        for order in self.orders:
            self._start_driver(order)

    def recover(self) -> None:
        """Mend what is broken: from now on nothing hinders the trainers."""
        self.network.slow, self.network.harm = 1.0, None
        self.cluster.recover()
        self.network.cuts.clear()
        self.mail.lost = self.mail.doubled = 0.0
        self.clocks.clear()
        for disk in self.disks.values():
            disk.recover()
        if self.daemon is None:
            self._start_daemon()
        for order in self.orders:
            driver = self.drivers.get(order.job_id)
            if driver is None or self._has_failed(driver):
                self._start_driver(order)

    def end(self) -> None:
        """End every process."""
        for driver in self.drivers.values():
            driver.process.kill()
        if self._daemon is not None:
            self._daemon.process.kill()
        for disk in self.disks.values():
            disk.close()

    def outcome(self, order: TrainerOrder) -> tuple[int, str] | None:
        """Return the exit code and the reason of a trainer's end."""
        driver = self.drivers.get(order.job_id)
        return None if driver is None else driver.outcome

    def _start_daemon(self) -> None:
        self.log("world", "bftd starts")
        self._daemon = daemon = SimulatedDaemon(
            self._loop, self.cluster, self._folder, Config(), self.disks[LEDGER], solve=self._solver
        )
        daemon.process.on_kill.append(lambda: self._killed(daemon))
        daemon.task.add_done_callback(self.failed)
        daemon.task.add_done_callback(lambda _: self._refused(daemon))

    def _killed(self, daemon: SimulatedDaemon) -> None:
        if daemon.service is not None and daemon.service._unwritten:
            self.checks.loses_the_newest()  # it went on without its ledger

    def _refused(self, daemon: SimulatedDaemon) -> None:
        """Start a daemon that has refused to start again, as systemd does."""
        if daemon.refusal and daemon is self._daemon:
            self.log("world", f"bftd: {daemon.refusal}")
            if not self.disks[LEDGER].in_trouble:
                raise Violation(f"ledger: bftd does not start on a sound disk: {daemon.refusal}")
            self._loop.later(_SYSTEMD_S, self._start_again, daemon)

    def _start_again(self, refused: SimulatedDaemon) -> None:
        if refused is self._daemon:
            self._start_daemon()

    def _start_driver(self, order: TrainerOrder) -> None:
        name = f"driver {order.job_id}"
        self.cluster.drivers[order.job_id] = str(order.uid)
        self.log("world", f"{name} starts")

        def log(text: str) -> None:
            self.log(name, text)
            self.checks.heard(text)

        driver = SimulatedDriver(
            *(self._loop, self.cluster, self._folder, order, log, self.disks[HOME], self.mail),
            older=self.older_drivers,
            restarts=self._restarts[order.job_id],
        )
        self._restarts[order.job_id] += 1
        driver.task.add_done_callback(lambda task: self._driver_over(driver, task))
        self.drivers[order.job_id] = driver

    def _driver_over(self, driver: SimulatedDriver, task: asyncio.Task[None]) -> None:
        self.failed(task)
        self._ended_s = self._loop.time()
        if self.drivers.get(driver.order.job_id) in (driver, None):
            self.cluster.drivers.pop(driver.order.job_id, None)

    def failed(self, task: asyncio.Task[None]) -> None:
        """Raise what a task has raised."""
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, Killed):
            raise error

    def _has_failed(self, driver: SimulatedDriver) -> bool:
        """Whether a driver was killed by its disk, or has ended because of it: its user submits it again."""
        if driver.order.job_id in self.checks.cancelled:
            return False
        if driver.outcome is None:
            return driver.process.dead
        code, reason = driver.outcome
        unreadable = "checkpoint" in reason or ("exit code 1" in reason and not driver.order.training.faults)
        return code != 0 and self.disks[HOME].errors > 0 and unreadable

    # -- what faults do; see faults.Site ---

    async def restart_daemon(self, after_s: float) -> None:
        """See faults.Site."""
        daemon = self._daemon
        if daemon is None:
            return  # it is being restarted
        self.log("fault", f"bftd is killed, for {after_s:.1f} s")
        daemon.process.kill()
        self._daemon = None
        await asyncio.sleep(after_s)
        self._start_daemon()

    async def restart_driver(self, random: Random, after_s: float) -> None:
        """See faults.Site."""
        if alive := self._with_driver():
            await self._restart_driver(random.choice(alive), after_s)

    async def _restart_driver(self, order: TrainerOrder, after_s: float) -> None:
        driver = self.drivers.pop(order.job_id, None)
        if driver is None:
            return  # it is being restarted
        self.log("fault", f"driver {order.job_id} is killed, for {after_s:.1f} s")
        driver.process.kill()
        self.cluster.drivers.pop(order.job_id, None)
        await asyncio.sleep(after_s)
        self._start_driver(order)

    def _with_driver(self) -> list[TrainerOrder]:
        alive = {id_ for id_, driver in self.drivers.items() if not driver.process.dead}
        return [order for order in self.orders if order.job_id in alive]

    async def cancel_driver(self, random: Random, requeue_after_s: float | None) -> None:
        """See faults.SlurmSite."""
        alive = self._with_driver()
        if not alive:
            return
        order = random.choice(alive)
        driver = self.drivers[order.job_id]
        self.log("fault", f"driver {order.job_id} is cancelled{' and requeued' if requeue_after_s is not None else ''}")
        if requeue_after_s is None:
            self.checks.cancelled.add(order.job_id)
        else:
            del self.drivers[order.job_id]
        driver.process.go_on()
        if driver.trainer is None:
            driver.process.kill()
        else:
            driver.process.run(driver.trainer.run.cancel)
        for pilot in self.cluster.pilots.values():
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
        self.cluster.drivers.pop(order.job_id, None)
        if requeue_after_s is not None:
            await asyncio.sleep(requeue_after_s)
            self._start_driver(order)

    async def restart_fallen(self, after_s: float) -> None:
        """See host_faults.Host."""
        fallen = [order for order in self.orders if (one := self.drivers.get(order.job_id)) and self._has_failed(one)]
        works = [self._restart_driver(order, after_s) for order in fallen]
        if self._daemon is not None and self._daemon.process.dead and not self._daemon.refusal:
            self.checks.daemon_died_writing()
            works.append(self.restart_daemon(after_s))
        await asyncio.gather(*works)

    async def lose_power(self, disk: str, after_s: float) -> None:
        """See host_faults.Host."""
        while self._loop.time() - self._ended_s < _FLUSHED_S:
            await asyncio.sleep(1.0)
        self.log("fault", f"the host of {disk} loses its power, for {after_s:.1f} s")
        if disk == LEDGER:
            works = [self.restart_daemon(after_s)]
            self.checks.loses_the_newest()
        else:
            trains = [order for order in self.orders if order.job_id not in self.checks.cancelled]
            trains = [order for order in trains if order.job_id in self.drivers and self.outcome(order) is None]
            works = [self._restart_driver(order, after_s) for order in trains]
        tasks = [asyncio.create_task(work) for work in works]
        await asyncio.sleep(0)
        self.disks[disk].lose_power()
        await asyncio.gather(*tasks)

    def start_second_daemon(self, folder: str, host: str) -> SimulatedDaemon:
        """See host_faults.Host."""
        path = self._folder / folder
        path.mkdir(exist_ok=True)
        self.log("fault", f"a second bftd starts on {host}, with its ledger in {folder or 'the same folder'}")
        daemon = SimulatedDaemon(self._loop, self.cluster, path, Config(), None, host)
        daemon.task.add_done_callback(self.failed)
        return daemon

    async def no_answers(self, for_s: float) -> None:
        """See faults.Site."""
        self.log("fault", f"slurmctld answers nothing for {for_s:.1f} s")
        self.cluster.away = True
        await asyncio.sleep(for_s)
        self.cluster.come_back()

    async def cut_off_node(self, random: Random, for_s: float) -> None:
        """See faults.Site."""
        node = random.choice(self.cluster.nodes)
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
        pilots = self.cluster.pilots.values()
        found: dict[str, Iterable[Process | None]] = {
            "daemon": [self._daemon.process if self._daemon is not None else None],
            "driver": [driver.process for driver in self.drivers.values() if driver.outcome is None],
            "agent": [pilot.step for pilot in pilots],
            "node process": [pilot.node_process for pilot in pilots],
            "worker": [pilot.worker for pilot in pilots],
        }
        return [process for process in found[kind] if process is not None and not process.dead]

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
        running = [order for order in self.orders if order.training.can_fail]
        if running:
            order = random.choice(running)
            self.log("fault", f"the script of {order.job_id} gets a fault: {order.training.give_fault(random)}")

    def _kill_one(self, random: Random, processes: Sequence[Process]) -> None:
        if processes:
            process = random.choice(processes)
            self.log("fault", f"{process.name} is killed")
            process.kill()
