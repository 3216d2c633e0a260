"""The file of a recording: each poll's rows are added in one write, and a resume removes what a kill left incomplete.

In a .csv.gz file each write is a gzip member of its own, so the file is complete after every poll. The description is
replaced before the rows are added, so no row lies beyond the duration it states.
"""

from __future__ import annotations

import fcntl
import gzip
import os
from collections.abc import Iterable
from pathlib import Path

from bftd.simulation.trace import files, sidecar, table
from bftd.simulation.trace.errors import TraceError, unpacking
from bftd.simulation.trace.recording import gzip_members
from bftd.simulation.trace.recording.recorder import Row
from bftd.simulation.trace.sidecar import Sidecar

SOURCE = "recorded from Slurm"
_HEADER = table.HEADER + b"\n"


class RecordingFile:
    """A trace file that grows; a lock keeps other recorders out.

    `begun` is the description of an existing file, None for a new one, and `idle` the nodes that are idle at its end.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file; raise TraceError for a trace that is no recording, or one that is being recorded."""
        self.path = path
        self._beside = sidecar.path_of(path)
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise TraceError(f"cannot write {path}: {error.strerror}") from None
        try:
            self._lock()
            self.begun = self._resumed()
            self.idle = self._idle_at_end() if self.begun else frozenset()
        except BaseException:
            os.close(self._file)
            raise

    def append(self, description: Sidecar, rows: Iterable[Row]) -> None:
        """Add the rows of one poll; raise TraceError if they cannot be written."""
        sidecar.write(self._beside, description)
        lines = [f"{table.seconds(time_s)},{node},{1 if joins else 0}\n" for time_s, node, joins in rows]
        if lines:
            self._add("".join(lines).encode())

    def begin(self, description: Sidecar) -> None:
        """Write the description and the header of a new file."""
        sidecar.write(self._beside, description)
        self._add(_HEADER)

    def close(self, compact: bool = True) -> None:
        """Close the file; `compact` rewrites it as one gzip member, much smaller, and records its number of rows."""
        try:
            if os.fstat(self._file).st_size == 0:
                self.path.unlink(missing_ok=True)
            elif compact and self._holds_rows():
                files.write(files.load(self.path), self.path)
        finally:
            os.close(self._file)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise TraceError(f"{self.path} is being recorded by another process: choose another file") from None

    def _resumed(self) -> Sidecar | None:
        """Check and repair an existing file; None for a new one."""
        if not self._beside.exists() and os.fstat(self._file).st_size == 0:
            return None
        begun = sidecar.read(self._beside)
        if begun.source != SOURCE or begun.duration_s is None or begun.nodes is None or not begun.start:
            raise TraceError(f"{self.path} is there and was not recorded by bft trace from-slurm: choose another file")
        raw = self.path.read_bytes()
        with unpacking(self.path):
            whole = gzip_members.whole(raw)[1] if self.path.name.endswith(".gz") else raw.rfind(b"\n") + 1
        os.ftruncate(self._file, whole)
        if whole == 0:
            self._add(_HEADER)
        return begun

    def _idle_at_end(self) -> frozenset[str]:
        if not self._holds_rows():
            return frozenset()
        trace = files.load(self.path)
        last = dict(zip(trace.node.tolist(), trace.idle.tolist(), strict=True))
        return frozenset(trace.nodes[node] for node, idle in last.items() if idle)

    def _holds_rows(self) -> bool:
        raw = self.path.read_bytes()
        text = files.unpacked(self.path, raw)
        return len(text) > len(_HEADER)

    def _add(self, text: bytes) -> None:
        raw = gzip.compress(text, mtime=0) if self.path.name.endswith(".gz") else text
        try:
            while raw:
                raw = raw[os.write(self._file, raw) :]
            os.fsync(self._file)
        except OSError as error:
            raise TraceError(f"cannot write {self.path}: {error.strerror}") from None
