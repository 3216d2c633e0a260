"""Logs of small made-up sites, and what a price may look like."""

from __future__ import annotations

from random import Random

from bftd.pool.backfill.model import Component
from bftd.simulation.price.model import LostJob, Price, Reproduced, Tried, Wait
from bftd.simulation.slurm.controller import Controller
from bftd.simulation.slurm.model import SimulatedJob, SimulatedSite
from bftd.simulation.trace.job_model import JobLog, LoggedJob

BEGIN_S = 1_800_000_000.0


def logged(number: int, submit_s: float, start_s: float | None, end_s: float | None, **fields: object) -> LoggedJob:
    """A job of one node; times are from the beginning of the log."""
    known = {
        "id": str(number),
        "submit_s": BEGIN_S + submit_s,
        "eligible_s": BEGIN_S + submit_s,
        "start_s": None if start_s is None else BEGIN_S + start_s,
        "end_s": None if end_s is None else BEGIN_S + end_s,
        "limit_s": 3600.0,
        "nodes": 1,
        "partition": "batch",
        "user": "u1",
        "account": "a1",
        "qos": "normal",
        "state": "COMPLETED",
        "node_names": "",
        "required": "",
    }
    return LoggedJob(**known | fields)  # type: ignore[arg-type]


def log_of(*jobs: LoggedJob, hours: float = 10.0, size: int | None = 4, slurm: dict[str, str] | None = None) -> JobLog:
    """A log of these jobs."""
    return JobLog(jobs, BEGIN_S, BEGIN_S + 3600.0 * hours, size, (), slurm or {})


def busy(nodes: int = 8, jobs: int = 40, seed: int = 1) -> JobLog:
    """The log of Slurm alone under a stream of jobs of minutes, in whole seconds as accounting has it."""
    random, site = Random(seed), SimulatedSite.of(nodes)
    stream, at_s = [], BEGIN_S
    for number in range(jobs):
        at_s += round(random.expovariate(1 / 40.0))
        run_s = float(round(random.uniform(60.0, 240.0)))
        need = random.choice((1, 1, 2, 3, nodes // 2))
        part = Component(site.everything, need, within=site.everything)
        stream.append(SimulatedJob(number, at_s, run_s, 60.0 * (1 + run_s // 40), part))
    found = []
    for run in Controller(site, stream, 77).run():
        start_s, job = float(round(run.start_s)), run.job
        found.append(
            logged(
                job.number,
                job.submit_s - BEGIN_S,
                start_s - BEGIN_S,
                start_s - BEGIN_S + job.run_s,
                limit_s=job.limit_s,
                nodes=job.component.need,
            )
        )
    return JobLog(tuple(found), BEGIN_S, at_s + 600.0, nodes)


def priced() -> Price:
    """A price of which all is known."""
    everyone = Wait("", 1200, 3600.0, 36.0, 12.0, 60.0, 90.0)
    names = ("", "earmark false", "give-back 3 s", "vacate_ahead_s 60", "min_window_s 600")
    return Price(
        nodes=16,
        jobs=1200,
        period_s=28 * 86_400.0,
        slurm="the site's own SchedulerParameters (<b>bf_interval=30</b>)",
        checks=(Reproduced("", 1200, 3600.0, 3500.0), Reproduced("1 node", 600, 1800.0, 1750.0)),
        courses=15,
        node_hours_per_week=700.0,
        waits=(everyone, Wait("1 node", 600, 1800.0, -5.0, -20.0, 10.0, 40.0)),
        direct_s=0.4,
        delayed_share=0.25,
        settings=tuple(
            Tried(
                name, 700.0 - 40.0 * place, Wait("", 1200, 3600.0, 36.0 * place, 10.0 * place, 70.0 * place, 90.0), 15
            )
            for place, name in enumerate(names)
        ),
        worst=tuple(
            LostJob(f"<i>{place}", "batch", 4, BEGIN_S, 100.0, 900.0, 10.0, 50.0, why)  # type: ignore[arg-type]
            for place, why in enumerate(("preempted", "chance", "order"))
        ),
        notes=("a note of <u>the log</u>",),
    )
