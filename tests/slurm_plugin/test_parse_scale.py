"""Reading a large cluster once a second: what did not change is not read again, and little of it is kept."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from slurm_plugin.read import parse
from slurm_plugin.read.types import Snapshot
from tests.slurm_plugin.read.test_parse import HEADER, SEPARATOR, job_record, node_line

COUNT = 1000
KEPT_BYTES = 4000
"""Of a node or a job, with the text that it was read from; 5,000 of each are 40 MB."""


def node_text(changed: int | None = None) -> str:
    lines = [node_line(f"rack{number % 25}-n{number:03}") for number in range(COUNT)]
    if changed is not None:
        lines[changed] = lines[changed].replace("State=IDLE", "State=ALLOCATED")
    return "".join(lines)


def job_text(changed: int | None = None) -> str:
    plans = {number: f"rack{number % 25}-n[001-{2 + number % 30:03}]" for number in range(0, COUNT, 5)}
    records = [
        job_record(
            id=str(10_000 + number),
            sched=plans.get(number, "(null)"),
            comment=f"run {number} of a campaign with a long name, see /projects/{number}/README",
            priority="99" if number == changed else "7",
        )
        for number in range(COUNT)
    ]
    return HEADER + "".join(records)


def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[Any]:
    """The arguments of every call of one of the parser's functions from now on."""
    calls: list[Any] = []
    function: Callable[..., Any] = getattr(parse, name)

    def count(argument: Any) -> Any:
        calls.append(argument)
        return function(argument)

    monkeypatch.setattr(parse, name, count)
    return calls


def test_only_the_nodes_and_jobs_that_changed_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    parse.nodes(node_text())
    parse.jobs(job_text(), SEPARATOR)
    node_reads, job_reads = counted(monkeypatch, "_fields"), counted(monkeypatch, "time_limit_s")
    nodes, jobs = parse.nodes(node_text(changed=7)), parse.jobs(job_text(changed=7), SEPARATOR)
    assert (len(node_reads), len(job_reads)) == (1, 1)
    assert [node.name for node in nodes.values() if node.state == "ALLOCATED"] == ["rack7-n007"]
    assert [job.id for job in jobs if job.priority == 99] == ["10007"]
    assert (len(nodes), len(jobs)) == (COUNT, COUNT)


def test_a_queue_longer_than_what_is_remembered_beside_it_is_not_read_again_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # with the oldest forgotten first, a queue by a few jobs longer than the memory was read anew at every poll
    monkeypatch.setattr(parse, "_KEPT", COUNT // 2)
    monkeypatch.setattr(parse, "_JOBS", parse._Memory(parse._job))
    parse.jobs(job_text(), SEPARATOR)
    reads = counted(monkeypatch, "time_limit_s")
    parse.jobs(job_text(changed=8), SEPARATOR)
    assert len(reads) == 1


def test_a_parsed_snapshot_takes_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parse, "_NODES", parse._Memory(parse._node))
    monkeypatch.setattr(parse, "_JOBS", parse._Memory(parse._job))
    tracemalloc.start()
    try:
        snapshot = Snapshot(time.time(), parse.nodes(node_text()), parse.jobs(job_text(), SEPARATOR), ())
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(snapshot.jobs) == COUNT
    assert kept_bytes < 2 * COUNT * KEPT_BYTES


def test_what_is_remembered_of_a_cluster_that_always_changes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    # 300 MB is what a daemon may have: both memories together, full, and the snapshot at hand beside them
    assert 2 * (parse._KEPT + 10_000) * KEPT_BYTES < 150e6
    monkeypatch.setattr(parse, "_KEPT", 50)
    jobs = parse._Memory(parse._job)
    monkeypatch.setattr(parse, "_JOBS", jobs)
    for poll in range(30):
        parse.jobs(HEADER + "".join(job_record(id=str(10 * poll + number)) for number in range(10)), SEPARATOR)
        assert len(jobs) <= 60
