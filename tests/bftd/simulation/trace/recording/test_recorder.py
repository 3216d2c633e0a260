"""Recording: what polls, missed polls, kills and resumes leave in the file. Time is simulated."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from bftd.config.keys import PoolConfig
from bftd.pool.idle_filter import IdleWatch
from bftd.simulation.trace import TraceError, read, write
from bftd.simulation.trace.recording.recorder import PollRecorder
from bftd.simulation.trace.recording.session import RecordingClock, record
from slurm_plugin.errors import SlurmMissing, SnapshotError
from slurm_plugin.read.types import Job, Snapshot
from tests.bftd.builders import job, node, pilot
from tests.bftd.simulation.trace.making import trace_of
from tests.support.messages import pattern, wording

NODES = ("n1", "n2", "n3")
# 2026-01-01T00:00:00Z
NEW_YEAR_S = 1767225600.0


class Site:
    """A cluster that is polled and its clock: `plan` tells poll by poll which nodes are idle, None for no answer."""

    def __init__(self, wall_s: float = NEW_YEAR_S) -> None:
        self.wall_s = wall_s
        self.booted_s = wall_s - 7777.0
        self.plan: list[tuple[str, ...] | None] = []
        self.told: list[str] = []

    def snapshot(self) -> Snapshot:
        idle = self.plan.pop(0)
        if idle is None:
            raise SnapshotError("squeue gave no answer for 5 s: is slurmctld up?")
        return snapshot(self.wall_s, idle)

    def record(self, path: Path, *plan: tuple[str, ...] | None, poll_s: float | None = None) -> int:
        """Poll once for each entry of `plan`; then a signal ends it."""
        self.plan = list(plan)
        clock = RecordingClock(self._wait, lambda: self.wall_s, lambda: self.wall_s - self.booted_s)
        return record(self, path, lambda seen: list(seen.nodes), clock, self.told.append, poll_s)

    def _wait(self, seconds: float) -> bool:
        if not self.plan:
            return True
        self.wall_s += seconds
        return False


def snapshot(time_s: float, idle: tuple[str, ...], jobs: tuple[Job, ...] = ()) -> Snapshot:
    nodes = [node(name, "IDLE" if name in idle else "ALLOCATED") for name in NODES]
    return Snapshot(time_s, {one.name: one for one in nodes}, jobs, ())


def lines(path: Path) -> list[str]:
    raw = path.read_bytes()
    text = gzip.decompress(raw) if path.name.endswith(".gz") else raw
    return text.decode().splitlines()[1:]


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    assert not site.plan, "polls that were not made"


@pytest.fixture(params=["t.csv", "t.csv.gz"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / str(request.param)


def test_a_recording_begins_when_idle_nodes_are_known_and_holds_every_change(site: Site, path: Path) -> None:
    site.record(path, ("n1",), ("n1",), ("n1", "n2"), ("n1", "n2"), ("n2",), ())
    assert lines(path) == ["0,n1,1", "20,n2,1", "30,n1,0", "40,n2,0"]
    trace = read(path)
    assert (trace.nodes, trace.duration_s, trace.poll_interval_s) == (NODES, 40.0, 10.0)
    assert datetime.fromisoformat(trace.start).timestamp() == NEW_YEAR_S + 10
    assert dict(trace.notes) == {}
    assert site.told == []


def test_nodes_count_as_busy_while_slurm_does_not_answer(site: Site, path: Path) -> None:
    site.record(path, ("n1",), ("n1",), ("n1",), None, None, ("n1",), ("n1",))
    assert lines(path) == ["0,n1,1", "20,n1,0", "50,n1,1"]
    assert dict(read(path).notes) == {"gaps": 1, "gap_s": 20}
    assert site.told == [
        wording("whatif.session.missed", reason=wording("slurm_plugin.client.no_answer", command="squeue", limit_s=5)),
        "Slurm answers again",
    ]


def test_a_recording_begins_anew_when_slurm_goes_away_before_time_0(site: Site, path: Path) -> None:
    site.record(path, ("n1",), None, ("n1",), ("n1",), ("n1",))
    assert lines(path) == ["0,n1,1"]
    assert read(path).duration_s == 10


def test_a_recorder_that_is_taken_up_again_counts_the_time_between_as_a_gap(site: Site, path: Path) -> None:
    site.record(path, ("n1",), ("n1",), ("n1",))
    site.wall_s += 600
    site.record(path, ("n1", "n2"), ("n1", "n2"), ("n1",))
    assert lines(path) == ["0,n1,1", "20,n1,0", "620,n1,1", "620,n2,1", "630,n2,0"]
    trace = read(path)
    assert trace.duration_s == 630
    assert dict(trace.notes) == {"gaps": 1, "gap_s": 590, "resumed": 1}


def test_a_recorder_that_is_taken_up_at_once_leaves_a_gap_too(site: Site, path: Path) -> None:
    site.record(path, ("n1",), ("n1",))
    site.wall_s += 3
    site.record(path, ("n1",), ("n1",))
    assert lines(path) == ["0,n1,1", "3,n1,0", "13,n1,1"]
    assert read(path).notes["gaps"] == 1


def test_a_new_boot_of_the_machine_does_not_move_the_times(site: Site, path: Path) -> None:
    site.record(path, ("n1",), ("n1",))
    site.wall_s += 600
    site.booted_s = site.wall_s - 3
    site.record(path, ("n1",), ("n1",))
    assert lines(path)[-1] == "610,n1,1"


@pytest.mark.parametrize("torn", [b"", b"20,n2", b"\0\0\0\0", b"\x1f\x8b\x08\0\0"])
def test_a_killed_recorder_loses_its_last_poll_at_most(site: Site, path: Path, torn: bytes) -> None:
    site.record(path, ("n1",), ("n1",), ("n1", "n2"), ("n1", "n2"))
    whole = lines(path)
    described = json.loads((path.parent / "t.json").read_text())
    del described["rows"]  # they are counted at a clean end only
    (path.parent / "t.json").write_text(json.dumps(described))
    with path.open("ab") as file:
        file.write(torn)
    site.wall_s += 100
    site.record(path, ("n3",), ("n3",))
    assert lines(path) == [*whole, "30,n1,0", "30,n2,0", "130,n3,1"]


def test_the_file_is_a_whole_trace_after_every_poll(site: Site, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    step = Site._wait

    def look(self: Site, seconds: float) -> bool:
        if path.exists() and len(self.plan) < 5:
            seen.append(read(path).duration_s)
        return step(self, seconds)

    monkeypatch.setattr(Site, "_wait", look)
    site.record(path, ("n1",), ("n1",), ("n2",), ("n2",), None, ("n3",), ("n3",))
    assert seen == [10, 20, 30, 40, 50]


def test_a_recorder_that_is_killed_before_its_first_row_is_taken_up(site: Site, path: Path) -> None:
    site.record(path, (), ())
    for cut in (path.read_bytes(), b""):
        path.write_bytes(cut)
        site.wall_s += 100
        site.record(path, ("n1",), ("n1",))
    assert lines(path)[-1].endswith("n1,1")
    assert read(path).notes["resumed"] == 2


def test_slurm_must_answer_at_the_beginning(site: Site, path: Path) -> None:
    with pytest.raises(SnapshotError):
        site.record(path, None)
    assert list(path.parent.iterdir()) == []
    site.record(path, ("n1",), ("n1",))


def test_commands_that_are_gone_end_the_recording_but_not_the_trace(site: Site, path: Path) -> None:
    class Gone(Site):
        def snapshot(self) -> Snapshot:
            if len(self.plan) == 1:
                self.plan.clear()
                raise SlurmMissing("squeue not found")
            return super().snapshot()

    with pytest.raises(SlurmMissing):
        Gone().record(path, ("n1",), ("n1",), ("n2",))
    assert lines(path) == ["0,n1,1"]


def test_only_recordings_are_gone_on_with_and_by_one_at_a_time(site: Site, path: Path) -> None:
    write(trace_of({"n1": [(0, 5)]}, 9.0), path)
    before = path.read_bytes()
    with pytest.raises(TraceError, match=pattern("whatif.recording_file.not_a_recording")):
        site.record(path)
    assert path.read_bytes() == before
    (path.parent / "t.json").unlink()
    with pytest.raises(TraceError, match=pattern("whatif.recording_file.not_a_recording")):
        site.record(path)
    path.unlink()

    class Nested(Site):
        def snapshot(self) -> Snapshot:
            with pytest.raises(TraceError, match=pattern("whatif.recording_file.locked")):
                Site().record(path, ("n1",))
            return super().snapshot()

    Nested().record(path, ("n1",), ("n1",))


def test_a_recording_keeps_to_its_poll_interval_and_never_goes_back_in_time(site: Site, path: Path) -> None:
    site.record(path, ("n1",), ("n1",), ("n1",), poll_s=5.0)
    with pytest.raises(TraceError, match=pattern("whatif.session.other_interval", poll_interval_s=5)):
        site.record(path, poll_s=7.0)
    site.wall_s -= 100
    with pytest.raises(TraceError, match=pattern("whatif.session.clock_behind")):
        site.record(path)
    assert lines(path) == ["0,n1,1"]


def test_the_hours_asked_for_are_recorded(path: Path) -> None:
    site = Site()
    clock = RecordingClock(
        lambda s: setattr(site, "wall_s", site.wall_s + s) or False, lambda: site.wall_s, lambda: site.wall_s
    )  # type: ignore[func-returns-value]
    site.plan = [("n1",)] * 99
    polls = record(site, path, lambda seen: list(seen.nodes), clock, site.told.append, 10.0, hours=60 / 3600)
    assert polls == 7
    assert read(path).duration_s == 50


def test_nobody_to_record_is_an_error(site: Site, path: Path) -> None:
    site.plan = [()]
    with pytest.raises(TraceError, match=pattern("whatif.session.no_node")):
        record(site, path, lambda seen: [], RecordingClock(lambda s: True), site.told.append)


@hypothesis_settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(20, 90), st.frozensets(st.sampled_from(NODES))), max_size=15))
def test_the_rows_add_up_to_what_the_polls_saw_and_to_nothing_in_between_gaps(
    polls: list[int | frozenset[str] | None],
) -> None:
    """A number is a pause of so many seconds without any poll."""
    recorder, time_s, idle = PollRecorder(10.0), 0.0, frozenset[str]()
    last_s, seen_before = -1.0, {}
    rows = recorder.see(0.0, (), NODES)
    for poll in polls:
        time_s += 10.0
        if isinstance(poll, int):
            time_s += poll
            continue
        new = recorder.miss(time_s) if poll is None else recorder.see(time_s, poll, NODES)
        rows += new
        for at_s, name, joins in new:
            assert at_s >= last_s
            assert seen_before.get(name, -1.0) < at_s, "two rows of a node at one time"
            last_s = at_s
            seen_before[name] = at_s
            assert joins == (name not in idle)
            idle = idle | {name} if joins else idle - {name}
        assert idle == (poll or frozenset())


def test_a_late_poll_is_no_gap_and_a_lost_one_is() -> None:
    recorder = PollRecorder(10.0)
    recorder.see(0.0, {"n1"}, NODES)
    assert recorder.see(19.0, {"n1"}, NODES) == []
    assert recorder.see(60.0, {"n1"}, NODES) == [(29.0, "n1", False), (60.0, "n1", True)]
    assert dict(recorder.notes) == {"gaps": 1, "gap_s": 31}


def test_a_node_with_one_of_our_pilots_counts_as_idle_and_one_with_another_job_does_not() -> None:
    watch = IdleWatch(PoolConfig())
    ours = pilot("7", "n1", comment="bft run-1 lease-1")
    theirs = job("8", "RUNNING", partition=("elastic",), nodes=("n2",))
    for time_s in (0.0, 10.0):
        seen = watch.see(snapshot(time_s, ("n3",), (ours, theirs)), NODES)
    assert seen == {"n1", "n3"}
    assert watch.pilots_seen == 1


def test_nodes_that_are_not_watched_are_left_out_and_planned_ones_are_not_idle() -> None:
    watch = IdleWatch(PoolConfig())
    for time_s in (0.0, 10.0):
        waiting = job("9", partition=("batch",), sched_nodes=("n2",), start_s=time_s + 5)
        at = snapshot(time_s, NODES, (waiting,))
        at = replace(at, nodes=at.nodes | {"n2": node("n2", "IDLE", "PLANNED")})
        seen = watch.see(at, ("n1", "n2"))
    assert seen == {"n1"}
