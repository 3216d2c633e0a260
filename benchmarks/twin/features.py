"""Hold features of the simulated slurmctld against recordings of real ones, each with the feature on and off.

    python -m benchmarks.twin.features [--json] [--courses N] [FILE...]

benchmarks.twin.recorder makes the recordings: a few dozen short jobs on a private cluster with one feature. A job is
compared as by benchmarks.twin.recorded: whether it starts within one backfill cycle and a second of its recorded start,
and on the same nodes. With the feature off in the simulation the same stream must agree clearly less: what it does
then is what the recording would look like if the simulation knew nothing of the feature.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import floor
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.evidence.model import Benchmark
from benchmarks.twin.recorded import LEAST_NODES, LEAST_STARTS
from bftd.pool.backfill.model import Booking, Component
from bftd.simulation.slurm.controller import Controller
from bftd.simulation.slurm.limits import Limits, Most, QosLimits
from bftd.simulation.slurm.looks import Phases
from bftd.simulation.slurm.model import Outage, SimulatedJob, SimulatedPartition, SimulatedSite
from bftd.simulation.slurm.priority import ROOT, Association, Multifactor
from bftd.simulation.slurm.switches import Switch
from slurm_plugin.read.scheduler import with_rules
from slurm_plugin.read.types import Scheduler

RECORDINGS = Path(__file__).parents[1] / "results" / "twin"
NODES, COURSES = 8, 20
INTERVAL_S = 5.0
_ALL = (1 << NODES) - 1
_EPILOG_S = 12.0


@dataclass(frozen=True, slots=True)
class StreamJob:
    """A job of a stream, and what a cluster made of it: its last start, and its nodes.

    Times are seconds after the first submission. `run_s` is what it would run without a limit; `begin_s` is --begin
    after its submission, `after` the job it depends on, `booked` the place of its reservation.
    """

    number: int
    at_s: float
    nodes: int
    run_s: float
    limit_min: int = 1
    partition: str = "batch"
    user: str = ""
    account: str = ""
    qos: str = ""
    begin_s: int = 0
    after: int | None = None
    booked: int | None = None
    start_s: float = 0.0
    on: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reserved:
    """Nodes that are set aside, from so many seconds after the first submission on."""

    nodes: str
    mask: int
    start_s: float
    length_min: int


@dataclass(frozen=True, slots=True)
class Change:
    """A node gets another state, so many seconds after the first submission."""

    at_s: float
    node: int
    state: str


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of a cluster, and the same as fields of the simulated site.

    A cluster has lines of slurm.conf, further files by name, and statements for sacctmgr, which need slurmdbd. `site`
    and `without` are the fields with the feature and without it; without it jobs have no `own` fields. `shape` makes a
    job of the stream one of the feature's. Where slurmctld does something regularly, the stream begins just after it,
    at a line like `begins_after` in the controller's log.
    """

    conf: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    statements: Sequence[str] = ()
    site: Mapping[str, Any] = field(default_factory=dict)
    without: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)
    epilog_s: float = 0.0
    shape: Callable[[Random, StreamJob], StreamJob] = lambda random, job: job
    jobs: int = 32
    lasts_s: float = 110.0
    reserved: Sequence[Reserved] = ()
    changes: Sequence[Change] = ()
    begins_after: str = ""


def _in_partition(*names: str) -> Callable[[Random, StreamJob], StreamJob]:
    def shape(random: Random, job: StreamJob) -> StreamJob:
        name = random.choice(names)
        return replace(job, partition=name, nodes=min(job.nodes, 4 if "half" in name else NODES))

    return shape


_USERS = {"games": "a", "man": "a", "lp": "b", "news": "b", "mail": "c"}
_LIMITED = ("games", "man", "lp", "news")


def _of_user(random: Random, job: StreamJob) -> StreamJob:
    name = random.choice(list(_USERS) if job.at_s > 5.0 else ["games", "man", "lp"])
    return replace(job, user=name, account=_USERS[name], limit_min=random.choice((1, 1, 2)))


