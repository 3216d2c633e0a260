"""The times at which each node was part of the cluster: today's list of nodes does not hold for all of a long period.

slurmdbd records the cluster's nodes whenever they change. If that record is available, it alone counts. Otherwise the
jobs and events of a node are the only evidence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bftd.simulation.trace.accounting.busy_periods import Spans
from bftd.simulation.trace.accounting.sacct import Period

SETTLED_S = 86400.0
"""A node without any job or event for this long from the start of the period counts as not installed yet: at a site
worth a trace, a new node gets its first job sooner."""


@dataclass(frozen=True, slots=True)
class Absence:
    """Periods in which nodes were not in the cluster, in unix seconds, and the number of nodes cut for each reason."""

    periods: tuple[Period, ...]
    notes: Counter[str]


def absence(
    members: Sequence[Period], names: Sequence[str], listed: int, evidence: Spans, start_s: float, end_s: float
) -> Absence:
    """Return the periods between two times in which some of `names` were not part of the cluster.

    `members` are slurmdbd's records of the cluster's nodes. The first `listed` names are in today's list of nodes, so
    they exist at the end; the others have gone since. `evidence` holds the jobs and events of the names, by their
    index, in seconds from `start_s`.
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
