"""The daemon: reads Slurm once a tick, feeds the core, serves the API, and behaves as systemd expects of a service."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import math
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

import milp
from bftd import __version__, config_file
from bftd.base import command
from bftd.base.errors import BftError, ConfigError, LedgerError, UsageError
from bftd.config import keys
from bftd.config.keys import Config
from bftd.core.model.events import Tick
from bftd.daemon import log_format, startup
from bftd.daemon.systemd import notify, watchdog_s
from bftd.http import api
from bftd.ledger.file import Ledger
from bftd.service import other_daemons
from bftd.service.alerts import hook
from bftd.service.alerts.notifier import AlertNotifier
from bftd.service.canceller import Canceller
from bftd.service.gc_schedule import Garbage, only_when_called
from bftd.service.metrics.counters import Counters
from bftd.service.service import Service
from bftd.shadow.read_only_client import ReadingClient
from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.clients.pyslurm_backend import PyslurmClient
from slurm_plugin.clients.visibility import Visibility
from slurm_plugin.errors import SlurmError, SnapshotError, UnknownPartition
from slurm_plugin.read.types import Snapshot
from slurm_plugin.site.preemption import Preemption

log = logging.getLogger("bftd")

# A controller whose answers take longer than a quarter of the tick is under load: reading it must not add to that.
SLOWNESS = 4.0
# This process must not take more than half of a core either, however large the cluster is.
_OWN_SLOWNESS = 2.0
LONGEST_DELAY_S = 30.0
# The loop tells systemd that it is alive, and checks the clock, at least this often.
_BEAT_S = 5.0
# The number of commands that one snapshot runs, including those run only now and then.
_COMMANDS = 7
# A start waits this long for Slurm to say whether the partition may be harvested, then goes on without harvesting.
_START_WAIT_S = 20.0
# --check-config tries the solver for this long: a licence server may take seconds to answer.
_TRY_S = 20.0
# A stop waits this long for a job that is being cancelled; systemd waits for 15 s in all.
_STOP_WAIT_S = 5.0
# Judging a snapshot takes a second at 10,000 nodes.
_JUDGES_MOST_S = 300.0


def next_delay_s(poll_s: float, took_s: float, failures: int, own_s: float = 0.0) -> float:
    """Return the delay to the next snapshot if Slurm took `took_s`, this process `own_s`, after `failures` (S8)."""
    delay_s = max(poll_s, SLOWNESS * took_s, _OWN_SLOWNESS * own_s) * 2.0 ** min(failures, 10)
    return max(poll_s, min(delay_s, LONGEST_DELAY_S))


def load(path: Path) -> Config:
    """Read the configuration."""
    return config_file.load(path, log.warning)  # before the log is set up, this prints a plain line on standard error


def ledger_path(settings: Config) -> Path:
    """Return the path of the ledger: shadow mode has one of its own beside the live one."""
    path = Path(settings.ledger.path)
    return path.with_name(f"{path.stem}.shadow{path.suffix}") if settings.daemon.mode == "shadow" else path


class Daemon:
    """One running daemon; `run` returns its exit code."""

    def __init__(self, settings: Config, path: Path | None = None) -> None:
        self._config = settings
        self._path = path
        conf = Path(settings.slurm.conf) if settings.slurm.conf else None
        self._shadow = settings.daemon.mode == "shadow"
        reading = PyslurmClient if settings.slurm.backend == "pyslurm" else SlurmClient
        client = ReadingClient if self._shadow else reading
        self._meters = Counters()
        self._client = client(conf, settings.slurm.timeout_s)
        self._client.watch = self._meters.slurm_called
        self._visibility = Visibility(self._client)
        self._preemption = None if self._shadow else Preemption(self._client, settings.slurm.harvested)
        # one thread reads and judges, another cancels: a slow snapshot must not delay a give-back
        self._reader = ThreadPoolExecutor(1, "snapshot")
        self._canceller = Canceller(lambda job_ids: self._client.cancel(job_ids, "KILL"))
        # bringing a large ledger of an older bftd up to date takes a while
        working = functools.partial(notify, "EXTEND_TIMEOUT_USEC=60000000")
        self._ledger = Ledger(ledger_path(settings), settings.daemon.mode, settings.ledger.max_bytes, working)
        self._garbage = Garbage()
        self._stop = asyncio.Event()
        self._complaint = ""
        self._unreadable: frozenset[str] = frozenset()
        self._claims: list[asyncio.AbstractServer] = []
        self._claimed = self._shadow
        self._late: asyncio.Future[Snapshot] | None = None
        self._judges_since_s = math.inf

    async def run(self) -> int:
        """Serve until SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        try:
            await self._check_partition()
            self._service = self._made_service()
            self._service.meters = self._meters
            self._service.private = self._visibility.keeps_jobs_private
            self._heed()
            runner = await api.listen(self._service, self._config.api)
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop.set)
            loop.add_signal_handler(signal.SIGHUP, self._reload)
            does = "watches" if self._shadow else "harvests"
            log.info("bftd %s %s %s, serving %s", __version__, does, self._service.partition, self._config.api.socket)
            notify("READY=1", f"STATUS={does} {self._service.partition}")
            beat = asyncio.create_task(self._beat())
            beat.add_done_callback(lambda _: self._stop.set())
            notifier = AlertNotifier(
                self._service, lambda: self._preemption.cluster.split(" ")[0] if self._preemption else ""
            )
            telling = asyncio.create_task(notifier.run())
            try:
                await self._poll()
                if beat.done():  # it ends only by failing
                    beat.result()
            finally:
                beat.cancel()
                telling.cancel()
                notify("STOPPING=1")
                notifier.stop()
                self._service.stop()
                await runner.cleanup()
                Path(self._config.api.socket).unlink(missing_ok=True)
        except sqlite3.Error as error:
            raise LedgerError(f"the ledger {self._ledger.path} failed: {error}") from None
        finally:
            self._reader.shutdown(wait=False, cancel_futures=True)
            self._canceller.stop(_STOP_WAIT_S)
            self._ledger.close()
            for claim in self._claims:
                claim.close()
        rest = "" if self._shadow else "; pilots that run go on until their driver ends them"
        log.info("bftd has stopped%s", rest)
        return 0

    def _made_service(self) -> Service:
        """Create the service for the configured mode."""
        if not isinstance(self._client, ReadingClient):
            return Service(self._config, self._ledger, self._canceller.ask, elapsed=time.monotonic)
        from bftd.shadow.service import ShadowService
        from bftd.shadow.trace_recorder import TraceRecorder

        log.info("shadow mode: nothing is submitted, lent or cancelled; the ledger is %s", self._ledger.path)
        client, trace = self._client, self._ledger.path.with_name("shadow-trace.csv.gz")
        recorder = TraceRecorder(trace, self._config)
        return ShadowService(self._config, self._ledger, lambda: client.calls, recorder, elapsed=time.monotonic)

    async def _poll(self) -> None:
        failures = 0
        while not self._stop.is_set():
            begun = time.monotonic()
            snapshot = await self._unless_stopped(self._read())
            if self._stop.is_set():
                return
            self._service.private = self._visibility.keeps_jobs_private
            read_s = time.monotonic() - begun
            failures = 0 if snapshot else failures + 1
            if snapshot:
                # The thread has nothing else to do until the next snapshot, and the loop serves drivers while it judges
                # this one.
                self._judges_since_s = time.monotonic()
                judge = self._service.observe_later(snapshot)
                take = await asyncio.get_running_loop().run_in_executor(self._reader, judge)
                self._judges_since_s = math.inf
                take()
            else:
                self._service.apply(Tick(self._service.now()))
            self._garbage.collect()
            took_s = time.monotonic() - begun
            self._meters.snapshot(read_s, took_s - read_s if snapshot else None)
            log.debug("tick: read in %.3f s, taken in within %.3f s", read_s, took_s - read_s)
            # The time in which this process parses the answers says nothing about slurmctld.
            waited_s = self._client.waited_s
            own_s = max(0.0, took_s - waited_s) if snapshot else 0.0
            delay_s = next_delay_s(self._service.poll_s, waited_s, max(0, failures - 1), own_s) - took_s
            try:
                await asyncio.wait_for(self._stop.wait(), max(0.0, delay_s))
            except asyncio.TimeoutError:
                continue

    async def _unless_stopped(self, reading: Coroutine[Any, Any, Snapshot | None]) -> Snapshot | None:
        """Return the result of `reading`, or None if the daemon has to stop first."""
        task, stopping = asyncio.create_task(reading), asyncio.create_task(self._stop.wait())
        await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if task.done():
            return task.result()
        task.cancel()
        return None

    async def _beat(self) -> None:
        """Tell systemd that the loop is alive, however long Slurm takes to answer, and notice when the clock is set.

        If judging a snapshot never ends, systemd is told nothing and restarts the daemon.
        """
        while True:
            self._service.now()
            if time.monotonic() - self._judges_since_s < _JUDGES_MOST_S:
                notify("WATCHDOG=1")
            await asyncio.sleep(min(_BEAT_S, watchdog_s() / 3.0))

    async def _read(self) -> Snapshot | None:
        """Return one snapshot; None if Slurm could not be read, with a line in the log for each new error."""
        try:
            snapshot = await self._looked(_COMMANDS * (self._config.slurm.timeout_s + 1.0))
        except SlurmError as error:
            if str(error) != self._complaint:
                log.warning("no snapshot, nothing grows: %s", error)
            self._complaint = str(error)
            return None
        if self._complaint:
            log.info("snapshots are read again")
        self._complaint = ""
        self._name_unreadable(snapshot)
        await self._take_claim()
        self._heed()
        return snapshot

    def _name_unreadable(self, snapshot: Snapshot) -> None:
        """Log, once for each pending job that cannot be read, that no node is earmarked for it."""
        found = {job.id: job.unreadable for job in snapshot.jobs if job.unreadable}
        for job_id in found.keys() - self._unreadable:
            log.warning("no node is earmarked for pending job %s, which cannot be read: %s", job_id, found[job_id])
        self._unreadable = frozenset(found)

    async def _looked(self, limit_s: float) -> Snapshot:
        """Return the reading thread's snapshot if it comes within `limit_s`; a later one is out of date and dropped."""
        if self._late is not None:
            await asyncio.wait([self._late], timeout=limit_s)
            if not self._late.done():
                raise SnapshotError(f"a command of Slurm's hangs for more than {limit_s:.0f} s: see `ps -C scontrol`")
            self._late.exception()
            self._late = None
        looking = asyncio.get_running_loop().run_in_executor(self._reader, self._look)
        done, _ = await asyncio.wait([looking], timeout=limit_s)
        if not done:
            self._late = looking
            raise SnapshotError(f"Slurm was not read within {limit_s:.0f} s")
        return looking.result()

    def _look(self) -> Snapshot:
        """Take one complete snapshot: jobs hidden from the daemon must not look like a quiet cluster (S9)."""
        self._visibility.check()
        if self._preemption is not None:
            with contextlib.suppress(SlurmError):  # its objection remains
                self._preemption.check()
        return self._client.snapshot()

    def _heed(self) -> None:
        """Pass on to the service whether the partition may be harvested."""
        now = self._preemption.objection if self._preemption is not None else ""
        if now != self._service.objection:
            if now:
                log.warning("nothing grows: %s", now)
            else:
                log.info("the partition %s may be harvested", self._service.partition)
        self._service.objection = now
        fault = self._preemption.plugin_fault if self._preemption is not None else ""
        if fault and fault != self._service.plugin_fault:
            log.error("%s: every sbatch of this host prints an error; see `bft site plugin`", fault)
        self._service.plugin_fault = fault

    async def _check_partition(self) -> None:
        """Refuse to start on a partition that does not exist, or whose jobs are not preempted for regular ones.

        Waits a while for a controller that is down; nothing is granted before it has answered.
        """
        loop = asyncio.get_running_loop()
        looking = loop.run_in_executor(self._reader, self._look_partitions_up)
        try:
            await asyncio.wait_for(asyncio.shield(looking), _START_WAIT_S)
        except UnknownPartition:
            raise
        except (SlurmError, asyncio.TimeoutError) as error:
            log.warning(
                "the partition %s could not be checked: %s", self._named_partitions, error or "Slurm does not answer"
            )
        if self._preemption is not None and self._preemption.known:
            if self._preemption.objection:
                raise UsageError(self._preemption.objection)
            await self._take_claim()

    def _look_partitions_up(self) -> None:
        """Ask for each partition, so that an unknown one gives a precise error, and whether they may be harvested."""
        for name in self._config.slurm.harvested:
            self._client.partition(name)
        if self._preemption is not None:
            self._preemption.check()

    @property
    def _named_partitions(self) -> str:
        return ", ".join(self._config.slurm.harvested)

    async def _take_claim(self) -> None:
        """Claim the partitions once the cluster is known, so that no other daemon of this host harvests them."""
        if self._claimed or self._preemption is None or not self._preemption.known:
            return
        self._claimed = True
        believed = {os.geteuid(), *other_daemons.uids_of(self._config.daemon.user)}
        for name in self._config.slurm.harvested:
            if (claim := await other_daemons.claim(self._preemption.cluster, name, believed)) is not None:
                self._claims.append(claim)

    def _reload(self) -> None:
        """Read the configuration again: all changes are applied, or none."""
        notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            if self._path is None:
                log.warning("there is no configuration file to read again")
                return
            new = load(self._path)
            fixed = [name for name in keys.fixed() if getattr(new, name) != getattr(self._config, name)]
            if fixed:
                log.warning("changes of [%s] need a restart and are left out", "], [".join(fixed))
            taken = {name: getattr(new, name) for name in keys.reloaded()}
            self._config = dataclasses.replace(self._config, **taken)
            logging.getLogger("bftd").setLevel(new.log.level.upper())
            self._service.configure(self._config)
            log.info("%s was read again", self._path)
        except BftError as error:
            log.error("the configuration stays as it was: %s", error)
        finally:
            notify("READY=1")


