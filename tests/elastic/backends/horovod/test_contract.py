"""Horovod keeps the promises of every back-end."""

from __future__ import annotations

from typing import Any

import pytest

from elastic.backends import KINDS
from elastic.backends.horovod import driver as horovods
from elastic.driver.pilots.launcher import Pilot
from tests.elastic.backends.contract import BackendContract
from tests.elastic.backends.stage import FakeCompanion
from tests.elastic.fakes import peer

pytestmark = pytest.mark.slow


class TestHorovod(BackendContract):
    """Horovod's own driver asks for a worker where there is none yet; a worker that is not listed any more ends."""

    kind = KINDS["horovod"]

    @pytest.fixture(autouse=True)
    def quickly(self, monkeypatch: pytest.MonkeyPatch, companions: list[FakeCompanion]) -> None:
        monkeypatch.setattr(horovods, "_WORKER_END_S", 0.02)
        self.pilots: dict[str, Pilot] = {}

    async def form(self, backend: Any, *members: Pilot) -> None:
        await backend.set_members(members)
        run = FakeCompanion.made[-1]
        self.pilots |= {member.lease: member for member in members}
        for member in members:
            if not backend.uses(member):
                run.on_message(
                    {"op": "start", "host": member.horovod_host, "local_rank": 0, "env": {"HOROVOD_RANK": "0"}},
                )
                member.workers[0] = peer(role="worker", lease=member.lease, local_rank=0)
        for other in self.pilots.values():
            if other not in members and backend.uses(other):
                other.workers.clear()
                backend.received(other, _exit(other, -6, step=-1))

    def crash(self, backend: Any, member: Pilot, rc: int, step: int) -> None:
        message = _exit(member, rc, step)
        member.workers.clear()
        backend.received(member, message)

    def complete(self, backend: Any, *members: Pilot) -> None:
        done = {"op": "done", "ok": True, "error": "", "codes": [0] * len(members)}
        for member in members:
            backend.received(member, _exit(member, 0, step=9))
        FakeCompanion.made[-1].on_message(done)

    @pytest.mark.horovod
    def test_its_nodes_side_can_be_loaded_and_serves(self) -> None:
        super().test_its_nodes_side_can_be_loaded_and_serves()


def _exit(member: Pilot, rc: int, step: int) -> dict[str, Any]:
    return {"op": "exit", "host": member.horovod_host, "local_rank": 0, "rc": rc, "step": step, "at_s": 1.0}
