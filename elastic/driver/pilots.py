"""Pilots: one-node Slurm jobs of the user, each lending its node to this trainer for the time of one lease."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from bftd.protocol import comment
from bftd.protocol.lease import LeaseState
from elastic.driver.settings import DriverSettings
from elastic.link.peer import Peer
from elastic.link.wire import Message
from slurm_plugin.client import SlurmClient
from slurm_plugin.errors import SlurmError
from slurm_plugin.pilots import Mode, PilotLauncher, PilotRequest, Placed
from slurm_plugin.waiting import SiteRules

_AGENT = (sys.executable, "-m", "elastic.node.agent")


@dataclass(eq=False)
class Pilot:
    """A lease being carried out; no flag is ever taken back, but `working`."""

    lease: str
    """The lease's id."""

    node: str

    limit_s: float
    """How long the allocation may last from `placed_s` on."""

    gres: str
    """The devices of the allocation, as Slurm writes them."""

    partition: str = ""
    """Where the allocation is asked for, "" for the trainer's own."""

    state: LeaseState = "granted"
    """How far it has come: granted while Slurm is asked for it, placed, ready, ended."""

    job_id: str | None = None
    """The allocation, once it is placed."""

    agent: Peer | None = None
    """The agent, while it is connected."""

    workers: dict[int, Peer] = field(default_factory=dict)
    """The workers that are connected, by local rank."""

    workers_per_node: int = 1

    incarnation: int = 0
    """How many groups of workers this pilot has ended: part of the name that the next ones run under."""

    failures: int = 0
    """Crashes that were caused here since the trainer's last step."""

    ready_s: float = 0.0
    """When its node process got ready, in seconds of the monotonic clock."""

    placed_s: float = 0.0
    """When Slurm gave the allocation, in seconds of the monotonic clock; 0 before."""

    revoked: bool = False
    """The daemon takes the lease back: training leaves the node, in order unless `vacate`."""

    vacate: bool = False
    """A regular job needs the node: of training only the last copy of the state is waited for."""

    leaving: bool = False
    """The node is as good as gone: Slurm's notice came, the daemon wants it at once, or its processes are lost."""

    expiring: bool = False
    """It leaves training by the driver's own will: its time limit is near, or its node does not take part."""

    answers: bool = False
    """Its agent has started the node process, and answers every beat from now on."""

    working: bool = False
    """Its workers have ended a step of the present group."""

    reason: str = ""
    """Why it ends, for the daemon and the user; empty while it does not."""

    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when nothing is to be done on the node any more: the allocation may end."""

    abandoned: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when no order reaches the node any more, or ends what runs there: nothing of it is waited for."""

    carrier: asyncio.Task[Any] | None = None
    """The task that carries the lease out from its placing to its end."""

    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    """All that runs for this pilot, the carrier among them."""

    @property
    def host(self) -> str:
        """The name that the present workers run under; a crashed worker's name is never used again."""
        return f"{self.lease}.{self.incarnation}"

    @property
    def wanted(self) -> bool:
        """Whether this pilot is to take part in training."""
        return self.state == "ready" and not (self.revoked or self.leaving or self.expiring)

    @property
    def warming(self) -> bool:
        """Whether this pilot will soon be ready."""
        return self.state in ("granted", "placed") and not (self.revoked or self.leaving)

    def tell(self, message: Message) -> None:
        """Sends to the agent, if it is connected."""
        if self.agent is not None:
            self.agent.send(message)

    def tell_workers(self, message: Message) -> None:
        """Sends to every worker on the node."""
        for worker in self.workers.values():
            worker.send(message)


