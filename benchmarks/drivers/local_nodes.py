"""Nodes without Slurm: a pilot is a process on this host, or nothing at all where its agent is played by a client."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from bftd.protocol.lease import Leases, LeaseView
from bftd.protocol.reports import Report
from elastic.driver.pilots.launcher import Pilot

LIMIT_S = 36_000.0


class LocalNodes:
    """A stand-in for Slurm's commands (`elastic.driver.pilots.launcher.PilotStarter`); every node is there at once."""

    def __init__(self, address: str, secret: str, real: Mapping[str, int]) -> None:
        """`real`: the nodes on which a real agent is started, and how many GPUs each of them seems to have.

        On any other node whoever knows `address` ("host:port") and `secret` may be the agent.
        """
        self._environ = {"BFT_DRIVER": address, "BFT_SECRET": secret, "PYTHONSAFEPATH": "1"}
        self._real = dict(real)
        self._ends: dict[str, asyncio.Event] = {}

    def go_by(self, *_: object) -> None:
        """Nobody else wants these nodes."""

    async def place(self, pilot: Pilot) -> str | None:
        """Gives the node at once."""
        pilot.job_id, pilot.placed_s = f"local-{pilot.lease}", time.time()
        self._ends[pilot.job_id] = asyncio.Event()
        return None

    async def run_agent(self, pilot: Pilot) -> None:
        """Returns when the agent has ended, or is nobody's any more."""
        assert pilot.job_id is not None
        ended: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(event.wait()) for event in (self._ends[pilot.job_id], pilot.over)
        ]
        process = await self._agent(pilot) if pilot.node in self._real else None
        if process is not None:
            ended = [ended[0], asyncio.ensure_future(process.wait())]
        try:
            await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in ended:
                one.cancel()
            if process is not None and process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    async def cancel(self, jobs: list[str]) -> None:
        """Ends allocations, at once."""
        for job in jobs:
            if job in self._ends:
                self._ends[job].set()

    def forget(self, job: str) -> None:
        """The pilot is over."""
        self._ends.pop(job, None)

    async def close(self) -> None:
        """Leaves nothing behind: every agent is its pilot's."""

    async def _agent(self, pilot: Pilot) -> asyncio.subprocess.Process:
        gpus = ",".join(str(number) for number in range(self._real[pilot.node]))
        environ = {**os.environ, **self._environ, "BFT_LEASE": pilot.lease, "CUDA_VISIBLE_DEVICES": gpus}
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "elastic.node.agent",
            env={**environ, "SLURMD_NODENAME": pilot.node},
            stdin=asyncio.subprocess.DEVNULL,
        )


class LocalDaemon:
    """bftd's part: `grant` and `revoke` change the list of leases; `report` keeps what the driver says for `heard`."""

    ends_in_s: float | None = None

    def __init__(self, heard: Callable[[Report], None]) -> None:
        self.report = heard
        self._leases: dict[str, LeaseView] = {}
        self._number = 0

    async def run(self) -> None:
        """Has nothing to do by itself."""
        await asyncio.Event().wait()

    def grant(self, *nodes: str) -> Leases:
        """One new lease a node; returns the new list, for `TrainerDriver.on_leases`."""
        for node in nodes:
            self._number += 1
            lease = f"{node}.{self._number}"
            self._leases[lease] = LeaseView(lease, node, "granted", vacate=False, limit_s=LIMIT_S)
        return self.listed

    def revoke(self, *nodes: str) -> Leases:
        """Takes the leases of these nodes back, in order."""
        for id_, lease in self._leases.items():
            if lease.node in nodes:
                self._leases[id_] = replace(lease, state="revoked", reason="it is wanted elsewhere")
        return self.listed

    def ended(self, lease: str) -> None:
        """The driver said that this lease is over."""
        self._leases.pop(lease, None)

    @property
    def listed(self) -> Leases:
        """All leases of the moment."""
        return Leases(self._number, min_window_s=0.0, leases=tuple(self._leases.values()))
