"""A folder that nodes do not share is found before anything is saved there: each node writes and reads a probe."""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from bftd.protocol.reports import CrashReport
from elastic.driver.failures import policy as hosts
from elastic.driver.pilots import manager
from elastic.driver.saving import shared_folder
from elastic.link.peer import Peer
from elastic.link.wire import Message
from elastic.store import error_latch
from tests.elastic.driver.stage import OpenStage, Stage
from tests.elastic.fakes import ops, sent, until
from tests.support.messages import fragment, says, wording

pytestmark = pytest.mark.slow


@pytest.fixture
def lustre(tmp_path: Path) -> Path:
    return tmp_path / "lustre"


@pytest.fixture
def stage(open_stage: OpenStage, lustre: Path) -> AbstractAsyncContextManager[Stage]:
    return open_stage(f"1-8,state={lustre}")


async def asked(stage: Stage, node: str) -> tuple[Peer, Message]:
    """The node's agent, and what it was asked."""
    agent = await stage.connect(node)
    return agent, await until("asked", lambda: next((one for one in sent(agent) if one["op"] == "probe"), None))


def answer(question: Message, **fields: Any) -> Message:
    return {"op": "probed", "token": question["token"], "wrote": True, "missing": [], "free_bytes": 1 << 40, **fields}


async def test_a_node_is_trained_on_once_it_has_seen_what_the_others_wrote(lustre: Path, open_stage: OpenStage) -> None:
    async with open_stage(f"1-8,state={lustre}") as stage:
        stage.grant("n1")
        agent, question = await asked(stage, "n1")
        [own] = question["names"]
        folder = Path(question["path"])
        assert folder.parent == lustre
        assert (folder / f".bft-probe-{question['token']}" / own).read_bytes()
        await stage.says(agent, {"op": "ready"})
        assert stage.pilot("n1").state == "placed"
        await stage.says(agent, answer(question))
        await stage.trains_on("n1")
        stage.grant("n2")
        agent, question = await asked(stage, "n2")
        assert question["names"] == [own, "n1"]
        await stage.says(agent, answer(question))
        await stage.says(agent, {"op": "ready"})
        await stage.trains_on("n1", "n2")
        stage.revoke("n2")
        await until("n2 leaves training", lambda: "end" in ops(agent))
        stage.starter.end("job-n2.2")
        await until("n2 is back", lambda: len(stage.trainer.pilot_manager.all) == 1)
        stage.grant("n2")
        agent = await stage.connect("n2")
        await stage.says(agent, {"op": "ready"})
        await stage.trains_on("n1", "n2")
        assert "probe" not in ops(agent), "a node is asked once"
    assert not list(lustre.glob("*/.bft-probe-*"))


async def test_the_very_first_node_that_cannot_use_the_path_ends_the_trainer_in_one_line(
    lustre: Path, stage: Stage
) -> None:
    stage.grant("n1")
    agent, question = await asked(stage, "n1")
    await stage.says(agent, answer(question, missing=question["names"]))
    code, text = stage.ended
    assert (code, text) == (
        1,
        wording("elastic.probes.does_not_see", node="n1", path=lustre, others=os.uname().nodename),
    )


async def test_a_node_that_cannot_while_others_can_is_given_back_with_one_line(
    lustre: Path, monkeypatch: pytest.MonkeyPatch, open_stage: OpenStage
) -> None:
    monkeypatch.setattr(hosts, "FAULT_SHOWN_S", 0.0)
    async with open_stage(f"1-8,state={lustre}") as stage:
        stage.grant("n1", "n2")
        agent, question = await asked(stage, "n1")
        await stage.says(agent, answer(question))
        await stage.says(agent, {"op": "ready"})
        await stage.trains_on("n1")
        agent, question = await asked(stage, "n2")
        await stage.says(agent, answer(question, wrote=False, error="Read-only file system", missing=["n1"]))
        await stage.says(agent, {"op": "ready"})
        await until("n2 is given back", lambda: "end" in ops(agent))
        stage.starter.end("job-n2.1")
        await until("its pilot is over", lambda: [pilot.node for pilot in stage.trainer.pilot_manager.all] == ["n1"])
        [crash] = stage.reports(CrashReport)
        assert crash.text == wording(
            "elastic.probes.cannot_write", node="n2", path=lustre, error="Read-only file system"
        )
        assert not stage.run.result.done()


async def test_regression_a_node_without_the_path_was_trained_on_until_it_was_given_back(stage: Stage) -> None:
    stage.grant("n1", "n2")
    for node, fields in (("n1", {}), ("n2", {"wrote": False, "error": "Read-only file system"})):
        agent, question = await asked(stage, node)
        await stage.says(agent, answer(question, **fields))
        await stage.says(agent, {"op": "ready"})
    await stage.trains_on("n1")
    assert stage.pilot("n2").state == "placed"


async def test_a_node_whose_file_server_hangs_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, open_stage: OpenStage, lustre: Path
) -> None:
    monkeypatch.setattr(shared_folder, "PROBE_S", 0.1)
    async with open_stage(f"1-8,state={lustre}") as stage:
        stage.grant("n1")
        await asked(stage, "n1")
        await until("it ends", lambda: stage.run.result.done())
        code, text = stage.ended
    assert code == 1
    assert says(text, "elastic.probes.no_answer", node="n1")


