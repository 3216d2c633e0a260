"""The study of the examples on a real cluster: trials that lose their nodes go on, and so does a killed study."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bftd.cli.admin.sandbox_site import SandboxSite
from tests.support import waiting
from tests.support.clusters import Clusters

optuna = pytest.importorskip("optuna")

pytestmark = [pytest.mark.cluster, pytest.mark.torch]

STUDY = Path(__file__).parents[2] / "examples" / "optuna_hpo.py"
TRIAL = Path(__file__).with_name("study_trial.py")


@pytest.fixture
def site(clusters: Clusters) -> Iterator[SandboxSite]:
    with clusters.site(nodes=3, tuned=True) as site:
        site.start_daemon()
        yield site


class Started:
    """The study as one process after another."""

    def __init__(self, site: SandboxSite) -> None:
        self.site = site
        self.folder = site.work / "study"
        self.log = site.work / "study.log"
        self.start()

    def start(self) -> None:
        words = ["--trials=3", "--parallel=3", "--elastic=1", "--pruner=none", f"--script={TRIAL}"]
        command = [sys.executable, str(STUDY), f"--folder={self.folder}", *words]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(command, env=self.site.env(), stdout=log, stderr=subprocess.STDOUT)

    def end(self, by: signal.Signals) -> int:
        self.process.send_signal(by)
        return self.process.wait(240)

    def trials(self) -> list[Any]:
        backend = optuna.storages.journal.JournalFileBackend(str(self.folder / "journal"))
        study = optuna.load_study(study_name="study", storage=optuna.storages.JournalStorage(backend))
        return list(study.get_trials())

    def jobs(self) -> dict[str, str]:
        """The study's jobs that have not ended, by their trial's number."""
        rows = self.site.slurm("squeue", "-h", "-o", "%i %j").splitlines()
        return {name.rpartition("-")[2]: id_ for id_, name in map(str.split, rows) if name.startswith("study-")}

    def output(self, number: int) -> str:
        return "".join(path.read_text() for path in self.folder.glob(f"study-*/{number}/job.out"))

    def until(self, what: str, condition: Callable[[], Any]) -> Any:
        def logs() -> list[str]:
            return [self.log.read_text(), *(self.output(number) for number in range(3))]

        return waiting.until(what, condition, logs, lambda: "\n".join(text[-2000:] for text in logs()))


def test_preempted_trials_go_on_failed_ones_are_told_apart_and_a_killed_study_submits_nothing_twice(
    site: SandboxSite,
) -> None:
    study = Started(site)
    try:
        study.until("trial 0 and 2 train", lambda: all("started on" in study.output(number) for number in (0, 2)))
        assert re.search(r"bft: \S+ started on 1 node \(n\d\); .* samples/s, about \d+", study.output(0))
        before = study.jobs()
        study.end(signal.SIGKILL)
        site.slurm("sbatch", "--nodes=3", "--exclusive", "--wrap=sleep 1")
        study.until("all nodes are taken", lambda: all("was suspended" in study.output(n) for n in (0, 2)))
        study.start()
        study.until("trial 1 is failed", lambda: study.trials()[1].state.name == "FAIL")
        study.until("both go on", lambda: all("resumed on" in study.output(number) for number in (0, 2)))
        assert {number: study.jobs().get(number) for number in ("0", "2")} == {n: before[n] for n in ("0", "2")}
        site.slurm("scancel", study.jobs()["2"])
        (next(study.folder.glob("study-*")) / "end").touch()
        assert study.process.wait(240) == 0
        states = {trial.number: trial.state.name for trial in study.trials()}
        assert states == {0: "COMPLETE", 1: "FAIL", 2: "FAIL"}, study.log.read_text()
        first, failed, cancelled = study.trials()
        assert first.user_attrs["suspends"] >= 1
        assert first.user_attrs["job"] == before["0"]
        assert first.last_step > 10
        assert "is FAILED" in failed.user_attrs["why"]
        assert "is CANCELLED" in cancelled.user_attrs["why"]
    finally:
        study.process.kill()
        study.process.wait()
