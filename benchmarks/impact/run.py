"""One run: a fresh cluster, the stream of regular jobs on it, with bftd or without, and the record of what happened."""

from __future__ import annotations

import gzip
import math
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Protocol

from benchmarks.backfill import cycle_log
from benchmarks.backfill.cycle_log import Cycle
from benchmarks.impact import earmarks, logs, slots, training
from benchmarks.impact.recipe import Recipe
from benchmarks.impact.record import EarmarkRow, JobRow, Kind, PilotRow, Run
from benchmarks.impact.site import DRIVERS, PILOTS, REPOSITORY, Site
from benchmarks.impact.stream import RegularJob, Stream
from bftd.base.errors import BftError
from slurm_plugin.errors import SlurmError

WARM_UP_S = 15.0
"""From the cluster's start to the stream's: drivers start and take up every node; the same without bftd."""

PLANNED_AHEAD_S = 10.0
"""A plan counts when it was seen so long ahead: bftd had the time to leave."""

_PLANS_EVERY_S = 1.0
_AHEAD_S = 1.0
"""What is to be done in the last second before the stream: the reservation and a look at the counters."""

_LATE_S = 1.0
"""A job that is submitted so late makes another stream of it: the machine was too busy."""

_STEPS_FOR_EVER = 1_000_000
_OVER_AFTER_S = 600.0  # as often as the stream is stretched
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Setting:
    """What makes a run: everything in it is in the run's record."""

    recipe: Recipe
    kind: Kind
    pair: int
    seed: int
    nodes: int
    training: str = "sleeping"
    stretch: int = 1
    warm_up_s: float = WARM_UP_S


class PlanReader(threading.Thread):
    """Looks at the pending jobs once a second, and keeps for each the last plan, and the last one well ahead.

    It also keeps the most load of the machine: what is late on a busy one says little.
    """

    def __init__(self, site: Site) -> None:
        super().__init__(daemon=True)
        self._client = site.cluster.client()
        self._over = threading.Event()
        self.planned_s: dict[str, float] = {}
        self.last_s: dict[str, float] = {}
        self.reads = 0
        self.load_most = 0.0

    def run(self) -> None:
        next_s = time.time()
        while not self._over.wait(max(0.0, next_s - time.time())):
            next_s = max(next_s + _PLANS_EVERY_S, time.time())
            try:
                pending = self._client.pending()
            except SlurmError:
                continue
            self.reads += 1
            self.load_most = max(self.load_most, os.getloadavg()[0])
            now_s = time.time()
            for job in pending:
                if job.sched_nodes and job.start_s is not None:
                    self.last_s[job.id] = job.start_s
                    if job.start_s - now_s >= PLANNED_AHEAD_S:
                        self.planned_s[job.id] = job.start_s

    def end(self) -> None:
        """Stops it and waits for its last look."""
        self._over.set()
        self.join()


class Harvester(Protocol):
    """A user of idle nodes."""

    @property
    def by_bftd(self) -> bool:
        """Whether bftd does it: it reads the cluster, so that the benchmark need not."""

    def start(self, site: Site) -> None:
        """Begin, on a cluster that is up and idle."""

    def end(self, site: Site, begin_s: float) -> None:
        """The stream, which began at `begin_s` (unix seconds), is over; the cluster ends after this."""


@dataclass(frozen=True, slots=True)
class Bftd:
    """The daemon with the trainers of the site; `training` is sleeping or torchrun."""

    training: str
    by_bftd: bool = True

    def start(self, site: Site) -> None:
        """See Harvester."""
        site.start_daemon()
        if self.training == "sleeping":
            site.start_trainers(training.lay_out(site.work))
        else:
            site.start_trainers(REPOSITORY / "examples" / "train_torchrun.py", f"--steps={_STEPS_FOR_EVER}")

    def end(self, site: Site, begin_s: float) -> None:
        """See Harvester."""


