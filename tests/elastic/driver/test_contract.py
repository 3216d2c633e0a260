"""One conversation of a driver, held with the tests' daemon and with bftd: both have to understand it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bftd.api_client import ApiClient
from bftd.protocol import comment
from bftd.protocol.lease import Leases, LeaseState, LeaseView
from bftd.protocol.reports import (
    CrashReport,
    LeaseReport,
    NoteReport,
    ProgressReport,
    Report,
    ResizeKind,
    ResizeReport,
    ResumeReport,
    Summary,
    SuspendReport,
)
from elastic.driver.daemon_link import DaemonLink
from elastic.driver.main import registration_of
from elastic.driver.pilots.launcher import looked_of
from slurm_plugin.pilots.pending_reasons import Rules
from slurm_plugin.sandbox import Sandbox
from slurm_plugin.submission.submission import PilotLauncher, PilotRequest, Placed
from tests.elastic.fakes import FakeDaemon, FakeStarter, settings_for, trainer_for, until
from tests.elastic.scripted_daemon import ScriptedDaemon
from tests.support import waiting
from tests.support.waiting import STILL_S

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

Offer = Callable[[], object]


@contextmanager
def scripted(_: Sandbox, folder: Path) -> Iterator[Offer]:
    with ScriptedDaemon(folder / "s") as daemon:
        yield lambda: daemon.grant("n1")


@contextmanager
def bftd(sandbox: Sandbox, folder: Path) -> Iterator[Offer]:
    config = folder / "bftd.toml"
    config.write_text(
        f'[slurm]\nconf="{sandbox.conf}"\npoll_s=0.2\n[api]\nsocket="{folder}/s"\n[ledger]\npath="{folder}/ledger"\n'
    )
    argv = [sys.executable, "-m", "bftd.daemon.process", "--config", str(config)]
    root = str(Path(__file__).parents[3])
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(argv, env=sandbox.env() | {"PYTHONPATH": root}, stdout=log, stderr=log)
        try:

            def answers() -> bool:
                assert process.poll() is None, (folder / "log").read_text()
                return (folder / "s").exists()

            waiting.until("the daemon's socket", answers, waiting.written(folder))
            # bftd grants idle nodes by itself.
            yield lambda: None
        finally:
            process.terminate()
            assert process.wait(STILL_S) == 0


class Driver:
    """A driver's link with what it heard."""

    def __init__(self, folder: Path) -> None:
        self.leases: dict[str, LeaseView] = {}
        self.rules: Rules | None = None
        self.lines: list[str] = []
        self.welcome = self.fenced = False
        settings = settings_for(folder, "1-1,sizes=1,weight=2,up=20,down=5,workers=1", "torchrun")
        trainer = trainer_for(settings, self.lines.append, FakeStarter(), FakeDaemon())
        registration = replace(registration_of(settings, trainer), id=f"run-{folder.name}-1")
        self.id = registration.id
        self.link = DaemonLink(settings.socket_path, lambda: registration, self._take, self._fence, self.lines.append)
        self.task = asyncio.create_task(self.link.run())

    def _take(self, listed: Leases) -> None:
        self.welcome = True
        self.leases = {lease.id: lease for lease in listed.leases}
        self.rules = Rules(listed.min_window_s, looked_of(listed))

    def _fence(self) -> None:
        self.fenced = True

    async def hang_up(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def reports(lease: str, job_id: str) -> Iterator[Report]:
    """Every kind of report that a driver sends, with every field."""
    now_s = time.time()
    states: tuple[LeaseState, ...] = ("placed", "ready", "working")
    for state in states:
        yield LeaseReport(now_s, lease, state, job_id)
    progress = ProgressReport(now_s, 3, 30, samples_per_s=10.0, nodes=1, world_size=1, loss=0.5, window_s=2.0)
    yield progress
    yield replace(progress, step=9, samples=90, loss=None, steps_lost=1, window_s=0.0, save_s=0.1, state_bytes=4096)
    resizes: tuple[tuple[ResizeKind, int, int], ...] = (("up", 1, 2), ("down", 2, 1), ("crash", 1, 1))
    for kind, before, after in resizes:
        yield ResizeReport(now_s, before, after, kind, 0.5, save_s=0.1, rendezvous_s=0.2, load_s=0.1, state_bytes=4096)
    yield CrashReport(now_s, "n1", -9, "a worker on n1 ended with signal SIGKILL")
    yield SuspendReport(now_s, 9)
    yield ResumeReport(now_s, 9)
    yield NoteReport(now_s, "hello")


@pytest.mark.parametrize("kind", [scripted, bftd])
def test_a_driver_is_understood_from_its_registration_to_its_end(sandbox: Sandbox, kind: Any) -> None:
    with tempfile.TemporaryDirectory(prefix="bft-c-") as name, kind(sandbox, Path(name)) as offer:
        asyncio.run(asyncio.wait_for(conversation(sandbox, Path(name), offer), 300))
        if kind is bftd:

            def trainer() -> dict[str, Any]:
                [found] = ApiClient(f"{name}/s").status()["trainers"]
                return dict(found)

            # the status is made anew after the answer to the driver's last word
            waiting.until("its end is shown", lambda: trainer()["state"] == "finished", trainer)
            shown = trainer()
            assert (shown["state"], shown["exit_code"], shown["step"]) == ("finished", 0, 9)


async def conversation(sandbox: Sandbox, folder: Path, offer: Offer) -> None:
    driver = Driver(folder)
    offer()
    lease = await until("a lease", lambda: next(iter(driver.leases.values()), None))
    assert lease.state == "granted"
    assert not lease.vacate
    assert lease.id.startswith(lease.node + ".")
    assert lease.limit_s >= 60
    assert lease.reason

    said = comment.make(driver.id, lease.id)
    request = PilotRequest(lease.node, "elastic", lease.limit_s, "bft-pilot", said)
    assert driver.rules is not None
    assert driver.rules.min_window_s == 20.0
    assert time.time() - driver.rules.looked_s >= 0.0
    placed = await asyncio.to_thread(PilotLauncher(sandbox.client(), driver.rules).place, request)
    assert isinstance(placed, Placed)
    for report in reports(lease.id, placed.job_id):
        driver.link.report(report)
    driver.link.report(LeaseReport(time.time(), lease.id, "leaving", placed.job_id, "Slurm took the node"))
    sandbox.client().cancel([placed.job_id], signal="KILL")
    driver.link.report(LeaseReport(time.time(), lease.id, "ended", placed.job_id, "Slurm took the node"))
    await until("the lease is over", lambda: lease.id not in driver.leases)

    # A second driver of the same trainer fences the first one.
    second = Driver(folder)
    await until("the first is fenced", lambda: driver.fenced)
    # the first may hear of it sooner than the second of its own number, without which it cannot finish
    await until("the second is welcome", lambda: second.welcome)
    assert not second.fenced
    await driver.hang_up()
    await second.hang_up()
    summary = Summary(step=9, samples=90, first_loss=2.0, last_loss=0.5)
    await second.link.finish(0, "training is complete", summary)
    # Nothing was refused, and nobody was away.
    assert driver.lines + second.lines == []
