"""Snapshots come out of a file as they were put in."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest

from benchmarks.backfill import snapshot_log
from slurm_plugin.read.types import Depth, Job, JobRequest, Node, Partition, Reservation, Scheduler, Snapshot

pytestmark = pytest.mark.slow

NODE = Node("n1", "IDLE", frozenset({"PLANNED"}), ("batch",), ("fast",), "gpu:a:2", {"a": 2}, 4, 1 << 30, "")
JOB = Job(
    "7", "ann", ("batch",), "PENDING", "run", (), ("n1",), 1_000.0, 900.0, 60.0, "Resources", 1, "", "", 5, "",
    request=JobRequest(features="fast", required=("n1",), least_s=30.0),
)  # fmt: skip
FIRST = Snapshot(
    time_s=1_000.125,
    nodes={"n1": NODE},
    jobs=(JOB,),
    reservations=(Reservation("held", ("n1",), 2_000.0, 3_000.0, frozenset({"MAINT"})),),
    partitions={"batch": Partition("batch", ("n1",), "UP", None, 3, max_nodes=2)},
    scheduler=Scheduler(read=True, interval_s=7.0, depths=(Depth(950.0, 3, 5),)),
    begun_s=1_000.0,
)
LATER = [
    FIRST,
    replace(FIRST, time_s=1_001.0),
    replace(
        FIRST,
        time_s=1_002.0,
        nodes={"n1": replace(NODE, state="ALLOCATED", flags=frozenset(), gpus_used={"a": 1})},
        jobs=(replace(JOB, state="RUNNING", nodes=("n1",), start_s=None, request=JobRequest()), replace(JOB, id="8")),
        scheduler=Scheduler(),
    ),
    replace(FIRST, time_s=1_003.0, nodes={}, jobs=(), reservations=(), partitions={}, begun_s=None),
    FIRST,
]


def lines(*snapshots: Snapshot) -> list[str]:
    file = StringIO()
    writer = snapshot_log.Writer(file, {"recipe": "default"})
    for snapshot in snapshots:
        writer.add(snapshot)
    return file.getvalue().splitlines()


def test_snapshots_are_read_as_they_were_written() -> None:
    assert list(snapshot_log.read(lines(*LATER)[1:])) == LATER