@dataclass
class _Submitted:
    """What is known of the stream's jobs while it runs."""

    ids: dict[int, str] = field(default_factory=dict)
    submit_s: dict[int, float] = field(default_factory=dict)


def perform(
    setting: Setting,
    stream: Stream,
    release: str,
    keep_logs: Path,
    log: Callable[[str], None],
    *,
    record: bool = False,
    harvester: Harvester | None = None,
) -> Run:
    """Run the stream once; the logs of Slurm, daemon and drivers go to the folder `keep_logs`.

    To `record` a run without bftd, what its poller reads is kept there as well. A run of kind B has a `harvester`,
    which is bftd unless it is given; not so one that is displaced.
    """
    if setting.kind == "B" and not setting.recipe.displaced:
        harvester = harvester or Bftd(setting.training)
    with Site(setting.recipe, setting.nodes) as site:
        up_s = time.time()
        poller = None
        try:
            if harvester is None or not harvester.by_bftd:
                poller = site.start_poller(record=record)
            if harvester is not None:
                harvester.start(site)
            # Later where the machine was so busy that the warm-up was not enough; the run's note tells it.
            planned_s = math.ceil(up_s + setting.warm_up_s)
            begin_s = max(planned_s, math.ceil(time.time() + _AHEAD_S))
            run = _measure(setting, stream, release, site, begin_s, log)
            if harvester is not None:
                harvester.end(site, begin_s)
            if begin_s > planned_s:
                run = replace(run, note=_joined(f"the stream began {begin_s - planned_s} s late", run.note))
            if poller is not None and poller.poll() is not None:
                raise BftError(f"the process that reads the cluster ended early; see {keep_logs / 'poller.log'}")
            return run
        finally:
            if poller is not None:
                poller.terminate()
                poller.wait(timeout=20)
            _keep(site, keep_logs)


def _measure(
    setting: Setting,
    stream: Stream,
    release: str,
    site: Site,
    begin_s: float,
    log: Callable[[str], None],
) -> Run:
    site.reserve(stream.reservation, begin_s)
    time.sleep(max(0.0, begin_s - 0.5 - time.time()))
    before = logs.rpc_counts(site.slurm("sdiag"))
    cpu_s = site.controller_cpu_s()
    plans = PlanReader(site)
    if setting.kind == "B" and setting.recipe.displaced:
        site.hold_every_node(Random(f"{setting.seed} {setting.pair}"))
    time.sleep(max(0.0, begin_s - time.time()))
    plans.start()
    try:
        submitted = _submit(site, stream, begin_s)
        over = _wait(site, submitted, begin_s, setting.stretch * _OVER_AFTER_S, log)
    finally:
        plans.end()
    length_s = time.time() - begin_s
    cpu_s = site.controller_cpu_s() - cpu_s
    after = logs.rpc_counts(site.slurm("sdiag"))
    ran = logs.jobs(site.slurm("env", "SLURM_TIME_FORMAT=%s", "scontrol", "show", "job", "-o"))
    held = _held(ran, logs.ended(site.completions))
    said = site.controller_log.read_text(errors="replace").splitlines()
    cycles = [cycle for cycle in cycle_log.cycles(said) if cycle.begin_s >= begin_s]
    run = Run(
        recipe=setting.recipe.name,
        release=release,
        kind=setting.kind,
        pair=setting.pair,
        seed=setting.seed,
        count=len(stream.jobs),
        nodes=setting.nodes,
        training=setting.training,
        stretch=setting.stretch,
        length_s=length_s,
        controller_cpu_s=cpu_s,
        rpcs={name: count - before.get(name, 0) for name, count in after.items() if count > before.get(name, 0)},
        plan_reads=plans.reads,
        load_most=plans.load_most,
        jobs=_job_rows(site, stream, submitted, ran, held, said, cycles, plans, begin_s),
        pilots=_pilot_rows(held, begin_s, begin_s + length_s),
        earmarks=_earmark_rows(site, submitted, begin_s),
        cycles_s=tuple(round(cycle.end_s - cycle.begin_s, 3) for cycle in cycles if cycle.end_s is not None),
        note=_note(over, length_s, ran, _most_late_s(stream, submitted)),
    )
    return _explained(run, submitted.ids, cycles, begin_s)


