"""The trainers that faults strike: submitted, resubmitted as their users would, and judged at the end."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.chaos.model import TrainerEnd, Violations
from benchmarks.chaos.site import SCRIPTS, ChaosSite, run_alone
from bftd.base.errors import BftError

GLOBAL_BATCH = 24
STEP_TIME_S = 0.15
_MORE_STEPS = 20
_NODES = "1-4"
_CLOSE = {"torchrun": 0.0, "horovod": 1e-3}
"""The relative difference that the values of a step may have from those of an undisturbed run."""

_WAITING = ("PENDING", "RUNNING", "COMPLETING", "SUSPENDED")


@dataclass
class Trainer:
    """One training: the jobs that it ran as, newest last, and the steps that its script has written."""

    backend: str
    jobs: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    ended_well: bool = False
    _read: int = 0
    _reading: threading.Lock = field(default_factory=threading.Lock)

    @property
    def script(self) -> str:
        """The name of its script."""
        return f"train_{self.backend}.py"

    @property
    def top(self) -> int:
        """The highest step that was trained."""
        return max((row["step"] for row in self.rows), default=0)

    def read(self, folder: Path) -> None:
        """Read what the script has written since the last time."""
        path = folder / f"steps-{self.backend}.jsonl"
        if not path.exists():
            return
        with self._reading, path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read += len(whole)
            self.rows += [json.loads(line) for line in whole.splitlines()]


class Trainers:
    """The trainers of a site."""

    def __init__(self, site: ChaosSite, backends: tuple[str, ...], violations: Violations) -> None:
        self._site = site
        self._violations = violations
        self._killed: set[str] = set()
        self.all = [Trainer(backend) for backend in backends]

    def submit(self) -> None:
        """Submit each for the first time."""
        for path in SCRIPTS.glob("*.py"):
            shutil.copy(path, self._site.work)
        for trainer in self.all:
            self._submit(trainer)

    def of_job(self, job: str) -> Trainer | None:
        """Return the trainer that runs or ran as a job."""
        return next((trainer for trainer in self.all if job in trainer.jobs), None)

    def driver_killed(self, job: str) -> None:
        """Note that a fault has ended a job: its user will go on in another one."""
        self._killed.add(job)

    def look(self) -> bool:
        """Read what was trained, resubmit what has ended otherwise than well; returns whether any trainer is left."""
        for trainer in self.all:
            trainer.read(self._site.work)
            if not trainer.ended_well:
                self._look_at(trainer)
        return not all(trainer.ended_well for trainer in self.all)

    def _look_at(self, trainer: Trainer) -> None:
        job = trainer.jobs[-1]
        try:
            shown = self._site.slurm("scontrol", "show", "job", "-o", job, timeout_s=5.0)
        except (BftError, subprocess.TimeoutExpired):
            return
        fields = dict(word.split("=", 1) for word in shown.split() if "=" in word)
        if fields.get("JobState", "RUNNING") in _WAITING:
            return
        if fields["JobState"] == "COMPLETED":
            trainer.ended_well = True
            return
        if job not in self._killed:
            self._violations.add("trainer_failed", job, f"{trainer.backend}, job {job}: {self._last_words(trainer)}")
        self._submit(trainer)

    def _submit(self, trainer: Trainer) -> None:
        """Submit a trainer, from its last checkpoint if it has trained; tried again later where it is refused."""
        trained = trainer.jobs and trainer.top
        elastic = f"{_NODES},backend={trainer.backend}{f',resume={trainer.jobs[-1]}' if trained else ''}"
        options = [f"--elastic={elastic}", f"--job-name={trainer.backend}", "--output=%x-%j.log", "--parsable"]
        done = self._site.bft("sbatch", *options, trainer.script, trainer.backend, "0", str(STEP_TIME_S))
        if done.returncode == 0:
            trainer.jobs.append(done.stdout.strip())
        elif not trainer.jobs:
            raise BftError(done.stderr.strip())

    def _last_words(self, trainer: Trainer) -> str:
        path = self._site.work / f"{trainer.backend}-{trainer.jobs[-1]}.log"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return next((line for line in reversed(lines) if "exit code" in line), lines[-1] if lines else "no output")

    def stop(self) -> None:
        """Have each end a little beyond the highest step that it has come to, lost or not."""
        for trainer in self.all:
            new = self._site.work / f"stop-{trainer.backend}.new"
            new.write_text(f"{trainer.top + _MORE_STEPS}")
            new.rename(new.with_suffix(""))

    def counted_twice(self, trainer: Trainer) -> int:
        """Return how many steps more than there are the daemon's ledger counts, by the samples of all steps."""
        for event in _events(self._site):
            if event["kind"] == "finished" and event["trainer"] == trainer.jobs[-1]:
                summary = event["data"]["summary"]
                counts = round(summary["samples"] / GLOBAL_BATCH) - trainer.top, summary["step"] - trainer.top
                return max(counts, key=abs)
        return 0

    def judge(self, folder: Path, twice: dict[str, int]) -> list[TrainerEnd]:
        """Compare what was trained with a run that nothing disturbed; its files go to `folder`."""
        ends = []
        for trainer in self.all:
            name = trainer.backend
            wrong = wrong_steps(trainer, _undisturbed(trainer, folder)) if trainer.top else []
            for step in wrong:
                self._violations.add("wrong_result", f"{name} {step}")
            if not trainer.ended_well:
                self._violations.add("unfinished", name)
            if twice[name]:
                self._violations.add("step_counted_twice", name, f"{name}: {twice[name]}")
            rows_s = [row["at_s"] for row in trainer.rows]
            more = {"steps": trainer.top, "steps_trained_again": len(rows_s) - len({r["step"] for r in trainer.rows})}
            more["jobs"] = len(trainer.jobs)
            ends.append(TrainerEnd(name, trainer.ended_well, bool(rows_s) and not wrong, twice[name], rows_s, more))
        return ends


def _undisturbed(trainer: Trainer, folder: Path) -> dict[int, Any]:
    """Return the value of each step of a run by one worker."""
    alone = folder / f"alone-{trainer.backend}"
    alone.mkdir(parents=True)
    run_alone(trainer.script, [trainer.backend, str(trainer.top), "0"], alone)
    reference = Trainer(trainer.backend)
    reference.read(alone)
    return {row["step"]: row["value"] for row in reference.rows}


def wrong_steps(trainer: Trainer, right: dict[int, Any]) -> list[int]:
    """Return the steps that are missing or have another value than in the undisturbed run."""
    close = _CLOSE[trainer.backend]

    def same(value: Any, other: Any) -> bool:
        return value == other or (close > 0 and math.isclose(value, other, rel_tol=close, abs_tol=1e-6))

    differ = {row["step"] for row in trainer.rows if not same(row["value"], right.get(row["step"]))}
    missing = set(range(1, trainer.top + 1)) - {row["step"] for row in trainer.rows}
    return sorted(differ | missing)


def _events(site: ChaosSite) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while batch := site.client.events(after=found[-1]["rowid"] if found else 0):
        found += batch
    return found


def own_faults(folder: Path) -> list[str]:
    """Return the lines of daemon and drivers in a folder of logs that tell of a fault of their own."""
    told = re.compile(r"please report it|^Traceback|Exception ignored")
    return [
        f"{path.name}: {line.strip()}"
        for path in sorted(folder.glob("*.log"))
        for line in path.read_text(errors="replace").splitlines()
        if told.search(line)
    ]
