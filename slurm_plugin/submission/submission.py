"""Placement of one-node pilots: granted at once or not at all, never pending, and never in a regular job's way."""

from __future__ import annotations

import contextlib
import re
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from slurm_plugin.clients.client import CommandResult, SlurmClient
from slurm_plugin.errors import CommandError, NoAnswer, SlurmError, SnapshotError
from slurm_plugin.pilots.guard import guard
from slurm_plugin.pilots.pending_reasons import Rules, undated_since
from slurm_plugin.read.types import Job
from slurm_plugin.submission.shared_nodes import NodePart
from slurm_plugin.submission.shared_queries import SharedQuery

Mode = Literal["salloc", "sbatch"]

_PARTITIONS_EVERY_S = 60.0  # only an administrator changes a node's partitions
_SBATCH_LIFE_S = 1.0  # one poll: a pilot that sbatch did not start by then would pend, and pending pilots lock jobs out
_SBATCH_LOOK_S = 0.1
# For many placings at once: the longest time between looks at the queue, the number that may ask Slurm for their nodes
# at the same time, and the wait for such a turn after which the queue is looked at again first.
_LOOKS_APART_S = 0.5
_AT_ONCE = 32
_OLD_LOOK_S = 2.0
_HAS_NODE = frozenset({"RUNNING", "CONFIGURING"})  # CONFIGURING: at some sites a prolog or a node's boot comes first
_GRANTED = re.compile(r"Granted job allocation (\d+)")