def _explained(run: Run, ids: dict[int, str], cycles: list[Cycle], begin_s: float) -> Run:
    """The run with a line for each slot that was lost; the log is at hand now."""
    return replace(
        run,
        jobs=tuple(
            replace(row, lost=slots.why_lost(run, row, ids[row.number], cycles, begin_s))
            if slots.lost(run, row)
            else row
            for row in run.jobs
        ),
    )


def _most_late_s(stream: Stream, submitted: _Submitted) -> float:
    """How much later than drawn the latest of the stream's jobs was submitted."""
    return max(submitted.submit_s[job.number] - job.at_s for job in stream.jobs)


def _note(over: bool, length_s: float, ran: list[logs.Ran], late_s: float) -> str:
    """What was not as it should be in a run."""
    faults = [] if over else [f"not every job had started after {length_s:.0f} s"]
    faults += [f"the trainer {job.name} ended" for job in ran if job.partition == DRIVERS and job.end_s is not None]
    faults += [f"jobs were submitted up to {late_s:.1f} s late"] if late_s > _LATE_S else []
    return _joined(*faults)


def _joined(*faults: str) -> str:
    return "; ".join(fault for fault in faults if fault)


def _submit(site: Site, stream: Stream, begin_s: float) -> _Submitted:
    submitted = _Submitted()
    for job in stream.jobs:
        time.sleep(max(0.0, begin_s + job.at_s - time.time()))
        submitted.submit_s[job.number] = time.time() - begin_s
        submitted.ids[job.number] = site.slurm(*_sbatch(job, submitted.ids))
    return submitted


def _sbatch(job: RegularJob, ids: dict[int, str]) -> list[str]:
    script = f"date +%s.%N > start-{job.number}; exec sleep {job.run_s:.2f}"
    return [
        "sbatch",
        "--parsable",
        "--partition=batch",
        f"--job-name=regular-{job.number}",
        f"--nodes={job.nodes}",
        f"--time={job.limit_min}",
        "--output=/dev/null",
        *([f"--dependency=afterany:{ids[job.after]}"] if job.after is not None else []),
        *job.options,
        f"--wrap={script}",
    ]


def _wait(site: Site, submitted: _Submitted, begin_s: float, most_s: float, log: Callable[[str], None]) -> bool:
    """Waits until every job has started; says whether it has."""
    waiting, told_s = set(submitted.ids), time.time()
    while waiting and time.time() - begin_s < most_s:
        waiting = {number for number in waiting if not _stamp(site, number).exists()}
        if time.time() - told_s > 30:
            told_s = time.time()
            log(f"{told_s - begin_s:.0f} s: {len(waiting)} jobs wait")
        time.sleep(_POLL_S)
    return not waiting


