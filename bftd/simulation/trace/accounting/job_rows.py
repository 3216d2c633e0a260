"""The regular jobs of sacct's rows, for a log of jobs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from bftd.protocol.fields import printable
from bftd.simulation.trace.accounting.sacct_table import NO_NODES, Dates, SacctRow
from bftd.simulation.trace.errors import TraceError
from bftd.simulation.trace.job_model import MOST_JOBS, JobLog, LoggedJob, assembled, in_turn

# What a log needs, beside the columns of a trace, as alternative names each.
_NEEDED = (
    *(("Submit",), ("Eligible",), ("TimelimitRaw", "Timelimit"), ("NNodes",), ("Partition",)),
    *(("QOS", "QOSRaw"), ("Account",), ("User",)),
)
# Slurm keeps a submit line as words with blanks between, without quotation marks.
_NODELIST = re.compile(r"\s(?:-w[\s=]*|--nodel\w*[\s=]+)(\S+)")
_MINUTES = re.compile(r"\d{1,9}")
_NODES = re.compile(r"(\d{1,9})([KM]?)")
_UNITS = {"": 1, "K": 1024, "M": 1024**2}


@dataclass(slots=True)
class JobRows:
    """The jobs of rows as they are read; users and accounts are numbered as they come, unless their `names` are kept.

    `lacks` says why there is no log, "" if there is one.
    """

    names: bool = False
    lacks: str = ""
    _jobs: list[LoggedJob] = field(default_factory=list)
    # the nodes of each job
    _places: list[tuple[str, ...]] = field(default_factory=list)
    _counts: Counter[str] = field(default_factory=Counter)
    _dates: Dates = field(default_factory=Dates)
    _users: dict[str, str] = field(default_factory=lambda: {"": ""})
    _accounts: dict[str, str] = field(default_factory=lambda: {"": ""})
    # one object for each text: most come many times
    _texts: dict[str, str] = field(default_factory=dict)

    def begin(self, columns: Collection[str]) -> None:
        """Begin with a table of these columns, which are in lower case."""
        if missing := [names[0] for names in _NEEDED if not any(name.lower() in columns for name in names)]:
            self.lacks = f"no log of jobs is written: ask sacct for the columns {', '.join(missing)} too"

    def add(self, row: SacctRow, nodes: tuple[str, ...]) -> None:
        """Add the job of a row, which ran on these nodes; there are none if it ran on none that can be told."""
        state, job_id = row.first("state").partition(" ")[0].upper(), row.first("jobidraw", "jobid")
        if self.lacks or "." in job_id or state == "REVOKED":
            return
        if len(self._jobs) >= MOST_JOBS:
            self.lacks = f"no log of jobs is written: {MOST_JOBS:,} are the most, choose a shorter period"
            self._jobs, self._places = [], []
            return
        submit_s = self._dates.read(row, "submit")
        if submit_s is None:
            self._counts["no_submission"] += 1
            return
        eligible_s = self._after(submit_s, row, "eligible")
        start_s = self._after(max(submit_s, eligible_s or 0.0), row, "start")
        end_s = self._dates.read(row, "end", latest=True)
        placed = row.first("nodelist").lower() not in NO_NODES
        if state == "PENDING" or (not placed and (start_s == end_s or state == "CANCELLED")):
            start_s = None
        elif start_s is not None:
            if end_s is not None and end_s < start_s:
                self._counts["ends_before_start"] += 1
                return
            self._counts["node_list_unknown"] += not placed
        if start_s is None and end_s is None and state != "PENDING":
            self._counts["no_start"] += 1
            return
        submit_s, eligible_s = in_turn(submit_s, eligible_s, start_s, self._counts)
        if end_s is not None and end_s < max(submit_s, eligible_s or 0.0):
            # it left the queue before it became eligible
            eligible_s, end_s = None, max(submit_s, end_s)
        self._places.append(nodes)
        self._jobs.append(
            LoggedJob(
                id=job_id[:64],
                submit_s=submit_s,
                eligible_s=eligible_s,
                start_s=start_s,
                end_s=end_s,
                limit_s=_limit_s(row),
                nodes=len(nodes) or _nodes(row),
                partition=self._text(row.first("partition")),
                user=self._named(row.first("user"), self._users, "u"),
                account=self._named(row.first("account"), self._accounts, "a"),
                qos=self._text(row.first("qos", "qosraw")),
                state=self._text(state.rstrip("+")),
                node_names=self._text(row.first("nodelist")) if nodes else "",
                required=self._text(_required(row.first("submitline"), nodes)),
            )
        )

    def log(self, begin_s: float, end_s: float, nodes: Sequence[str], *, every: bool) -> JobLog:
        """Return the log of a period, unless it `lacks` something.

        Jobs that ran on none of `nodes` are left out, unless these are `every` node of the cluster. Nodes that a
        job requires and that are not among them are none: the submit line meant something else.
        """
        known = frozenset(nodes)
        jobs = []
        for job, places in zip(self._jobs, self._places, strict=True):
            if places and not every and known.isdisjoint(places):
                self._counts["elsewhere"] += 1
            elif job.required and not places and not known.issuperset(_expanded(job.required)):
                jobs.append(replace(job, required=""))
            else:
                jobs.append(job)
        self._jobs, self._places = [], []
        self._counts["ambiguous_times"] = self._dates.ambiguous
        return assembled(jobs, begin_s, end_s, len(nodes), self._counts)

    def _after(self, least_s: float, row: SacctRow, name: str) -> float | None:
        """Return a time; of a local one that a change of clocks repeats, the first that is not before another."""
        first_s = self._dates.read(row, name)
        if first_s is None or first_s >= least_s:
            return first_s
        last_s = Dates().read(row, name, latest=True)
        return last_s if last_s is not None and last_s >= least_s else first_s

    def _text(self, text: str) -> str:
        kept = self._texts.get(text)
        return self._texts.setdefault(text, printable(text)) if kept is None else kept

    def _named(self, name: str, numbers: dict[str, str], letter: str) -> str:
        return self._text(name) if self.names else numbers.setdefault(name, f"{letter}{len(numbers)}")


def _limit_s(row: SacctRow) -> float | None:
    """Return the time limit, None if there is none; a limit of 0 is none in Slurm."""
    from slurm_plugin.errors import SlurmError
    from slurm_plugin.read.parse import time_limit_s

    minutes = row.first("timelimitraw")
    if _MINUTES.fullmatch(minutes):
        return int(minutes) * 60.0 or None
    try:
        return time_limit_s(minutes or row.first("timelimit")) or None
    except SlurmError as error:
        raise TraceError(f"{row.where}: {error}") from None


def _nodes(row: SacctRow) -> int:
    """Return the number of nodes, which sacct may write as 4K."""
    found = _NODES.fullmatch(row.first("nnodes").upper())
    return int(found[1]) * _UNITS[found[2]] if found else 0


def _required(submit_line: str, nodes: tuple[str, ...]) -> str:
    """Return the node set of -w in a submit line, if the job ran on all of it; no other word can be meant then."""
    found = _NODELIST.search(submit_line.partition(" --wrap")[0])
    names = _expanded(found[1]) if found else ()
    return found[1] if found and names and (not nodes or set(names) <= set(nodes)) else ""


def _expanded(text: str) -> Sequence[str]:
    """Return the names of a node set, none if the text is no node set."""
    from slurm_plugin.errors import SlurmError
    from slurm_plugin.nodeset import expand

    try:
        return expand(text)
    except SlurmError:
        return ()
