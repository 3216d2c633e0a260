"""A further back-end is a folder and a row: with those two it is known everywhere, and its script runs to its end."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bftd.protocol.reports import LeaseReport
from elastic.backends import KINDS
from elastic.base.errors import UsageError
from elastic.driver.pilots.launcher import Pilot
from elastic.driver.server import Hub, listen
from elastic.link.authentication import new_secret
from elastic.node import workers
from elastic.options.elastic_option import ElasticSpec
from elastic.options.job_script import backend_of
from tests.elastic.backends.contract import BackendContract
from tests.elastic.backends.dummy import KIND
from tests.elastic.fakes import FakeDaemon, FakeStarter, lease, ops, peer, settings_for, trainer_for, until
from tests.support.messages import fragment, pattern
from tests.support.programs import shell_script
from tools.backends_header import header

pytestmark = pytest.mark.slow

ROOT = str(Path(__file__).parents[3])

_NODE = """\
#!{python}
# The user's Python, with the further back-end installed.
import sys
sys.path.insert(0, {root!r})
from elastic.backends import KINDS
from elastic.node.__main__ import main
from tests.elastic.backends.dummy import KIND
KINDS[KIND.name] = KIND
sys.argv = sys.argv[2:]
main()
"""


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, KIND.name, KIND)


class TestDummy(BackendContract):
    """A node's worker starts and ends as it is told."""

    kind = KIND
    has_helpers = False

    async def form(self, backend: Any, *members: Pilot) -> None:
        await backend.set_members(members)
        for member in members:
            member.workers[0] = peer(role="worker", lease=member.lease, local_rank=0)

    def crash(self, backend: Any, member: Pilot, rc: int, step: int) -> None:
        member.workers.clear()
        backend.received(member, {"op": "exit", "rc": rc, "step": step, "at_s": 1.0})

    def complete(self, backend: Any, *members: Pilot) -> None:
        for member in members:
            backend.received(member, {"op": "done"})


def test_the_option_and_the_plug_in_know_it_and_a_script_may_ask_for_it() -> None:
    assert ElasticSpec.parse("1-2,backend=dummy").backend == "dummy"
    with pytest.raises(UsageError, match=pattern("sizing.fields.hint", near=fragment("dummy"))):
        ElasticSpec.parse("1-2,backend=dumy")
    with pytest.raises(UsageError, match=r"known: horovod, torchrun, dummy$"):
        ElasticSpec.parse("1-2,backend=?")
    assert backend_of("import dummytrain\n", "train.py") == "dummy"
    assert backend_of("import torch\n", "train.py") == "torchrun"
    assert '"horovod", "torchrun", "dummy"' in header(KINDS)


def test_a_worker_that_has_its_rank_does_not_take_itself_for_one_without(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in KINDS.values():
        monkeypatch.delenv(kind.rank_variable, raising=False)
    assert not workers.has_rank()
    monkeypatch.setenv("DUMMY_RANK", "0")
    assert workers.has_rank()


class Starter(FakeStarter):
    """A Slurm whose pilots run real agents."""

    def __init__(self, address: str, secret: str, folder: Path) -> None:
        super().__init__()
        self.environ = {"BFT_DRIVER": address, "BFT_SECRET": secret, "PATH": str(folder), "PYTHONPATH": ROOT}

    async def run_agent(self, pilot: Pilot) -> None:
        argv = [sys.executable, "-m", "elastic.node.agent"]
        agent = await asyncio.create_subprocess_exec(*argv, env=self.environ | {"BFT_LEASE": pilot.lease})
        try:
            await agent.wait()
        finally:
            if agent.returncode is None:
                agent.kill()
                await agent.wait()


def test_a_script_runs_to_its_end_on_it_through_real_agents_and_node_processes(
    tmp_path: Path,
) -> None:
    lines: list[str] = []
    interpreter = shell_script(tmp_path / "python", _NODE.format(python=sys.executable, root=ROOT))

    async def run() -> tuple[tuple[int, str], FakeDaemon]:
        settings = replace(settings_for(tmp_path, "2-2", "dummy"), interpreter=str(interpreter))
        secret, listening, daemon = new_secret(), listen(), FakeDaemon()
        starter = Starter(f"127.0.0.1:{listening.getsockname()[1]}", secret, tmp_path)
        trainer = trainer_for(settings, lines.append, starter, daemon, driver=KIND.driver)
        hub = Hub(trainer.connections, secret, listening)
        trainer.pilot_manager.on_leases([lease("n1"), lease("n2")])
        ended = await asyncio.wait_for(trainer.serve(), 60)
        hub.close()
        await trainer.stop()
        return ended, daemon

    ended, daemon = asyncio.run(run())
    assert ended == (0, "training is complete")
    assert {report.id for report in daemon.of(LeaseReport, state="ready")} == {"n1.1", "n2.1"}
    argv = [f"{tmp_path}/train.py", "--fast"]
    seen = {"DUMMY_IFACE": "lo", "DUMMY_LEVEL": "quiet", "HOROVOD_LOG_LEVEL": None}
    assert sorted(lines) == [f"n1: {argv} {seen}", f"n2: {argv} {seen}"]


def test_what_its_row_says_of_its_output_and_its_checkpoint_holds_for_the_trainer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic.driver.timers.UPLOAD_EVERY_S", 0.01)

    async def uploaded(uploads: bool, state: str = "") -> bool:
        starter = FakeStarter()
        fields = {"driver": KIND.driver, "uploads_in_background": uploads}
        trainer = trainer_for(settings_for(tmp_path, f"1-1{state}", "dummy"), print, starter, FakeDaemon(), **fields)
        serving = asyncio.create_task(trainer.serve())
        trainer.pilot_manager.on_leases([lease("n1")])
        [one] = trainer.pilot_manager.all
        await until("placed", lambda: one.state == "placed")
        agent, worker = peer(role="agent", lease=one.lease), peer(role="worker", lease=one.lease, local_rank=0)
        assert trainer.connections.connected(agent)
        assert trainer.connections.connected(worker)
        one.working = one.revoked = True
        for line in ("so long", "so long ago"):
            await trainer.connections.received(agent, {"op": "out", "line": line})
        if uploads and not state:
            await until("asked for its checkpoint", lambda: "ship" in ops(worker))
        else:
            await asyncio.sleep(0.1)
        trainer.run.finish(0, "the test is over")
        one.workers.clear()
        await serving
        await trainer.stop()
        return "ship" in ops(worker)

    assert asyncio.run(uploaded(True))
    assert not asyncio.run(uploaded(False))
    # A worker writes distributed checkpoints at its own pace.
    assert not asyncio.run(uploaded(True, f",state={tmp_path}/path"))
    assert capsys.readouterr().out == "n1: so long ago\n" * 3
