"""Probes of the folder of `state=PATH`: each node leaves a file there, and looks for those of the others.

A node is asked when its agent first connects, and does not train until it has answered. A node that cannot write there,
or does not see the files of the others, is given back. If it is the very first, the trainer ends: nothing that it saved
could be read again. If the driver's host does not see the folder, the first node is asked alone: if two were asked at
once, neither would find the other's file. A file system that is full or takes no writes is no node's fault: that is
reported once, and nodes wait for it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
from collections.abc import Callable

from elastic.base.timing import PROBE_S, STORE_RETRY_S
from elastic.driver.context import TrainerContext
from elastic.driver.pilots.launcher import Pilot
from elastic.link.wire import Message
from elastic.store.error_latch import FILE_SYSTEMS, ErrorLatch, text_of


class Probes:
    """One trainer's nodes; without a `state=PATH` none is asked."""

    def __init__(
        self, run: TrainerContext, cannot: Callable[[Pilot, str], None], ready: Callable[[Pilot], None]
    ) -> None:
        """`cannot` gives a node back for a reason, `ready` makes it train."""
        self._run = run
        self._cannot = cannot
        self._ready = ready
        self._needed = run.settings.spec.state_path is not None
        self._token = secrets.token_hex(8)
        self._known: list[str] = []
        self._looking: asyncio.Future[None] | None = None
        self._passed: set[str] = set()
        self._held: dict[str, Pilot] = {}
        self._asked: dict[str, asyncio.TimerHandle] = {}
        self._waiting: dict[str, bool] = {}
        """The leases whose node is asked, and whether it got ready meanwhile."""
        self._full = ErrorLatch(run.note, f"state={run.settings.spec.state_path} can be written again")
        self._written = 0
        self._refused: dict[str, tuple[int, int]] = {}
        """For nodes that wait for the file system: the probes that others had written before, and the step saved."""

    def needed(self, pilot: Pilot) -> bool:
        """Whether the agent that has just connected is to be asked."""
        return self._needed and pilot.node not in self._passed

    async def ask(self, pilot: Pilot) -> None:
        """Asks the node, and again while its file system takes no writes; it is not ready before it has answered."""
        self._waiting[pilot.lease] = False
        while pilot.lease in self._waiting:
            if pilot.lease not in self._asked:
                self._held[pilot.lease] = pilot
                if self._looking is None or (self._looking.done() and not self._known and self._run.versions.seen):
                    self._looking = asyncio.ensure_future(self._look())
                await asyncio.shield(self._looking)  # its pilot may end meanwhile, others wait for the same
                self._ask_held()
            await asyncio.sleep(STORE_RETRY_S)

    async def _look(self) -> None:
        """Leaves the driver's own file, if its host sees the folder."""
        name = f"driver.{os.uname().nodename}"
        if await self._run.versions.probe(self._token, name):
            self._known.append(name)

    def _ask_held(self) -> None:
        path = str(self._run.versions.home.path)
        while self._held and (self._known or self._passed or not self._asked):
            lease, pilot = next(iter(self._held.items()))
            del self._held[lease]
            names = [*self._known, *sorted(self._passed)]
            pilot.send({"op": "probe", "path": path, "token": self._token, "names": names})
            self._asked[lease] = asyncio.get_running_loop().call_later(PROBE_S, self._late, pilot)

    def ready(self, pilot: Pilot) -> None:
        """Notes that a node has got ready: it trains once it has passed."""
        if pilot.lease in self._waiting:
            self._waiting[pilot.lease] = True
        else:
            self._ready(pilot)

    def probed(self, pilot: Pilot, message: Message) -> None:
        """Takes a node's answer."""
        if pilot.lease not in self._waiting:
            return
        if self._is_file_systems(pilot, message.get("errno")):
            self._wait(pilot, int(message["errno"]))
            return
        if why := self._objection(pilot, message):
            self._failed(pilot, why)
            return
        self._full.went()
        self._written += 1
        pilot.waits = False
        self._passed.add(pilot.node)
        self._run.versions.look_at_space(message.get("free_bytes"))
        if self._waiting.pop(pilot.lease):
            self._ready(pilot)
        self._answered(pilot)

    def gone(self, pilot: Pilot) -> None:
        """Notes that the agent has gone: it will not answer any more."""
        self._waiting.pop(pilot.lease, None)
        self._refused.pop(pilot.lease, None)
        self._answered(pilot)

    def _answered(self, pilot: Pilot) -> None:
        self._held.pop(pilot.lease, None)
        if (late := self._asked.pop(pilot.lease, None)) is not None:
            late.cancel()
            self._ask_held()

    def _is_file_systems(self, pilot: Pilot, number: object) -> bool:
        """Whether a failed write is the file system's fault; one that is read-only while others write is the node's.

        Others may have written before the file system became read-only: only later writes of theirs count.
        """
        if number not in FILE_SYSTEMS:
            return False
        now = (self._written, self._run.versions.step)
        return self._refused.setdefault(pilot.lease, now) == now or number != errno.EROFS

    def _wait(self, pilot: Pilot, number: int) -> None:
        """Leaves the node waiting, to be asked again."""
        path = self._run.settings.spec.state_path
        self._full.came(f"state={path} cannot be written: {text_of(OSError(number, ''))}; new nodes wait for it")
        pilot.waits = True
        self._answered(pilot)

    def _objection(self, pilot: Pilot, message: Message) -> str:
        path = self._run.settings.spec.state_path
        missing = message.get("missing")
        if error := message.get("error") or ("" if message.get("wrote") is True else "it does not say why"):
            return f"{pilot.node} cannot write in state={path}: {str(error)[:300]}; mend that, or give another folder"
        if isinstance(missing, list) and missing:
            others = ", ".join(str(name).removeprefix("driver.") for name in missing[:3])
            return (
                f"{pilot.node} does not see in state={path} what {others} has written there: give a folder on a file "
                "system that all nodes share"
            )
        return ""

    def _failed(self, pilot: Pilot, why: str) -> None:
        self._waiting.pop(pilot.lease, None)
        if self._passed:
            self._cannot(pilot, why)
        else:
            self._run.finish(1, why)
        self._answered(pilot)

    def _late(self, pilot: Pilot) -> None:
        if pilot.lease in self._waiting and pilot.agent is not None:
            path = self._run.settings.spec.state_path
            self._failed(pilot, f"{pilot.node} got no answer from the file system of state={path} within {PROBE_S:g} s")
