"""Which nodes a cluster had when: today's list of nodes is not that of the whole of a long period.

slurmdbd records the nodes of the cluster whenever they change; where that record is at hand, it alone counts. Else the
jobs and events of a node are what is known of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bftd.whatif.trace.busy import Spans
from bftd.whatif.trace.sacct import Period

SETTLED_S = 86400.0
"""A node that nothing is known of for so long, from the start of the period on, was not there yet: a node that waits
for its first job waits less at a site that is worth a trace."""


@dataclass(frozen=True, slots=True)
class Absence:
    """Periods in which nodes were not part of the cluster, in unix seconds, and how many were cut for which reason."""

    periods: tuple[Period, ...]
    notes: Counter[str]


def absence(
    members: Sequence[Period], names: Sequence[str], listed: int, evidence: Spans, start_s: float, end_s: float
) -> Absence:
    """Tell when which of `names` were not there between two times.

    `members` are slurmdbd's records of the cluster's nodes. The first `listed` names are those of the list of nodes,
    which are there at the end; the others have gone since. `evidence` are the jobs and events of the names, by their
    place, in seconds from `start_s`.
    """
    recorded = [one for one in members if one.start_s < end_s and one.end_s > start_s]
    if recorded:
        return _by_record(recorded, names)
    return _by_evidence(names, listed, evidence, start_s)


def _by_record(members: Sequence[Period], names: Sequence[str]) -> Absence:
    periods = []
    for one in members:
        there = frozenset(one.nodes)
        if missing := tuple(name for name in names if name not in there):
            periods.append(Period(missing, one.start_s, one.end_s))
    cut = {name for period in periods for name in period.nodes}
    return Absence(tuple(periods), Counter(nodes_cut_by_record=len(cut)))


def _by_evidence(names: Sequence[str], listed: int, evidence: Spans, start_s: float) -> Absence:
    first_s, last_s = np.full(len(names), np.inf), np.full(len(names), -np.inf)
    np.minimum.at(first_s, evidence.node, evidence.starts_s)
    np.maximum.at(last_s, evidence.node, evidence.ends_s)
    late = np.flatnonzero((first_s > SETTLED_S) & np.isfinite(first_s)).tolist()
    gone = [place for place in range(listed, len(names)) if np.isfinite(last_s[place])]
    periods = [Period((names[place],), start_s, start_s + float(first_s[place])) for place in late]
    periods += [Period((names[place],), start_s + max(0.0, float(last_s[place])), np.inf) for place in gone]
    return Absence(tuple(periods), Counter(nodes_cut_at_first=len(late), nodes_cut_at_last=len(gone)))
