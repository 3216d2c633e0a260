"""Recording of the live cluster: a snapshot each poll, until stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from bftd.config.keys import PoolConfig
from bftd.pool.idle_filter import IdleWatch
from bftd.simulation.trace.accounting.conversion import iso
from bftd.simulation.trace.errors import TraceError
from bftd.simulation.trace.model import HOUR_S
from bftd.simulation.trace.recording.file import SOURCE, RecordingFile
from bftd.simulation.trace.recording.recorder import PollRecorder, Row
from bftd.simulation.trace.sidecar import Sidecar
from slurm_plugin.errors import CommandError, SnapshotError
from slurm_plugin.read.types import Snapshot

DEFAULT_POLL_S = 10.0


class SnapshotSource(Protocol):
    """A source of snapshots."""

    def snapshot(self) -> Snapshot:
        """Read the cluster; raise SnapshotError or CommandError if it cannot be read."""
        ...


@dataclass(frozen=True, slots=True)
class RecordingClock:
    """The time, and a way to wait: `wait(seconds)` returns True if the recording must end."""

    wait: Callable[[float], bool]
    wall_s: Callable[[], float] = time.time
    monotonic_s: Callable[[], float] = time.monotonic


def record(
    reader: SnapshotSource,
    path: Path,
    watched: Callable[[Snapshot], Collection[str]],
    clock: RecordingClock,
    log: Callable[[str], None],
    poll_s: float | None = None,
    hours: float | None = None,
    pool: PoolConfig | None = None,
) -> int:
    """Record to `path`, or continue the recording it holds, and return the number of polls.

    `watched` picks the nodes out of each snapshot. `poll_s` defaults to that of the recording continued, else 10 s.
    Time 0 of a new trace is the time when the pool's rules have seen enough polls to know an idle node. Raise
    TraceError for a file that cannot be recorded to, and SlurmError if the first snapshot cannot be read.
    """
    recording = RecordingFile(path)
    polls = 0
    try:
        session = RecordingSession(recording, watched, clock, log, poll_s, pool or PoolConfig())
        ends_s = clock.monotonic_s() + hours * HOUR_S if hours is not None else None
        # if Slurm is unavailable at the start, fail now, not after a week
        session.see(reader.snapshot())
        polls, next_s = 1, clock.monotonic_s() + session.poll_s
        while ends_s is None or next_s <= ends_s:
            if clock.wait(max(0.0, next_s - clock.monotonic_s())):
                break
            session.poll(reader)
            polls += 1
            next_s = max(next_s + session.poll_s, clock.monotonic_s())
    finally:
        recording.close()
    return polls


class RecordingSession:
    """One run of the recorder; its caller reads Slurm and passes in the polls."""

    def __init__(
        self,
        recording: RecordingFile,
        watched: Callable[[Snapshot], Collection[str]],
        clock: RecordingClock,
        log: Callable[[str], None],
        poll_s: float | None,
        pool: PoolConfig,
    ) -> None:
        self._recording, self._watched = recording, watched
        self._clock, self._log = clock, log
        self._watch = IdleWatch(pool)
        self._settled_polls = 0
        self._pilots_before = 0
        self._missing = False
        begun = recording.begun
        self.poll_s = poll_s or (begun and begun.poll_interval_s) or DEFAULT_POLL_S
        self._zero_s: float | None = None
        self._start = ""
        self._recorder = PollRecorder(self.poll_s)
        if begun is not None:
            self._take_up(begun)

    def poll(self, reader: SnapshotSource) -> None:
        """Take one snapshot, or record that it failed."""
        try:
            snapshot = reader.snapshot()
        except (SnapshotError, CommandError) as error:
            self._miss(str(error))
        else:
            if self._missing:
                self._log("Slurm answers again")
            self._missing = False
            self.see(snapshot)

    def see(self, snapshot: Snapshot) -> None:
        """Take one snapshot; time 0 of a new trace is the first snapshot that can show idle nodes."""
        nodes = self._watched(snapshot)
        if not nodes:
            raise TraceError("there is no node to record: check --nodes and --partition")
        if self._zero_s is not None and self._recorder.lost_touch(self._now_s()):
            self._watch.forget()
        idle = self._watch.see(snapshot, nodes)
        self._settled_polls += 1
        if self._zero_s is None:
            if self._settled_polls < self._watch.settling_polls:
                return
            self._zero_s, self._start = self._clock.monotonic_s(), iso(round(self._clock.wall_s(), 3))
            self._recorder.nodes.update(dict.fromkeys(nodes))
            self._recording.begin(self._description(0.0))
        time_s = self._now_s()
        self._recorder.notes["pilots_idle"] = self._pilots_before + self._watch.pilots_seen
        self._save(time_s, self._recorder.see(time_s, idle, nodes))

    def _take_up(self, begun: Sidecar) -> None:
        """Continue a recording; the time since its last poll is a gap."""
        last_s = float(begun.duration_s or 0.0)
        if begun.poll_interval_s != self.poll_s:
            raise TraceError(
                f"{self._recording.path} was recorded with --poll {begun.poll_interval_s or 0:g}: keep to it"
            )
        passed_s = self._clock.wall_s() - datetime.fromisoformat(begun.start).timestamp()
        if passed_s <= last_s:
            raise TraceError(f"{self._recording.path} ends later than this machine's clock tells: set the clock")
        self._zero_s, self._start = self._clock.monotonic_s() - passed_s, begun.start
        notes = dict(begun.notes) | {"resumed": begun.notes.get("resumed", 0) + 1}
        self._pilots_before = notes.get("pilots_idle", 0)
        self._recorder = PollRecorder(self.poll_s, begun.nodes or (), self._recording.idle, last_s, notes.items())
        time_s = self._now_s()
        self._save(time_s, self._recorder.miss(time_s))

    def _miss(self, reason: str) -> None:
        if not self._missing:
            self._log(f"{reason}; no node counts as idle until Slurm answers")
        self._missing = True
        if self._zero_s is None:
            self._settled_polls = 0
        else:
            time_s = self._now_s()
            self._save(time_s, self._recorder.miss(time_s))

    def _save(self, time_s: float, rows: list[Row]) -> None:
        self._recording.append(self._description(time_s), rows)

    def _description(self, duration_s: float) -> Sidecar:
        return Sidecar(
            nodes=tuple(self._recorder.nodes),
            start=self._start,
            duration_s=duration_s,
            poll_interval_s=self.poll_s,
            source=SOURCE,
            notes={name: count for name, count in self._recorder.notes.items() if count},
        )

    def _now_s(self) -> float:
        assert self._zero_s is not None
        return round(self._clock.monotonic_s() - self._zero_s, 3)
