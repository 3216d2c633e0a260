"""Slurm's commands in the simulated world: what a user's process asks of slurmctld, and the text of its answers.

The text goes through the parsers of `slurm_plugin.read`, as that of a real command does. A command acts at one moment,
and its answer comes at another; in between others act.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import inf
from time import gmtime, strftime

from bftd.simulation.world.cluster import SimulatedCluster
from bftd.simulation.world.machine.loop import SimulatedLoop
from bftd.simulation.world.machine.processes import current_process
from bftd.simulation.world.slurmctld import Request
from slurm_plugin.clients.client import CommandResult, SlurmClient
from slurm_plugin.clients.slow_settings import Background
from slurm_plugin.errors import NoAnswer
from slurm_plugin.read.types import Job, Node, Partition

RELEASE = "22.05.8"

_TRIP_S = 0.003
"""From the start of a command to what it does, and from there to its end, on average each."""

_LOOK_S = 0.2
_SUFFIXES = {"NOT_RESPONDING": "*"}
_LETTER = re.compile(r"%([a-zA-Z])")
_LONG_FIELD = re.compile(r"([\w-]+):0([^,]*)(?:,|$)")
_HEADINGS = {"i": "JOBID"}
_UNABLE = "Unable to contact slurmctld"
_STRANGE = "the credential of this host is refused, as its time is another"


class SimulatedClient(SlurmClient):
    """Slurm's commands as one user calls them on one host."""

    def __init__(self, loop: SimulatedLoop, cluster: SimulatedCluster, user: str = "") -> None:
        super().__init__()
        self._slow = Background(self._read, ("--all", "--local"), loop.wall_here)
        self._loop = loop
        self._cluster = cluster
        self._user = user

    def _run(
        self, command: str, arguments: Sequence[str], stdin: str, env: Mapping[str, str] | None, limit_s: float
    ) -> CommandResult:
        """See SlurmClient; raises NoAnswer where slurmctld says nothing in time, whatever it does then."""
        loop, cluster = self._loop, self._cluster
        ends_s = loop.time() + limit_s
        loop.pause(self._trip_s())
        answers: list[CommandResult] = []
        request = Request(lambda: answers.append(self._carried_out(command, arguments)))
        if cluster.refuses_host(current_process().host):
            return CommandResult(1, "", f"{command}: error: {_STRANGE}")
        if not cluster.take(request):
            return CommandResult(1, "", f"{command}: error: {_UNABLE}")
        while not answers and loop.time() < ends_s:
            loop.pause(min(_LOOK_S, ends_s - loop.time()))
        left_s = max(0.0, ends_s - loop.time())
        answer_s = self._trip_s() + (loop.random.expovariate(1.0 / cluster.late_s) if cluster.late_s else 0.0)
        loop.pause(min(left_s, answer_s))
        if not answers or answer_s > left_s:
            request.give_up()
            raise NoAnswer(f"{command} gave no answer for {limit_s:g} s: is slurmctld up?")
        return answers[0]

    def _trip_s(self) -> float:
        return self._loop.random.expovariate(1.0 / _TRIP_S)

    # -- what slurmctld does ---

    def _carried_out(self, command: str, arguments: Sequence[str]) -> CommandResult:
        if command == "salloc":
            return self._place(arguments)
        if command == "scancel":
            return self._end(arguments)
        shown = self._shown_text(command, arguments)
        return shown if isinstance(shown, CommandResult) else self._cluster.shown(shown)

    def _place(self, arguments: Sequence[str]) -> CommandResult:
        options = _options(arguments)
        pilot = self._cluster.allocate(
            options["nodelist"], self._user, options["job-name"], options["comment"], 60.0 * int(options["time"])
        )
        if isinstance(pilot, str):
            return CommandResult(1, "", f"salloc: error: {pilot}\n")
        return CommandResult(0, "", f"salloc: Granted job allocation {pilot.id}\n")

    def _end(self, arguments: Sequence[str]) -> CommandResult:
        complaints = []
        kills = "--signal=KILL" in arguments
        for id_ in (word for word in arguments if not word.startswith("--")):
            job_id = id_.partition(".")[0]
            if job_id not in self._cluster.pilots:
                complaints.append(f"scancel: error: Kill job error on job id {id_}: Invalid job id\n")
            elif kills:
                self._cluster.kill_step(job_id)
            else:
                self._cluster.cancel(job_id)
        return CommandResult(1 if complaints else 0, "", "".join(complaints))

    def _shown_text(self, command: str, arguments: Sequence[str]) -> str | CommandResult:
        cluster = self._cluster
        if command == "sdiag":
            return sdiag(cluster.now_s, cluster.restarted_s, cluster.cycled_s, len(cluster.pending()))
        if command == "squeue":
            return self._shown_jobs(_options(arguments), arguments)
        assert (command, arguments[0]) == ("scontrol", "show"), arguments
        if arguments[1] == "nodes":
            return nodes(cluster.shown_nodes())
        if arguments[1] == "partition":
            return partitions(cluster.partitions().values())
        if arguments[1] == "reservation":
            return "No reservations in the system\n"
        assert arguments[1] == "config", arguments
        return config(cluster.now_s)

    def _shown_jobs(self, options: Mapping[str, str], arguments: Sequence[str]) -> str | CommandResult:
        ids = options["jobs"].split(",") if "jobs" in options else None
        if "--steps" in arguments:
            alive = [id_ for id_ in ids or () if self._cluster.has_step(id_)]
            return "".join(f"{id_}.0\n" for id_ in alive)
        jobs = self._cluster.pending() if options.get("states") == "PENDING" else self._cluster.jobs()
        if ids is not None:
            jobs = [job for job in jobs if job.id in ids]
            if not jobs and len(ids) == 1:
                return CommandResult(1, "", "squeue: Invalid job id\n")
        if "user" in options:
            jobs = [job for job in jobs if job.user == self._user]
        if "name" in options:
            jobs = [job for job in jobs if job.name == options["name"]]
        if "partition" in options:
            jobs = [job for job in jobs if options["partition"] in job.partition]
        return wishes(options["Format"], jobs) if "Format" in options else queue(options["format"], jobs)


