"""The regular jobs beside the trainers, and the rules that are looked at all the time, each in a thread of its own."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections import Counter

from benchmarks.chaos.model import RegularStart, Violations, regular_jobs
from benchmarks.chaos.site import ChaosSite, node_of
from benchmarks.chaos.trainers import Trainers
from bftd.api_client import ApiClient
from bftd.base.errors import BftError
from slurm_plugin.errors import SlurmError

_LOOK_S = 0.5
_PROCESSES_EVERY = 6
_LEAVES_S = 2.0
"""A process may be seen a moment longer than Slurm knows of it."""

_ANSWERS_S = 2.0
_JOB = "date +%s.%N > regular-$SLURM_JOB_ID; exec sleep {run_s:.1f}"


class RegularJobs(threading.Thread):
    """The stream of regular jobs; a thread that holds `paused` has the cluster to itself."""

    def __init__(self, site: ChaosSite, seed: int) -> None:
        super().__init__(daemon=True)
        self._site = site
        self._seed = seed
        self._over = threading.Event()
        self.paused = threading.Lock()
        self.submitted: list[RegularStart] = []

    def run(self) -> None:
        """Submit job after job."""
        for job in regular_jobs(self._seed):
            if self._over.wait(job.after_s):
                return
            with self.paused:
                self.submit(job.run_s, f"--nodes={job.nodes}")

    def submit(self, run_s: float, *options: str) -> None:
        """Submit one; one that Slurm does not take, as it is away, is none."""
        submit_s = time.time()
        words = ["sbatch", "--parsable", "--partition=batch", "--time=1", "--output=/dev/null", *options]
        with contextlib.suppress(BftError, subprocess.TimeoutExpired):
            id_ = self._site.slurm(*words, f"--wrap={_JOB.format(run_s=run_s)}")
            self.submitted.append(RegularStart(id_, submit_s))

    def end(self, most_s: float) -> list[RegularStart]:
        """Submit no more, wait so long for those that have not started, and return all."""
        _end(self, self._over)
        until_s = time.monotonic() + most_s
        while self._look() and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
        return self.submitted

    def _look(self) -> int:
        """Read the starts; returns how many are missing."""
        for job in self.submitted:
            stamp = self._site.work / f"regular-{job.id}"
            if job.start_s is None and stamp.exists() and (text := stamp.read_text()).endswith("\n"):
                job.start_s = float(text)
        return sum(job.start_s is None for job in self.submitted)


class Observer(threading.Thread):
    """Reads Slurm and the daemon, and holds them to the rules; keeps the alarms that it sees, by kind."""

    def __init__(self, site: ChaosSite, trainers: Trainers, violations: Violations) -> None:
        super().__init__(daemon=True)
        self._site = site
        self._trainers = trainers
        self._violations = violations
        self._over = threading.Event()
        self._counted: Counter[str] = Counter()
        self._regular: dict[str, tuple[str, float]] = {}
        self.alarms: set[str] = set()

    def run(self) -> None:
        """Look until the end."""
        client, daemon = (
            self._site.cluster.client(_ANSWERS_S),
            ApiClient(self._site.client.address, timeout_s=_ANSWERS_S),
        )
        looks = 0
        while not self._over.wait(_LOOK_S):
            looks += 1
            with contextlib.suppress(SlurmError):
                self._look_at_jobs({job.id: (job.partition, job.nodes) for job in client.snapshot().jobs if job.nodes})
            with contextlib.suppress(BftError, OSError):
                self._look_at_counts(daemon)
            if looks % _PROCESSES_EVERY == 0:
                self._look_at_drivers()
                self._look_at_workers()

    def end(self) -> None:
        """Stop looking."""
        _end(self, self._over)

    def _look_at_jobs(self, jobs: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]) -> None:
        pilots: dict[str, str] = {}
        regular: dict[str, str] = {}
        for id_, (partition, nodes) in jobs.items():
            for node in nodes:
                if "elastic" in partition:
                    if node in pilots:
                        self._violations.add("two_pilots", f"{pilots[node]} and {id_} on {node}")
                    pilots[node] = id_
                elif "batch" in partition:
                    regular[node] = id_
        now_s = time.monotonic()
        self._regular = {
            node: self._regular[node] if self._regular.get(node, ("", 0.0))[0] == id_ else (id_, now_s)
            for node, id_ in regular.items()
        }
        for node in sorted(pilots.keys() & regular.keys()):
            self._violations.add("regular_with_pilot", f"{regular[node]} and {pilots[node]} on {node}")

    def _look_at_counts(self, daemon: ApiClient) -> None:
        status = daemon.status()
        self.alarms |= {alarm["kind"] for alarm in status["alarms"]}
        for told in status["trainers"]:
            trainer = self._trainers.of_job(told["id"])
            if trainer is None:
                continue
            trainer.read(self._site.work)  # later than the daemon's answer, so it has at least what that counts
            if told["step"] > trainer.top:
                self._violations.add("step_not_trained", told["id"], f"{told['step']} of {trainer.top} counted")
            if told["step"] < self._counted[told["id"]]:
                text = f"job {told['id']}: from step {self._counted[told['id']]} to {told['step']}"
                self._violations.add("progress_went_back", text)
            self._counted[told["id"]] = told["step"]

    def _look_at_drivers(self) -> None:
        names: Counter[str] = Counter()
        for process in self._site.of_role("driver"):
            with contextlib.suppress(Exception):
                names[process.environ()["SLURM_JOB_NAME"]] += 1
        for name, count in names.items():
            if count > 1:
                self._violations.add("two_drivers", name)

    def _look_at_workers(self) -> None:
        """No worker is left on a node that a regular job has had for a moment."""
        now_s = time.monotonic()
        had = {node: id_ for node, (id_, since_s) in self._regular.items() if now_s - since_s > _LEAVES_S}
        for process in self._site.of_role("worker") if had else ():
            if (node := node_of(process)) in had:
                what = f"process {process.pid} beside job {had[node]} on {node}"
                self._violations.add("worker_beside_regular_job", what)


def _end(thread: threading.Thread, over: threading.Event) -> None:
    """End a thread; raises BftError if it had ended by itself."""
    if not thread.is_alive():
        raise BftError(f"a thread of the benchmark has failed: {thread.name}")
    over.set()
    thread.join()
