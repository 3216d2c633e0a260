"""Uploads of the last checkpoint: at a step boundary when there is time, from anybody who has it otherwise."""

from __future__ import annotations

import asyncio
import errno
import gc
import weakref
from pathlib import Path

import pytest

from elastic.base.errors import WireError
from elastic.driver.saving import saver as savers
from elastic.driver.saving.saver import CheckpointSaver
from elastic.link.peer import Peer
from elastic.store import files
from elastic.store.store import CheckpointStore
from tests.elastic.fakes import FakeContent, ops, peer, sent, until
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow


async def answer(
    saver: CheckpointSaver, worker: Peer, step: int, payload: bytes = b"state", cut: bool = False, last: bool = True
) -> None:
    message = {"step": step, "samples": step * 10, "last": last}
    await saver.take(worker, message, FakeContent(payload, cut_bytes=3 if cut else 0))


async def test_a_graceful_save_waits_for_rank_0_to_come_to_the_end_of_its_step(tmp_path: Path) -> None:
    saver, workers = CheckpointSaver(CheckpointStore(tmp_path)), [peer(), peer()]
    saving = asyncio.create_task(saver.save(workers, graceful=True))
    await until("the workers are asked", lambda: ops(workers[1]) == ["pause"])
    await answer(saver, workers[1], 7)
    await asyncio.sleep(0)
    assert not saving.done()
    saver.received(workers[1], {"op": "paused"})
    await saving
    assert saver.store.step == 7
    assert ops(workers[0]) == ["pause"]


async def test_a_hasty_save_asks_one_worker_after_the_other_until_one_delivers(tmp_path: Path) -> None:
    saver, workers = CheckpointSaver(CheckpointStore(tmp_path)), [peer(), peer(), peer()]
    saving = asyncio.create_task(saver.save(workers, graceful=False))
    await until("the first is asked", lambda: ops(workers[0]) == ["ship"])
    assert ops(workers[1]) == []
    saver.gone(workers[0])
    await until("the second is asked", lambda: ops(workers[1]) == ["ship"])
    await answer(saver, workers[1], 4)
    await saving
    assert saver.store.step == 4
    assert ops(workers[2]) == []


async def test_when_nobody_comes_to_a_boundary_in_time_the_last_checkpoint_must_do(tmp_path: Path) -> None:
    saver, worker = CheckpointSaver(CheckpointStore(tmp_path)), peer()
    saving = asyncio.create_task(saver.save([worker], graceful=True, pause_s=0.01))
    await until("it is asked for what it has", lambda: ops(worker) == ["pause", "ship"])
    await answer(saver, worker, 3)
    await saving
    assert saver.store.step == 3


async def test_a_save_ends_at_once_when_every_worker_is_gone_or_has_nothing(tmp_path: Path) -> None:
    saver, workers = CheckpointSaver(CheckpointStore(tmp_path)), [peer(), peer()]
    saver.gone(workers[0])
    saving = asyncio.create_task(saver.save(workers, graceful=True, pause_s=1000, upload_s=1000))
    await until("the living one is asked", lambda: ops(workers[1]) == ["pause"])
    saver.received(workers[1], {"op": "nothing_saved"})
    await until("it is asked again", lambda: ops(workers[1]) == ["pause", "ship"])
    saver.received(workers[1], {"op": "nothing_saved"})
    await saving
    assert saver.store.step == -1
    assert ops(workers[0]) == []


async def test_a_worker_lost_in_the_middle_of_its_checkpoint_leaves_the_one_before(tmp_path: Path) -> None:
    saver, worker = CheckpointSaver(CheckpointStore(tmp_path)), peer()
    await answer(saver, worker, 3)
    with pytest.raises(WireError):
        await answer(saver, worker, 9, cut=True)
    assert CheckpointStore(tmp_path).step == 3