async def test_nobody_is_asked_where_no_path_was_given(open_stage: OpenStage) -> None:
    async with open_stage() as stage:
        stage.grant("n1")
        await stage.warm("n1")
        await stage.trains_on("n1")
        agent = stage.pilot("n1").agent
        assert agent is not None
        assert "probe" not in ops(agent)


async def test_regression_nodes_that_came_together_never_looked_for_each_other_where_the_driver_sees_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_stage: OpenStage
) -> None:
    """Each had a disk of its own by that name: what they saved was no checkpoint, and none could be read again."""
    monkeypatch.setattr(hosts, "FAULT_SHOWN_S", 0.0)
    path = tmp_path / "not-on-this-host" / "run7"
    async with open_stage(spec=f"1-8,state={path}") as stage:
        stage.grant("n1", "n2", "n3")
        agents = [await stage.connect(node) for node in ("n1", "n2", "n3")]
        await until("one is asked", lambda: any("probe" in ops(agent) for agent in agents))
        await asyncio.sleep(0.05)
        assert ["probe" in ops(agent) for agent in agents] == [True, False, False]
        for agent in agents:
            await stage.says(agent, {"op": "ready"})
        for agent in agents:
            question = await until("asked", lambda agent=agent: _question(agent))
            missing = [name for name in question["names"] if name == "n1"]
            await stage.says(agent, answer(question, missing=missing))
        await stage.trains_on("n1")
        assert any(says(line, "elastic.probes.does_not_see", node="n2") for line in stage.lines)
        assert any(says(line, "elastic.probes.does_not_see", node="n3") for line in stage.lines)


async def test_where_the_one_that_is_asked_alone_goes_away_the_next_one_is_asked(
    tmp_path: Path, open_stage: OpenStage
) -> None:
    async with open_stage(spec=f"1-8,state={tmp_path / 'not-on-this-host' / 'run7'}") as stage:
        stage.grant("n1", "n2")
        first, second = [await stage.connect(node) for node in ("n1", "n2")]
        await until("asked", lambda: _question(first))
        assert _question(second) is None
        stage.connections.disconnected(first)
        question = await until("asked", lambda: _question(second))
        await stage.says(second, answer(question))
        await stage.says(second, {"op": "ready"})
        await stage.trains_on("n2")


def full(number: int) -> dict[str, Any]:
    """What a node answers whose file system takes no writes."""
    return {"wrote": False, "errno": number, "error": os.strerror(number), "missing": []}


async def asked_again(agent: Peer, times: int) -> Message:
    return await until(
        "asked again", lambda: len(asks := [one for one in sent(agent) if one["op"] == "probe"]) >= times and asks[-1]
    )


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
async def test_regression_a_full_file_system_was_the_nodes_fault_and_ended_a_trainer_with_a_whole_checkpoint(
    lustre: Path, monkeypatch: pytest.MonkeyPatch, number: int, open_stage: OpenStage
) -> None:
    monkeypatch.setattr(shared_folder, "STORE_RETRY_S", 0.02)
    monkeypatch.setattr(hosts, "FAULT_SHOWN_S", 0.0)
    async with open_stage(f"1-8,state={lustre}") as stage:
        nodes = ["n1", "n2", "n3"]
        stage.grant(*nodes)
        agents = [(await asked(stage, node))[0] for node in nodes]
        for times in (1, 2):
            for agent in agents:
                question = await asked_again(agent, times)
                await stage.says(agent, answer(question, **full(number)))
                await stage.says(agent, {"op": "ready"})
        # Who waits for it is not one that does not get ready.
        monkeypatch.setattr(manager, "CONNECT_S", 0.0)
        monkeypatch.setattr(manager, "WARM_S", 0.0)
        await stage.trainer.pilot_manager._give_up_late(stage.pilot("n1"))
        assert not stage.run.result.done()
        assert stage.reports(CrashReport) == []
        why = fragment(error_latch.text_of(OSError(number, "")))
        told = [line for line in stage.lines if says([line], "elastic.probes.nodes_wait", path=lustre, why=why)]
        assert len(told) == 1
        for agent in agents:
            await stage.says(agent, answer(await asked_again(agent, 3)))
        await stage.trains_on(*nodes)
        assert says(stage.lines, "elastic.probes.can_be_written", path=lustre)


async def test_a_node_whose_file_system_stays_read_only_while_others_write_to_it_is_given_back(
    lustre: Path, monkeypatch: pytest.MonkeyPatch, open_stage: OpenStage
) -> None:
    monkeypatch.setattr(shared_folder, "STORE_RETRY_S", 0.02)
    monkeypatch.setattr(hosts, "FAULT_SHOWN_S", 0.0)
    async with open_stage(f"1-8,state={lustre}") as stage:
        stage.grant("n1", "n2")
        first, question = await asked(stage, "n1")
        second, _ = await asked(stage, "n2")
        await stage.says(second, answer(question, **full(errno.EROFS)))
        await stage.says(first, answer(question))
        await stage.says(first, {"op": "ready"})
        await stage.trains_on("n1")
        await stage.says(second, answer(await asked_again(second, 2), **full(errno.EROFS)))
        await until("it is given back", lambda: "end" in ops(second))
        assert [report.node for report in stage.reports(CrashReport)] == ["n2"]


def _question(agent: Peer) -> Message | None:
    return next((one for one in sent(agent) if one["op"] == "probe"), None)
