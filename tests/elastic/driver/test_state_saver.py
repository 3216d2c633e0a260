"""Fetching the last state from workers: at a step boundary when there is time, from anybody who has it otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from elastic.driver.checkpoint import CheckpointStore
from elastic.driver.state_saver import StateSaver
from elastic.errors import WireError
from elastic.link.peer import Peer
from tests.elastic.fakes import ops, payload_of, peer, sent, until


def scene(body: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(body, 30))


async def answer(saver: StateSaver, worker: Peer, step: int, payload: bytes = b"state", cut: bool = False) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(payload[:2] if cut else payload)
    reader.feed_eof()
    message = {"op": "state", "bytes": len(payload), "step": step, "samples": step * 10}
    await saver.received(worker, message, reader)


def test_a_graceful_save_waits_for_rank_0_to_come_to_the_end_of_its_step(tmp_path: Path) -> None:
    async def body() -> None:
        saver, workers = StateSaver(CheckpointStore(tmp_path)), [peer(), peer()]
        saving = asyncio.create_task(saver.save(workers, graceful=True))
        await until("the workers are asked", lambda: ops(workers[1]) == ["pause"])
        await answer(saver, workers[1], 7)
        await asyncio.sleep(0)
        assert not saving.done()
        await saver.received(workers[1], {"op": "paused"}, asyncio.StreamReader())
        await saving
        assert saver.store.step == 7
        assert ops(workers[0]) == ["pause"]

    scene(body())


def test_a_hasty_save_asks_one_worker_after_the_other_until_one_delivers(tmp_path: Path) -> None:
    async def body() -> None:
        saver, workers = StateSaver(CheckpointStore(tmp_path)), [peer(), peer(), peer()]
        saving = asyncio.create_task(saver.save(workers, graceful=False))
        await until("the first is asked", lambda: ops(workers[0]) == ["ship"])
        assert ops(workers[1]) == []
        saver.gone(workers[0])
        await until("the second is asked", lambda: ops(workers[1]) == ["ship"])
        await answer(saver, workers[1], 4)
        await saving
        assert saver.store.step == 4
        assert ops(workers[2]) == []

    scene(body())


def test_when_nobody_comes_to_a_boundary_in_time_the_last_saved_state_must_do(tmp_path: Path) -> None:
    async def body() -> None:
        saver, worker = StateSaver(CheckpointStore(tmp_path)), peer()
        saving = asyncio.create_task(saver.save([worker], graceful=True, pause_s=0.01))
        await until("it is asked for what it has", lambda: ops(worker) == ["pause", "ship"])
        await answer(saver, worker, 3)
        await saving
        assert saver.store.step == 3

    scene(body())


def test_a_save_ends_at_once_when_every_worker_is_gone_or_has_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        saver, workers = StateSaver(CheckpointStore(tmp_path)), [peer(), peer()]
        saver.gone(workers[0])
        saving = asyncio.create_task(saver.save(workers, graceful=True, pause_s=1000, ship_s=1000))
        await until("the living one is asked", lambda: ops(workers[1]) == ["pause"])
        await saver.received(workers[1], {"op": "nothing_saved"}, asyncio.StreamReader())
        await until("it is asked again", lambda: ops(workers[1]) == ["pause", "ship"])
        await saver.received(workers[1], {"op": "nothing_saved"}, asyncio.StreamReader())
        await saving
        assert saver.store.step == -1
        assert ops(workers[0]) == []

    scene(body())


def test_a_worker_lost_in_the_middle_of_its_state_leaves_the_one_before(tmp_path: Path) -> None:
    async def body() -> None:
        saver, worker = StateSaver(CheckpointStore(tmp_path)), peer()
        await answer(saver, worker, 3)
        with pytest.raises(WireError):
            await answer(saver, worker, 9, cut=True)
        assert CheckpointStore(tmp_path).step == 3

    scene(body())


def test_an_answer_to_an_earlier_question_is_not_taken_for_one_to_this(tmp_path: Path) -> None:
    async def body() -> None:
        saver, worker = StateSaver(CheckpointStore(tmp_path)), peer()
        await answer(saver, worker, 3)
        saving = asyncio.create_task(saver.save([worker], graceful=False))
        await until("it is asked", lambda: ops(worker) == ["ship"])
        await asyncio.sleep(0)
        assert not saving.done()
        await saver.received(worker, {"op": "shipped"}, asyncio.StreamReader())
        await saving

    scene(body())


def test_a_worker_that_begins_gets_the_state_behind_its_size(tmp_path: Path) -> None:
    async def body() -> None:
        saver, old, new = StateSaver(CheckpointStore(tmp_path)), peer(), peer()
        await saver.fetched(new)
        assert sent(new) == [{"op": "fetched", "none": True}]
        await answer(saver, old, 3, b"weights")
        new = peer()
        await saver.fetched(new)
        assert new.writer.data.endswith(b' {"op":"fetched","bytes":7}\nweights' + new.writer.data[-32:])  # type: ignore[attr-defined]
        assert await payload_of(new.writer.data) == b"weights"  # type: ignore[attr-defined]

    scene(body())
