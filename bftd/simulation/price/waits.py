"""The waits of many courses, with bftd and without, and what they amount to by class of jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from bftd.base.format import counted
from bftd.simulation.advise.confidence import CONFIDENCE, bounds, student
from bftd.simulation.price.model import LostJob, Reproduced, Unit, Wait, Why
from bftd.simulation.price.workload import Floats, Workload
from bftd.simulation.slurm.courses import Course

CLASS_JOBS = 30
"""The fewest jobs of a class whose mean counts."""
WEEKS_LEAST = 8
"""The fewest weeks of a log that show how much weeks differ."""
WORST = 10
"""The jobs that are named."""
_WEEK_S = 7 * 86_400.0
_SIZES = (1, 8, 64, 512)


class Waits:
    """The waits of the jobs that count, by course, without bftd and, in courses of the same numbers, with it."""

    def __init__(self, load: Workload, without: Sequence[Course], with_bftd: Sequence[Course] = ()) -> None:
        self._load = load
        held_s = np.array([max(0.0, one.eligible_s - one.submit_s) for one in load.jobs])
        self._without, self._with = (
            np.array([one.waits_s for one in courses]).reshape(len(courses), len(load.jobs)) - held_s
            for courses in (without, with_bftd)
        )
        started = np.isfinite(np.concatenate([self._without, self._with])).all(axis=0)
        self.counted = load.counted & started
        stuck = int((load.counted & ~started).sum())
        self.notes = [f"{counted(stuck, 'job')} never start in the simulation and do not count"] if stuck else []
        begun_s = np.array([one.submit_s for one in load.logged]) - load.begin_s
        self._weeks = (begun_s // _WEEK_S).astype(int)
        whole = len(with_bftd) and len(np.unique(self._weeks[self.counted]))
        self.unit: Unit = "week" if whole >= WEEKS_LEAST else "course"
        self._wide = student((1.0 + CONFIDENCE) / 2.0, max(1, len(without) - 1))

    def _classes(self) -> Mapping[str, NDArray[np.bool_]]:
        """Return the jobs that count by class, of which the first has all."""
        nodes = np.array([one.nodes for one in self._load.logged])
        found = {"": self.counted}
        edges = (0, *_SIZES, np.inf)
        for below, most in pairwise(edges):
            name = (
                "1 node"
                if most == 1
                else f"{below + 1:,} to {most:,} nodes"
                if most < np.inf
                else f"over {below:,} nodes"
            )
            found[name] = self.counted & (nodes > below) & (nodes <= most)
        partitions = np.array([one.partition for one in self._load.logged])
        for partition in dict.fromkeys(partitions.tolist()):
            found[f"partition {partition}"] = self.counted & (partitions == partition)
        every = int(self.counted.sum())
        return {name: jobs for name, jobs in found.items() if not name or CLASS_JOBS <= jobs.sum() < every}

    def reproduced(self) -> list[Reproduced]:
        """Compare the waits without bftd with those of the log."""
        if not self.counted.any():
            return []
        return [
            Reproduced(
                name, int(jobs.sum()), float(self._load.waits_s[jobs].mean()), float(self._without[:, jobs].mean())
            )
            for name, jobs in self._classes().items()
        ]

    def compared(self) -> list[Wait]:
        """Compare the waits with bftd and without, by class."""
        return [self._wait(name, jobs) for name, jobs in self._classes().items()]

    def all(self) -> Wait:
        """Compare the waits of all jobs."""
        return self._wait("", self.counted)

    def _wait(self, name: str, jobs: NDArray[np.bool_]) -> Wait:
        before, lost = self._without[:, jobs].mean(axis=1), (self._with - self._without)[:, jobs]
        mean_s = float(lost.mean())
        if self.unit == "week":
            weeks, place = np.unique(self._weeks[jobs], return_inverse=True)
            counts = np.bincount(place, minlength=len(weeks)).astype(np.float64)
            low_s, high_s = bounds(np.bincount(place, lost.mean(axis=0)).astype(np.float64), counts, mean_s)
        else:
            half_s = self._wide * float(_spread(lost.mean(axis=1))) / sqrt(len(lost))
            low_s, high_s = mean_s - half_s, mean_s + half_s
        null_s = self._wide * sqrt(2.0) * float(_spread(before))
        return Wait(name, int(jobs.sum()), float(before.mean()), mean_s, low_s, high_s, null_s)

    def worst(self, delays_s: Floats) -> list[LostJob]:
        """Return the jobs that lose most; `delays_s` are the mean direct delays of all jobs."""
        lost_s = np.where(self.counted, (self._with - self._without).mean(axis=0), -np.inf)
        nulls_s = self._wide * sqrt(2.0) * _spread(self._without)
        found = []
        for place in np.argsort(-lost_s, kind="stable")[:WORST]:
            if lost_s[place] <= 0.0:
                break
            job, direct_s, null_s = self._load.logged[place], float(delays_s[place]), float(nulls_s[place])
            why: Why = (
                "preempted" if direct_s >= lost_s[place] / 2 else "chance" if lost_s[place] <= null_s else "order"
            )
            wait_s = float(self._without[:, place].mean())
            found.append(
                LostJob(
                    job.id, job.partition, job.nodes, job.submit_s, wait_s, float(lost_s[place]), direct_s, null_s, why
                )
            )
        return found


def _spread(values: Floats) -> Floats:
    """Return the standard deviation over courses; 0 if there is one course only."""
    return np.std(values, axis=0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1:])
