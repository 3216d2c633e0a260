"""Distributed checkpoints in the driver: what workers tell becomes progress, and ends a pause once it counts."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from bftd.protocol.reports import NoteReport, ProgressReport
from elastic.link.peer import Peer
from elastic.store import manifest
from tests.elastic.driver.stage import OpenStage, Stage
from tests.elastic.fakes import ops, sent, until
from tests.elastic.store.distributed import name_of, told, write, written
from tests.support.messages import fragment, says
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow


async def training_on(stage: Stage, *nodes: str) -> list[Peer]:
    """The workers of a trainer on these nodes, one each."""
    stage.grant(*nodes)
    await stage.warm(*nodes)
    await stage.trains_on(*nodes)
    return [await stage.worker(node) for node in nodes]


def home(stage: Stage) -> Path:
    return stage.run.versions.home.path


async def tell(stage: Stage, workers: list[Peer], step: int) -> None:
    for worker, message in zip(workers, written(home(stage), step, len(workers)), strict=True):
        await stage.says(worker, message)


def told_to(worker: Peer, op: str) -> list[str]:
    return [message["name"] for message in sent(worker) if message["op"] == op]


async def test_a_generation_of_all_ranks_is_progress_and_what_the_next_worker_begins_with(stage: Stage) -> None:
    workers = await training_on(stage, "n1", "n2")
    await tell(stage, workers, 40)
    await until("published", lambda: told_to(workers[1], "published") == [name_of(40)])
    assert (stage.run.step, stage.run.progress.step, stage.run.progress.samples) == (40, 40, 400)
    assert stage.run.progress.resize_times.state_bytes == stage.run.versions.newest.size_bytes
    await stage.says(workers[0], {"op": "fetch"})
    await until("answered", lambda: "fetched" in ops(workers[0]))
    [answer] = [message for message in sent(workers[0]) if message["op"] == "fetched"]
    [version] = answer["generations"]
    assert version["path"] == str(home(stage) / name_of(40))
    await tell(stage, workers, 50)
    await tell(stage, workers, 60)
    await until("the oldest is forgotten", lambda: told_to(workers[0], "forgotten") == [name_of(40)])
    assert sorted(os.listdir(home(stage))) == [name_of(50), name_of(60)]


async def test_a_pause_is_over_when_the_generation_of_all_ranks_is_published_and_not_before(stage: Stage) -> None:
    workers = await training_on(stage, "n1", "n2")
    saving = asyncio.create_task(stage.run.saver.save(workers, graceful=True))
    await until("asked", lambda: "pause" in ops(workers[1]))
    first, second = written(home(stage), 7)
    await stage.says(workers[0], first)
    await stage.says(workers[0], {"op": "paused"})
    await asyncio.sleep(0.05)
    assert not saving.done()
    await stage.says(workers[1], second)
    await saving
    assert stage.run.step == 7
    assert "ship" not in ops(workers[0])


async def test_regression_the_news_of_an_earlier_generation_ended_a_pause_before_its_own_was_published(
    stage: Stage,
) -> None:
    workers = await training_on(stage, "n1")
    await tell(stage, workers, 5)
    saving = asyncio.create_task(stage.run.saver.save(workers, graceful=True))
    await tell(stage, workers, 7)
    await stage.says(workers[0], {"op": "paused"})
    await saving
    assert stage.run.step == 7


@pytest.mark.parametrize("fault", ["unwritten", "contradicted", "gone", "no shard"])
async def test_a_pause_whose_checkpoint_will_never_be_whole_ends_at_once_with_what_there_is(
    fault: str, monkeypatch: pytest.MonkeyPatch, open_stage: OpenStage
) -> None:
    monkeypatch.setattr("elastic.store.versions._PAUSE_S", 0.0)
    async with open_stage() as stage:
        workers = await training_on(stage, "n1", "n2")
        await tell(stage, workers, 5)
        await until("published", lambda: told_to(workers[1], "published"))
        saving = asyncio.create_task(stage.run.saver.save(workers, graceful=True, pause_s=20.0))
        await until("asked", lambda: "pause" in ops(workers[1]))
        first, second = written(home(stage), 7)
        await stage.says(workers[0], first)
        await stage.says(workers[0], {"op": "paused"})
        if fault == "unwritten":
            text = "no space is left"
            await stage.says(workers[1], {"op": "unwritten", "name": name_of(7), "text": text})
        elif fault == "contradicted":
            await stage.says(workers[1], {**second, "samples": 1})
        elif fault == "no shard":
            (home(stage) / name_of(7) / "__1_0.distcp").unlink()
            await stage.says(workers[1], second)
        if fault == "gone":
            stage.connections.disconnected(workers[1])
        else:
            await stage.says(workers[1], {"op": "paused"})
            # Who waits for the driver's word has one.
            await until("it is told", lambda: told_to(workers[0], "unpublished") == [name_of(7)])
        answering = asyncio.create_task(_have_nothing(stage))
        await saving
        answering.cancel()
        assert stage.run.step == 5
        await until("its files are gone", lambda: os.listdir(home(stage)) == [name_of(5)])
        if fault != "gone":
            [note] = stage.reports(NoteReport)
            assert says(note.text, "elastic.versions.one_kept", step=5)


async def _have_nothing(stage: Stage) -> None:
    """What workers answer who never had a checkpoint to upload."""
    for other in list(stage.connections._workers()):
        await until("asked for what it has", lambda other=other: "ship" in ops(other))
        await stage.says(other, {"op": "nothing_saved"})


async def test_workers_of_another_group_have_no_part_in_a_generation(stage: Stage) -> None:
    first, second = await training_on(stage, "n1", "n2")
    messages = written(home(stage), 7)
    await stage.says(first, messages[0])
    stage.pilot("n2").incarnation += 1
    await stage.says(second, messages[1])
    newer = await stage.worker("n2")
    await asyncio.sleep(0.05)
    assert stage.run.step == 0
    await stage.says(newer, messages[1])
    await until("published", lambda: stage.run.step == 7)


async def test_a_generation_that_is_found_wrong_is_lost_progress_and_steps_that_are_done_again(stage: Stage) -> None:
    workers = await training_on(stage, "n1", "n2")
    for step in (40, 60):
        await tell(stage, workers, step)
        await until("published", lambda step=step: stage.run.step == step)
    for node, worker in zip(("n1", "n2"), workers, strict=True):
        stage.connections.disconnected(worker)
        stage.pilot(node).incarnation += 1
    await stage.backend.suspend()
    stage.run.progress.suspended(stage.run.step)
    again = [await stage.worker(node) for node in ("n1", "n2")]
    for worker in again:
        await stage.says(worker, {"op": "corrupt", "name": name_of(60), "text": "__0_0.distcp is not what it was"})
    await until("it is set aside", lambda: stage.run.step == 40)
    assert (stage.run.progress.step, stage.run.progress.samples) == (40, 400)
    message = {"op": "step", "first": True, "step": 41, "samples": 410, "rank": 0, "size": 2, "loss": None}
    await stage.says(again[0], message | {"saved_step": 0, "saved_samples": 0, "steps_lost": 0, "at_s": 1e9})
    assert stage.reports(ProgressReport)[-1].steps_lost == 20
    assert says(
        stage.reports(NoteReport)[0].text,
        "elastic.versions.not_used",
        why=fragment("__0_0.distcp is not what it was"),
        on=40,
    )
    assert sorted(os.listdir(home(stage))) == [name_of(40), name_of(60)]


async def test_a_file_system_that_hangs_holds_up_no_word_of_a_worker(
    monkeypatch: pytest.MonkeyPatch, open_stage: OpenStage
) -> None:
    import threading

    hung = threading.Event()
    real = manifest.write

    def hang(*args: object) -> None:
        hung.wait(2 * STILL_S)
        real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(manifest, "write", hang)
    async with open_stage() as stage:
        workers = await training_on(stage, "n1")
        await asyncio.wait_for(tell(stage, workers, 40), STILL_S)
        await asyncio.wait_for(stage.says(workers[0], {"op": "pong"}), STILL_S)
        await asyncio.wait_for(stage.step("n1", 41), STILL_S)
        assert stage.run.step == 0
        hung.set()
        await until("published", lambda: stage.run.step == 40)


async def test_a_checkpoint_that_is_whole_when_the_job_is_cancelled_counts(
    tmp_path: Path, open_stage: OpenStage
) -> None:
    async with open_stage() as stage:
        workers = await training_on(stage, "n1")
        message = told(home(stage), 40, 0, 1)
        write(message)
        await stage.says(workers[0], message)
        stage.run.cancel()
    assert list(tmp_path.glob("state/manifest-40-*"))


async def test_regression_a_save_that_the_end_of_the_job_cut_off_left_its_files(
    tmp_path: Path, open_stage: OpenStage
) -> None:
    """As much as a whole checkpoint, on the user's quota, and shown nowhere."""
    async with open_stage() as stage:
        workers = await training_on(stage, "n1", "n2")
        await tell(stage, workers, 40)
        await until("published", lambda: stage.run.step == 40)
        await stage.says(workers[0], written(home(stage), 50)[0])
        (home(stage) / name_of(60)).mkdir()
        stage.run.cancel()
    assert os.listdir(tmp_path / "state" / "shards") == [name_of(40)]


