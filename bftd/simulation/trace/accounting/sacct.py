"""Slurm's accounting of nodes: periods in which jobs, faults or reservations occupied them.

Read from the output of `sacct`, `sacctmgr show event`, `sacctmgr show reservation` and `scontrol`. An ambiguous record
is counted in `Accounts.notes` and read so that nodes look busy rather than idle; if that is impossible, the note says
so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from bftd.simulation.trace.accounting.job_rows import JobRows
from bftd.simulation.trace.accounting.sacct_table import NO_NODES, Dates, SacctRow, columns, rows
from bftd.simulation.trace.errors import TraceError
from bftd.simulation.trace.names import check, listed

# the submit line may have several lines, and is last for that
JOB_FIELDS = (
    "JobIDRaw,Partition,State,Submit,Eligible,Start,End,TimelimitRaw,NNodes,NodeList,QOS,Account,User,SubmitLine"
)
EVENT_FIELDS = "Cluster,NodeName,Start,End,State,Reason,ClusterNodes"
RESERVATION_FIELDS = "Cluster,Name,NodeNames,Start,End"
_SACCT_ADVICE = f"make it with sacct -a -D -X -P --format={JOB_FIELDS}"
_EVENT_ADVICE = f"make it with sacctmgr -P show event format={EVENT_FIELDS}"
_RESERVATION_ADVICE = f"make it with sacctmgr -P show reservation format={RESERVATION_FIELDS}"
_JOB_COLUMNS = (("jobidraw", "jobid"), ("state",), ("start",), ("end",), ("nodelist",))
# some fields are requested by one name and printed under another
_STARTS, _ENDS = ("start", "timestart"), ("end", "timeend")
_CLUSTER_NODES = ("cluster nodes", "clusternodes")
_EVENT_COLUMNS = (("nodename",), _STARTS, _ENDS)
_RESERVED = ("nodenames", "nodename", "nodes", "nodelist")
_RESERVATION_COLUMNS = (_RESERVED, _STARTS, _ENDS)
_UNFINISHED = ("RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STAGE_OUT", "SIGNALING", "STOPPED")
_UNSTARTED = ("PENDING", "REVOKED")


@dataclass(frozen=True, slots=True)
class Period:
    """Some nodes from `start_s` to `end_s`, unix seconds; an unknown end is infinite."""

    nodes: tuple[str, ...]
    start_s: float
    end_s: float


@dataclass(slots=True)
class Accounts:
    """All periods in which nodes were used or unavailable; `everywhere` holds those of all nodes together.

    `ignored` are jobs that do not count as use of a node; they still show that the node existed. `members` are the
    nodes of the cluster over time, as recorded by slurmdbd. `logged` keeps the jobs themselves.
    """

    jobs: list[Period] = field(default_factory=list)
    ignored: list[Period] = field(default_factory=list)
    members: list[Period] = field(default_factory=list)
    away: list[Period] = field(default_factory=list)
    everywhere: list[Period] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    dates: Dates = field(default_factory=Dates)
    clusters: set[str] = field(default_factory=set)
    logged: JobRows = field(default_factory=JobRows)
    # node sets by their text, and one object for each name: a large site's records repeat both millions of times
    _sets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)

    def add_jobs(self, text: str, where: str, ignored_partitions: Collection[str] = ()) -> None:
        """Add the output of `sacct -P`; raise TraceError with the line that cannot be read."""
        known: dict[tuple[str, float, tuple[str, ...]], Period] = {}
        self.logged.begin(columns(text))
        for row in rows(text, where, _JOB_COLUMNS, _SACCT_ADVICE):
            self._one_cluster(row)
            if row.first("partition") in ignored_partitions:
                period = self._job(row, Counter())  # their ambiguities change nothing
                self.ignored += [period] if period else []
                self.notes["jobs_ignored"] += period is not None
                continue
            period = self._job(row, self.notes)
            self.logged.add(row, period.nodes if period else ())
            if period is None:
                continue
            key = (row.first("jobidraw", "jobid"), period.start_s, period.nodes)
            before = known.setdefault(key, period)
            if before.end_s != period.end_s:
                self.notes["rows_superseded"] += 1
                known[key] = _surer(before, period)
            elif before is not period:
                self.notes["duplicates_dropped"] += 1
        self.jobs.extend(known.values())
        self.notes["jobs_still_running"] += sum(math.isinf(period.end_s) for period in known.values())

    def add_events(self, text: str, where: str) -> None:
        """Add the output of `sacctmgr -P show event`: nodes down or drained, and times without a controller."""
        for row in rows(text, where, _EVENT_COLUMNS, _EVENT_ADVICE):
            self._one_cluster(row)
            span = self._span(row, _STARTS, _ENDS)
            if span is None:
                continue
            names = row.first("nodename")
            if names.lower() not in NO_NODES:
                self.away.append(Period(self._nodes(row, names), *span))
                self.notes["node_events"] += 1
            elif "disconnect" in row.first("reason").lower():
                # nothing starts while the controller is away, and ends are reported late
                self.everywhere.append(Period((), *span))
                self.notes["gaps"] += 1
            elif (names := row.first(*_CLUSTER_NODES)).lower() not in NO_NODES:
                self.members.append(Period(self._nodes(row, names), *span))

    def add_reservations(self, text: str, where: str) -> None:
        """Add reservations, as printed by `sacctmgr -P show reservation` or `scontrol show reservation -o`."""
        if text.startswith("ReservationName=") or text.startswith("No reservations"):
            from slurm_plugin.errors import SlurmError
            from slurm_plugin.read import parse

            try:
                found = [Period(one.nodes, one.start_s, one.end_s) for one in parse.reservations(text)]
            except SlurmError as error:
                raise TraceError(f"{where}: {error}") from None
        else:
            found = list(self._reservations(text, where))
        self.away.extend(found)
        self.notes["reservations"] += len(found)

    def _reservations(self, text: str, where: str) -> Iterable[Period]:
        for row in rows(text, where, _RESERVATION_COLUMNS, _RESERVATION_ADVICE):
            self._one_cluster(row)
            span = self._span(row, _STARTS, _ENDS)
            names = row.first(*_RESERVED)
            if span is not None and names.lower() not in NO_NODES:
                yield Period(self._nodes(row, names), *span)

    def _job(self, row: SacctRow, notes: Counter[str]) -> Period | None:
        """Return the period of one row of sacct, or None, with the reason counted in `notes`."""
        job_id, state = row.first("jobidraw", "jobid"), row.first("state").upper()
        if not job_id or not job_id[0].isdigit():
            raise TraceError(f"{row.where}: {job_id[:40]!r} is not a job id: {_SACCT_ADVICE}")
        if "." in job_id:
            notes["steps_ignored"] += 1
            return None
        names = row.first("nodelist")
        placed = names.lower() not in NO_NODES
        start_s, end_s = self.dates.read(row, "start"), self.dates.read(row, "end", latest=True)
        if start_s is None or state.startswith(_UNSTARTED) or (not placed and start_s == end_s):
            notes["jobs_never_started"] += 1
            return None
        if not placed:
            # cancelled jobs that never ran have a start in some releases, and then no nodes either
            notes["jobs_never_started" if state.startswith("CANCELLED") else "jobs_without_nodes"] += 1
            return None
        if end_s is None:
            end_s = math.inf
            if not state.startswith(_UNFINISHED):
                notes["ends_unknown"] += 1
        if end_s < start_s:
            notes["ends_before_start"] += 1
            return None
        notes["jobs_suspended"] += state.startswith("SUSPENDED")
        nodes = self._nodes(row, names)
        count = row.first("nnodes", "allocnodes")
        notes["node_counts_differ"] += count.isdecimal() and int(count) != len(nodes)
        return Period(nodes, start_s, end_s)

    def _span(self, row: SacctRow, start: tuple[str, ...], end: tuple[str, ...]) -> tuple[float, float] | None:
        """Return start and end of a period of absence: infinite without an end, None without a start."""
        start_s, end_s = self.dates.read(row, *start), self.dates.read(row, *end, latest=True)
        if start_s is None:
            return None
        if end_s is not None and end_s < start_s:
            self.notes["ends_before_start"] += 1
            return None
        return start_s, math.inf if end_s is None else end_s

    def _nodes(self, row: SacctRow, text: str) -> tuple[str, ...]:
        if text not in self._sets:
            from slurm_plugin.errors import SlurmError
            from slurm_plugin.nodeset import expand

            try:
                names = expand(text)
                check(name for name in names if name not in self._names)
            except (SlurmError, TraceError) as error:
                raise TraceError(f"{row.where}: {error}; a list that is cut short needs sacct -P") from None
            self._sets[text] = tuple(self._names.setdefault(name, name) for name in names)
        return self._sets[text]

    def _one_cluster(self, row: SacctRow) -> None:
        """Raise TraceError for a second cluster: node names are unique within one cluster only."""
        cluster = row.first("cluster")
        if cluster:
            self.clusters.add(cluster)
            if len(self.clusters) > 1:
                both = " and ".join(sorted(self.clusters))
                raise TraceError(f"{row.where}: clusters {both} in one trace: choose one with -M CLUSTER")


def _surer(one: Period, other: Period) -> Period:
    """Return the more certain of two rows of one run of a job: a known end before an open one, else the later end."""
    first, last = sorted((one, other), key=lambda period: period.end_s)
    return first if math.isinf(last.end_s) else last


def node_names(text: str, where: str) -> tuple[str, ...]:
    """Read a list of nodes: `scontrol show nodes`, `sinfo -h -o %N`, or names and node sets, one per line."""
    found: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words or (number == 1 and words[0] in ("NODELIST", "HOSTNAMES", "NODES")):
            continue
        if text.startswith("NodeName="):
            found.extend(word.removeprefix("NodeName=") for word in words[:1] if word.startswith("NodeName="))
        elif len(words) == 1:
            try:
                found.extend(listed(words[0]))
            except TraceError as error:
                raise TraceError(f"{where}, line {number}: {error}") from None
        else:
            advice = "write it with scontrol show nodes -o, or sinfo -h -o %N"
            raise TraceError(f"{where}, line {number}: one name or node set a line: {advice}")
    if not found:
        raise TraceError(f"{where} names no node: write it with scontrol show nodes -o, or sinfo -h -o %N")
    check(found)
    return tuple(dict.fromkeys(found))
