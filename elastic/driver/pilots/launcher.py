"""Pilots: one-node Slurm jobs of the user, each lending its node to this trainer for the time of one lease."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from bftd.protocol import comment
from bftd.protocol.lease import Leases, LeaseState
from elastic.backends import KINDS
from elastic.base.timing import GONE_S
from elastic.driver.pilots.addresses import Routes, Unreachable, advice
from elastic.driver.pilots.cancellation import Endings
from elastic.driver.pilots.request import NodePartRequest
from elastic.driver.settings import DriverSettings
from elastic.link.address import join_address
from elastic.link.descriptors import ordinary_limit
from elastic.link.peer import Peer
from elastic.link.wire import Message
from elastic.node import container
from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.errors import SlurmError
from slurm_plugin.pilots.pending_reasons import Rules
from slurm_plugin.submission.shared_nodes import NodePart, Sharing
from slurm_plugin.submission.submission import Leftover, Mode, PilotLauncher, PilotRequest, Placed

T = TypeVar("T")

_AGENT = (sys.executable, "-m", "elastic.node.agent")

_AT_ONCE = 64
"""The most pilots that are placed at the same time: a thread each, most of which wait for a look at the queue."""

_OLDEST_LOOK_S = 10.0
"""The oldest that a daemon's look at Slurm may be if it gives no time: older ones lend nothing (`stale_after_s`)."""

_OUTPUT_BYTES = 1 << 14
"""The most output of srun and an agent that is kept, from its end."""

_AGENT_PREFIX = "bft: "

_AWAY = re.compile("[Uu]nable to contact|[Uu]nable to create step .*busy")
"""srun's messages that it has started nothing: slurmctld is away, or back without having heard of its node."""

_STEP_WITHIN_S = 5
"""srun's limit to start a step: without it, one run before Slurm hears of its node waits for minutes after that."""

_AGAIN_S = 0.5
"""The pause before srun is run again."""

_WANT_OF_MEMORY = re.compile(r"exceeded memory limit|oom[-_ ]kill|[Oo]ut [Oo]f [Mm]emory")
"""srun's messages that Slurm, or the kernel, ended a process of the step for its memory."""


@dataclass(eq=False)
class Pilot:
    """A lease being carried out; no flag is ever reset, except `working`."""

    lease: str
    """The lease's id."""

    node: str

    limit_s: float
    """The longest that the allocation may last, from `placed_s` on."""

    gres: str
    """The devices of the allocation, as Slurm writes them."""

    partition: str = ""
    """The partition of the allocation, "" for the trainer's own."""

    granted: str = ""
    """The daemon's reason for the lease, as a sentence."""

    part: NodePart | None = None
    """The part of the node that was asked for, None for all of it."""

    driver: str = ""
    """The driver's address for its agent, as `host:port`; the host differs from node to node."""

    state: LeaseState = "granted"
    """The progress of the lease: granted while Slurm is asked for it, placed, ready, ended."""

    job_id: str | None = None
    """The allocation, once it is placed."""

    agent: Peer | None = None
    """The agent, while it is connected."""

    workers: dict[int, Peer] = field(default_factory=dict)
    """The workers that are connected, by local rank."""

    workers_per_node: int = 1

    incarnation: int = 0
    """The number of groups of workers that this pilot has ended: part of the name that the next ones run under."""

    ready_s: float = 0.0
    """The time at which its node process got ready, in seconds of the monotonic clock."""

    placed_s: float = 0.0
    """The time at which Slurm gave the allocation, in seconds of the monotonic clock; 0 before."""

    revoked: bool = False
    """The daemon takes the lease back: training leaves the node, in order unless `vacate`."""

    vacate: bool = False
    """A regular job needs the node: only the last copy of the checkpoint is waited for."""

    leaving: bool = False
    """The node is as good as gone: Slurm's notice came, the daemon wants it at once, or its processes are lost."""

    expiring: bool = False
    """The driver itself takes it out of training: its time limit is near, or its node does not take part."""

    starved: bool = False
    """Slurm ended its step for want of memory."""

    answers: bool = False
    """Its agent has started the node process, and answers every beat from now on."""

    waits: bool = False
    """Its node waits for the file system of `state=`: it is not the node's fault that it does not train."""

    working: bool = False
    """Its workers have ended a step of the present group."""

    reason: str = ""
    """The reason for its end, for the daemon and the user; empty before."""

    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when nothing is left to do on the node: the allocation may end."""

    abandoned: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when orders no longer reach the node, or no longer end its processes: nothing of it is waited for."""

    carrier: asyncio.Task[Any] | None = None
    """The task that carries the lease out from its placing to its end."""

    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    """All tasks of this pilot, the carrier among them."""

    @property
    def horovod_host(self) -> str:
        """The host name that Horovod has for the present workers; a crashed worker's name is never reused."""
        return f"{self.lease}.{self.incarnation}"

    @property
    def wanted(self) -> bool:
        """Whether this pilot is to take part in training."""
        return self.state == "ready" and not (self.revoked or self.leaving or self.expiring)

    @property
    def warming(self) -> bool:
        """Whether this pilot will soon be ready."""
        return self.state in ("granted", "placed") and not (self.revoked or self.leaving)

    def send(self, message: Message) -> None:
        """Sends to the agent, if it is connected."""
        if self.agent is not None:
            self.agent.send(message)

    def send_to_workers(self, message: Message) -> None:
        """Sends to every worker on the node."""
        for worker in self.workers.values():
            worker.send(message)


