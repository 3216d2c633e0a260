"""The private cluster of one run, set up as its recipe says, with bftd ready to be started on it."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.impact import training
from benchmarks.impact.accounting import add_pilot_qos
from benchmarks.impact.recipe import Recipe, edited_conf
from benchmarks.impact.stream import FEATURE, RESERVATION, Reservation
from bftd.base.errors import BftError
from bftd.cli.admin.sandbox_site import SandboxSite
from slurm_plugin.errors import SandboxError
from slurm_plugin.sandbox.accounting import AccountedSandbox

REPOSITORY = Path(__file__).resolve().parents[2]

# Every job stays in the controller's memory to the end, because it is asked then when each of them ran. Backfill's own
# account of its cycles, which newer releases give at this level only, says why a job started when it did.
_MORE_CONF = "MinJobAge=3600\nDebugFlags=Backfill,BackfillMap,HetJob\nSlurmctldDebug=verbose"
_NO_LUA = """\
function slurm_job_submit()
  return slurm.SUCCESS
end
function slurm_job_modify()
  return slurm.SUCCESS
end
return slurm.SUCCESS
"""

PILOTS, DRIVERS = "elastic", "bft-driver"
"""The partitions of a sandbox."""

# Nodes that a trainer may have. Together they want more than there is, so that nodes move among them as well.
TRAINERS = {"wide": "1-16", "half": "1-8", "even": "2-8,sizes=2:4:8", "narrow": "1-3"}
COMPLETIONS = "completions.log"
"""Slurm's log of jobs: it has each run of a requeued job, of which the controller itself tells the last run only."""


class _Cluster(AccountedSandbox):
    """A sandbox whose slurm.conf and job_submit.lua are changed before Slurm reads them."""

    def __init__(self, recipe: Recipe, **shape: Any) -> None:
        super().__init__(() if recipe.accounting else None, tuned=recipe.tuned, extra_conf=_MORE_CONF, **shape)
        self._recipe = recipe

    def up(self) -> _Cluster:
        """Start the daemons, slurmdbd first where the recipe has one."""
        super().up()
        try:
            self._finish()
        except BaseException:
            self.down()
            raise
        return self

    def _finish(self) -> None:
        """What is set in a running cluster only."""
        if self._recipe.accounting:
            add_pilot_qos(self.env())
        half = f"n[1-{max(1, self.shape.nodes // 2)}]"
        answer = self.client().run(
            "scontrol", "update", f"NodeName={half}", f"AvailableFeatures={FEATURE}", f"ActiveFeatures={FEATURE}"
        )
        if answer.code:
            raise SandboxError(f"the nodes got no features: {answer.complaint}")

    def _write_conf(self, host: str, ports: list[int]) -> None:
        super()._write_conf(host, ports)
        completions = f"JobCompType=jobcomp/filetxt\nJobCompLoc={self.root / 'log' / COMPLETIONS}\n"
        self.conf.write_text(edited_conf(self.conf.read_text() + completions, self._recipe))
        if not self._recipe.number:
            (self.root / "job_submit.lua").write_text(_NO_LUA)


class Site(SandboxSite):
    """A cluster of `nodes` nodes under `recipe`."""

    def __init__(self, recipe: Recipe, nodes: int) -> None:
        super().__init__(config=recipe.config)
        self.cluster = _Cluster(recipe, nodes=nodes)
        self._recipe = recipe
        self._nodes = nodes

    def __enter__(self) -> Site:
        super().__enter__()
        return self

    def env(self) -> dict[str, str]:
        """As of every user of the site; the benchmark's own modules are found too."""
        return {**super().env(), "PYTHONPATH": str(REPOSITORY)}

    def reserve(self, reservation: Reservation, begin_s: float) -> None:
        """Set nodes aside for this user. Without the flag Slurm refuses it while pilots run there."""
        self.slurm(
            "scontrol", "create", "reservation", f"ReservationName={RESERVATION}", f"Users={getpass.getuser()}",
            f"Duration={reservation.length_min}", f"StartTime={_local_time(begin_s + reservation.at_s)}",
            f"Nodes={','.join(reservation.nodes)}", "Flags=IGNORE_JOBS",
        )  # fmt: skip

    def hold_every_node(self, order: Random) -> None:
        """Make an allocation without a process on each node that Slurm gives, for a minute.

        Slurm preempts the oldest first, so `order` decides which nodes the first jobs get.
        """
        client = self.cluster.client()
        for number in order.sample(range(1, self._nodes + 1), self._nodes):
            options = (f"--partition={PILOTS}", f"--nodelist=n{number}", "--time=1")
            client.run("salloc", "--immediate=1", "--no-shell", *options)

    def start_trainers(self, script: Path, *arguments: str) -> None:
        """Submit the elastic trainers, which run `script`, as a user would."""
        for name, most in TRAINERS.items():
            elastic = f"{most if name != 'wide' else f'1-{self._nodes}'},backend=torchrun"
            words = [f"--job-name={name}", f"--output={name}.log"]
            if not self._recipe.pilot_options:
                done = self.bft("sbatch", f"--elastic={elastic}", *words, str(script), *arguments)
                if done.returncode:
                    raise BftError(done.stderr.strip())
            else:
                header = training.header(script, elastic, self.config_socket, self._recipe.pilot_options)
                own = training.with_driver(script, header, self.work / f"{name}.py")
                self.slurm("sbatch", f"--partition={DRIVERS}", "--ntasks=1", *words, str(own), *arguments)

    @property
    def config_socket(self) -> str:
        """The daemon's socket."""
        return str(self.root / "bftd.sock")

    def start_poller(self, *, record: bool) -> subprocess.Popen[bytes]:
        """Start a process that reads what the daemon would read, as often, and writes it to a file to `record` it."""
        return subprocess.Popen(
            [
                sys.executable,
                *("-m", "benchmarks.impact.poller", str(self.cluster.conf)),
                *([str(self.snapshots)] if record else []),
            ],
            env=self.env(),
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            stderr=(self.root / "poller.log").open("wb"),
        )

    def controller_cpu_s(self) -> float:
        """CPU seconds that slurmctld has used so far."""
        pid = int((self.root / "run" / "slurmctld.pid").read_text())
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def ledger(self) -> Path:
        """The daemon's ledger."""
        return self.root / "ledger.sqlite"

    @property
    def snapshots(self) -> Path:
        """The snapshots that the poller has recorded."""
        return self.root / "snapshots.xz"

    @property
    def completions(self) -> str:
        """The lines about runs of jobs that have ended."""
        path = self.root / "log" / COMPLETIONS
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def controller_log(self) -> Path:
        """The controller's log."""
        return self.root / "log" / "slurmctld.log"


def _local_time(unix_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(unix_s))
