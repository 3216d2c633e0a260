"""A trace in memory: rows that say when a node joins or leaves the idle set, as parallel arrays."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bftd.base.format import some
from bftd.simulation.trace import table
from bftd.simulation.trace.errors import TraceError
from bftd.simulation.trace.names import listed

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Change:
    """All that happens to the idle set at one moment, `time_s` seconds after the start of the trace."""

    time_s: float
    joined: tuple[str, ...]
    left: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Trace:
    """The idle periods of `nodes` over `duration_s` seconds.

    Row k says that node `nodes[node[k]]` joins (`idle[k]`) or leaves the idle set at `times_s[k]`. Rows are sorted by
    time; those at time 0 are the nodes that are idle at the start. `start` is the date of time 0 in ISO form, or "" if
    it is not known. `poll_interval_s` is None if the trace was not made by polling. `notes` counts unclear data met
    while the trace was made, by the names of `bftd.simulation.trace.accounting.notes`. `file_sha256` is the digest of
    the file that the trace came from.
    """

    nodes: tuple[str, ...]
    times_s: NDArray[np.float64]
    node: NDArray[np.int32]
    idle: NDArray[np.bool_]
    duration_s: float
    start: str = ""
    poll_interval_s: float | None = None
    source: str = ""
    notes: Mapping[str, int] = field(default_factory=dict)
    file_sha256: str = ""

    def changes(self) -> Iterator[Change]:
        """Yield one change for each distinct time of the rows, names in the order of the rows."""
        if not len(self.times_s):
            return
        names = np.array(self.nodes, dtype=object)
        cuts = np.flatnonzero(np.diff(self.times_s)) + 1
        bounds = [0, *cuts.tolist(), len(self.times_s)]
        for first, end in pairwise(bounds):
            node, idle = self.node[first:end], self.idle[first:end]
            joined, left = names[node[idle]].tolist(), names[node[~idle]].tolist()
            yield Change(float(self.times_s[first]), tuple(joined), tuple(left))

    def select(self, nodes: str | Iterable[str]) -> Trace:
        """Keep only some nodes, given as names, a node set ("n[1-4,7]") or, for numbered nodes, ranges ("0-1023").

        Raise TraceError for names that the trace does not have, and for an empty selection.
        """
        wanted = dict.fromkeys(listed(nodes) if isinstance(nodes, str) else nodes)
        known = set(self.nodes)
        if unknown := [name for name in wanted if name not in known]:
            raise TraceError(f"the trace has no node {some(unknown)}: it has {some(self.nodes)}")
        if not wanted:
            raise TraceError("no node is selected: name at least one")
        kept = [index for index, name in enumerate(self.nodes) if name in wanted]
        place = np.full(len(self.nodes), -1, dtype=np.int32)
        place[kept] = np.arange(len(kept), dtype=np.int32)
        rows = place[self.node] >= 0
        return replace(
            self,
            nodes=tuple(self.nodes[index] for index in kept),
            times_s=self.times_s[rows],
            node=place[self.node[rows]],
            idle=self.idle[rows],
        )

    def first(self, hours: float) -> Trace:
        """Keep the first `hours` of the trace, or all of it if it is shorter."""
        if not (math.isfinite(hours) and hours > 0):
            raise TraceError(f"{hours:g} is not a number of hours above 0")
        duration_s = min(self.duration_s, hours * HOUR_S)
        if duration_s == self.duration_s:
            return self
        end = int(np.searchsorted(self.times_s, duration_s, side="left"))
        return replace(
            self, times_s=self.times_s[:end], node=self.node[:end], idle=self.idle[:end], duration_s=duration_s
        )

    def digest(self) -> str:
        """Return the SHA-256 in hex of the file that this trace, or the trace it was cut from, was read from.

        For a trace that comes from no file, return the digest of its rows written as a plain CSV file.
        """
        if self.file_sha256:
            return self.file_sha256
        return hashlib.sha256(table.written(self.nodes, self.times_s, self.node, self.idle)).hexdigest()