async def test_an_answer_to_an_earlier_question_is_not_taken_for_one_to_this(tmp_path: Path) -> None:
    saver, worker = CheckpointSaver(CheckpointStore(tmp_path)), peer()
    await answer(saver, worker, 3)
    saving = asyncio.create_task(saver.save([worker], graceful=False))
    await until("it is asked", lambda: ops(worker) == ["ship"])
    await asyncio.sleep(0)
    assert not saving.done()
    saver.received(worker, {"op": "shipped"})
    await saving


async def test_regression_a_worker_whose_checkpoint_could_not_be_stored_never_sent_one_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EDQUOT, "quota")

    saver, worker = CheckpointSaver(CheckpointStore(tmp_path), retry_s=0.02), peer()
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_all", fail)
        await answer(saver, worker, 3)
    assert sent(worker) == [{"op": "unsaved", "step": 3}]
    await until("it is asked again", lambda: ops(worker) == ["unsaved", "ship"])
    await answer(saver, worker, 3)
    assert saver.store.step == 3


async def test_a_save_that_the_disk_refuses_asks_no_further_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    saver, workers = CheckpointSaver(CheckpointStore(tmp_path)), [peer(), peer()]
    monkeypatch.setattr(files, "write_all", fail)
    saving = asyncio.create_task(saver.save(workers, graceful=False, upload_s=1000))
    await until("the first is asked", lambda: ops(workers[0]) == ["ship"])
    await answer(saver, workers[0], 3)
    await saving
    assert ops(workers[1]) == []


async def test_a_driver_that_was_taken_over_asks_for_no_checkpoint_again(tmp_path: Path) -> None:
    saver, worker = CheckpointSaver(CheckpointStore(tmp_path), retry_s=0.0), peer()
    CheckpointStore(tmp_path)
    await answer(saver, worker, 3)
    await asyncio.sleep(0.01)
    assert ops(worker) == ["unsaved"]


async def test_regression_every_worker_that_ever_connected_was_remembered_for_good(tmp_path: Path) -> None:
    saver = CheckpointSaver(CheckpointStore(tmp_path))
    for step in range(200):
        worker = peer()
        await answer(saver, worker, step)
        saver.gone(worker)
    seen = weakref.ref(worker)
    del worker
    gc.collect()
    assert seen() is None
    assert len(saver._answers) == 0


# -- checkpoints that take their time ---


async def test_regression_a_node_that_is_waited_for_stayed_for_all_its_workers_one_after_the_other(
    tmp_path: Path,
) -> None:
    saver, workers = CheckpointSaver(CheckpointStore(tmp_path)), [peer() for _ in range(8)]
    saving = asyncio.create_task(saver.save(workers, graceful=False, patient=False, upload_s=2 * STILL_S))
    await until("the first is asked", lambda: ops(workers[0]) == ["ship"])
    saver.gone(workers[0])
    await until("all others are asked at once", lambda: [ops(worker) for worker in workers] == [["ship"]] * 8)
    for worker in workers[1:]:
        saver.gone(worker)
    await saving


async def test_regression_a_node_was_taken_by_force_while_its_step_was_awaited(tmp_path: Path) -> None:
    """A step of ten seconds was never waited for: each resize of bftd's own lost what was done since the last save."""
    saver, worker = CheckpointSaver(CheckpointStore(tmp_path)), peer()
    saving = asyncio.create_task(saver.save([worker], graceful=True, pause_s=1000))
    await until("it is asked", lambda: ops(worker) == ["pause"])
    assert saver.growing
    saver.received(worker, {"op": "paused"})
    await saving
    assert not saver.growing


async def test_once_a_worker_is_gone_no_long_step_of_the_others_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(savers, "PAUSE_S", 0.01)
    saver, workers = CheckpointSaver(CheckpointStore(tmp_path)), [peer(), peer()]
    saving = asyncio.create_task(saver.save(workers, graceful=True, pause_s=1000, upload_s=0.01))
    await until("they are asked", lambda: ops(workers[1]) == ["pause"])
    saver.gone(workers[1])
    await saving


