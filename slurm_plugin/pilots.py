"""Starting one-node pilots so that they never pend: granted at once or not at all, and never in a regular job's way."""

from __future__ import annotations

import math
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from slurm_plugin.client import Answer, SlurmClient
from slurm_plugin.errors import CommandError, SlurmError, SnapshotError
from slurm_plugin.guard import guard
from slurm_plugin.waiting import SiteRules, unplanned_since

Mode = Literal["salloc", "sbatch"]

_PARTITIONS_EVERY_S = 60.0  # which partitions a node is in changes by an administrator's hand only
_SBATCH_LIFE_S = 1.0  # one poll: what sbatch did not start by then would pend, and pending pilots lock jobs out
_SBATCH_LOOK_S = 0.1
_HAS_NODE = frozenset({"RUNNING", "CONFIGURING"})  # a prolog, or a node that boots, comes first at some sites
_GRANTED = re.compile(r"Granted job allocation (\d+)")


@dataclass(frozen=True, slots=True)
class PilotRequest:
    """One pilot: a node of the preemptible partition for at most `limit_s`, in the end whole minutes and at least one.

    `name` and `comment` together tell this pilot from the user's others. `gres` asks for GPUs as Slurm writes them.
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

    @property
    def limit_min(self) -> int:
        """The time limit that Slurm gets: rounded down, so that a pilot is over when its window is."""
        return max(1, int(self.limit_s // 60))


@dataclass(frozen=True, slots=True)
class Placed:
    """The pilot runs as job `job_id`."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Refused:
    """No pilot was started, or it was withdrawn; `reason` is a sentence."""

    reason: str


