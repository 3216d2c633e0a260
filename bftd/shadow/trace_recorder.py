"""The trace of the shadow time: recorded as by `bft trace from-slurm`, from the snapshots that the daemon reads."""

from __future__ import annotations

import logging
from pathlib import Path

from bftd.errors import BftError
from bftd.keys import Config
from bftd.whatif.trace.recording_file import RecordingFile
from bftd.whatif.trace.session import DEFAULT_POLL_S, Clock, Session
from slurm_plugin.types import Snapshot

log = logging.getLogger("bftd")


class TraceRecorder:
    """Records one snapshot of every ten seconds to `path`, or goes on with what it holds.

    A trace that cannot be written is a line in the log: the daemon goes on without.
    """

    def __init__(self, path: Path, config: Config, clock: Clock | None = None) -> None:
        self.path = path
        self._clock = clock or Clock(wait=lambda _: False)
        self._every_s = max(DEFAULT_POLL_S, config.slurm.poll_s)
        self._next_s = float("-inf")
        self._recording: RecordingFile | None = None
        partitions = frozenset(config.slurm.harvested)
        try:
            self._recording = RecordingFile(path)
            self._session = Session(
                self._recording,
                lambda snapshot: [
                    name for name, node in snapshot.nodes.items() if not partitions.isdisjoint(node.partitions)
                ],
                self._clock,
                log.warning,
                self._every_s,
                config.pool,
            )
        except BftError as error:
            self._give_up(error)

    @property
    def told(self) -> str:
        """Where the trace is, "" when there is none."""
        return str(self.path) if self._recording else ""

    def see(self, snapshot: Snapshot) -> None:
        """Take a snapshot, when it is time for one."""
        now_s = self._clock.monotonic_s()
        # a poll that comes a little early is not left out: the next would come a whole poll too late
        if self._recording is None or now_s < self._next_s - 0.1 * self._every_s:
            return
        due_s = self._next_s + self._every_s
        self._next_s = due_s if due_s > now_s else now_s + self._every_s
        try:
            self._session.see(snapshot)
        except BftError as error:
            self._give_up(error)

    def close(self) -> None:
        """End; the file can be gone on with."""
        recording, self._recording = self._recording, None
        if recording is not None:
            try:
                recording.close()
            except BftError as error:
                log.warning("the trace is not packed: %s", error)

    def _give_up(self, error: BftError) -> None:
        log.warning("no trace is recorded: %s", error)
        self.close()
