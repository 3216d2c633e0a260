"""torchrun keeps the promises of every back-end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from elastic.backends import KINDS
from elastic.driver.pilots.launcher import Pilot
from tests.elastic.backends.contract import BackendContract
from tests.elastic.backends.stage import told
from tests.elastic.fakes import peer

pytestmark = pytest.mark.slow


class TestTorchrun(BackendContract):
    """A node comes to the rendezvous when it is asked to, and after a crash of its own by itself."""

    kind = KINDS["torchrun"]

    @pytest.fixture(autouse=True)
    def nodes(self) -> None:
        self.pilots: dict[str, Pilot] = {}
        self.heard: dict[str, int] = {}

    async def form(self, backend: Any, *members: Pilot) -> None:
        self.pilots |= {member.lease: member for member in members}
        forming = asyncio.ensure_future(backend.set_members(members))
        while not forming.done():
            self._obey(backend)
            await asyncio.sleep(0)
        self._obey(backend)
        await forming

    def crash(self, backend: Any, member: Pilot, rc: int, step: int) -> None:
        member.workers.clear()
        backend.received(member, {"op": "exit", "local_rank": 0, "rc": rc, "step": step, "at_s": 1.0})
        backend.received(member, {"op": "join", "generation": 1})

    def complete(self, backend: Any, *members: Pilot) -> None:
        for member in members:
            backend.received(member, {"op": "done"})

    def _obey(self, backend: Any) -> None:
        """Each node does what it was told since."""
        for member in self.pilots.values():
            for message in told(member)[self.heard.get(member.lease, 0) :]:
                if message["op"] == "rendezvous":
                    member.workers[0] = peer(role="worker", lease=member.lease, local_rank=0)
                elif not member.leaving:
                    member.workers.clear()
                    backend.received(member, {"op": "join", "generation": 1})
            self.heard[member.lease] = len(told(member))

    @pytest.mark.torch
    def test_its_nodes_side_can_be_loaded_and_serves(self) -> None:
        super().test_its_nodes_side_can_be_loaded_and_serves()