def _job_rows(
    site: Site,
    stream: Stream,
    submitted: _Submitted,
    ran: list[logs.Ran],
    held: list[logs.Ran],
    said: list[str],
    cycles: list[Cycle],
    plans: PlanReader,
    begin_s: float,
) -> tuple[JobRow, ...]:
    records = {job.id: job for job in ran}
    preempted, starts = logs.preemptions(said), logs.starts(said)
    failures = cycle_log.first_failures(cycles)
    by_backfill = {victim for cycle in cycles for failure in cycle.failed.values() for victim in failure.preempted}
    rows = []
    for job in stream.jobs:
        id_ = submitted.ids[job.number]
        record = records[id_]
        mine = [preemption for preemption in preempted if preemption.by == id_]
        stamp = _stamp(site, job.number)
        first = min(mine, key=lambda preemption: preemption.at_s, default=None)
        start_s = float(stamp.read_text()) if stamp.exists() else None
        rows.append(
            JobRow(
                number=job.number,
                kind=job.kind,
                submit_s=submitted.submit_s[job.number],
                start_s=_after(begin_s, start_s),
                planned_s=_after(begin_s, plans.planned_s.get(id_)),
                last_plan_s=_after(begin_s, plans.last_s.get(id_)),
                preempt_s=_after(begin_s, first.at_s if first else None),
                preemptions=len(mine),
                began_s=_after(begin_s, record.start_s),
                ended_s=_after(begin_s, record.end_s),
                nodes=record.nodes,
                freed=tuple(node for preemption in mine for node in _nodes_then(held, preemption)),
                depends_on=job.after,
                started_by=starts[id_].by if id_ in starts else None,
                allocated_s=_after(begin_s, starts[id_].at_s if id_ in starts else None),
                preempted_by=None if first is None else ("backfill" if first.victim in by_backfill else "main"),
                failed_s=_after(begin_s, failures[id_][1].at_s if id_ in failures else None),
                run_s=job.run_s,
            )
        )
    return tuple(rows)


def _held(ran: list[logs.Ran], ended: list[logs.Ran]) -> list[logs.Ran]:
    """The runs of all jobs of the pilots' partition: those that have ended, and those that go on."""
    over = {(job.id, job.start_s) for job in ended}
    every = [*ended, *(job for job in ran if (job.id, job.start_s) not in over)]
    return [job for job in every if job.partition == PILOTS and job.start_s is not None]


def _nodes_then(held: list[logs.Ran], preemption: logs.Preemption) -> tuple[str, ...]:
    """The nodes of the run of a job that Slurm preempted: its last one by then."""
    runs = [job for job in held if job.id == preemption.victim and (job.start_s or 0.0) <= preemption.at_s]
    return max(runs, key=lambda job: job.start_s or 0.0).nodes if runs else ()


def _pilot_rows(held: list[logs.Ran], begin_s: float, end_s: float) -> tuple[PilotRow, ...]:
    rows = []
    for job in held:
        if job.start_s is not None:
            until_s = job.end_s if job.end_s is not None else end_s
            rows += [PilotRow(node, job.start_s - begin_s, until_s - begin_s) for node in job.nodes]
    return tuple(rows)


def _earmark_rows(site: Site, submitted: _Submitted, begin_s: float) -> tuple[EarmarkRow, ...]:
    numbers = {id_: number for number, id_ in submitted.ids.items()}
    return tuple(
        EarmarkRow(
            job=numbers.get(earmark.job_id),
            nodes=earmark.nodes,
            since_s=round(earmark.since_s - begin_s, 3),
            until_s=_after(begin_s, earmark.until_s),
            end=earmark.end,
            leaving=earmark.leaving,
            idle_node_s=earmark.idle_node_s,
        )
        for earmark in earmarks.read(site.ledger)
    )


def _after(begin_s: float, time_s: float | None) -> float | None:
    return None if time_s is None else round(time_s - begin_s, 3)


def _stamp(site: Site, number: int) -> Path:
    return site.work / f"start-{number}"


def _keep(site: Site, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    nodes = site.controller_log.parent.glob("slurmd-*.log")  # why Slurm drained one
    for path in (site.log_path, site.root / "poller.log", site.snapshots, *site.work.glob("*.log"), *nodes):
        if path.exists():
            shutil.copy(path, folder / path.name)
    if site.controller_log.exists():
        # With backfill's tables it has tens of megabytes, a twentieth when packed.
        with site.controller_log.open("rb") as plain, gzip.open(folder / "slurmctld.log.gz", "wb", 4) as packed:
            shutil.copyfileobj(plain, packed)
    if site.ledger.exists():
        # The daemon is still at it, and has the last part in a file beside.
        with (
            closing(sqlite3.connect(site.ledger)) as source,
            closing(sqlite3.connect(folder / site.ledger.name)) as copy,
        ):
            source.backup(copy)