def _limited(random: Random, job: StreamJob) -> StreamJob:
    name = random.choice(_LIMITED)
    qos = random.choice(("normal", "normal", "few", "narrow"))
    return replace(job, user=name, account=_USERS[name], qos=qos, nodes=min(job.nodes, 3))


def _over_time(random: Random, job: StreamJob) -> StreamJob:
    return replace(job, limit_min=1, run_s=random.choice((job.run_s, job.run_s, random.randint(65, 100) + 0.5, 200)))


def _later(random: Random, job: StreamJob) -> StreamJob:
    kind = random.choice(("", "after", "begin"))
    after = random.randrange(max(0, job.number - 6), job.number) if kind == "after" and job.number else None
    return replace(job, after=after, begin_s=random.randint(10, 50) if kind == "begin" else 0)


def _booked(random: Random, job: StreamJob) -> StreamJob:
    place = random.choice((None, None, None, None, None, None, 0, 1))
    if place is None:
        return job
    return replace(job, booked=place, nodes=min(job.nodes, 2), limit_min=1)


_PARTITIONS = {
    "batch": SimulatedPartition(_ALL, 10),
    "urgent": SimulatedPartition(_ALL, 20),
    "half": SimulatedPartition(0b1111, 10, factor=2),
}
_LINES = (
    "PartitionName=urgent Nodes=n[1-8] PriorityTier=20 PreemptMode=OFF OverSubscribe=EXCLUSIVE State=UP "
    "MaxTime=INFINITE\n"
    "PartitionName=half Nodes=n[1-4] PriorityTier=10 PriorityJobFactor=2 PreemptMode=OFF OverSubscribe=EXCLUSIVE "
    "State=UP MaxTime=INFINITE"
)
_ENFORCED = "AccountingStorageEnforce=associations,limits,qos"
_ACCOUNTS = (
    "add cluster sandbox",
    "add account a Fairshare=3",
    "add account b Fairshare=2",
    "add account c parent=b Fairshare=1",
)
FEATURES = {
    "plain": Feature(),
    "partitions": Feature(
        _LINES,
        shape=_in_partition("batch", "batch", "half", "urgent", "batch,half"),
        site={"partitions": tuple(_PARTITIONS.values())},
        without={"partitions": tuple(replace(one, tier=10) for one in _PARTITIONS.values())},
    ),
    "priority": Feature(
        f"PriorityType=priority/multifactor\nPriorityWeightJobSize=1000\nPriorityWeightPartition=400\n{_LINES}",
        shape=_in_partition("batch", "half"),
        site={
            "partitions": tuple(_PARTITIONS.values()),
            "priority": Multifactor(job_size=1000, partition=400),
        },
        without={"partitions": tuple(_PARTITIONS.values())},
    ),
    "fair-share": Feature(
        "PriorityType=priority/multifactor\nPriorityWeightFairshare=10000\nPriorityCalcPeriod=1\n"
        f"PriorityDecayHalfLife=0-00:05:00\n{_ENFORCED}",
        statements=(
            *_ACCOUNTS,
            *(
                f"add user {name} Account={account} Fairshare={shares}"
                for (name, account), shares in zip(_USERS.items(), (1, 2, 1, 3, 1), strict=True)
            ),
        ),
        shape=_of_user,
        jobs=48,
        lasts_s=150.0,
        site={
            "priority": Multifactor(
                fair_share=10_000,
                half_life_s=300.0,
                calc_period_s=60.0,
                associations=(
                    Association(ROOT, user="root"),
                    Association("a", shares=3),
                    Association("b", shares=2),
                    Association("c", "b"),
                    *(
                        Association(account, user=name, shares=shares)
                        for (name, account), shares in zip(_USERS.items(), (1, 2, 1, 3, 1), strict=True)
                    ),
                ),
            )
        },
        begins_after=r"Fair Tree fairshare algorithm",
    ),
    "limits": Feature(
        _ENFORCED,
        statements=(
            *_ACCOUNTS,
            "add qos few GrpJobs=2",
            "add qos narrow MaxTRESPerUser=node=3",
            *(f"add user {name} Account={_USERS[name]} QOS=normal,few,narrow" for name in _LIMITED),
            "modify account where name=a set GrpTRES=node=4",
            "modify user where name=lp account=b set MaxJobs=1",
        ),
        shape=_limited,
        site={
            "limits": Limits(
                qos={"few": QosLimits(group=Most(jobs=2)), "narrow": QosLimits(user=Most(nodes=3))},
                accounts={"a": Most(nodes=4)},
                users={("b", "lp"): Most(jobs=1)},
            )
        },
    ),
    "epilog": Feature(
        "Epilog={root}/epilog.sh",
        {"epilog.sh": f"#!/bin/sh\nsleep {_EPILOG_S:.0f}\n"},
        epilog_s=_EPILOG_S,
        jobs=24,
    ),
    "topology": Feature(
        "TopologyPlugin=topology/tree",
        {"topology.conf": "SwitchName=s1 Nodes=n[1-3]\nSwitchName=s2 Nodes=n[4-6]\nSwitchName=s3 Nodes=n[7-8]\n"
                          "SwitchName=s4 Nodes=svc1\nSwitchName=top Switches=s[1-4]\n"},
        site={"switches": (Switch(0b111, 3), Switch(0b111000, 3), Switch(0b11000000, 3), Switch(_ALL))},
    ),
    "outages": Feature(
        # else a node that is down comes back with its next registration
        "ReturnToService=0",
        changes=(Change(30, 2, "DOWN"), Change(42, 5, "DOWN"), Change(60, 7, "DRAIN"), Change(90, 2, "RESUME"),
                 Change(110, 5, "RESUME"), Change(130, 7, "RESUME")),
    ),
    "over-time-limit": Feature(
        "OverTimeLimit=1",
        shape=_over_time,
        jobs=20,
        site={"over_time_limit_s": 60.0},
        without={"over_time_limit_s": 0.0},
        begins_after="Testing job time limits",
    ),
    "dependencies": Feature(shape=_later, own={"after": (), "eligible_s": 0.0}),
    "reservations": Feature(
        shape=_booked,
        own={"booked": None},
        reserved=(Reserved("n[1-3]", 0b111, 40.0, 3), Reserved("n[6-8]", 0b11100000, 90.0, 3)),
    ),
}  # fmt: skip