class PilotStarter:
    """The starter of pilots, as the user and through the Slurm commands; blocking calls run in threads.

    `go_by` must be called before a pilot is started.
    """

    def __init__(
        self,
        settings: DriverSettings,
        driver_port: int,
        secret: str,
        log: Callable[[str], None],
        client: SlurmClient | None = None,
    ) -> None:
        """`client` reaches Slurm; the default is the cluster of this host."""
        self._settings = settings
        self._log = log
        self._port = driver_port
        self._client = client or SlurmClient(before_exec=ordinary_limit)
        self._mode: Mode = "sbatch" if settings.pilot_mode == "sbatch" else "salloc"
        self._known_launcher: PilotLauncher | None = None
        self._daemon = ""
        self._endings = Endings(self._client, log)
        sharing = Sharing(self._client, heard=self._mode == "salloc")
        self.shares = NodePartRequest(settings.spec.share, sharing, log, settings.spec.workers_per_node)
        self._threads = ThreadPoolExecutor(_AT_ONCE, "bft-pilot")
        kind = KINDS[settings.backend]
        self._routes = Routes(self._client.node_addresses, settings.given_address, ipv4_only=kind.ipv4_only)
        self._environ = {
            "BFT_SECRET": secret,
            "PYTHONSAFEPATH": "1",  # a queue.py beside the script must not take the place of Python's own
        }

    def go_by(self, listed: Leases) -> None:
        """Takes the settings that come with each list: rules for pilots, the daemon's clock, the commands' time-out."""
        rules = Rules(listed.min_window_s, looked_of(listed), listed.calm_s or 0.0)
        self._daemon = listed.daemon
        if self._known_launcher is None:
            self._known_launcher = PilotLauncher(self._client, rules, self._mode)
        self._known_launcher.rules = rules
        self._known_launcher.clock = clock_of(listed.now_s)
        if listed.timeout_s is not None:
            self._client.timeout_s = listed.timeout_s

    async def place(self, pilot: Pilot) -> str | None:
        """Asks Slurm for the node at once; returns None when the pilot is placed, else the reason."""
        settings = self._settings
        request = PilotRequest(
            node=pilot.node,
            partition=pilot.partition or settings.partition,
            limit_s=pilot.limit_s,
            name="bft-pilot",
            comment=comment.make(settings.trainer_id, pilot.lease, self._daemon),
            gres=pilot.gres,
            account=settings.account,
            qos=settings.qos,
            extra=settings.pilot_options,
        )
        try:
            if part := await self._part_of(pilot, request.partition):
                request = replace(request, part=part)
            pilot.driver = join_address(await self._in_thread(self._routes.to, pilot.node), self._port)
            answer = await self._in_thread(self._launcher.place, request, _AGENT, self._agent_env(pilot))
        except asyncio.CancelledError:  # the driver ends and cannot wait; the command in its thread goes on
            self._endings.clear(Leftover(request), self._launcher.clear)
            raise
        except (SlurmError, Unreachable) as error:
            return str(error)
        except (OSError, RuntimeError) as error:  # no more threads, say
            return f"Slurm could not be asked: {error}"
        if not isinstance(answer, Placed):
            if answer.leftover is not None:
                self._endings.clear(answer.leftover, self._launcher.clear)
            return answer.reason
        pilot.job_id = answer.job_id
        pilot.placed_s = time.monotonic()
        return None

    async def _part_of(self, pilot: Pilot, partition: str) -> NodePart | None:
        """Returns the part of its node that a pilot is to have, None for all of it."""
        pilot.part = None
        await self.shares.known()
        if part := self.shares.part(pilot.gres):
            against = await self._in_thread(self.shares.against, pilot.node, partition, part)
            self.shares.decided(pilot.node, part, against)
            pilot.part = None if against else part
        return pilot.part

    async def run_agent(self, pilot: Pilot) -> str:
        """Runs the agent inside the pilot until it ends; returns why it could not serve, "" when it could.

        An srun that failed because slurmctld was away is run again: the allocation survives that. In sbatch mode Slurm
        has started the agent already, and its output is not read.
        """
        assert pilot.job_id is not None
        if self._mode == "sbatch":
            await pilot.over.wait()
            return ""
        while (why := await self._agent_ran(pilot, pilot.job_id)) is None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(pilot.over.wait(), _AGAIN_S)
                return ""
        return why

    async def _agent_ran(self, pilot: Pilot, job_id: str) -> str | None:
        """Returns why an agent could not serve, "" when it could, None if srun is to be run again."""
        srun, *words = self._launcher.agent_command(job_id, _AGENT, pilot.gres)
        process = await _started([srun, f"--immediate={_STEP_WITHIN_S}", *words], self._agent_env(pilot))
        try:
            text = await _output(process)
            rc = await process.wait()
            ending = pilot.leaving or pilot.revoked or pilot.over.is_set()
            if rc > 0 and _AWAY.search(text) and not ending and pilot.agent is None:
                return None
            if rc >= 0:
                self._endings.empty(job_id)
            # srun always prints something when a job is cancelled; that is no news.
            if rc and wants_memory(text):
                pilot.starved = True
            if rc and not ending:
                if complaint := _complaint(text, pilot):
                    return complaint
                if not pilot.starved:  # a starved pilot is reported in a line of its own
                    self._log(f"{pilot.lease}: srun ended with {rc}: {text.strip()[-300:]}")
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        return ""

    def short_of_memory(self, pilot: Pilot) -> None:
        """Reports that a process of a pilot ran out of memory; its part of the node was too small."""
        if pilot.part is None:
            self._log(f"a process on {pilot.node} was ended for want of memory, though its pilot has all of the node")
        else:
            self.shares.give_up(pilot.node, pilot.part)

    async def run_step(self, pilot: Pilot, command: Sequence[str]) -> list[str]:
        """Runs a further step of the pilot's job to its end; returns its output. `command` is srun and its arguments.

        The driver starts it, not the agent: Slurm's notice reaches every process of the pilot, and an srun there would
        end its step at once, with the last copy of the checkpoint in it.
        """
        # an agent started by a batch script may be here before Slurm's answer to sbatch
        job_id = pilot.job_id or (str(pilot.agent.hello["job_id"]) if pilot.agent else "")
        srun, *words = self._launcher.agent_command(job_id, command[1:], pilot.gres)
        srun = shutil.which(srun) or srun  # the step's own PATH is the image's
        # shielded: a start that is cancelled half-way kills the process it has started
        starting = asyncio.ensure_future(_started([srun, *words], container.outside(self._agent_env(pilot))))
        try:
            process = await asyncio.shield(starting)
            text = await _output(process)
            await process.wait()
            return text.splitlines() or ["it ended without a word"]
        finally:
            starting.add_done_callback(_kill_later)

    async def cancel(self, jobs: list[str]) -> None:
        """Ends the allocations at once, each with one order, whoever gives it; those that have ended are no error.

        Returns after the first try: an order that Slurm does not accept is repeated in the background.
        """
        await self._endings.cancel(jobs)

    def forget(self, job: str) -> None:
        """Forgets a job whose pilot is over: a later order to end it would be superfluous."""
        self._endings.forget(job)

    async def close(self) -> None:
        """Ends the remaining allocations, as far as Slurm allows; no pilot is started any more."""
        await self._endings.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _agent_env(self, pilot: Pilot) -> dict[str, str]:
        own = {"BFT_DRIVER": pilot.driver, "BFT_LEASE": pilot.lease}
        return {**self._launcher.agent_env(os.environ), **self._environ, **own}

    async def _in_thread(self, call: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    @property
    def _launcher(self) -> PilotLauncher:
        assert self._known_launcher is not None, "a lease came without the site's rules"
        return self._known_launcher


def wants_memory(output: str) -> bool:
    """Whether an srun reports that a process of its step ran out of memory."""
    return _WANT_OF_MEMORY.search(output) is not None


async def _started(command: Sequence[str], environ: Mapping[str, str]) -> asyncio.subprocess.Process:
    """Starts an srun, whose output `_output` reads."""
    return await asyncio.create_subprocess_exec(
        *command,
        env=environ,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        preexec_fn=ordinary_limit,
    )


async def _output(process: asyncio.subprocess.Process) -> str:
    """Reads a process's output until it is closed; returns the last _SAID_BYTES of it."""
    assert process.stdout is not None
    output = b""
    while piece := await process.stdout.read(1 << 16):
        output = (output + piece)[-_OUTPUT_BYTES:]
    return output.decode(errors="replace")


def _kill_later(starting: asyncio.Future[asyncio.subprocess.Process]) -> None:
    """Kills an srun after a while: a step whose srun is gone waits for it, and holds the node for seconds."""
    if not starting.cancelled() and starting.exception() is None and starting.result().returncode is None:
        asyncio.get_running_loop().call_later(GONE_S, _kill, starting.result())


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()


def looked_of(listed: Leases) -> float:
    """Returns when the daemon last looked at Slurm; the earliest possible time if the daemon is too old to say."""
    if listed.looked_s is not None:
        return listed.looked_s
    return (time.time() if listed.now_s is None else listed.now_s) - _OLDEST_LOOK_S


def clock_of(now_s: float | None) -> Callable[[], float]:
    """Returns a monotonic clock that showed `now_s` a moment ago; this host's wall time for None.

    Slurm's plans are in the time of its controller, beside which the daemon runs; this host's clock may differ.
    """
    if now_s is None:
        return time.time
    ahead_s = now_s - time.monotonic()
    return lambda: time.monotonic() + ahead_s


def _complaint(output: str, pilot: Pilot) -> str:
    """Returns why an agent did not serve, from its or its node's last output; "" if that does not say."""
    lines = [line.strip() for line in output.splitlines()]
    if words := next((line for line in reversed(lines) if line.startswith(_AGENT_PREFIX)), ""):
        words = words.removeprefix(_AGENT_PREFIX).replace("$BFT_DRIVER", pilot.driver)
        return f"{words if pilot.node in words else f'{pilot.node}: {words}'}{advice() if 'driver' in words else ''}"
    if words := next((line for line in reversed(lines) if "execve()" in line), ""):
        return f"{pilot.node} cannot run {_AGENT[0]}: {words}; install bftd at the same place on every node"
    return ""
