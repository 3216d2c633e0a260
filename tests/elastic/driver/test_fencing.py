"""A driver whose trainer another one has taken over ends, and leaves the checkpoint to that one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bftd.protocol.reports import NoteReport
from elastic.driver.context import TAKEN_OVER
from elastic.store.store import CheckpointStore
from tests.elastic.driver.stage import Stage
from tests.elastic.fakes import FakeContent, ops, until
from tests.support.messages import says

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("who_tells", ["the daemon", "the folder"])
async def test_regression_a_driver_that_was_taken_over_saved_over_its_successors_checkpoint_at_its_end(
    tmp_path: Path, who_tells: str
) -> None:
    stage = Stage(tmp_path, "1-8")
    serving = asyncio.create_task(stage.trainer.serve())
    stage.grant("n1")
    await stage.warm("n1")
    worker = await stage.worker("n1")
    settings = stage.run.settings
    successor = CheckpointStore(settings.state_dir)
    if who_tells == "the daemon":
        stage.run.fence()
    else:
        message = {"step": 3, "samples": 30}
        assert not await stage.run.saver.take(worker, message, FakeContent(b"state"))
        assert says(stage.reports(NoteReport)[-1].text, "elastic.run.taken_over")
    assert await serving == (1, TAKEN_OVER)
    before = ops(worker)
    await stage.trainer.stop()
    assert ops(worker) == before, "no worker is asked for its checkpoint"
    assert successor.step == -1
    assert not list(settings.state_dir.glob("state-*"))


async def test_a_disk_that_fails_is_told_to_the_daemon_and_the_worker_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    stage = Stage(tmp_path, "1-8")
    serving = asyncio.create_task(stage.trainer.serve())
    stage.grant("n1")
    await stage.warm("n1")
    worker = await stage.worker("n1")
    message = {"step": 3, "samples": 30}
    monkeypatch.setattr("elastic.store.files.write_all", fail)
    for _ in range(3):
        assert not await stage.run.saver.take(worker, message, FakeContent(b"state"))
    [note] = stage.reports(NoteReport)
    assert says(note.text, "elastic.store.not_saved", step=3)
    assert says(note.text, "elastic.trouble.no_space")
    assert stage.pilot("n1").workers == {0: worker}
    assert not worker.writer.is_closing()
    stage.run.finish(1, "the test is over")
    stage.pilot("n1").workers.clear()
    await until("the end", serving.done)
    await stage.trainer.stop()