def drawn(feature: Feature, seed: int) -> list[StreamJob]:
    """Draw the jobs of a stream, of one to five nodes for seconds; a quarter comes at once.

    The main scheduler looks every three seconds while much happens. Jobs that last whole seconds would end just when it
    looks, and chance would decide which look they are seen by: they last half a second more.
    """
    random = Random(seed)
    early = feature.jobs // 4
    times_s = [0.3 * place for place in range(early)]
    times_s += sorted(random.uniform(5, feature.lasts_s) for _ in range(feature.jobs - early))
    found = []
    for number, at_s in enumerate(times_s):
        nodes, run_s = random.choice((1, 1, 2, 2, 3, 5)), random.randint(4, 26) + 0.5
        found.append(feature.shape(random, StreamJob(number, at_s, nodes, run_s, random.choice((1, 1, 1, 2)))))
    return found


def simulated(recording: FeatureRecording, seed: int, *, on: bool = True) -> list[StreamJob]:
    """Run a recording's stream on the simulated cluster, with the feature on or off."""
    feature, jobs = FEATURES[recording.feature], recording.jobs
    scheduler = with_rules(Scheduler(interval_s=INTERVAL_S), recording.release)
    # On a busy machine the rounds of 22.05's background loop take longer.
    looked_s = recording.full_s - recording.look_s
    site = replace(
        SimulatedSite.of(NODES),
        scheduler=scheduler,
        tick_s=1.0 if scheduler.newer else looked_s / floor(looked_s / 1.003),
        cycle_s=0.001,
    )
    if on:
        outages = _outages(feature.changes, recording.begin_s)
        bookings = [_booking(one, recording.begin_s) for one in feature.reserved]
        site = replace(site, **{**feature.site, "outages": outages, "bookings": bookings})
    else:
        site = replace(site, **feature.without)
    submitted = [_job(job, feature, site, on, recording.begin_s) for job in jobs]
    phases = Phases(recording.look_s, recording.full_s, recording.limits_s)
    runs = Controller(site, submitted, seed).run(recording.backfill_s, phases=phases)
    return [
        replace(job, start_s=run.start_s - recording.begin_s, on=tuple(site.numbering.of_mask(run.nodes)))
        for job, run in zip(jobs, runs, strict=True)
    ]


