"""A recording holds what the poller read and what slurmctld told, and the replay counts where the copy agrees."""

from __future__ import annotations

import gzip
import lzma
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from benchmarks import snapshot_log
from benchmarks.backfill_log import Cycle, Planned, Start
from benchmarks.backfill_recording import Recording, load, pack
from benchmarks.backfill_replay import Replayed, replay, table
from benchmarks.impact import record
from slurm_plugin.read.types import Job, JobRequest, Node, Partition, Snapshot
from tests.benchmarks.test_backfill_log import LOG
from tests.benchmarks.test_impact_figures import job as row
from tests.benchmarks.test_impact_figures import run
from tests.support.messages import pattern

pytestmark = pytest.mark.slow

NODES = {
    f"n{number}": Node(f"n{number}", "IDLE", frozenset(), ("batch", "elastic"), (), "", {}, 4, 1 << 30, "")
    for number in range(1, 4)
}
BEGIN_S = datetime.fromisoformat("2026-11-22T10:40:30").timestamp()


def waits(id_: str, nodes: int, **more: object) -> Job:
    job = Job(
        id_, "ann", ("batch",), "PENDING", "", (), (), None, BEGIN_S - 60, 600.0, "Resources", nodes, "", "", 9, ""
    )
    return replace(job, **more)  # type: ignore[arg-type]


def runs(id_: str, start_s: float, *nodes: str) -> Job:
    return replace(waits(id_, len(nodes)), state="RUNNING", start_s=start_s, nodes=nodes)


def shows(at_s: float, *jobs: Job) -> Snapshot:
    taken = {node for job in jobs for node in job.nodes}
    nodes = {name: replace(node, state="ALLOCATED") if name in taken else node for name, node in NODES.items()}
    return Snapshot(at_s, nodes, jobs, (), {"batch": Partition("batch", tuple(NODES), "UP", None)})


def replayed(snapshots: list[Snapshot], *cycles: Cycle) -> Replayed:
    return replay(Recording("some", {"by_main": []}, snapshots, cycles))


def test_a_recording_is_what_was_read_and_what_the_controller_told(tmp_path: Path) -> None:
    snapshots = [shows(BEGIN_S - 1, waits("7", 1)), shows(BEGIN_S + 1, runs("7", BEGIN_S, "n1"))]
    kept = tmp_path / "logs"
    kept.mkdir()
    with lzma.open(kept / "snapshots.xz", "wt") as file:
        writer = snapshot_log.Writer(file, {})
        for snapshot in snapshots:
            writer.add(snapshot)
    with gzip.open(kept / "slurmctld.log.gz", "wt") as log:
        log.write(LOG)
    record.save(run("A", 0, row(0, 0.0, 1.0, 5.0)), tmp_path / "run.jsonl")
    pack(tmp_path / "run.jsonl", kept, tmp_path / "some.xz")
    found = load(tmp_path / "some.xz")
    assert found.snapshots == snapshots
    (cycle,) = found.cycles  # the other one had nothing to do
    assert cycle.started == {"7": Start(BEGIN_S + 0.009, ("n8",))}
    assert cycle.planned["5"].nodes == ("n1", "n3")
    assert cycle.failed["6"].preempted == ("132", "133")
    assert found.head["by_main"] == ["4"]


def test_another_file_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "some.xz").write_bytes(lzma.compress(b"{}\n"))
    with pytest.raises(ValueError, match=pattern("benchmarks.backfill_recording.not_a_recording", file="some.xz")):
        load(tmp_path / "some.xz")


def test_a_start_is_predicted_by_the_last_snapshot_before_the_cycle_and_ahead_by_one_a_second_before() -> None:
    before = [shows(BEGIN_S - 1.5), shows(BEGIN_S - 0.5, waits("7", 2))]
    done = replayed(
        [*before, shows(BEGIN_S + 1, runs("7", BEGIN_S, "n1", "n2"))],
        Cycle(BEGIN_S, BEGIN_S + 0.1, ("7",), started={"7": Start(BEGIN_S, ("n1", "n2"))}),
    )
    counts = done.counts
    assert (counts.starts, counts.predicted, counts.ahead) == (1, 1, 0)
    assert (counts.said, counts.came, counts.earmarks, counts.useful) == (1, 1, 1, 1)
    assert done.told == []


def test_a_start_that_the_copy_did_not_see_is_told_with_what_both_say() -> None:
    before = shows(BEGIN_S - 1, runs("1", BEGIN_S - 9, "n1", "n2"), waits("7", 2))
    done = replayed([before], Cycle(BEGIN_S, BEGIN_S + 0.1, ("7",), started={"7": Start(BEGIN_S, ("n1", "n2"))}))
    assert (done.counts.starts, done.counts.predicted) == (1, 0)
    assert "missed 7" in done.told[0]
    assert "Slurm: started 10:40:30.0 on n[1-2] | copy: 10:50:21.0" in done.told[0]


def test_a_job_that_could_start_and_did_not_is_told_and_its_earmark_is_wasted() -> None:
    snapshots = [shows(BEGIN_S - 1, waits("7", 2)), shows(BEGIN_S + 1)]
    done = replayed(snapshots, Cycle(BEGIN_S, BEGIN_S + 0.1, ("7",)))
    assert (done.counts.said, done.counts.came) == (1, 0)
    assert (done.counts.earmarks, done.counts.useful, done.counts.wasted_node_s) == (1, 0, 4.0)
    assert "not started 7" in done.told[0]


def test_plans_are_the_same_within_two_seconds() -> None:
    before = shows(BEGIN_S - 1, runs("1", BEGIN_S - 9, *NODES), waits("7", 2), waits("8", 3))
    planned = {"7": Planned(BEGIN_S + 592, 0.0, ("n1",)), "8": Planned(BEGIN_S + 900, 0.0, ("n1",))}
    counts = replayed([before], Cycle(BEGIN_S, BEGIN_S + 0.1, ("7", "8"), planned)).counts
    assert (counts.plans, counts.same) == (2, 1)


def test_jobs_in_a_reservation_are_left_out() -> None:
    before = shows(BEGIN_S - 1, waits("7", 2, reservation="held", request=JobRequest()))
    done = replayed([before], Cycle(BEGIN_S, BEGIN_S + 0.1, ("7",), started={"7": Start(BEGIN_S, ("n1", "n2"))}))
    assert done.counts.starts == 0


def test_the_table_has_a_line_a_recording_and_a_sum() -> None:
    lines = table([replayed([shows(BEGIN_S)]), replayed([shows(BEGIN_S)])]).splitlines()
    assert len(lines) == 2 + 2 + 1
    assert lines[-1].startswith("| all | 0 | 0 | - |")
