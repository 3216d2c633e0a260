"""A stream of regular jobs that come and go, and how long each of them waited."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bftd.cli.admin.sandbox_site import SandboxSite


@dataclass(frozen=True)
class RegularJob:
    """A job of `nodes` whole nodes that runs for `run_s`, submitted `at_s` after the stream's start."""

    at_s: float
    nodes: int
    run_s: float

    @property
    def limit_min(self) -> int:
        """Slurm's time limits are whole minutes."""
        return int(self.run_s // 60) + 1


def stream(site: SandboxSite, jobs: Sequence[RegularJob], meanwhile: Callable[[], object]) -> list[dict[str, Any]]:
    """Submits the jobs at their times and waits for the last one's end.

    Returns a row a job: id, nodes, submit_s and start_s (unix seconds; the start is the job's own first line) and
    delay_s; start_s and delay_s are None for a job that did not start. `meanwhile` is called a few times a second.
    """
    begin_s = time.time()
    rows: list[dict[str, Any]] = []
    for job in sorted(jobs, key=lambda job: job.at_s):
        while time.time() < begin_s + job.at_s:
            meanwhile()
            time.sleep(0.1)
        rows.append(_submit(site, job))
    end_s = time.time() + 60 + max((job.run_s for job in jobs), default=0)
    while time.time() < end_s and site.slurm("squeue", "-h", "-p", "batch", "-o", "%i"):
        meanwhile()
        time.sleep(0.2)
    for row in rows:
        stamp = site.work / f"regular-{row['id']}"
        row["start_s"] = float(stamp.read_text()) if stamp.exists() else None
        row["delay_s"] = row["start_s"] - row["submit_s"] if row["start_s"] else None
    return rows


def median_delay_s(rows: Sequence[dict[str, Any]]) -> float | None:
    """The median over the jobs that started; None when none did."""
    delays = [row["delay_s"] for row in rows if row["delay_s"] is not None]
    return statistics.median(delays) if delays else None


def _submit(site: SandboxSite, job: RegularJob) -> dict[str, Any]:
    submit_s = time.time()
    script = f"date +%s.%N > regular-$SLURM_JOB_ID; sleep {job.run_s}; touch ended-$SLURM_JOB_ID"
    name = site.slurm(
        "sbatch", "--parsable", "--partition=batch", f"--nodes={job.nodes}", f"--time={job.limit_min}",
        "--output=/dev/null", f"--wrap={script}",
    )  # fmt: skip
    return {"id": name, "nodes": job.nodes, "submit_s": submit_s}
