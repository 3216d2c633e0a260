"""One conversation of a driver, held with the tests' daemon and with bftd: both have to understand it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bftd.http.client import Client
from elastic.driver.daemon import DaemonLink, Lease
from elastic.driver.main import _registration
from slurm_plugin.pilots import PilotLauncher, PilotRequest, Placed
from slurm_plugin.sandbox import Sandbox
from slurm_plugin.waiting import SiteRules
from tests.elastic.fakes import FakeDaemon, FakeStarter, settings_for, trainer_for, until
from tests.elastic.scripted_daemon import ScriptedDaemon

pytestmark = pytest.mark.cluster

Offer = Callable[[], object]
LEASE: dict[str, Any] = {
    "id": str,
    "node": str,
    "state": str,
    "vacate": bool,
    "limit_s": (int, float),
    "gres": str,
    "gpus": int,
}


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
    argv = [sys.executable, "-m", "bftd.daemon", "--config", str(config)]
    root = str(Path(__file__).parents[3])
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(argv, env=sandbox.env() | {"PYTHONPATH": root}, stdout=log, stderr=log)
        try:
            deadline_s = time.monotonic() + 30
            while not (folder / "s").exists():
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline_s
                time.sleep(0.02)
            # bftd grants idle nodes by itself.
            yield lambda: None
        finally:
            process.terminate()
            assert process.wait(30) == 0


class Driver:
    """A driver's link with what it heard."""

    def __init__(self, folder: Path) -> None:
        self.leases: dict[str, Lease] = {}
        self.lines: list[str] = []
        self.fenced = False
        settings = settings_for(folder, "1-1,sizes=1,weight=2,up=20,down=5,workers=1", "torchrun")
        trainer = trainer_for(settings, self.lines.append, FakeStarter(), FakeDaemon())
        registration = {**_registration(settings, trainer), "id": f"run-{folder.name}-1"}
        self.id = registration["id"]
        self.link = DaemonLink(settings.socket_path, lambda: registration, self._take, self._fence, self.lines.append)
        self.task = asyncio.create_task(self.link.run())

    def _take(self, leases: list[Lease]) -> None:
        self.leases = {lease["id"]: lease for lease in leases}

    def _fence(self) -> None:
        self.fenced = True

    def tell(self, op: str, **fields: Any) -> None:
        self.link.report({"op": op, "at_s": time.time(), **fields})

    async def hang_up(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def events(lease: str, job_id: str) -> Iterator[dict[str, Any]]:
    """Every kind of event that a driver sends, with every field."""
    for state in ("placed", "ready", "working"):
        yield {"op": "lease", "id": lease, "state": state, "job_id": job_id, "reason": ""}
    progress = {"step": 3, "samples": 30, "samples_per_s": 10.0, "nodes": 1, "world_size": 1, "loss": 0.5}
    yield {"op": "progress", **progress, "steps_lost": 0, "window_s": 2.0}
    yield {"op": "progress", **progress, "step": 9, "samples": 90, "loss": None, "steps_lost": 1, "window_s": 0.0}
    for kind, before, after in (("up", 1, 2), ("down", 2, 1), ("crash", 1, 1)):
        yield {"op": "resize", "from_nodes": before, "to_nodes": after, "kind": kind, "stall_s": 0.5, "steps_lost": 0}
    yield {"op": "crash", "node": "n1", "rc": -9, "text": "a worker on n1 ended with signal SIGKILL"}
    yield {"op": "suspend", "step": 9}
    yield {"op": "resume", "step": 9}
    yield {"op": "note", "text": "hello"}


@pytest.mark.parametrize("kind", [scripted, bftd])
def test_a_driver_is_understood_from_its_registration_to_its_end(sandbox: Sandbox, kind: Any) -> None:
    with tempfile.TemporaryDirectory(prefix="bft-c-") as name, kind(sandbox, Path(name)) as offer:
        asyncio.run(asyncio.wait_for(conversation(sandbox, Path(name), offer), 120))
        if kind is bftd:
            [trainer] = Client(f"{name}/s").status()["trainers"]
            assert (trainer["state"], trainer["exit_code"], trainer["step"]) == ("finished", 0, 9)


async def conversation(sandbox: Sandbox, folder: Path, offer: Offer) -> None:
    driver = Driver(folder)
    offer()
    lease = await until("a lease", lambda: next(iter(driver.leases.values()), None))
    assert lease["state"] == "granted"
    assert {key: lease[key] for key, kind in LEASE.items() if not isinstance(lease[key], kind)} == {}
    assert lease["id"].startswith(lease["node"] + ".")
    assert lease["limit_s"] >= 60
    assert lease["reason"]

    request = PilotRequest(lease["node"], "elastic", lease["limit_s"], "bft-pilot", f"bft {driver.id} {lease['id']}")
    placed = await asyncio.to_thread(
        PilotLauncher(sandbox.client(), SiteRules(plan_wait_s=30.0, min_window_s=20.0)).place, request
    )
    assert isinstance(placed, Placed)
    for event in events(lease["id"], placed.job_id):
        driver.tell(**event)
    driver.tell("lease", id=lease["id"], state="leaving", job_id=placed.job_id, reason="Slurm took the node")
    sandbox.client().cancel([placed.job_id], signal="KILL")
    driver.tell("lease", id=lease["id"], state="ended", job_id=placed.job_id, reason="Slurm took the node")
    await until("the lease is over", lambda: lease["id"] not in driver.leases)

    # A second driver of the same trainer fences the first one.
    second = Driver(folder)
    await until("the first is fenced", lambda: driver.fenced)
    assert not second.fenced
    await driver.hang_up()
    await second.hang_up()
    await second.link.finish(0, "training is complete", {"step": 9, "samples": 90, "first_loss": 2.0, "last_loss": 0.5})
    # Nothing was refused, and nobody was away.
    assert driver.lines + second.lines == []
