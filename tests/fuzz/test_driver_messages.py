"""Messages of agents, workers and the daemon with faults in them: one may cost its sender the connection, and no more.

Whatever a worker says of its steps, the driver's reports are such that the daemon takes them, and steps that are true
are counted afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bftd.api_client import ApiClient
from bftd.base.errors import BftError
from bftd.protocol.errors import Malformed, ProtocolError
from bftd.protocol.lease import Leases
from bftd.protocol.registration import Registration, Welcome
from bftd.protocol.reports import Finish, Report, Reports, Taken, report_from_json
from elastic.base.errors import WireError
from elastic.driver.progress.reports import TrainerProgress
from elastic.link.authentication import Examination, Introduction
from elastic.link.step_barrier import StepBarrier
from elastic.link.wire import Message, decode
from elastic.store.completeness import Completeness, RankReport
from elastic.store.manifest import CheckpointVersion
from tests.bftd.http.test_api import TRAINER
from tests.elastic.driver.stage import Stage
from tests.elastic.store.distributed import name_of, told
from tests.fuzz.mutations import contents, documents, few, refused, values

pytestmark = pytest.mark.slow

STEP: Message = {
    "op": "step", "first": True, "step": 5, "samples": 50, "saved_step": 4, "saved_samples": 40, "rank": 0, "size": 2,
    "nodes": 2, "loss": 0.5, "at_s": 1.8e9, "steps_lost": 1, "total_steps": 100, "joined": False, "previous_s": 1.7e9,
    "costs": {"load_s": 0.5, "load_bytes": 1000}, "generation": 1,
}  # fmt: skip
NEXT: Message = {
    **STEP,
    "first": False,
    "step": 9,
    "samples": 90,
    "saved_step": 9,
    "saved_samples": 90,
    "at_s": 1.8e9 + 5,
}
AGENT: list[Message] = [
    {"op": "out", "line": "step 7 of 100"},
    {"op": "beat"},
    {"op": "looked", "pid": 7, "silent_s": 12.5, "verdict": "busy", "why": "it computes"},
    {"op": "node", "workers_per_node": 1},
    {"op": "ready"},
    {"op": "probed", "path": "/a", "text": ""},
    {"op": "memory"},
    {"op": "step", "command": ["true"]},
    {"op": "exit", "host": "n1", "local_rank": 0, "rc": 1, "step": 5, "at_s": 1.8e9},
]
WORKER: list[Message] = [
    STEP,
    NEXT,
    {"op": "pong"},
    {"op": "at", "number": 0, "step": 5, "step_s": 0.1, "by_clock": True, "size": 1, "busy": False, "save_s": 0.0},
    {"op": "accepted", "number": 0},
    {"op": "error", "text": "ValueError: no"},
    {"op": "fetch"},
    {"op": "saving", "bytes": 100, "flushing": True},
    {"op": "paused"},
    {"op": "shipped"},
    {"op": "nothing_saved"},
    told("/lustre/a", 5, 0, 1),
    {"op": "unwritten", "name": name_of(5), "text": "no space"},
    {"op": "corrupt", "name": name_of(5), "text": "a shard is wrong"},
]
FAULTS = (AttributeError, KeyError, OverflowError, TypeError, ValueError, ProtocolError, WireError)


def is_taken(report: Report) -> None:
    """The daemon takes a report as it is sent."""
    report_from_json(json.loads(json.dumps(report.to_json())))


@given(st.lists(values([STEP, NEXT]), min_size=1, max_size=4))
@example([{**STEP, "at_s": float("nan")}])
@example([{**STEP, "saved_step": 10**30}])
@example([{**STEP, "samples": -(10**30), "saved_samples": 10**30}])
@example([{**STEP, "loss": float("inf")}])
@example([{**STEP, "at_s": -1e308}, {**NEXT, "at_s": 1e308}])
@example([{**STEP, "size": 0, "nodes": -3}])
@example([{**STEP, "costs": {"load_s": 1e308, "load_bytes": 1e308}}])
def test_no_word_of_a_worker_spoils_the_progress_of_its_trainer(messages: list[Any]) -> None:
    progress = TrainerProgress()
    for message in messages:
        with contextlib.suppress(*FAULTS):
            for report in progress.report(message, 1.0):
                is_taken(report)
    for message in (STEP, NEXT):
        for report in progress.report(message, 2.0):
            is_taken(report)
    assert progress.step >= NEXT["saved_step"]


@few(4)
@given(values([AGENT], 4), values([WORKER], 4))
@example([{"op": "exit"}], [{**STEP, "step": "x"}])
@example([{"op": "exit", "host": "n1", "local_rank": 0, "rc": 10**30, "step": 5, "at_s": 1.8e9}], [STEP])
@example([{"op": "looked", "pid": 7, "silent_s": "x"}], [{"op": "saving", "bytes": float("inf")}])
def test_a_trainer_goes_on_whatever_its_agents_and_workers_say(agents: Any, workers: Any) -> None:
    async def scene(folder: Path) -> None:
        stage = Stage(folder, "1-8")
        running = asyncio.create_task(stage.trainer.serve())
        try:
            await asyncio.sleep(0)
            stage.grant("n1", "n2")
            await stage.warm("n1", "n2")
            await stage.trains_on("n1", "n2")
            agent, worker = stage.pilot("n1").agent, await stage.worker("n1")
            assert agent is not None
            for peer, messages in ((agent, agents), (worker, workers)):
                for message in messages if isinstance(messages, list) else [messages]:
                    if not isinstance(message, dict) or not isinstance(message.get("op"), str):
                        continue  # such a line is no message
                    with contextlib.suppress(*FAULTS):
                        await stage.says(peer, message)
                    await asyncio.sleep(0)
            for _ in range(3):
                await asyncio.sleep(0)
            if stage.run.result.done():
                stage.run.result.result()  # a word of a worker may end the trainer, a fault may not
            else:
                at_s = time.time()
                second = await stage.worker("n2")
                await stage.says(second, {**NEXT, "saved_step": 10**6, "saved_samples": 10**7, "at_s": at_s})
                assert stage.run.progress.step >= 10**6
            for report in stage.daemon.reports:
                is_taken(report)
        finally:
            running.cancel()  # its allocations are no real ones: nobody waits for their end
            stage.run.store.close()

    with tempfile.TemporaryDirectory() as folder, refused():
        asyncio.run(scene(Path(folder)))


LEASES = {
    **{"version": 3, "min_window_s": 20.0, "stage": "/tmp", "timeout_s": 5.0, "ends_in_s": 60.0},
    "leases": [
        {"id": "n1.1", "node": "n1", "state": "granted", "vacate": False, "limit_s": 60.0, "reason": "x", "gpus": 1},
        {"id": "n2.2", "node": "n2", "state": "revoked", "vacate": True, "limit_s": 60.0, "leave_in_s": 3.0},
    ],
}
WELCOME = {"protocol": 2, "epoch": 1, "poll_s": 1.0, "note": "", **LEASES, "classes": [{"name": "a", "count": 2}]}


@given(
    documents([WELCOME, LEASES, TRAINER, {"epoch": 1, "events": [{"op": "note", "at_s": 1.0, "text": "x"}]}]),
    st.sampled_from([Leases, Welcome, Taken, Registration, Reports, Finish]),
)
def test_a_message_between_daemon_and_driver_with_faults_is_read_or_refused(text: str, kind: Any) -> None:
    with contextlib.suppress(ValueError, RecursionError):  # as decoded by those who read it
        data = json.loads(text)
        with refused(Malformed, ProtocolError):
            kind.from_json(data)


@given(documents([AGENT[0], STEP, WORKER[3]]), contents([json.dumps(STEP).encode()]))
def test_a_line_with_faults_is_a_message_or_a_wire_error(text: str, raw: bytes) -> None:
    for line in (text.encode(errors="surrogatepass"), raw):
        with refused(WireError):
            assert isinstance(decode(line)["op"], str)
        with refused(WireError):
            Examination("secret", line)
        with refused(WireError):
            Introduction("secret", {"role": "agent"}).answer(line)


@given(values([[told("/lustre/a", 5, rank, 2) for rank in (0, 1)], [told("/lustre/a", 5, 0, 1)]]))
def test_what_ranks_tell_of_a_checkpoint_with_faults_makes_it_whole_or_not(messages: Any) -> None:
    gathering = Completeness()
    for rank, message in enumerate(messages if isinstance(messages, list) else []):
        if isinstance(message, dict):
            with refused(ValueError):
                over = gathering.heard(rank, RankReport.parse(message, "/lustre/a"))
                if over is not None and over.complete is not None:
                    assert CheckpointVersion.from_json(over.complete.to_json()) == over.complete


@given(values([{"op": "request_save", "step": 5, "number": 1, "pause": True}, {"op": "where"}]))
def test_a_driver_of_another_release_asks_a_worker_in_vain(message: Any) -> None:
    barrier = StepBarrier()
    with contextlib.suppress(*FAULTS):
        barrier.answer(message)
    if not barrier.is_undecided(1):  # a request for this step waits for its driver's second word
        barrier.passed(1, 1.0)


@given(documents([WELCOME, {"error": "no"}]), st.sampled_from([200, 400, 500]))
def test_bytes_that_are_no_answer_of_a_daemon_are_one_error(text: str, status: int) -> None:
    with refused(BftError):
        assert isinstance(ApiClient("/nowhere")._decoded(status, text.encode(errors="surrogatepass")), dict)