def _job(job: StreamJob, feature: Feature, site: SimulatedSite, on: bool, begin_s: float) -> SimulatedJob:
    made = SimulatedJob(
        number=job.number,
        submit_s=begin_s + job.at_s,
        run_s=job.run_s,
        limit_s=60.0 * job.limit_min,
        component=Component(_ALL, job.nodes, within=_ALL),
        eligible_s=floor(begin_s + job.at_s) + job.begin_s if job.begin_s else 0.0,
        after=() if job.after is None else (job.after,),
        booked=job.booked,
        user=job.user,
        account=job.account,
        qos=job.qos,
        partitions=tuple(list(_PARTITIONS).index(name) for name in job.partition.split(",")) if site.partitions else (),
        epilog_s=feature.epilog_s if on else 0.0,
    )
    return made if on else replace(made, **feature.own)


def _booking(one: Reserved, begin_s: float) -> Booking:
    start_s = floor(begin_s) + one.start_s
    return Booking(one.mask, start_s, start_s + 60.0 * one.length_min)


def _outages(changes: Sequence[Change], begin_s: float) -> list[Outage]:
    ends_s = {one.node: one.at_s for one in changes if one.state == "RESUME"}
    return [
        Outage(1 << one.node - 1, begin_s + one.at_s, begin_s + ends_s[one.node], drained=one.state == "DRAIN")
        for one in changes
        if one.state != "RESUME"
    ]


@dataclass(frozen=True, slots=True)
class FeatureRecording:
    """A stream as a cluster ran it, from `begin_s` (unix seconds) on.

    Four things come regularly; each is given as the time of its first after the first submission: backfill cycles,
    looks of the main scheduler, its looks at the whole queue, and looks for jobs beyond their limits.
    """

    feature: str
    release: str
    seed: int
    begin_s: float
    backfill_s: float
    look_s: float
    full_s: float
    limits_s: float
    jobs: tuple[StreamJob, ...]

    @property
    def name(self) -> str:
        """Its feature, release and seed."""
        return f"{self.feature}-{self.release}-{self.seed}"

    def write(self, folder: Path) -> Path:
        """Write it, a line a job."""
        folder.mkdir(parents=True, exist_ok=True)
        head = {name: value for name, value in asdict(self).items() if name != "jobs"}
        default = asdict(StreamJob(0, 0.0, 1, 1))
        kept = {"number", "on"}
        rows = [{name: value for name, value in asdict(job).items() if value != default[name] or name in kept}
                for job in self.jobs]  # fmt: skip
        file = folder / f"{self.name}.jsonl"
        file.write_text("".join(f"{json.dumps(row)}\n" for row in (head, *rows)))
        return file

    @classmethod
    def load(cls, file: Path) -> FeatureRecording:
        """Read one; raises ValueError for another file."""
        try:
            head, *rows = map(json.loads, file.read_text().splitlines())
            default = StreamJob(0, 0.0, 1, 1)
            jobs = tuple(replace(default, **{**row, "on": tuple(row["on"])}) for row in rows)
            return cls(**head, jobs=jobs)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{file} is no recording of benchmarks.twin.recorder ({error})") from error