class PilotLauncher:
    """Places pilots for one user. Mode "salloc" needs job_submit.lua; "sbatch" works at any site, but harvests less.

    Either way the guard looks at the queue before and after, and a call that does not end in Placed leaves no
    allocation behind. `rules` are the site's, `waited_out` the jobs without a plan that the daemon has waited for long
    enough; both may be set anew at any time: the next look goes by them.
    """

    def __init__(
        self,
        client: SlurmClient,
        rules: SiteRules,
        mode: Mode = "salloc",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.rules = rules
        self.waited_out: frozenset[str] = frozenset()
        self._client = client
        self._mode = mode
        self._clock = clock
        self._since: dict[str, float] = {}
        self._partitions_of: tuple[float, dict[str, set[str]]] | None = None

    def place(
        self, request: PilotRequest, agent_argv: Sequence[str] = (), agent_env: Mapping[str, str] | None = None
    ) -> Placed | Refused:
        """Try once to start a pilot. In mode "sbatch" the pilot runs the agent itself.

        Refused covers all that may happen to a healthy caller: a busy node, a queued job in the way, a slow or dead
        controller. Raises SlurmError only when a pilot that must go cannot be cancelled.
        """
        try:
            if reason := self._objection(request):
                return Refused(reason)
        except SlurmError as error:
            return Refused(f"the queue cannot be read: {error}")
        outcome = self._sbatch(request, agent_argv, agent_env) if self._mode == "sbatch" else self._salloc(request)
        if isinstance(outcome, Refused):
            return outcome
        try:
            reason = self._objection(request)
        except SlurmError as error:
            reason = f"the queue cannot be read: {error}"
        if reason:
            self.withdraw(outcome.job_id)
            return Refused(f"withdrawn: {reason}")
        return outcome

    def withdraw(self, job_id: str) -> None:
        """End a pilot at once, without the farewell that Slurm grants its processes."""
        self._client.cancel([job_id], signal="KILL")

    def agent_command(self, job_id: str, argv: Sequence[str], gres: str = "") -> list[str]:
        """Build the command that runs an agent as a step with the whole node of pilot `job_id`.

        Run it in `agent_env`: srun takes every SLURM_ variable of the caller's own job for an option. The step gets
        the pilot's GPUs; `gres` names them for sites where a step gets only what it asks for.
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
        """Make the environment for `agent_command` from the caller's: nothing of the caller's own job is left in it."""
        return self._client.environ(environ, reading=False)

    def _objection(self, request: PilotRequest) -> str | None:
        pending, now_s, rules = self._client.pending(), self._clock(), self.rules
        self._since = unplanned_since(self._since, pending, now_s, rules.min_window_s)
        return guard(
            pending,
            request.node,
            now_s,
            rules,
            node_partitions=self._node_partitions(request.node),
            pilot_partition=request.partition,
            since={**self._since, **dict.fromkeys(self.waited_out, -math.inf)},
        )

    def _node_partitions(self, node: str) -> set[str]:
        now_s = self._clock()
        if self._partitions_of is None or now_s - self._partitions_of[0] >= _PARTITIONS_EVERY_S:
            of_node: dict[str, set[str]] = {}
            for partition in self._client.partitions().values():
                for name in partition.nodes:
                    of_node.setdefault(name, set()).add(partition.name)
            self._partitions_of = (now_s, of_node)
        return self._partitions_of[1].get(node, set())

    def _salloc(self, request: PilotRequest) -> Placed | Refused:
        try:
            answer = self._client.run("salloc", "--immediate=1", "--no-shell", *_options(request))
        except CommandError as error:
            self._sweep(request)
            return Refused(str(error))
        granted = _GRANTED.search(answer.err)
        if granted and answer.code == 0:
            return Placed(granted[1])
        if granted:
            self.withdraw(granted[1])
        return Refused(f"Slurm refused the pilot: {_why(answer)}")

    def _sbatch(self, request: PilotRequest, argv: Sequence[str], env: Mapping[str, str] | None) -> Placed | Refused:
        # In the batch script the allocation is the script's own, so the step joins it by the id that Slurm sets there.
        command = shlex.join(self.agent_command("@JOB@", argv, request.gres)).replace("@JOB@", '"$SLURM_JOB_ID"')
        options = ["--no-requeue", "--output=/dev/null", *_options(request)]
        try:
            job_id = self._client.submit(options, f"#!/bin/sh\nexec {command}\n", env)
        except CommandError as error:
            self._sweep(request)
            return Refused(str(error))
        deadline_s = time.monotonic() + _SBATCH_LIFE_S
        while time.monotonic() < deadline_s:
            time.sleep(_SBATCH_LOOK_S)
            try:
                job = self._client.job(job_id)
            except SnapshotError:
                continue
            if job is not None and job.state in _HAS_NODE:
                return Placed(job_id)
            if job is not None and job.state != "PENDING":
                self.withdraw(job_id)  # what is suspended, say, still holds its node
            if job is None or job.state != "PENDING":
                return Refused(f"the pilot ended at once, as {job.state if job else 'an unknown job'}")
        self.withdraw(job_id)
        return Refused("Slurm did not start the pilot at once")

    def _sweep(self, request: PilotRequest) -> None:
        """Cancel what a call without an answer may have left: this pilot, on its node or waiting for it."""
        try:
            jobs = self._client.own_jobs(request.name, request.partition)
        except SnapshotError:
            return  # slurmctld is away; a grant that it cannot deliver it takes back by itself
        for job in jobs:
            if job.comment == request.comment and job.nodes in ((), (request.node,)):
                self.withdraw(job.id)


def _options(request: PilotRequest) -> list[str]:
    return [
        f"--partition={request.partition}",
        f"--nodelist={request.node}",
        "--nodes=1",
        "--exclusive",
        "--mem=0",
        f"--time={request.limit_min}",
        f"--job-name={request.name}",
        f"--comment={request.comment}",
        *([f"--gres={request.gres}"] if request.gres else []),
        *([f"--account={request.account}"] if request.account else []),
        *([f"--qos={request.qos}"] if request.qos else []),
        *request.extra,
    ]


def _why(answer: Answer) -> str:
    return answer.complaint.removeprefix("salloc: error: ").rpartition(": ")[2]
