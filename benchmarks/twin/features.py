"""Hold features of the simulated slurmctld against a real one: a private cluster with a few dozen short jobs.

    python -m benchmarks.twin.features [--jobs N] [--seeds N,...] [FEATURE...]

Features are partitions (tiers, and jobs in two partitions), priority (multifactor by job size and partition), epilog,
and topology. A job is compared as by benchmarks.twin.recorded: whether it starts within one backfill cycle and a second
of its recorded start, and on the same nodes. Each run takes about two minutes.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from bftd.pool.backfill.model import Component
from bftd.simulation.slurm.controller import Controller
from bftd.simulation.slurm.model import SimulatedJob, SimulatedPartition, SimulatedSite
from bftd.simulation.slurm.priority import Multifactor
from bftd.simulation.slurm.switches import Switch
from slurm_plugin.errors import SlurmError
from slurm_plugin.nodeset import expand
from slurm_plugin.read.types import Scheduler
from slurm_plugin.sandbox import Sandbox

NODES, JOBS, COURSES = 8, 36, 10
_EPILOG_S = 4.0
_WORD = re.compile(r"(?:^| )(\w+)=(\S+)")
_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class Feature:
    """What a cluster has: lines of slurm.conf, further files by name, and the same as fields of the simulated site.

    Jobs draw one of `partitions`, by the names that Slurm has for them; the sandbox's "batch" has tier 10.
    """

    conf: str = ""
    files: dict[str, str] = field(default_factory=dict)
    partitions: tuple[str, ...] = ("batch",)
    site: dict[str, Any] = field(default_factory=dict)
    epilog_s: float = 0.0


_ALL = (1 << NODES) - 1
_PARTITIONS = {
    "batch": SimulatedPartition(_ALL, 10),
    "urgent": SimulatedPartition(_ALL, 20),
    "half": SimulatedPartition(0b1111, 10, factor=2),
}
_LINES = (
    "PartitionName=urgent Nodes=n[1-8] PriorityTier=20 OverSubscribe=EXCLUSIVE State=UP MaxTime=INFINITE\n"
    "PartitionName=half Nodes=n[1-4] PriorityTier=10 PriorityJobFactor=2 OverSubscribe=EXCLUSIVE State=UP "
    "MaxTime=INFINITE"
)
FEATURES = {
    "partitions": Feature(_LINES, partitions=("batch", "batch", "half", "urgent", "batch,half")),
    "priority": Feature(
        f"PriorityType=priority/multifactor\nPriorityWeightJobSize=1000\nPriorityWeightPartition=400\n{_LINES}",
        partitions=("batch", "half"),
        site={"priority": Multifactor(job_size=1000, partition=400)},
    ),
    "epilog": Feature(
        "Epilog={root}/epilog.sh", {"epilog.sh": f"#!/bin/sh\nsleep {_EPILOG_S:.0f}\n"}, epilog_s=_EPILOG_S
    ),
    "topology": Feature(
        "TopologyPlugin=topology/tree",
        {"topology.conf": "SwitchName=s1 Nodes=n[1-3]\nSwitchName=s2 Nodes=n[4-6]\nSwitchName=s3 Nodes=n[7-8]\n"
                          "SwitchName=s4 Nodes=svc1\nSwitchName=top Switches=s[1-4]\n"},
        site={"switches": (Switch(0b111, 3), Switch(0b111000, 3), Switch(0b11000000, 3), Switch(_ALL))},
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job as it was submitted and what a cluster made of it; times are seconds after the first submission."""

    number: int
    at_s: float
    nodes: int
    run_s: int
    partition: str
    start_s: float = 0.0
    on: frozenset[str] = frozenset()