def _options(arguments: Iterable[str]) -> dict[str, str]:
    found = (word.removeprefix("--").partition("=") for word in arguments if word.startswith("--"))
    return {name: value for name, equals, value in found if equals}


# -- the texts ---


def nodes(shown: Iterable[Node]) -> str:
    """Return what `scontrol show nodes -o` prints."""
    return "".join(
        _node(one.name, one.state, one.flags, one.partitions, one.reason, (one.cpus, one.cpus_used, one.memory_bytes))
        for one in shown
    )


@cache
def _node(
    name: str, base: str, flags: frozenset[str], within: tuple[str, ...], reason: str, sizes: tuple[int, int, int]
) -> str:
    cpus, used, memory = sizes[0], sizes[1], sizes[2] >> 20
    state = base + "".join(_SUFFIXES[flag] for flag in sorted(flags) if flag in _SUFFIXES)
    state = "+".join([state, *sorted(flag for flag in flags if flag not in _SUFFIXES)])
    partitions_of = f"Partitions={','.join(within)} " if within else ""
    why = f" Reason={reason} [root@2023-11-14T22:13:20]" if reason else ""
    return (
        f"NodeName={name} Arch=x86_64 CoresPerSocket=1 CPUAlloc={used} CPUEfctv={cpus} CPUTot={cpus} CPULoad=0.10 "
        f"AvailableFeatures=(null) ActiveFeatures=(null) Gres=(null) NodeAddr={name} NodeHostName={name} "
        f"Version={RELEASE} OS=Linux RealMemory={memory} AllocMem=0 FreeMem={memory} Sockets={cpus} Boards=1 "
        f"State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A {partitions_of}"
        f"BootTime=1699990000 SlurmdStartTime=1699990000 CfgTRES=cpu={cpus},mem={memory}M,billing={cpus} AllocTRES= "
        f"CapWatts=n/a CurrentWatts=0{why}\n"
    )


