"""Planned work on slurmctld, and what looks like it: a trainer keeps all its leases, and its pilots stay the same."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.impact import training
from bftd.base.errors import BftError
from bftd.cli.admin.sandbox_site import SandboxSite
from slurm_plugin.errors import SlurmError
from slurm_plugin.sandbox import processes
from tests.support.programs import suspended
from tests.support.waiting import until, written

pytestmark = pytest.mark.cluster

NODES = 4
STALE_S = 2.0
_BACKUP = "backup"
_ANOTHER_HOST = ("unshare", "--uts", "--mount")
# A backup that waits only a moment for the controller before it, and slurmds that are asked often enough for a test.
_CONF = f"SlurmctldHost={_BACKUP}(127.0.0.2)\nSlurmctldTimeout=5\nMessageTimeout=4\nSlurmdTimeout=30"


class Kept(SandboxSite):
    """A site whose controllers and slurmds a test stops and starts; one trainer has all its nodes."""

    def lend_all(self) -> None:
        """Have one trainer be ready on every node; what it has then must never change."""
        script = training.lay_out(self.work)
        done = self.bft("sbatch", f"--elastic=1-{NODES},backend=torchrun", "--output=a.log", str(script))
        assert done.returncode == 0, done.stderr
        self.waits("all nodes are lent", lambda: len(self.seen().get("ready", ())) == NODES)
        self.before = self.seen()

    def seen(self) -> dict[str, Any]:
        """Leases whose agents are ready, pilots that Slurm shows running, and how often the trainer was suspended."""
        with contextlib.suppress(BftError, SlurmError):
            status = self.client.status()
            jobs = self.cluster.client().snapshot().jobs
            return {
                "ready": {node["lease"] for node in status["nodes"] if node["lease_state"] == "ready"},
                "pilots": {job.id for job in jobs if "elastic" in job.partition and job.state == "RUNNING"},
                "suspends": sum(trainer["suspends"] for trainer in status["trainers"]),
            }
        return {}

    def age_s(self) -> float:
        """How old the daemon's last snapshot is."""
        return float(self.client.status()["snapshot_age_s"])

    def waits(self, what: str, reached: Callable[[], object]) -> None:
        # slurmctld complains of a backup that is not there for ever
        until(what, reached, written(self.work), lambda: (self.log_path.read_text()[-2000:], self.cluster.status()))

    def heard(self) -> None:
        """Wait until Slurm has heard of all nodes again and the daemon has seen so; nothing is lost by then."""
        self.waits("Slurm hears of all nodes", lambda: set(self.cluster.status().values()) == {"ALLOCATED", "MIXED"})
        since_s = time.monotonic()
        self.waits("the daemon has seen that", lambda: self.age_s() < time.monotonic() - since_s)
        assert self.client.status()["hold"] is None
        assert self.seen() == self.before, self.log_path.read_text()[-3000:]
        assert "gives back" not in self.log_path.read_text()

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """No compute node answers Slurm meanwhile; what runs there goes on."""
        pids = [int((self.root / "run" / f"slurmd-{name}.pid").read_text()) for name in self.cluster.node_names]
        with suspended(pids):
            yield

    def unheard(self) -> bool:
        """Whether the daemon has seen that Slurm waits for a word of its nodes."""
        return "heard nothing" in (self.client.status()["hold"] or "")

    def stop_controller(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the controller that has pid file `slurmctld.pid`, and wait for it."""
        pid = int((self.root / "run" / "slurmctld.pid").read_text())
        os.kill(pid, number)
        self.waits("slurmctld ends", lambda: not Path(f"/proc/{pid}").exists())

    def start_controller(self) -> None:
        """As an administrator starts it: with the state that it has saved."""
        command = [str(self.root / "bin" / "slurmctld"), "-f", str(self.cluster.conf)]
        subprocess.run(command, env=self._marked(), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def start_backup(self) -> None:
        """A second controller as on a host of its own: with another name, and an address by that name."""
        own, hosts = self.root / "backup.conf", self.root / "hosts"
        text = self.cluster.conf.read_text()
        own.write_text(text.replace("/slurmctld.pid", "/backup.pid").replace("/slurmctld.log", "/backup.log"))
        hosts.write_text(f"{Path('/etc/hosts').read_text()}\n127.0.0.2 {_BACKUP}\n")
        program = f"{self.root / 'bin' / 'slurmctld'} -f {own}"
        inside = f"mount --bind {hosts} /etc/hosts && hostname {_BACKUP} && exec {program}"
        subprocess.run([*_ANOTHER_HOST, "sh", "-c", inside], env=self._marked(), check=True)
        self.waits("the backup is there", lambda: f"{_BACKUP} is UP" in self.ping())

    def ping(self) -> str:
        """Which controllers are there."""
        return self.cluster.client().run("scontrol", "ping").out

    def _marked(self) -> dict[str, str]:
        return self.env() | {processes.MARK: str(self.root)}


@pytest.fixture(scope="module")
def site() -> Iterator[Kept]:
    config = {"pool": {"stale_after_s": STALE_S}, "slurm": {"poll_s": 0.5, "timeout_s": 2.0}}
    with Kept(config, nodes=NODES, tuned=True, extra_conf=_CONF) as site:
        site.start_daemon()
        site.lend_all()
        yield site


def test_regression_a_restart_of_slurmctld_cost_the_whole_harvest(site: Kept) -> None:
    with site.silent():  # else they are UNKNOWN for 4 s, which a poll may miss
        site.stop_controller()
        site.start_controller()
        site.waits("the daemon sees nodes that Slurm has not heard of", site.unheard)
        assert any(state.startswith("UNKNOWN") for state in site.cluster.status().values())
        assert site.seen() == site.before
    site.heard()


def test_no_lease_is_lost_when_slurm_is_reconfigured(site: Kept) -> None:
    site.slurm("scontrol", "reconfigure")
    site.heard()


def test_no_lease_is_lost_when_another_slurmctld_takes_over_and_when_the_first_one_comes_back(site: Kept) -> None:
    if subprocess.run([*_ANOTHER_HOST, "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("only who may make namespaces, as root may, gives a process a host name of its own")
    site.start_backup()
    site.stop_controller(signal.SIGKILL)
    site.waits("no snapshot is young enough to grow on", lambda: site.age_s() > STALE_S)
    site.waits("the backup serves", lambda: site.cluster.status())
    site.heard()
    site.start_controller()
    site.waits("the first one is back", lambda: f"{socket.gethostname().split('.')[0]} is UP" in site.ping())
    site.heard()


def test_no_lease_is_lost_while_slurmctld_cannot_reach_the_nodes_for_a_while(site: Kept) -> None:
    with site.silent():
        site.slurm("scontrol", "reconfigure")  # a message to all of them; without one, the next ping finds it out
        site.waits("the daemon sees nodes that Slurm has not heard of", site.unheard)
        # newer releases begin anew at a reconfiguration, and know nothing of a node until it answers
        assert not {"ALLOCATED+NOT_RESPONDING", "UNKNOWN"}.isdisjoint(site.cluster.status().values())
        assert site.seen() == site.before
    site.heard()