class PilotStarter:
    """Starts and ends pilots as the user, through the Slurm commands; blocking calls run in threads.

    None can be started before `go_by` was called.
    """

    def __init__(self, settings: DriverSettings, driver_port: int, secret: str, log: Callable[[str], None]) -> None:
        self._settings = settings
        self._log = log
        self._client = SlurmClient()
        self._mode: Mode = "sbatch" if settings.pilot_mode == "sbatch" else "salloc"
        self._known_launcher: PilotLauncher | None = None
        self._daemon = ""
        self._empty: set[str] = set()
        self._cancelling: dict[str, asyncio.Task[None]] = {}
        self._cancelled: set[str] = set()
        self._environ = {
            "BFT_DRIVER": f"{settings.address}:{driver_port}",
            "BFT_SECRET": secret,
            "PYTHONSAFEPATH": "1",  # a queue.py beside the script must not take the place of Python's own
        }

    def go_by(self, rules: SiteRules, waited_out: Iterable[str] = (), daemon: str = "") -> None:
        """Takes the rules for when a pilot must not start, and the jobs waited out: they come with each list.

        `daemon` is the word by which pilots name the daemon.
        """
        self._daemon = daemon
        if self._known_launcher is None:
            self._known_launcher = PilotLauncher(self._client, rules, self._mode)
        self._known_launcher.rules = rules
        self._known_launcher.waited_out = frozenset(waited_out)

    async def place(self, pilot: Pilot) -> str | None:
        """Asks Slurm for the node at once; returns None when the pilot is placed, else why not."""
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
            answer = await asyncio.to_thread(self._launcher.place, request, _AGENT, self._agent_env(pilot))
        except SlurmError as error:
            return str(error)
        if not isinstance(answer, Placed):
            return answer.reason
        pilot.job_id = answer.job_id
        pilot.placed_s = time.monotonic()
        return None

    async def run_agent(self, pilot: Pilot) -> None:
        """Runs the agent inside the pilot and returns when it has ended; in sbatch mode Slurm started it already."""
        assert pilot.job_id is not None
        if self._mode == "sbatch":
            await pilot.over.wait()
            return
        command = self._launcher.agent_command(pilot.job_id, _AGENT, pilot.gres)
        process = await asyncio.create_subprocess_exec(
            *command,
            env=self._agent_env(pilot),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdout is not None
        try:
            said = await process.stdout.read(1 << 16)
            while await process.stdout.read(1 << 16):
                pass
            rc = await process.wait()
            if rc >= 0:
                self._empty.add(pilot.job_id)
            # srun always has something to say when a job is cancelled; that is no news.
            if rc and not (pilot.leaving or pilot.revoked or pilot.over.is_set()):
                self._log(f"{pilot.lease}: srun ended with {rc}: {said.decode(errors='replace').strip()[-300:]}")
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    async def cancel(self, jobs: list[str]) -> None:
        """Ends the allocations at once, each with one order, whoever gives it; those that have ended are no error."""
        new = [job for job in jobs if job not in self._cancelling and job not in self._cancelled]
        if new:
            self._cancelling.update(dict.fromkeys(new, asyncio.ensure_future(self._cancel(new))))
        if orders := {self._cancelling[job] for job in jobs if job in self._cancelling}:
            await asyncio.wait(orders)

    def forget(self, job: str) -> None:
        """Lets go of a job whose pilot is over: an order for it that still came would only be one too many."""
        self._empty.discard(job)
        self._cancelled.discard(job)

    async def _cancel(self, jobs: list[str]) -> None:
        # Where srun has come back, no process is left to kill first: that would be two more commands a pilot, at the
        # very moment at which Slurm is busy with the job that the node was taken for.
        empty = [job for job in jobs if job in self._empty]
        self._empty.difference_update(empty)
        try:
            for ids, signal in (([job for job in jobs if job not in empty], "KILL"), (empty, None)):
                if not ids:
                    continue
                with contextlib.suppress(SlurmError):  # the next one who asks tries again
                    await asyncio.to_thread(self._client.cancel, ids, signal)
                    self._cancelled.update(ids)
        finally:
            for job in jobs:
                del self._cancelling[job]

    def _agent_env(self, pilot: Pilot) -> dict[str, str]:
        return {**self._launcher.agent_env(os.environ), **self._environ, "BFT_LEASE": pilot.lease}

    @property
    def _launcher(self) -> PilotLauncher:
        assert self._known_launcher is not None, "a lease came without the site's rules"
        return self._known_launcher