def drawn(seed: int, count: int, partitions: Sequence[str]) -> list[Submitted]:
    """Draw jobs of one to five nodes for seconds; a third comes at once. All have a limit of one minute."""
    random = Random(seed)
    times_s = sorted(
        [0.3 * place for place in range(count // 3)] + [random.uniform(5, 70) for _ in range(2 * count // 3)]
    )
    found = []
    for number, at_s in enumerate(times_s):
        partition = random.choice(partitions)
        nodes = random.choice((1, 1, 2, 2, 3, 5) if "half" not in partition else (1, 1, 2, 2, 3, 4))
        found.append(Submitted(number, at_s, nodes, random.randint(2, 14), partition))
    return found


def recorded(feature: Feature, jobs: Sequence[Submitted]) -> list[Submitted]:
    """Run jobs on a private cluster."""
    with _Cluster(feature) as cluster:
        client, begin_s = cluster.client(20.0), time.time()
        ids: list[str] = []
        found: list[Submitted] = []
        for job in jobs:
            time.sleep(max(0.0, begin_s + job.at_s - time.time()))
            answer = client.run(
                "sbatch", "--parsable", f"--partition={job.partition}", f"--nodes={job.nodes}", "--time=1",
                "--output=/dev/null", f"--wrap=exec sleep {job.run_s}",
            )  # fmt: skip
            found.append(replace(job, at_s=time.time() - begin_s))
            ids.append(answer.out.strip())
        while True:
            shown = [dict(_WORD.findall(row)) for row in client.run("scontrol", "-o", "show", "jobs").out.splitlines()]
            if all(row["JobState"] == "COMPLETED" for row in shown):
                break
            time.sleep(1.0)
    rows = {row["JobId"]: row for row in shown}
    return [
        replace(
            job,
            start_s=float(rows[id_]["StartTime"]) - begin_s,
            on=frozenset(expand(rows[id_]["NodeList"])),
        )
        for id_, job in zip(ids, found, strict=True)
    ]


class _Cluster(Sandbox):
    def __init__(self, feature: Feature) -> None:
        super().__init__(nodes=NODES, tuned=True)
        self._feature = feature

    def _write_conf(self, host: str, ports: list[int]) -> None:
        super()._write_conf(host, ports)
        more = self._feature.conf.replace("{root}", str(self.root))
        keys = {line.partition("=")[0] for line in more.splitlines()} - {"PartitionName"}
        own = [line for line in self.conf.read_text().splitlines() if line.partition("=")[0] not in keys]
        self.conf.write_text("\n".join([*own, more]) + "\n")
        for name, text in self._feature.files.items():
            file = self.root / name
            file.write_text(text)
            file.chmod(0o755)


def simulated(feature: Feature, jobs: Sequence[Submitted], seed: int) -> list[Submitted]:
    """Run the same jobs on a simulated cluster."""
    names = list(_PARTITIONS)
    site = replace(
        SimulatedSite.of(NODES),
        scheduler=Scheduler(interval_s=_INTERVAL_S),
        sched_interval_s=1.0,
        batch_delay_s=0.0,
        partitions=tuple(_PARTITIONS.values()),
        **feature.site,
    )
    submitted = [
        SimulatedJob(
            job.number,
            job.at_s,
            job.run_s,
            60.0,
            Component(_ALL, job.nodes, within=_ALL),
            partitions=tuple(names.index(name) for name in job.partition.split(",")),
            epilog_s=feature.epilog_s,
        )
        for job in jobs
    ]
    runs = Controller(site, submitted, seed).run()
    return [
        replace(job, start_s=run.start_s, on=frozenset(site.numbering.of_mask(run.nodes)))
        for job, run in zip(jobs, runs, strict=True)
    ]


def line(name: str, seed: int, real: Sequence[Submitted], courses: Sequence[Sequence[Submitted]]) -> str:
    """The agreement of a cluster with the courses of its simulation."""
    within, same, waits = [], [], []
    for course in courses:
        pairs = list(zip(real, course, strict=True))
        within.append(statistics.mean(abs(b.start_s - a.start_s - 0.5) <= _INTERVAL_S + 1.0 for a, b in pairs))
        same.append(statistics.mean(a.on == b.on for a, b in pairs))
        waits.append(statistics.mean(b.start_s - b.at_s for b in course))
    wait_s = statistics.mean(a.start_s + 0.5 - a.at_s for a in real)
    return (
        f"| {name} {seed} | {len(real)} | {statistics.mean(within):.0%} (best {max(within):.0%}) "
        f"| {statistics.mean(same):.0%} (best {max(same):.0%}) | {wait_s:.1f} s | {statistics.mean(waits):.1f} s |"
    )


def main() -> int:
    """Record, simulate, compare; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.twin.features", description=__doc__.split("\n")[0])
    parser.add_argument("features", nargs="*", metavar="FEATURE", help=f"of {', '.join(FEATURES)} [all]")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"[{JOBS}]")
    parser.add_argument("--seeds", default="1", metavar="N,...", help="[1]")
    options = parser.parse_args()
    if unknown := set(options.features) - FEATURES.keys():
        parser.error(f"there is no {', '.join(sorted(unknown))}: choose from {', '.join(FEATURES)}")
    print("| feature, seed | jobs | within a cycle | same nodes | mean wait | simulated |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in options.features or FEATURES:
        feature = FEATURES[name]
        for seed in map(int, options.seeds.split(",")):
            try:
                real = recorded(feature, drawn(seed, options.jobs, feature.partitions))
            except SlurmError as error:
                print(f"twin.features: {error}", file=sys.stderr)
                return 1
            print(line(name, seed, real, [simulated(feature, real, course) for course in range(COURSES)]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
