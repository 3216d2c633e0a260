"""A trainer on a real cluster whose leases the test decides."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from bftd.protocol.reports import CrashReport, LeaseReport, ProgressReport
from elastic.options.job_script import Header, rewrite
from slurm_plugin.sandbox import Sandbox
from tests.elastic.scripted_daemon import ScriptedDaemon
from tests.support.waiting import until, written

SCRIPTS = Path(__file__).parent / "scripts"
DRIVER = Path(sys.executable).parent / "bft-driver"
HUNG_S = 600.0
"""No command of Slurm's takes so long, however busy the machine is."""

EVERY = 5
"""Steps between two commits of the counting scripts."""


class TrainerJob:
    """One elastic job: submitted as `bft sbatch` does, with a daemon of its own."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.folder = Path(tempfile.mkdtemp(prefix="bft-t-"))
        self.daemon = ScriptedDaemon(self.folder / "s")
        self.job_id = ""
        self._settled = 0

    def submit(
        self,
        script: str,
        *arguments: object,
        backend: str,
        spec: str = "1-4",
        interpreter: str = sys.executable,
        pilot_mode: str = "salloc",
        progress: str = "",
    ) -> None:
        path = SCRIPTS / script
        header = Header(
            f"{spec},backend={backend}" + (f",progress={progress}" if progress else ""),
            "elastic",
            str(self.folder / "s"),
            str(path),
            interpreter,
            pilot_mode=pilot_mode,
        )
        argv = ["sbatch", "--parsable", "-p", "bft-driver", "-c3", f"--chdir={self.folder}", "-o", "out", "/dev/stdin"]
        source = rewrite(path.read_text(), str(DRIVER), header)
        said = subprocess.run(
            [*argv, *map(str, arguments)], input=source, env=self.env(), text=True, capture_output=True, check=True
        )
        self.job_id = said.stdout.strip()

    def count(
        self,
        backend: str,
        *nodes: str,
        script: str = "",
        steps: int = 1_000_000,
        step_time_s: float = 0.03,
        **fields: Any,
    ) -> None:
        """Starts a counting script and trains on `nodes`."""
        self.submit(script or f"count_{backend}.py", steps, step_time_s, EVERY, backend=backend, **fields)
        self.daemon.grant(*nodes)
        self.trains_on(len(nodes))
        self._settled = len(self.rows)

    def env(self) -> dict[str, str]:
        root = str(Path(__file__).parents[2])
        return {**self.sandbox.env(), "PYTHONPATH": root, "BFT_DRIVER_ADDRESS": "127.0.0.1"}

    # -- what is seen ---

    @property
    def output(self) -> str:
        path = self.folder / "out"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What the counting script wrote a step, in the order of time."""
        path = self.folder / "steps.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    @property
    def again(self) -> int:
        """The number of steps that were done twice since `count` had its nodes.

        A node that comes before the others may train a first step that is not counted yet when they come.
        """
        steps = [row["step"] for row in self.rows]
        return len(steps[self._settled :]) - len(set(steps).difference(steps[: self._settled]))

    def checkpoints(self, step: int | str = "*", mark: str = "") -> list[Path]:
        """The files of this job's checkpoints; `mark` is what stands behind the name of its folder."""
        root = Path(self.env()["BFT_STATE_DIR"])
        return list(root.glob(f"{self.job_id}@*{mark}/state-{step}-*.pt"))

    def state(self, node: str) -> str | None:
        """The last reported state of the newest lease of a node."""
        states = [report.state for report in self.daemon.of(LeaseReport) if report.id.startswith(f"{node}.")]
        return states[-1] if states else None

    def workers(self, node: str) -> list[psutil.Process]:
        """The worker processes on a node: the forks of its node process."""
        found = []
        for process in self.processes():
            try:
                parent = process.parent()
                if (
                    process.environ().get("SLURMD_NODENAME") == node
                    and parent
                    and _is_node(process)
                    and _is_node(parent)
                ):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def processes(self) -> list[psutil.Process]:
        """Every process that runs in a job of the cluster."""
        return job_processes(self.sandbox)

    # -- what is waited for ---

    def wait(self, what: str, condition: Callable[[], Any], steps: Callable[[], object] | None = None) -> Any:
        """Waits while reports come and something is written, or while `steps` changes, which the test counts itself."""
        trained = steps or written(self.folder)

        def moved() -> object:
            told = [report for report in self.daemon.reports if not isinstance(report, ProgressReport)]
            return len(told), len(self.output), trained()

        def shown() -> str:
            return f"the last reports:\n{self.daemon.last_reports()}\nthe trainer's log ends:\n{self.output[-3000:]}"

        return until(what, condition, moved, shown)

    def trains_on(self, size: int, steps: int = 3) -> None:
        """Waits for some new steps of a world of `size`."""
        before = len(self.rows)

        def seen() -> bool:
            rows = self.rows[before:]
            return len(rows) >= steps and all(row["size"] == size for row in rows[-steps:])

        self.wait(f"{steps} steps of {size} workers", seen, lambda: sum(row["size"] == size for row in self.rows))

    def crashed(self, times: int) -> None:
        """Waits until so many crashes are told."""
        self.wait(f"crash {times}", lambda: len(self.daemon.of(CrashReport)) == times)

    def ended(self) -> tuple[str, int]:
        """Waits for the job's end; its state and exit code as Slurm tells them."""

        def seen() -> tuple[str, int] | None:
            argv = ["scontrol", "show", "job", "-o", self.job_id]
            said = subprocess.run(argv, env=self.env(), capture_output=True, text=True, check=True).stdout
            fields = dict(word.split("=", 1) for word in said.split() if "=" in word)
            if fields["JobState"] in ("PENDING", "RUNNING", "COMPLETING"):
                return None
            return fields["JobState"], int(fields["ExitCode"].split(":")[0])

        found: tuple[str, int] = self.wait("the job's end", seen)
        return found

    def run_regular_job(self, *nodes: str) -> None:
        """Runs a regular job on these nodes and returns when it has run."""
        argv = ["srun", "-p", "batch", "-N", str(len(nodes)), "-w", ",".join(nodes), "true"]
        said = subprocess.run(argv, env=self.env(), capture_output=True, text=True, timeout=HUNG_S, check=False)
        assert said.returncode == 0, said.stderr

    def slurm(self, *words: str) -> str:
        """Runs a Slurm command that has to succeed; what it prints."""
        return subprocess.run(words, env=self.env(), capture_output=True, text=True, check=True).stdout.strip()

    def requeue(self) -> None:
        """Has Slurm run the job again at once; by itself it would let two minutes go by."""
        self.slurm("scontrol", "requeue", self.job_id)
        self.wait("it is queued", lambda: self._state() == "PENDING")
        # A job that starts in the second of its requeue is killed: slurmd takes its credential for the revoked one.
        time.sleep(1.1)

        def running() -> bool:
            # Again and again: Slurm may set the two minutes once more when the job's last process has ended.
            if self._state() == "PENDING":
                argv = ["scontrol", "update", f"JobId={self.job_id}", "StartTime=now"]
                subprocess.run(argv, env=self.env(), capture_output=True, check=False)  # it may run by now
                time.sleep(0.5)
            return self._state() == "RUNNING"

        self.wait("it runs again", running)

    def _state(self) -> str:
        return self.slurm("squeue", "-h", "-j", self.job_id, "-o", "%T")

    def cancel(self) -> None:
        subprocess.run(["scancel", self.job_id], env=self.env(), check=True)


def job_processes(sandbox: Sandbox) -> list[psutil.Process]:
    """Every process that runs in a job of the cluster, or for one."""
    found = []
    for pid in psutil.pids():  # psutil.process_iter() takes a new process for an earlier one whose number it has
        try:
            process = psutil.Process(pid)
            environ = process.environ()
            alive = process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue
        if alive and environ.get("SLURM_CONF") == str(sandbox.conf) and {"SLURM_JOB_ID", "BFT_LEASE"} & set(environ):
            found.append(process)
    return found


def _is_node(process: psutil.Process) -> bool:
    return "elastic.node" in process.cmdline()