def partitions(shown: Iterable[Partition]) -> str:
    """Return what `scontrol show partition -o` prints."""
    return "".join(
        f"PartitionName={one.name} AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL MaxNodes=UNLIMITED "
        f"MaxTime={_length(one.max_time_s)} MinNodes=0 Nodes={','.join(one.nodes)} PriorityTier={one.priority_tier} "
        f"OverSubscribe={'EXCLUSIVE' if one.exclusive else 'NO'} State={one.state} TotalNodes={len(one.nodes)}\n"
        for one in shown
    )


def queue(form: str, jobs: Iterable[Job]) -> str:
    """Return what `squeue --format` prints."""
    heading = _LETTER.sub(lambda match: _HEADINGS.get(match[1], match[1]), form)
    row = _LETTER.sub(r"{\1}", form)
    return "\n".join([heading, *(row.format_map(_values(job)) for job in jobs), ""])


def _values(job: Job) -> dict[str, str]:
    return {
        "i": job.id,
        "u": job.user,
        "P": ",".join(job.partition),
        "T": job.state,
        "N": ",".join(job.nodes),
        "Y": ",".join(job.sched_nodes) or "(null)",
        "S": "N/A" if job.start_s is None else str(int(job.start_s)),
        "V": str(int(job.submit_s)),
        "l": _length(job.time_limit_s),
        "r": job.reason or "None",
        "D": str(job.node_count),
        "E": "(null)",
        "Q": str(job.priority),
        "v": "(null)",
        "a": "(null)",
        "f": "(null)",
        "n": "",
        "x": "",
        "O": "0",
        "h": "NO",
        "C": str(16 * job.node_count),
        "c": "1",
        "m": "0",
        "b": "N/A",
        "j": job.name,
        "k": job.comment or "(null)",
    }


def wishes(form: str, jobs: Iterable[Job]) -> str:
    """Return what `squeue --Format` prints."""
    fields = _LONG_FIELD.findall(form)
    rows = ["".join(f"{name.upper()}{separator}" for name, separator in fields)]
    for job in jobs:
        values = {"JobArrayID": job.id, "MinTime": "0:00", "ReqSwitch": "0"}
        rows.append("".join(f"{values.get(name, 'N/A')}{separator}" for name, separator in fields))
    return "\n".join([*rows, ""])


def config(now_s: float) -> str:
    """Return what `scontrol show config` prints first; every setting that is not shown has Slurm's default."""
    return (
        f"Configuration data as of {_date(now_s)}\nKillWait                = 30 sec\nMessageTimeout          = 10 sec\n"
        f"PrivateData             = none\nSchedulerParameters     = (null)\nSLURM_CONF              = /etc/slurm.conf\n"
        f"SLURM_VERSION           = {RELEASE}\nUnkillableStepTimeout   = 60 sec\n\nSlurmctld(primary) at login1 is UP\n"
    )


def sdiag(now_s: float, since_s: float, cycled_s: float | None, queued: int) -> str:
    """Return what sdiag prints; a slurmctld that has just started has counted nothing."""
    lines = [
        f"sdiag output at {_date(now_s)} ({int(now_s)})",
        f"Data since      {_date(since_s)} ({int(since_s)})",
        "Server thread count:  3",
        "",
        "Main schedule statistics (microseconds):",
        "\tLast cycle:   25",
        "\tMax cycle:    36",
        "",
        "Backfilling stats",
    ]
    if cycled_s is None:
        lines.append("\tTotal cycles: 0")
    else:
        begun_s = cycled_s - 0.01
        lines += ["\tTotal cycles: 9", f"\tLast cycle when: {_date(begun_s)} ({int(begun_s)})", "\tLast cycle: 10000"]
        lines += ["\tMax cycle:  10000", "\tMean cycle: 10000", f"\tLast depth cycle: {queued}", "\tDepth Mean: 2"]
        lines.append(f"\tLast queue length: {queued}")
    lines += ["", "Remote Procedure Call statistics by message type"]
    lines += ["\tREQUEST_JOB_INFO                        ( 2003) count:3      ave_time:186    total_time:558", "", ""]
    return "\n".join(lines)


def _date(time_s: float) -> str:
    return strftime("%a %b %d %H:%M:%S %Y", gmtime(time_s))


def _length(length_s: float | None) -> str:
    if length_s is None or length_s == inf:
        return "UNLIMITED"
    minutes, seconds = divmod(int(length_s), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