@click.command()
@click.option("--config", "path", type=click.Path(dir_okay=False), help="Configuration file.")
@click.option("--check-config", is_flag=True, help="Check the configuration and exit.")
@click.option("--print-config", is_flag=True, help="Print the configuration in full, with documentation, and exit.")
@click.option("--dry-run", is_flag=True, help="Tell what operator mode would cancel now, cancel nothing, and exit.")
@click.option("--take-over", is_flag=True, help="Adopt the pilots of a bftd that is gone for good, and exit.")
@click.version_option(__version__, prog_name="bftd")
def _command(path: str | None, check_config: bool, print_config: bool, dry_run: bool, take_over: bool) -> None:
    """Harvest the idle nodes of a Slurm cluster for elastic training jobs."""
    if sum((check_config, print_config, dry_run, take_over)) > 1:
        raise UsageError("--check-config, --print-config, --dry-run and --take-over exclude each other: give one")
    found = config_file.find(path)
    # without a file --print-config shows the defaults, but a daemon never starts on a missing file
    settings = Config() if print_config and path is None and not found.exists() else load(found)
    if print_config:
        click.echo(config_file.to_toml(settings), nl=False)
        return
    if check_config:
        if why := hook.objection(settings.notify.command):
            raise ConfigError(f"{found}: [notify] command: {why}")
        api.check(settings)
        if why := _objection_to_solver(settings):
            raise ConfigError(f"{found}: [decide] solver: {why}")
        click.echo(f"{found}: the configuration is right")
        return
    if dry_run:
        click.echo("\n".join(startup.lines(settings)))
        return
    if take_over:
        click.echo(startup.taken_over(settings))
        return
    _set_up_log(settings.log.level)
    sys.setswitchinterval(SWITCH_S)
    only_when_called()
    code = asyncio.run(_serve(settings, found))
    if threading.active_count() > 1:  # a Slurm command hangs, and systemd would kill this process while it waits
        logging.shutdown()
        os._exit(code)
    sys.exit(code)


def _objection_to_solver(settings: Config) -> str:
    """Return why the configured solver fails on a small problem here; "" if it solves it."""
    curve = milp.Curve((0, 2), (0.0, 2.0))
    trainers = tuple(milp.TrainerSpec(name, 1, 2, 0.0, 0.0, curve) for name in "ab")
    problem = milp.Problem(tuple(map(milp.NodeSpec, "mno")), trainers, settings.decide.t_fwd_s)
    try:
        plan = milp.solve(problem, settings.decide.solver, time_limit_s=_TRY_S)
    except milp.MilpError as error:
        return str(error)
    return next(iter(plan.reasons.values())) if plan.status == "kept" else ""


# The loop releases the interpreter lock at each system call: a thread that computes should hand it back soon.
SWITCH_S = 0.001


async def _serve(settings: Config, path: Path) -> int:
    return await Daemon(settings, path).run()


def _set_up_log(level: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(log_format.formatter(os.environ))
    logging.getLogger().addHandler(handler)
    logging.getLogger("bftd").setLevel(level.upper())


def main() -> None:
    """Run `bftd`: every known error ends it with one line and its exit code."""
    command.run(_command, "bftd", log_format.error_prefix(os.environ))


if __name__ == "__main__":
    main()
