"""The trace recorded in shadow mode, as by `bft trace from-slurm`, from the snapshots that the daemon reads."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from bftd.base.errors import BftError
from bftd.config.keys import Config
from bftd.simulation.trace.recording.file import RecordingFile
from bftd.simulation.trace.recording.session import DEFAULT_POLL_S, RecordingClock, RecordingSession
from slurm_plugin.read.types import Snapshot

log = logging.getLogger("bftd")

# A file up to this size takes a few milliseconds to read back.
_READ_AT_ONCE_BYTES = 100_000


class TraceRecorder:
    """A recorder of one snapshot every ten seconds to `path`, which may hold an earlier recording.

    A recording of months takes seconds to read back. That is done in a thread beside the daemon's loop, and recording
    starts when it is done. If a trace cannot be written, a line is logged and the daemon continues without.
    """

    def __init__(self, path: Path, config: Config, clock: RecordingClock | None = None) -> None:
        self.path = path
        self._clock = clock or RecordingClock(wait=lambda _: False)
        self._every_s = max(DEFAULT_POLL_S, config.slurm.poll_s)
        self._next_s = float("-inf")
        self._partitions = frozenset(config.slurm.harvested)
        self._pool = config.pool
        self._session: RecordingSession | None = None
        large = _size_bytes(path) > _READ_AT_ONCE_BYTES
        opener = ThreadPoolExecutor(1, "trace")
        self._opened: Future[RecordingFile] | None = opener.submit(RecordingFile, path)
        opener.shutdown(wait=False)
        if not large:
            self._take_up(self._opened)

    @property
    def recording_path(self) -> str:
        """The path of the trace, "" if there is none."""
        return str(self.path) if self._opened else ""

    def see(self, snapshot: Snapshot) -> None:
        """Record a snapshot if one is due."""
        now_s = self._clock.monotonic_s()
        if self._opened is None or not self._opened.done():
            return
        # a poll that comes a little early is taken: the next would come a whole poll too late
        if now_s < self._next_s - 0.1 * self._every_s:
            return
        due_s = self._next_s + self._every_s
        self._next_s = due_s if due_s > now_s else now_s + self._every_s
        try:
            session = self._session or self._take_up(self._opened)
            if session is not None:
                session.see(snapshot)
        except BftError as error:
            self._give_up(error)

    def close(self) -> None:
        """Close the trace; a later recording can continue the file."""
        opened, self._opened = self._opened, None
        if opened is None:
            return
        try:
            opened.result().close()
        except BftError as error:
            log.warning("the trace is not packed: %s", error)

    def _take_up(self, opened: Future[RecordingFile]) -> RecordingSession | None:
        """Start recording to the opened file; return None, and log a line, if it could not be opened."""
        partitions = self._partitions
        try:
            self._session = RecordingSession(
                opened.result(),
                lambda snapshot: [
                    name for name, node in snapshot.nodes.items() if not partitions.isdisjoint(node.partitions)
                ],
                self._clock,
                log.warning,
                self._every_s,
                self._pool,
            )
        except BftError as error:
            self._give_up(error)
        return self._session

    def _give_up(self, error: BftError) -> None:
        log.warning("no trace is recorded: %s", error)
        opened, self._opened, self._session = self._opened, None, None
        if opened is not None and opened.exception() is None:
            opened.result().close(compact=False)


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