@dataclass(frozen=True, slots=True)
class PilotRequest:
    """One pilot: a node of the preemptible partition for at most `limit_s`.

    Slurm gets the limit in whole minutes, rounded down, at least one. `name` and `comment` together distinguish this
    pilot from the user's others. `gres` asks for GPUs in Slurm's notation. The pilot gets the whole node, or `part` of
    it (`slurm_plugin.submission.shared_nodes` says where).
    """

    node: str
    partition: str
    limit_s: float
    name: str
    comment: str
    gres: str = ""
    account: str = ""
    qos: str = ""
    extra: tuple[str, ...] = ()
    part: NodePart | None = None

    @property
    def limit_min(self) -> int:
        """The time limit given to Slurm, in minutes: rounded down, so that a pilot is over when its window is."""
        return max(1, int(self.limit_s // 60))


@dataclass(frozen=True, slots=True)
class Placed:
    """The pilot runs as job `job_id`."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Leftover:
    """A possible remainder of a call: an allocation that could not be ended, or one that Slurm has not reported."""

    request: PilotRequest
    job_id: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """No pilot was started, or it was withdrawn; `reason` is a sentence.

    The caller has to clear a `leftover`, however often that takes.
    """

    reason: str
    leftover: Leftover | None = None


@dataclass(frozen=True, slots=True)
class _Queue:
    """The pending jobs of one look, and the times since which jobs without a date of arrival have been there."""

    pending: tuple[Job, ...]
    time_s: float
    since: Mapping[str, float]


class PilotLauncher:
    """A launcher of pilots for one user.

    Mode "salloc" needs job_submit.lua; "sbatch" works at any site, but harvests less. In both modes the guard looks at
    the queue before and after. Many threads may place pilots at once: they share looks, and each look begins after the
    call that needs it. `rules` come with the daemon's list of leases, `clock` gives the time of the daemon's host; both
    may be replaced at any time and then apply to the next request.
    """

    def __init__(
        self,
        client: SlurmClient,
        rules: Rules,
        mode: Mode = "salloc",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.rules = rules
        self.clock = clock
        self._client = client
        self._mode = mode
        self._since: dict[str, float] = {}
        self._queue = SharedQuery(self._look, _LOOKS_APART_S)
        self._own: dict[tuple[str, str], SharedQuery[dict[str, Job]]] = {}
        self._turns = threading.BoundedSemaphore(_AT_ONCE)
        self._partitions_of: tuple[float, dict[str, set[str]]] | None = None
        self._partitions = SharedQuery(self._read_partitions)

    def place(
        self, request: PilotRequest, agent_argv: Sequence[str] = (), agent_env: Mapping[str, str] | None = None
    ) -> Placed | Refused:
        """Try once to start a pilot. In mode "sbatch" the pilot runs the agent itself.

        Refused covers everything that may happen to a correct caller: a busy node, a queued job in the way, a slow or
        dead controller.
        """
        if reason := self._refusal(request):
            return Refused(reason)
        try:
            outcome = self._asked(request, agent_argv, agent_env)
        except SlurmError as error:
            return Refused(str(error))
        if isinstance(outcome, Placed) and (reason := self._refusal(request)):
            return self._withdrawn(request, outcome.job_id, f"withdrawn: {reason}")
        return outcome

    def clear(self, leftover: Leftover) -> None:
        """End the possible remainder of a call; raise SlurmError unless Slurm confirms that nothing is left of it."""
        if leftover.job_id is not None:
            self.withdraw(leftover.job_id)
            return
        request = leftover.request
        for job in self._client.own_jobs(request.name, request.partition):
            if job.comment == request.comment and job.nodes in ((), (request.node,)):
                self.withdraw(job.id)

    def withdraw(self, job_id: str) -> None:
        """End a pilot at once, without the grace time that Slurm gives its processes."""
        self._client.cancel([job_id], signal="KILL")

    def agent_command(self, job_id: str, argv: Sequence[str], gres: str = "") -> list[str]:
        """Build the command that runs an agent as a step with all resources that pilot `job_id` has on its node.

        Run it in `agent_env`: srun reads every SLURM_ variable of the caller's own job as an option. The step gets the
        pilot's GPUs; `gres` names them for sites where a step gets only what it asks for.
        """
        return [
            self._client.path("srun"),
            f"--jobid={job_id}",
            "--nodes=1",
            "--ntasks=1",
            "--overlap",
            "--mem=0",
            "--mpi=none",
            "--input=none",
            "--unbuffered",
            "--kill-on-bad-exit=0",
            *([f"--gres={gres}"] if gres else []),
            *argv,
        ]

    def agent_env(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Make the environment for `agent_command` from the caller's, without any variable of the caller's own job."""
        return self._client.environ(environ, reading=False)

    def _refusal(self, request: PilotRequest) -> str | None:
        """Return the reason why this pilot must not start now; an unreadable queue is one too."""
        try:
            return self._objection(request)
        except SlurmError as error:
            return f"the queue cannot be read: {error}"

    def _objection(self, request: PilotRequest) -> str | None:
        """Return the reason why this pilot must not start, by a look at the queue that begins now; raise SlurmError."""
        queue = self._queue.fresh()
        return guard(
            queue.pending,
            request.node,
            queue.time_s,
            self.rules,
            node_partitions=self._node_partitions(request.node),
            pilot_partition=request.partition,
            since=queue.since,
        )

    def _look(self) -> _Queue:
        pending, now_s = self._client.pending(), self.clock()
        self._since = undated_since(self._since, pending, now_s)
        return _Queue(pending, now_s, self._since)

    def _node_partitions(self, node: str) -> set[str]:
        known = self._known_partitions()
        return (self._partitions.fresh() if known is None else known).get(node, set())

    def _known_partitions(self) -> dict[str, set[str]] | None:
        kept = self._partitions_of
        return kept[1] if kept is not None and time.monotonic() - kept[0] < _PARTITIONS_EVERY_S else None

    def _read_partitions(self) -> dict[str, set[str]]:
        if (known := self._known_partitions()) is not None:  # another thread read it while this one waited
            return known
        of_node: dict[str, set[str]] = {}
        for partition in self._client.partitions().values():
            for name in partition.nodes:
                of_node.setdefault(name, set()).add(partition.name)
        self._partitions_of = (time.monotonic(), of_node)
        return of_node

    def _asked(self, request: PilotRequest, argv: Sequence[str], env: Mapping[str, str] | None) -> Placed | Refused:
        """Ask Slurm for the node when it is this call's turn."""
        asked_s = time.monotonic()
        with self._turns:
            if time.monotonic() - asked_s > _OLD_LOOK_S and (reason := self._refusal(request)):
                return Refused(reason)
            return self._sbatch(request, argv, env) if self._mode == "sbatch" else self._salloc(request)

    def _salloc(self, request: PilotRequest) -> Placed | Refused:
        try:
            answer = self._client.run("salloc", "--immediate=1", "--no-shell", *_options(request))
        except NoAnswer as error:
            return self._unanswered(request, str(error))
        granted = _GRANTED.search(answer.err)
        if granted and answer.code == 0:
            return Placed(granted[1])
        reason = f"Slurm refused the pilot: {_why(answer)}"
        if granted:
            return self._withdrawn(request, granted[1], reason)
        return self._unanswered(request, reason) if answer.is_unheard else Refused(reason)

    def _sbatch(self, request: PilotRequest, argv: Sequence[str], env: Mapping[str, str] | None) -> Placed | Refused:
        # A batch script has its own allocation, which the step joins by the id that Slurm sets there.
        command = shlex.join(self.agent_command("@JOB@", argv, request.gres)).replace("@JOB@", '"$SLURM_JOB_ID"')
        options = ["--no-requeue", "--output=/dev/null", *_options(request)]
        try:
            job_id = self._client.submit(options, f"#!/bin/sh\nexec {command}\n", env)
        except NoAnswer as error:
            return self._unanswered(request, str(error))
        except CommandError as error:
            return Refused(str(error))
        own = self._own.setdefault((request.name, request.partition), self._own_jobs(request))
        deadline_s = time.monotonic() + _SBATCH_LIFE_S
        while time.monotonic() < deadline_s:
            time.sleep(_SBATCH_LOOK_S)
            try:
                job = own.fresh().get(job_id)
            except SnapshotError:
                continue
            if job is not None and job.state in _HAS_NODE:
                return Placed(job_id)
            if job is None:
                return Refused("the pilot ended at once, as an unknown job")
            if job.state != "PENDING":  # a suspended pilot, for example, still holds its node
                return self._withdrawn(request, job_id, f"the pilot ended at once, as {job.state}")
        return self._withdrawn(request, job_id, "Slurm did not start the pilot at once")

    def _own_jobs(self, request: PilotRequest) -> SharedQuery[dict[str, Job]]:
        name, partition = request.name, request.partition
        return SharedQuery(lambda: {job.id: job for job in self._client.own_jobs(name, partition)}, _SBATCH_LOOK_S)

    def _withdrawn(self, request: PilotRequest, job_id: str, reason: str) -> Refused:
        leftover = Leftover(request, job_id)
        try:
            self.clear(leftover)
        except SlurmError:
            return Refused(reason, leftover)
        return Refused(reason)

    def _unanswered(self, request: PilotRequest, reason: str) -> Refused:
        """Refuse with a leftover: Slurm may yet carry out the request, even if nothing is there now."""
        leftover = Leftover(request)
        with contextlib.suppress(SlurmError):
            self.clear(leftover)
        return Refused(reason, leftover)


def _options(request: PilotRequest) -> list[str]:
    part = request.part
    if part is None:
        size = ["--exclusive", "--mem=0"]
    else:
        size = ["--ntasks=1", f"--cpus-per-task={part.cpus}", f"--mem={part.memory_mib}M"]
    return [
        f"--partition={request.partition}",
        f"--nodelist={request.node}",
        "--nodes=1",
        *size,
        f"--time={request.limit_min}",
        f"--job-name={request.name}",
        f"--comment={request.comment}",
        *([f"--gres={request.gres}"] if request.gres else []),
        *([f"--account={request.account}"] if request.account else []),
        *([f"--qos={request.qos}"] if request.qos else []),
        *request.extra,
    ]


def _why(answer: CommandResult) -> str:
    return answer.complaint.removeprefix("salloc: error: ").rpartition(": ")[2]
