"""What a torchrun script calls, outside bftd and with a driver."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from typing import Any

import pytest

import elastic
from elastic.base.errors import CheckpointError, UsageError
from elastic.link.wire import Message, encode
from elastic.script import api, resize_hooks
from elastic.worker import driver_link as sessions
from elastic.worker.driver_link import Download, DriverLink
from tests.support.messages import pattern
from tests.support.waiting import STILL_S

OUTSIDE = """
import sys, elastic
assert elastic.load() is None
dues = [elastic.step(samples=4, loss=1.0, save_every=2) for _ in range(4)]
assert dues == [False, True, False, True], dues
assert elastic.step() is False
elastic.save({"weights": object()})
assert not {"torch", "numpy"} & set(sys.modules)
print("fine")
"""


def test_outside_bftd_a_script_runs_unchanged_and_imports_nothing_for_it() -> None:
    said = subprocess.run([sys.executable, "-c", OUTSIDE], capture_output=True, text=True, check=False)
    assert (said.stdout, said.stderr, said.returncode) == ("fine\n", "", 0)


@pytest.mark.parametrize("every", [0, -3])
def test_regression_an_interval_of_no_steps_was_a_division_by_zero(every: int) -> None:
    with pytest.raises(UsageError, match=pattern("elastic.api.every_no_steps", save_every=every)):
        elastic.step(save_every=every)


class FakeChannel:
    """Keeps what a worker sends, and answers a download with a checkpoint."""

    def __init__(self) -> None:
        self.sent: list[tuple[Message, bytes | None]] = []
        self._news = threading.Condition()

    def send(self, message: Message, payload: bytes | None = None) -> None:
        with self._news:
            self.sent.append((message, payload))
            self._news.notify_all()

    def open_transfer(self, about: Message) -> Any:
        """A connection for a checkpoint; that checkpoint is then among what was sent."""
        return CheckpointChannel(self, about)

    def ops(self) -> list[str]:
        return [message["op"] for message, _ in self.sent]

    def awaited(self, **wanted: object) -> tuple[Message, bytes | None]:
        """The first message like that; the thread that uploads may be the one that sends it, a moment later."""

        def found() -> list[tuple[Message, bytes | None]]:
            return [item for item in self.sent if wanted.items() <= item[0].items()]

        with self._news:
            assert self._news.wait_for(found, STILL_S), (wanted, self.sent)
            return found()[0]


class CheckpointChannel:
    """Takes one checkpoint: pieces behind their lengths, then a line."""

    def __init__(self, channel: FakeChannel, about: Message) -> None:
        self._channel = channel
        self._about = about
        self._content = b""

    def send_raw(self, *parts: bytes | memoryview) -> None:
        self._content += b"".join(map(bytes, parts[1:]))

    def send(self, message: Message) -> None:
        assert message["op"] == "whole"
        self._channel.send({"op": "state", **self._about}, self._content)

    def receive(self) -> Message:
        return {"op": "kept"}

    def hang_up(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def channel(monkeypatch: pytest.MonkeyPatch) -> FakeChannel:
    channel = FakeChannel()
    monkeypatch.setattr(sessions, "_current", DriverLink(channel, open_transfer=channel.open_transfer))  # type: ignore[arg-type]
    monkeypatch.setattr(api, "_progress", api._Progress())
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return channel


def test_samples_are_those_of_every_worker(channel: FakeChannel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    api.step(samples=8)
    assert (channel.sent[0][0]["samples"], channel.sent[0][0]["size"]) == (24, 3)


def test_where_shares_differ_the_script_tells_the_samples_of_all(
    channel: FakeChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    api.step(global_samples=25)
    api.step(samples=8)
    assert api._progress.samples == 25 + 24
    assert channel.sent[0][0]["samples"] == 25


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_save_with_a_collective_hung_since_a_resize_asked_rank_0_alone(
    channel: FakeChannel, monkeypatch: pytest.MonkeyPatch, rank: str
) -> None:
    monkeypatch.setenv("RANK", rank)
    barrier = sessions.current().step_barrier
    assert api.step(save_every=100) is False
    assert barrier.answer({"op": "request_save", "step": 3, "number": 1, "pause": True}) == {
        "op": "accepted",
        "number": 1,
    }
    barrier.answer({"op": "confirm_save", "step": 3, "number": 1})
    assert [api.step(save_every=100) for _ in range(3)] == [False, True, False]
    assert sessions.current().pause_requested.is_set()


def test_without_an_interval_every_rank_asked_for_a_save_by_its_own_clock(
    channel: FakeChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = iter(range(0, 10_000, 100))
    monkeypatch.setattr(api.time, "monotonic", lambda: float(next(now_s)))  # type: ignore[attr-defined]
    assert not any(api.step() for _ in range(20))
    answer = sessions.current().step_barrier.answer({"op": "where"})
    assert answer is not None
    assert answer.pop("step_s") >= 100.0
    assert answer == {"op": "at", "step": 20, "by_clock": True, "size": 1, "busy": False, "save_s": 0.0}


@pytest.mark.torch
def test_what_was_saved_is_loaded_again_with_its_step_and_samples(
    channel: FakeChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        api.step(samples=5)
    api.save({"answer": 42})
    message, payload = channel.awaited(op="state")
    assert (message["step"], message["samples"]) == (3, 15)
    monkeypatch.setattr(api, "_progress", api._Progress())
    monkeypatch.setattr(DriverLink, "download_checkpoint", lambda self: Download(io.BytesIO(payload)))
    assert api.load() == {"answer": 42}
    sessions.current().regrouped()  # a first step is told at once, a later one once a second
    api.step(samples=5)
    told, _ = channel.awaited(op="step", step=4)
    assert told["samples"] == 20
    assert told["costs"]["load_s"] > 0


def test_a_run_keeps_its_name_through_all_that_goes_on_from_its_checkpoints_and_counts_them(
    channel: FakeChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = sessions.current()
    now.run_id = "run-1"
    for restarts, trainer in enumerate(("run-1", "run-1", "run-2")):  # the third by resume=
        assert (elastic.run_id(), elastic.restarts()) == ("run-1", restarts)
        api.step(samples=5)
        api.save({})
        _, payload = channel.awaited(op="state", step=restarts + 1)
        now.run_id, now.restarts = trainer, 0
        monkeypatch.setattr(
            DriverLink, "download_checkpoint", lambda self, payload=payload: Download(io.BytesIO(payload))
        )
        assert api.load() == {}


@pytest.mark.torch
def test_a_checkpoint_that_another_number_of_workers_saved_is_a_resize_and_its_batches_go_on_at_its_step(
    channel: FakeChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resize_hooks, "_hooks", [])
    monkeypatch.setenv("WORLD_SIZE", "2")
    for _ in range(3):
        api.step(global_samples=4)
    api.save({"answer": 42})
    _, payload = channel.awaited(op="state")
    monkeypatch.setattr(api, "_progress", api._Progress())
    monkeypatch.setattr(DriverLink, "download_checkpoint", lambda self: Download(io.BytesIO(payload)))
    monkeypatch.setenv("WORLD_SIZE", "8")
    api.load()
    told: list[tuple[int, int]] = []
    elastic.on_resize(lambda old, new: told.append((old, new)))
    assert told == [(2, 8)]
    assert next(elastic.batches(40, global_batch=4).steps()).number == 3


@pytest.mark.torch
def test_regression_a_checkpoint_was_gone_on_from_with_other_batches_than_it_was_saved_with(
    channel: FakeChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in elastic.batches(40, global_batch=4, seed=1).steps():
        list(step)
        api.step(global_samples=4)
        if step.number == 2:
            break
    api.save({"answer": 42})
    _, payload = channel.awaited(op="state")
    assert payload is not None
    for options in ({"seed": 1}, {"seed": 2}):
        monkeypatch.setattr(api, "_progress", api._Progress())
        monkeypatch.setattr(sessions, "_current", DriverLink())
        monkeypatch.setattr(DriverLink, "download_checkpoint", lambda self: Download(io.BytesIO(payload)))
        api.load()
        steps = elastic.batches(40, global_batch=4, **options).steps()
        if options["seed"] == 1:
            assert next(steps).number == 3
        else:
            with pytest.raises(UsageError, match=pattern("elastic.sampling.other_saved", differs="seed 1, here 2")):
                next(steps)


@pytest.mark.torch
def test_a_save_keeps_a_copy_of_what_the_script_then_changes(channel: FakeChannel) -> None:
    import torch

    weights = torch.zeros(2)
    api.step()
    api.save({"weights": weights})
    weights += 1
    sessions.current().upload()
    payload = next(data for message, data in channel.sent if message["op"] == "state")
    assert payload is not None
    state = torch.load(io.BytesIO(payload), weights_only=False)["state"]
    assert state["weights"].tolist() == [0.0, 0.0]


@pytest.mark.torch
def test_regression_a_checkpoint_of_a_horovod_script_was_a_key_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    file = io.BytesIO()
    torch.save({"handlers": {}, "attributes": {}}, file)
    file.seek(0)
    monkeypatch.setattr(sessions.current(), "download_checkpoint", lambda: Download(file), raising=False)
    with pytest.raises(CheckpointError, match="^" + pattern("elastic.api.horovods_checkpoint")):
        api.load()


def test_other_ranks_save_nothing(channel: FakeChannel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    api.save({"answer": 42})
    sessions.current()._uploader.ask()
    channel.awaited(op="nothing_saved")
    assert channel.ops() == ["nothing_saved"]


@pytest.mark.torch
def test_a_save_that_bftd_asked_for_rests_until_the_worker_is_ended(channel: FakeChannel) -> None:
    api.step()
    sessions.current().pause_requested.set()
    saving = threading.Thread(target=api.save, args=({"answer": 42},), daemon=True)
    saving.start()
    channel.awaited(op="paused")
    assert channel.ops()[-2:] == ["state", "paused"]
    assert saving.is_alive()


@pytest.mark.parametrize(
    ("samples", "loss"),
    [
        pytest.param("numpy.int64(4)", "numpy.float32(0.5)", id="numpy"),
        pytest.param("numpy.int8(4)", "numpy.array(0.5)", id="numpy that would overflow"),
        pytest.param("torch.tensor(4)", "torch.tensor(0.5)", id="torch", marks=pytest.mark.torch),
    ],
)
def test_samples_and_losses_of_numpys_and_torchs_types_travel_as_plain_numbers(
    channel: FakeChannel, monkeypatch: pytest.MonkeyPatch, samples: str, loss: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "100")
    library = __import__(samples.partition(".")[0])
    names = {library.__name__: library}
    api.step(samples=eval(samples, names), loss=eval(loss, names))
    [(message, _)] = channel.sent
    assert (message["samples"], message["loss"]) == (400, 0.5)
    assert json.loads(encode(message))["samples"] == 400
