"""The saved state on disk: the highest step wins, and nothing half-done ever counts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic.driver.checkpoint import CheckpointStore
from elastic.errors import WireError
from tests.elastic.fakes import payload_of, peer


async def put(store: CheckpointStore, step: int, payload: bytes, cut_bytes: int = 0) -> bool:
    reader = asyncio.StreamReader()
    reader.feed_data(payload[: len(payload) - cut_bytes])
    reader.feed_eof()
    return await store.receive(reader, len(payload), step, step * 10)


async def got(store: CheckpointStore) -> bytes:
    worker = peer()
    await store.send(worker)
    return await payload_of(worker.writer.data)  # type: ignore[attr-defined]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(uploads=st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=8))
def test_the_whole_state_of_the_highest_step_is_what_a_restart_reads(
    tmp_path_factory: pytest.TempPathFactory, uploads: list[tuple[int, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("state")

    async def scene() -> None:
        store, best = CheckpointStore(folder), -1
        for step, cut in uploads:
            payload = b"state of %d" % step
            if cut:
                with pytest.raises(WireError):
                    await put(store, step, payload, cut_bytes=3)
            else:
                assert await put(store, step, payload) == (step >= best)
                best = max(best, step)
        for reader in (store, CheckpointStore(folder)):
            assert (reader.step, reader.samples) == (best, max(best, 0) * 10)
            assert await got(reader) == (b"" if best < 0 else b"state of %d" % best)
        assert not list(folder.glob("state.upload-*"))

    asyncio.run(scene())


def test_uploads_of_several_workers_at_once_do_not_mix(tmp_path: Path) -> None:
    async def scene() -> None:
        store = CheckpointStore(tmp_path)
        steps = [3, 9, 1, 7, 5]
        await asyncio.gather(*(put(store, step, bytes([step]) * 3_000_000) for step in steps))
        assert store.step == 9
        assert await got(store) == bytes([9]) * 3_000_000

    asyncio.run(scene())


def test_leftovers_of_a_driver_that_was_killed_are_swept_and_a_broken_note_is_no_state(tmp_path: Path) -> None:
    (tmp_path / "state.upload-3").write_bytes(b"half")
    (tmp_path / "state.json").write_text("{")
    (tmp_path / "state.pt").write_bytes(b"whole")
    assert CheckpointStore(tmp_path).step == -1
    assert not (tmp_path / "state.upload-3").exists()


def test_a_note_without_its_state_is_no_state(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"step": 4, "samples": 40}')
    assert CheckpointStore(tmp_path).step == -1


def test_a_trainer_that_ended_well_leaves_no_state(tmp_path: Path) -> None:
    async def scene() -> None:
        store = CheckpointStore(tmp_path)
        await put(store, 4, b"state")
        store.remove()
        assert list(tmp_path.iterdir()) == []

    asyncio.run(scene())