async def test_what_workers_do_after_the_end_is_no_fault_of_the_drivers(
    caplog: pytest.LogCaptureFixture, open_stage: OpenStage
) -> None:
    stages: list[Stage] = []
    async with open_stage() as stage:
        stages.append(stage)
        workers = await training_on(stage, "n1", "n2")
        await stage.says(workers[0], written(home(stage), 40)[0])
        await stage.run.versions.close()
        stage.connections.disconnected(workers[1])
        await asyncio.sleep(0)
    stages.clear()
    assert caplog.records == []


async def test_workers_are_told_where_distributed_checkpoints_go(tmp_path: Path, stage: Stage) -> None:
    stage.run.settings.site.stage = "/local/{user}"
    stage.grant("n1")
    env = sent(await stage.connect("n1"))[0]["env"]
    assert env["BFT_STATE_PATH"] == str(tmp_path / "state" / "shards")
    assert (env["BFT_STATE_BY_PATH"], env["BFT_STATE_STAGE"]) == ("", "/local/ada")


async def test_workers_are_told_of_the_path_that_the_user_gave(tmp_path: Path, open_stage: OpenStage) -> None:
    async with open_stage(spec=f"1-8,state={tmp_path / 'lustre'}") as stage:
        stage.grant("n1")
        env = sent(await stage.connect("n1"))[0]["env"]
        assert Path(env["BFT_STATE_PATH"]).parent == tmp_path / "lustre"
        assert (env["BFT_STATE_BY_PATH"], env["BFT_STATE_STAGE"]) == ("1", "")
