"""What every back-end promises (elastic.backends.base), as tests that a back-end inherits.

A back-end's own test module subclasses `BackendContract`, names the back-end, and plays what is not under test: the
nodes and the helper processes beside the driver. `companions` replaces the latter where the driver's module starts them
by `Companion`.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import subprocess
import sys
from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import pytest

from elastic.backends import KINDS, Kind, load
from elastic.backends.base import Backend
from elastic.driver.pilots.launcher import Pilot
from elastic.link.wire import Message
from tests.elastic.backends.stage import FakeCompanion, FakeServices, pilot, started, told
from tests.elastic.fakes import settings_for, until
from tests.support.programs import shell_script

AGENTS_OWN = {"configure", "beat", "look", "go", "end"}
"""What an agent does not pass on: a back-end's messages to its node process are called otherwise."""


class BackendContract(ABC):
    """Subclass it as `TestNAME`."""

    kind: Kind
    has_helpers = True
    """Whether processes live beside the driver while it trains."""

    # -- what a back-end's tests play ---

    @abstractmethod
    async def form(self, backend: Any, *members: Pilot) -> None:
        """Has `set_members` carried through: afterwards the members' workers are connected, and nobody else's are."""

    @abstractmethod
    def crash(self, backend: Any, member: Pilot, rc: int, step: int) -> None:
        """A worker on the member ends by itself with `rc`, having reached `step`."""

    @abstractmethod
    def complete(self, backend: Any, *members: Pilot) -> None:
        """The script ends well on every member."""

    @pytest.fixture(autouse=True)
    def companions(self, monkeypatch: pytest.MonkeyPatch) -> list[FakeCompanion]:
        """The helper processes that the driver started, the last one last."""
        monkeypatch.setattr(FakeCompanion, "made", [])
        monkeypatch.setattr(self.driver_module, "Companion", FakeCompanion, raising=False)
        return FakeCompanion.made

    # -- small things ---

    @property
    def driver_module(self) -> Any:
        return import_module(self.kind.driver.partition(":")[0])

    @pytest.fixture
    def services(self, tmp_path: Path) -> FakeServices:
        return FakeServices(settings_for(tmp_path, "1-8", self.kind.name))

    @pytest.fixture
    def backend(self, services: FakeServices) -> AbstractAsyncContextManager[Backend]:
        return started(services, load(self.kind.driver))

    # -- members ---

    async def test_before_it_has_members_nothing_runs_and_a_suspension_has_nothing_to_save(
        self, backend: Backend, services: FakeServices
    ) -> None:
        n1 = pilot("n1")
        assert not backend.running
        assert not backend.uses(n1)
        await backend.suspend()
        backend.lost(n1)
        assert services.saves == []

    async def test_its_members_train_as_they_grow_and_shrink_and_nobody_takes_a_leave_for_a_crash(
        self, backend: Backend, services: FakeServices
    ) -> None:
        n1, n2, n3 = pilot("n1"), pilot("n2"), pilot("n3")
        for members in ([n1], [n1, n2, n3], [n2, n3]):
            await self.form(backend, *members)
            assert backend.running
            assert [one.node for one in (n1, n2, n3) if backend.uses(one)] == [one.node for one in members]
            assert all(one.workers for one in members)
        assert (services.crashes, services.failures, services.ends) == ([], [], [])

    async def test_the_same_members_again_disturb_nobody(
        self, companions: list[FakeCompanion], backend: Backend, services: FakeServices
    ) -> None:
        members = [pilot("n1"), pilot("n2")]
        await self.form(backend, *members)
        before = [told(one) for one in members], [list(helper.commands) for helper in companions]
        await backend.set_members(members)
        assert ([told(one) for one in members], [list(helper.commands) for helper in companions]) == before
        assert services.saves == []

    async def test_when_all_members_go_at_once_the_state_is_saved_before_the_others_begin(
        self, backend: Backend, services: FakeServices
    ) -> None:
        await self.form(backend, pilot("n1"))
        n2 = pilot("n2")
        await self.form(backend, n2)
        assert services.saves == [True]
        assert backend.uses(n2)

    # -- suspension ---

    async def test_a_suspension_saves_at_a_step_boundary_and_training_goes_on_wherever_it_may(
        self, backend: Backend, services: FakeServices
    ) -> None:
        n1, n2, n3 = pilot("n1"), pilot("n2"), pilot("n3")
        await self.form(backend, n1, n2)
        before = len(told(n1))
        await backend.suspend()
        assert services.saves == [True]
        assert not backend.running
        assert not backend.uses(n1)
        assert len(told(n1)) > before, "its workers have to be ended"
        await backend.suspend()
        assert services.saves == [True]
        for members in ([n3], [n3, n1]):
            await self.form(backend, *members)
            assert backend.running
        assert (services.crashes, services.failures, services.ends) == ([], [], [])

    # -- what goes wrong ---

    async def test_a_lost_node_is_no_crash_wakes_the_trainer_and_the_others_go_on(
        self, backend: Backend, services: FakeServices
    ) -> None:
        n1, n2, n3 = pilot("n1"), pilot("n2"), pilot("n3")
        await self.form(backend, n1, n2, n3)
        before = services.wakes
        n2.leaving = True
        n2.workers.clear()
        backend.lost(n2)
        assert services.wakes > before
        await self.form(backend, n1, n3)
        assert backend.running
        assert not backend.uses(n2)
        assert (services.crashes, services.failures, services.ends) == ([], [], [])

    async def test_a_crash_is_told_once_with_the_step_it_came_at_and_the_same_members_begin_anew(
        self, backend: Backend, services: FakeServices
    ) -> None:
        n1, n2 = pilot("n1"), pilot("n2")
        await self.form(backend, n1, n2)
        before = services.wakes
        self.crash(backend, n1, -9, step=7)
        assert services.broken_at == 7
        assert services.wakes > before
        await until("told", lambda: services.crashes)
        await self.form(backend, n1, n2)
        assert backend.uses(n1)
        assert backend.uses(n2)
        assert services.crashes == [("n1", -9)]
        assert services.ends == []

    async def test_after_a_crash_a_suspension_does_not_wait_for_a_step_that_will_not_end(
        self, backend: Backend, services: FakeServices
    ) -> None:
        n1, n2 = pilot("n1"), pilot("n2")
        await self.form(backend, n1, n2)
        self.crash(backend, n1, 1, step=3)
        await backend.suspend()
        assert services.saves == [False]

    async def test_what_a_node_says_that_nobody_knows_is_passed_over(self, backend: Backend) -> None:
        n1 = pilot("n1")
        backend.received(n1, {"op": "of the next release"})
        await self.form(backend, n1)
        backend.received(n1, {"op": "of the next release", "host": "n9.9.9"})
        assert backend.running

    # -- the end ---

    async def test_success_is_told_once_and_what_is_lost_afterwards_does_not_undo_it(
        self, backend: Backend, services: FakeServices
    ) -> None:
        n1, n2 = pilot("n1"), pilot("n2")
        await self.form(backend, n1, n2)
        self.complete(backend, n1, n2)
        await until("told", lambda: services.ends)
        assert services.ends == [(0, "training is complete")]
        for one in (n1, n2):
            one.leaving = True
            backend.lost(one)
        await asyncio.sleep(0)
        assert set(services.ends) == {(0, "training is complete")}
        assert (services.crashes, services.failures) == ([], [])

    async def test_to_close_leaves_no_process_beside_the_driver(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.undo()  # real helper processes, in an interpreter that only waits
        interpreter = shell_script(tmp_path / "python", "exec sleep 1000")
        before = set(psutil.Process().children(recursive=True))
        settings = replace(settings_for(tmp_path, "1-8", self.kind.name), interpreter=str(interpreter))
        backend: Backend = load(self.kind.driver)(FakeServices(settings))
        await backend.start()
        forming = asyncio.ensure_future(backend.set_members([pilot("n1")]))
        await asyncio.wait([forming], timeout=0.2)
        forming.cancel()
        assert bool(set(psutil.Process().children()) - before) == self.has_helpers
        await backend.close()
        assert set(psutil.Process().children(recursive=True)) - before == set()

    # -- its row in the table ---

    async def test_its_messages_to_its_nodes_are_not_called_as_the_agents_own(self, backend: Backend) -> None:
        n1, n2 = pilot("n1"), pilot("n2")
        await self.form(backend, n1)
        await self.form(backend, n1, n2)
        self.crash(backend, n2, 1, step=2)
        await backend.suspend()
        said: list[Message] = [*told(n1), *told(n2)]
        assert said
        assert {message["op"] for message in said}.isdisjoint(AGENTS_OWN)

    def test_its_row_is_complete(self) -> None:
        kind = self.kind
        assert KINDS[kind.name] is kind
        assert re.fullmatch(r"[a-z][a-z0-9-]*", kind.name)
        assert issubclass(load(kind.driver), Backend)
        assert re.fullmatch(r"[A-Z][A-Z0-9_]*", kind.rank_variable)
        assert kind.library
        for name in (*kind.interface_variables, *kind.defaults):
            assert re.fullmatch(r"[A-Z][A-Z0-9_]*", name)
        assert not kind.wants("print('hello')\n")
        assert not kind.is_noise("epoch 3, loss 0.25")

    def test_the_driver_and_the_command_line_need_none_of_what_its_workers_import(self) -> None:
        words = (
            f"import sys, elastic.driver.main, {self.kind.driver.partition(':')[0]}\n"
            "print({name.partition('.')[0] for name in sys.modules} & {'torch', 'horovod', 'jax', 'tensorflow'})"
        )
        said = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
        assert said.stdout == "set()\n"

    def test_its_nodes_side_can_be_loaded_and_serves(self) -> None:
        """Imports what its workers need: a subclass marks it with what that is."""
        assert len(inspect.signature(load(self.kind.preload)).parameters) == 0
        node = load(self.kind.node)
        assert callable(node.run)
        assert list(inspect.signature(node).parameters) == ["link", "argv"]