async def test_a_checkpoint_that_grows_is_waited_for_and_no_further_worker_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(savers, "CHECKPOINT_QUIET_S", 0.3)
    saver, workers = CheckpointSaver(CheckpointStore(tmp_path)), [peer() for _ in range(16)]
    saving = asyncio.create_task(saver.save(workers, graceful=False, upload_s=0.2))
    for size_bytes in range(10):
        saver.received(workers[0], {"op": "saving", "bytes": size_bytes})
        await asyncio.sleep(0.05)
    assert [len(ops(worker)) for worker in workers] == [1] + [0] * 15
    await answer(saver, workers[0], 3)
    await saving


async def test_regression_a_checkpoint_that_only_waited_for_the_disk_was_given_up_in_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes in gigabytes at once; until a slow file server has them no byte more is written."""
    monkeypatch.setattr(savers, "CHECKPOINT_QUIET_S", 0.2)
    saver, workers = CheckpointSaver(CheckpointStore(tmp_path)), [peer(), peer()]
    saving = asyncio.create_task(saver.save(workers, graceful=True, pause_s=0.1))
    for _ in range(12):
        saver.received(workers[0], {"op": "saving", "bytes": 7, "flushing": True})
        await asyncio.sleep(0.05)
    assert not saving.done()
    assert ops(workers[0]) == ["pause"]
    saver.note(workers[0], "paused")
    await saving


@pytest.mark.parametrize("how", ["it stands still", "it is the same all the time", "nobody may wait"])
async def test_a_checkpoint_that_does_not_grow_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(savers, "CHECKPOINT_QUIET_S", 0.05)
    saver, workers = CheckpointSaver(CheckpointStore(tmp_path)), [peer(), peer()]
    patient = how != "nobody may wait"
    saving = asyncio.create_task(saver.save(workers, graceful=False, patient=patient, upload_s=0.02))
    for round_ in range(1000):
        if how != "it stands still":
            saver.received(workers[0], {"op": "saving", "bytes": 7 if patient else round_})
        if ops(workers[1]):
            break
        await asyncio.sleep(0.005)
    assert ops(workers[1]) == ["ship"]
    await answer(saver, workers[1], 3)
    await saving


async def test_rank_0_is_asked_before_others(tmp_path: Path) -> None:
    saver, workers = CheckpointSaver(CheckpointStore(tmp_path)), [peer(), peer(), peer()]
    for rank, worker in enumerate(reversed(workers)):
        saver.stepped(worker, rank)
    saving = asyncio.create_task(saver.save(workers, graceful=False))
    await until("rank 0 is asked", lambda: ops(workers[2]) == ["ship"])
    await answer(saver, workers[2], 3)
    await saving
    assert [ops(worker) for worker in workers[:2]] == [[], []]


async def test_a_checkpoint_that_was_on_its_way_before_it_was_asked_for_is_no_answer(tmp_path: Path) -> None:
    saver, worker = CheckpointSaver(CheckpointStore(tmp_path)), peer()
    saving = asyncio.create_task(saver.save([worker], graceful=False, upload_s=1000))
    await until("it is asked", lambda: ops(worker) == ["ship"])
    await answer(saver, worker, 3, last=False)
    await asyncio.sleep(0.01)
    assert not saving.done()
    await answer(saver, worker, 4)
    await saving
    assert saver.store.step == 4


async def test_a_pause_for_a_distributed_checkpoint_is_over_when_who_keeps_it_says_so(tmp_path: Path) -> None:
    saver, workers = CheckpointSaver(CheckpointStore(tmp_path)), [peer(), peer()]
    saving = asyncio.create_task(saver.save(workers, graceful=True, pause_s=1000))
    await until("the workers are asked", lambda: ops(workers[1]) == ["pause"])
    saver.note(workers[0], "paused")
    await saving
    assert ops(workers[1]) == ["pause"]