@dataclass(frozen=True, slots=True)
class Agreement:
    """The shares of jobs alike in a recording and in courses: the mean over the courses, and the nearest course."""

    within_cycle: float
    same_nodes: float
    nearest_within_cycle: float
    nearest_same_nodes: float
    wait_s: float


@dataclass(frozen=True, slots=True)
class FeatureLikeness:
    """The agreement of a recording with its simulation, with the feature and without it; waits are means over jobs."""

    name: str
    jobs: int
    wait_s: float
    with_it: Agreement
    without_it: Agreement

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> FeatureLikeness:
        """Return the likeness that a row of `--json` tells."""
        return cls(**{**row, "with_it": Agreement(**row["with_it"]), "without_it": Agreement(**row["without_it"])})


def agreement(real: Sequence[StreamJob], courses: Sequence[Sequence[StreamJob]]) -> Agreement:
    """Compare a stream's courses with one of them that is the reference."""
    found, waits = [], []
    for course in courses:
        pairs = list(zip(real, course, strict=True))
        within = statistics.mean(abs(b.start_s - a.start_s) <= INTERVAL_S + 1.0 for a, b in pairs)
        found.append((statistics.mean(a.on == b.on for a, b in pairs), within))
        waits.append(statistics.mean(b.start_s - b.at_s for b in course))
    nearest = max(found)
    return Agreement(
        statistics.mean(within for _, within in found),
        statistics.mean(same for same, _ in found),
        nearest[1],
        nearest[0],
        statistics.mean(waits),
    )


def likeness(recording: FeatureRecording, courses: int = COURSES) -> FeatureLikeness:
    """Compare a recording with courses of its simulation, with the feature and without it."""
    real = recording.jobs
    with_it, without_it = (
        agreement(real, [simulated(recording, seed, on=on) for seed in range(courses)]) for on in (True, False)
    )
    return FeatureLikeness(
        recording.name, len(real), statistics.mean(job.start_s - job.at_s for job in real), with_it, without_it
    )


def table(found: Sequence[FeatureLikeness]) -> str:
    """A line a recording, in Markdown."""
    lines = [
        "| recording | jobs | within a cycle (nearest) | same nodes (nearest) | off: within a cycle | off: same nodes "
        "| mean wait | simulated | off |",
        "| --- " * 9 + "|",
    ]
    for one in found:
        on, off = one.with_it, one.without_it
        late = ", missed" * (on.nearest_within_cycle < LEAST_STARTS)
        elsewhere = ", missed" * (on.nearest_same_nodes < LEAST_NODES)
        lines.append(
            f"| {one.name} | {one.jobs} | {on.within_cycle:.0%} ({on.nearest_within_cycle:.0%}){late} "
            f"| {on.same_nodes:.0%} ({on.nearest_same_nodes:.0%}){elsewhere} | {off.within_cycle:.0%} "
            f"({off.nearest_within_cycle:.0%}) | {off.same_nodes:.0%} ({off.nearest_same_nodes:.0%}) "
            f"| {one.wait_s:.1f} s | {on.wait_s:.1f} s | {off.wait_s:.1f} s |"
        )
    return "\n".join(lines)


EVIDENCE = {
    "twin_features": Benchmark(
        ("benchmarks.twin.features",), 0.5, {"table": lambda result: table([FeatureLikeness.of(row) for row in result])}
    )
}


def main() -> int:
    """Compare; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.twin.features", description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="recordings [those of benchmarks/results/twin]")
    parser.add_argument("--courses", type=int, default=COURSES, help=f"courses of the simulation [{COURSES}]")
    parser.add_argument("--json", action="store_true", help="print JSON in place of a table")
    options = parser.parse_args()
    try:
        files = options.files or sorted(RECORDINGS.glob("*.jsonl"))
        found = [likeness(FeatureRecording.load(file), options.courses) for file in files]
    except (OSError, ValueError) as error:
        print(f"twin.features: {error}", file=sys.stderr)
        return 1
    print(json.dumps([asdict(one) for one in found], indent=2) if options.json else table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
