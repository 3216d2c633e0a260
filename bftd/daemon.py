"""The daemon: reads Slurm once a tick, feeds the core, serves the API, and does what systemd expects of a service."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import signal
import sqlite3
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

import milp
from bftd import __version__, config, entry, journal, keys
from bftd.core.domain import Tick
from bftd.errors import BftError, ConfigError, LedgerError
from bftd.http import api
from bftd.keys import Config
from bftd.notify import notify
from bftd.service.garbage import Garbage, only_when_told
from bftd.service.ledger import Ledger
from bftd.service.live import Service
from bftd.shadow.read_only_client import ReadingClient
from slurm_plugin.client import SlurmClient
from slurm_plugin.errors import SlurmError, UnknownPartition
from slurm_plugin.pyslurm_backend import PyslurmClient
from slurm_plugin.types import Snapshot
from slurm_plugin.visibility import Visibility

log = logging.getLogger("bftd")

# A controller that needs longer than a quarter of the tick is under load: reading it must not add to that.
SLOWNESS = 4.0
LONGEST_DELAY_S = 30.0


def next_delay_s(poll_s: float, took_s: float, failures: int) -> float:
    """Time until the next snapshot after one for which Slurm took `took_s`, with `failures` in a row (S8)."""
    delay_s = max(poll_s, SLOWNESS * took_s) * 2.0 ** min(failures, 10)
    return max(poll_s, min(delay_s, LONGEST_DELAY_S))


def load(path: Path) -> Config:
    """Read the configuration and check what only other packages know."""
    loaded = config.load(path)
    solvers = milp.solver_names()
    if loaded.decide.solver not in solvers:
        raise ConfigError(f"{path}: [decide] solver must be one of {', '.join(solvers)}, not {loaded.decide.solver!r}")
    return loaded


def ledger_path(settings: Config) -> Path:
    """Where the ledger is: shadow mode has one of its own beside the live one."""
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
        self._client = client(conf, settings.slurm.timeout_s)
        self._visibility = Visibility(self._client)
        # one thread reads, one cancels: a slow snapshot must not delay a give-back
        self._reader = ThreadPoolExecutor(1, "snapshot")
        self._canceller = ThreadPoolExecutor(1, "cancel")
        self._ledger = Ledger(ledger_path(settings), settings.daemon.mode)
        self._garbage = Garbage()
        self._stop = asyncio.Event()
        self._complaint = ""
        self._cancel_complaints: set[str] = set()

    async def run(self) -> int:
        """Serve until SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        try:
            await self._check_partition()
            self._service = self._made_service()
            self._service.private = self._visibility.keeps_jobs_private
            runner = await api.listen(self._service, self._config.api)
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop.set)
            loop.add_signal_handler(signal.SIGHUP, self._reload)
            does = "watches" if self._shadow else "harvests"
            log.info("bftd %s %s %s, serving %s", __version__, does, self._service.partition, self._config.api.socket)
            notify("READY=1", f"STATUS={does} {self._service.partition}")
            try:
                await self._poll()
            finally:
                notify("STOPPING=1")
                self._service.stop()
                await runner.cleanup()
                Path(self._config.api.socket).unlink(missing_ok=True)
        except sqlite3.Error as error:
            raise LedgerError(f"the ledger {self._ledger.path} failed: {error}") from None
        finally:
            self._reader.shutdown(wait=False, cancel_futures=True)
            self._canceller.shutdown(wait=True)
            self._ledger.close()
        rest = "" if self._shadow else "; pilots that run go on until their driver ends them"
        log.info("bftd has stopped%s", rest)
        return 0

    def _made_service(self) -> Service:
        """What the mode asks for."""
        if not isinstance(self._client, ReadingClient):
            return Service(self._config, self._ledger, self._cancel)
        from bftd.shadow.service import ShadowService
        from bftd.shadow.trace_recorder import TraceRecorder

        log.info("shadow mode: nothing is submitted, lent or cancelled; the ledger is %s", self._ledger.path)
        client, trace = self._client, self._ledger.path.with_name("shadow-trace.csv.gz")
        return ShadowService(self._config, self._ledger, lambda: client.calls, TraceRecorder(trace, self._config))

    async def _poll(self) -> None:
        failures = 0
        while not self._stop.is_set():
            begun = time.monotonic()
            snapshot = await self._read()
            self._service.private = self._visibility.keeps_jobs_private
            read_s = time.monotonic() - begun
            failures = 0 if snapshot else failures + 1
            if snapshot:
                self._service.observe(snapshot)
            else:
                self._service.apply(Tick(self._service.now()))
            self._garbage.collect()
            notify("WATCHDOG=1")
            took_s = time.monotonic() - begun
            log.debug("tick: read in %.3f s, taken in within %.3f s", read_s, took_s - read_s)
            # What this process takes to read the answers says nothing of slurmctld.
            delay_s = next_delay_s(self._service.poll_s, self._client.waited_s, max(0, failures - 1)) - took_s
            try:
                await asyncio.wait_for(self._stop.wait(), max(0.0, delay_s))
            except asyncio.TimeoutError:
                continue

    async def _read(self) -> Snapshot | None:
        """One snapshot; None, and a line in the log when the fault is a new one, where it cannot be had."""
        try:
            snapshot = await asyncio.get_running_loop().run_in_executor(self._reader, self._look)
        except SlurmError as error:
            if str(error) != self._complaint:
                log.warning("no snapshot, nothing grows: %s", error)
            self._complaint = str(error)
            return None
        if self._complaint:
            log.info("snapshots are read again")
        self._complaint = ""
        return snapshot

    def _look(self) -> Snapshot:
        """One snapshot of all there is: what is hidden from the daemon must not pass for a quiet cluster (S9)."""
        self._visibility.check()
        return self._client.snapshot()

    async def _check_partition(self) -> None:
        """Refuse to start on a partition that does not exist; a controller that is down is waited for."""
        name = self._config.slurm.partition
        try:
            await asyncio.get_running_loop().run_in_executor(self._reader, self._client.partition, name)
        except UnknownPartition:
            raise
        except SlurmError as error:
            log.warning("the partition %s could not be checked: %s", name, error)

    def _cancel(self, job_ids: list[str]) -> None:
        """Cancel pilots without waiting; a daemon without the right to do so leaves it to their driver and Slurm."""

        def cancel() -> None:
            try:
                self._client.cancel(job_ids, "KILL")
            except SlurmError as error:
                # what may not be cancelled is asked for again: say it once
                if str(error) not in self._cancel_complaints:
                    log.warning("%s", error)
                self._cancel_complaints.add(str(error))
            else:
                self._cancel_complaints.clear()

        self._canceller.submit(cancel)

    def _reload(self) -> None:
        """Read the configuration again: all of it is taken, or nothing."""
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
@click.version_option(__version__, prog_name="bftd")
def _command(path: str | None, check_config: bool, print_config: bool) -> None:
    """Harvest the idle nodes of a Slurm cluster for elastic training jobs."""
    found = config.find(path)
    # without any file the defaults are shown, but a daemon is never started on a file that is missing
    settings = Config() if print_config and path is None and not found.exists() else load(found)
    if print_config:
        click.echo(config.to_toml(settings), nl=False)
        return
    if check_config:
        click.echo(f"{found}: the configuration is right")
        return
    _set_up_log(settings.log.level)
    sys.setswitchinterval(SWITCH_S)
    only_when_told()
    sys.exit(asyncio.run(_serve(settings, found)))


# The loop lets the interpreter go at each call of the system: a thread that computes is to hand it back soon.
SWITCH_S = 0.001


async def _serve(settings: Config, path: Path) -> int:
    return await Daemon(settings, path).run()


def _set_up_log(level: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(journal.formatter(os.environ))
    logging.getLogger().addHandler(handler)
    logging.getLogger("bftd").setLevel(level.upper())


def main() -> None:
    """Entry point of `bftd`: every known error is one line and its exit code."""
    entry.run(_command, "bftd", journal.error_prefix(os.environ))


if __name__ == "__main__":
    main()
