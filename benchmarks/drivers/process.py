"""python -m benchmarks.drivers.process: a trainer's real driver between stand-ins for Slurm and bftd, told what to do.

Commands come on standard input and answers go to standard output, a JSON object a line:

    begin    settings of the trainer; answered with the driver's address and secret
    grant    nodes; answered with the leases' names
    revoke   nodes; answered with nothing
    sample   answered with what the driver has used, and the longest stall of its loop since the last sample
    end      ends the trainer

Beside the answers come `world` (training is at a new size, with the time of its first step) and `over`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.drivers.local_nodes import LocalDaemon, LocalNodes
from bftd.protocol.reports import LeaseReport, ProgressReport, Report
from elastic.backends import KINDS
from elastic.driver.server import Hub, listen
from elastic.driver.settings import DriverSettings
from elastic.driver.trainer import TrainerDriver
from elastic.link.authentication import new_secret
from elastic.options.elastic_option import ElasticSpec

_TICK_S = 0.005
"""How often the loop is looked at; a turn that takes longer than this shows as a stall."""


class DriverProcess:
    """One trainer, from `begin` to `end`."""

    def __init__(self) -> None:
        self._longest_s = 0.0
        self._size = 0
        self._trainer: TrainerDriver
        self._daemon = LocalDaemon(self._heard)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serves until `end`, or until training is over."""
        lines = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
        )
        hub: Hub | None = None
        try:
            while line := await lines.readline():
                command = json.loads(line)
                if command["do"] == "begin":
                    hub = self._begin(command)
                elif command["do"] == "grant":
                    listed = self._daemon.grant(*command["nodes"])
                    say(leases={lease.node: lease.id for lease in listed.leases if lease.node in command["nodes"]})
                    self._trainer.on_leases(listed)
                elif command["do"] == "revoke":
                    say()
                    self._trainer.on_leases(self._daemon.revoke(*command["nodes"]))
                elif command["do"] == "sample":
                    say(**self._sample())
                elif command["do"] == "end":
                    break
        finally:
            transport.close()
            if hub is not None:
                hub.close()
                self._trainer.run.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, command: dict[str, Any]) -> Hub:
        folder = Path(command["folder"])
        secret, listening = new_secret(), listen()
        settings = DriverSettings(
            trainer_id="scale",
            name="scale",
            spec=ElasticSpec.parse(command["elastic"]),
            backend=command["backend"],
            interpreter=sys.executable,
            argv=(command["script"],),
            cwd=folder,
            script_dir=folder,
            state_dir=folder / "state",
            socket_path="",
            partition="",
            user="",
            secret=secret,
        )
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        nodes = LocalNodes(address, secret, dict.fromkeys(command["real"], command["workers"]))
        kind = KINDS[settings.backend]
        self._trainer = TrainerDriver(settings, log, kind, nodes, self._daemon)  # type: ignore[arg-type]
        hub = Hub(self._trainer.connections, secret, listening, transfers=self._trainer.connections.transfers.accept)
        for work in (self._serve(), self._watch_loop()):
            self._tasks.add(asyncio.create_task(work))
        say(address=address, secret=secret)
        return hub

    async def _serve(self) -> None:
        code, reason = await self._trainer.serve()
        await self._trainer.stop()
        say(event="over", code=code, reason=reason)
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()

    async def _watch_loop(self) -> None:
        before_s = time.perf_counter()
        while True:
            await asyncio.sleep(_TICK_S)
            now_s = time.perf_counter()
            self._longest_s, before_s = max(self._longest_s, now_s - before_s - _TICK_S), now_s

    def _heard(self, report: Report) -> None:
        if isinstance(report, LeaseReport) and report.state in ("ended", "refused"):
            self._daemon.ended(report.id)
        if isinstance(report, ProgressReport) and report.world_size != self._size:
            self._size = report.world_size
            say(event="world", size=report.world_size, nodes=report.nodes, at_s=time.time())

    def _sample(self) -> dict[str, Any]:
        longest_s, self._longest_s = self._longest_s, 0.0
        process = psutil.Process()
        helpers = [child for child in process.children() if "elastic.node.agent" not in " ".join(child.cmdline())]
        return {
            "at_s": time.time(),
            "cpu_s": cpu_s(process),
            "helper_cpu_s": sum(cpu_s(helper) for helper in helpers),
            "longest_stall_s": longest_s,
            "rss_bytes": process.memory_info().rss,
            "helper_rss_bytes": sum(helper.memory_info().rss for helper in helpers),
            "files": process.num_fds(),
            "threads": process.num_threads(),
            "tasks": len(asyncio.all_tasks()),
        }


def cpu_s(process: psutil.Process) -> float:
    """The processor time that a process itself has used."""
    times = process.cpu_times()
    return float(times.user + times.system)


def say(**what: Any) -> None:
    """One answer; who does not listen any more has ended, and so does this process when its input does."""
    with contextlib.suppress(BrokenPipeError):
        os.write(_OUT, json.dumps(what).encode() + b"\n")


def log(text: str) -> None:
    """The trainer's log."""
    print(f"bft: {text}", file=sys.stderr, flush=True)


# Standard output is for answers alone, and the trainer's output goes with its log.
_OUT = os.dup(1) if __name__ == "__main__" else 1

if __name__ == "__main__":
    os.dup2(2, 1)
    asyncio.run(DriverProcess().run())
