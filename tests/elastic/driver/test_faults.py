"""What failures do to a trainer: one bad node is given back and told of, a bad script ends with what it said."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from bftd.protocol.reports import CrashReport, LeaseReport, ResizeReport
from elastic.base.errors import EXIT_LINK_LOST
from elastic.base.timing import FAREWELL_S, SILENT_COST_S
from elastic.driver.context import TrainerContext
from elastic.driver.failures import policy as hosts
from elastic.driver.failures.error_text import LINE_MOST, LINES_KEPT, TEXT_MOST, LastWords
from elastic.driver.progress.uninstrumented import NOT_LOADED, SILENT, UNSAVED, Silence
from elastic.link.peer import Peer
from tests.elastic.driver.stage import OpenStage, Stage
from tests.elastic.fakes import ops, until
from tests.elastic.store.test_store import put
from tests.support.messages import excerpt, fragment, says, wording

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "FAULT_SHOWN_S", 0.0)


async def trains(stage: Stage, *nodes: str) -> None:
    stage.grant(*nodes)
    await stage.warm(*nodes)
    await stage.trains_on(*nodes)


async def trains_also(stage: Stage, *nodes: str) -> None:
    """The last of the nodes is granted, and the first if it is not there yet."""
    new = [node for node in nodes if node not in {pilot.node for pilot in stage.trainer.pilot_manager.all}]
    stage.grant(*new)
    await stage.warm(*new)
    await stage.trains_on(*nodes)


async def begins(stage: Stage, node: str) -> Peer:
    """A worker of the next group on a node, as its back-end starts it after a failure."""
    stage.pilot(node).workers.clear()
    return await stage.worker(node)


async def steps(stage: Stage, worker: Peer, step: int, saved: int, rank: int = 0) -> None:
    message = {"op": "step", "first": True, "step": step, "samples": step, "rank": rank, "size": 2, "loss": None}
    await stage.says(worker, message | {"saved_step": saved, "saved_samples": saved, "at_s": 1.0, "steps_lost": 0})


async def crash(stage: Stage, node: str, rc: int) -> None:
    """A worker on this node ends by itself, and that is looked at."""
    stage.crash(node, rc)
    await asyncio.sleep(0)


async def given_back(stage: Stage, node: str) -> None:
    """The node's agent is told to end, and does."""
    pilot = stage.pilot(node)
    assert pilot.agent
    assert pilot.job_id
    agent = pilot.agent
    await until("told to end", lambda: ops(agent)[-1] == "end")
    stage.starter.end(pilot.job_id)
    await until("given back", lambda: stage.reports(LeaseReport, id=pilot.lease, state="ended"))


# -- the script's fault ---


async def test_a_script_that_fails_three_times_ends_the_trainer_with_its_own_exit_code(stage: Stage) -> None:
    await trains(stage, "n1")
    await crash(stage, "n1", 7)
    await crash(stage, "n1", 7)
    assert not stage.run.result.done()
    await crash(stage, "n1", 42)
    assert stage.ended == (
        42,
        wording("elastic.policy.failed_and_saved_nothing", times=3, node="n1", how="exit code 42"),
    )


async def test_regression_a_script_that_refused_its_arguments_was_started_three_times(stage: Stage) -> None:
    await trains(stage, "n1", "n2")
    await crash(stage, "n2", 2)
    assert stage.ended == (2, wording("elastic.policy.refused_arguments"))
    assert [report.node for report in stage.reports(CrashReport)] == ["n2"]


async def test_exit_code_2_after_a_step_or_with_an_error_is_a_failure_like_others(stage: Stage) -> None:
    await trains(stage, "n1")
    await steps(stage, await begins(stage, "n1"), 1, saved=0)
    await crash(stage, "n1", 2)
    assert stage.ended is None


async def test_a_script_that_reports_no_steps_may_have_trained_before_it_ends_with_exit_code_2(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "ARGUMENTS_S", 0.0)
    await trains(stage, "n1")
    await begins(stage, "n1")
    await crash(stage, "n1", 2)
    assert stage.ended is None


async def test_a_script_that_is_killed_ends_with_the_code_that_a_shell_gives_a_signal(stage: Stage) -> None:
    await trains(stage, "n1")
    for _ in range(3):
        await crash(stage, "n1", -11)
    ended = stage.ended
    assert ended is not None
    assert ended[0] == 139
    assert "SIGSEGV" in ended[1]


async def test_regression_a_script_that_failed_at_the_same_batch_was_started_two_hundred_times(stage: Stage) -> None:
    await trains(stage, "n1")
    for tries in (1, 2, 3):
        worker = await begins(stage, "n1")
        for step in (51, 52):
            await steps(stage, worker, step, saved=50)
        assert not stage.run.result.done(), tries
        await crash(stage, "n1", 3)
    assert stage.ended == (
        3,
        wording("elastic.policy.failed_since_saved", times=3, step=50, node="n1", how="exit code 3"),
    )


async def test_a_saved_step_in_between_begins_the_count_anew_and_a_mere_step_does_not(stage: Stage) -> None:
    await trains(stage, "n1")
    for tries in range(1, 20):
        worker = await begins(stage, "n1")
        await steps(stage, worker, 10 * tries + 2, saved=10 * tries)
        await crash(stage, "n1", 7)
    assert len(stage.reports(CrashReport)) == 19
    assert stage.ended is None


async def test_the_end_tells_the_error_that_the_script_told(open_stage: OpenStage) -> None:
    words = 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\nValueError: no \x1b[2Jlayer\n'
    async with open_stage() as stage:
        await trains(stage, "n1")
        for _ in range(3):
            worker = await begins(stage, "n1")
            await stage.says(worker, {"op": "error", "text": words})
            assert ops(worker) == ["heard"]
            await crash(stage, "n1", 1)
        assert stage.run.last_words == ("n1", (
            "Traceback (most recent call last):", '  File "train.py", line 9, in <module>', "ValueError: no  [2Jlayer",
        ))  # fmt: skip
        assert {report.text for report in stage.reports(CrashReport)} == {
            wording("elastic.policy.worker_ended", node="n1", error="exit code 1: ValueError: no  [2Jlayer")
        }
        ended = stage.ended
    assert ended is not None
    assert ended[0] == 1
    assert ended[1].endswith("on n1 with exit code 1: ValueError: no  [2Jlayer")


async def test_a_script_that_dies_without_a_word_is_told_of_by_the_last_lines_of_its_node(stage: Stage) -> None:
    await trains(stage, "n1")
    agent = stage.pilot("n1").agent
    assert agent
    for line in (*(f"epoch {number}" for number in range(100)), "", "Fatal Python error: Segmentation fault"):
        await stage.says(agent, {"op": "out", "line": line})
    for _ in range(3):
        await crash(stage, "n1", -11)
    node, lines = stage.run.last_words
    assert node == "n1"
    assert lines == (*(f"epoch {number}" for number in range(89, 100)), "Fatal Python error: Segmentation fault")
    ended = stage.ended
    assert ended is not None
    assert ended[1].endswith("with signal SIGSEGV")


async def test_lives_that_fail_again_and_again_end_the_trainer_too(stage: Stage) -> None:
    for _ in range(2):
        stage.backend._services.workers_failed("nobody answered")
    assert not stage.run.result.done()
    stage.backend._services.workers_failed("nobody answered")
    assert stage.ended == (1, "nobody answered, 3 times " + wording("elastic.policy.saved_nothing"))


# -- one bad node ---


async def test_regression_one_node_without_the_interpreter_ended_a_trainer_of_seven_healthy_ones(
    open_stage: OpenStage,
) -> None:
    healthy = [f"n{number}" for number in range(1, 8)]
    async with open_stage() as stage:
        await trains(stage, *healthy)
        stage.grant("bad")
        agent = await stage.connect("bad")
        await stage.says(agent, {"op": "cannot", "text": "/opt/python: No such file or directory"})
        await given_back(stage, "bad")
        [report] = stage.reports(CrashReport)
        assert (report.node, report.rc, report.text) == ("bad", 1, "/opt/python: No such file or directory")
        assert [pilot.node for pilot in stage.backend.members] == healthy
        assert any(says(line, "elastic.policy.cannot_train", node="bad", text="/opt/python") for line in stage.lines)
        assert stage.ended is None


async def test_regression_a_node_whose_workers_always_failed_was_started_on_fifty_times(stage: Stage) -> None:
    await trains(stage, "good", "bad")
    worker = await stage.worker("good")
    for tries in (1, 2):
        await stage.worker("bad")
        await crash(stage, "bad", 1)
        # The survivors train on, and save.
        await steps(stage, worker, 100 + tries, saved=100 + tries)
    await stage.trains_on("good")
    await given_back(stage, "bad")
    [ended] = stage.reports(LeaseReport, state="ended")
    assert ended.reason == wording("elastic.policy.failed_on_one_node", node="bad", count="2 times")
    assert [report.node for report in stage.reports(CrashReport)] == ["bad", "bad"]
    assert stage.ended is None


async def test_a_node_that_cannot_train_is_held_until_slurm_has_shown_its_pilot_to_the_daemon(
    monkeypatch: pytest.MonkeyPatch, open_stage: OpenStage
) -> None:
    """A lease that ends before that counts as refused, and what is told of its node is not believed."""
    monkeypatch.setattr(hosts, "FAULT_SHOWN_S", 0.2)
    async with open_stage() as stage:
        await trains(stage, "n1")
        stage.grant("bad")
        agent = await stage.connect("bad")
        await stage.says(agent, {"op": "cannot", "text": "no torch there"})
        await stage.says(agent, {"op": "node_exit", "rc": 1})
        await asyncio.sleep(0.05)
        assert "end" not in ops(agent)
        assert stage.reports(CrashReport) == []
        await given_back(stage, "bad")
        assert [report.text for report in stage.reports(CrashReport)] == ["no torch there"]
        assert stage.ended is None


async def test_a_step_whose_image_slurm_cannot_make_ends_a_trainer_that_never_ran_by_its_own_words(
    stage: Stage,
) -> None:
    stage.starter.steps["n1"] = ["slurmstepd: error: pyxis: no such image: x", "srun: error: n1: task 0: Exited"]
    stage.grant("n1")
    await stage.says(await stage.connect("n1"), {"op": "step", "command": ["srun", "--container-image=x"]})
    await stage.run.result
    ended = stage.ended
    assert ended is not None
    assert ended[0] == 1
    assert "did not start: slurmstepd: error: pyxis: no such image: x; " in ended[1]


async def test_regression_an_image_whose_fetching_slurm_cut_short_ended_the_trainer(stage: Stage) -> None:
    stage.grant("n1")
    agent = await stage.connect("n1")
    await stage.says(agent, {"op": "leaving", "at_s": 1.0})
    await stage.says(
        agent,
        {
            "op": "cannot",
            "text": excerpt("protocol.container.not_started", image="x", why=fragment("interrupted")),
            "sure": True,
        },
    )
    assert stage.ended is None


async def test_regression_a_step_that_slurm_s_notice_ended_before_its_agent_told_of_it_ended_the_trainer(
    stage: Stage,
) -> None:
    stage.starter.steps["n1"] = ["slurmstepd: error: *** STEP 7.1 ON n1 CANCELLED DUE TO PREEMPTION ***"]
    stage.grant("n1")
    agent = await stage.connect("n1")
    await stage.says(agent, {"op": "step", "command": ["srun"]})
    await asyncio.sleep(0.02)
    await stage.says(agent, {"op": "leaving", "at_s": 1.0})
    await asyncio.sleep(FAREWELL_S)
    assert stage.reports(CrashReport) == []
    assert stage.ended is None


async def test_regression_one_node_that_could_not_read_the_image_ended_a_trainer_whose_others_got_ready(
    stage: Stage,
) -> None:
    stage.grant("bad", "n2")
    agent, other = await stage.connect("bad"), await stage.connect("n2")
    await stage.says(
        agent,
        {
            "op": "cannot",
            "text": excerpt("protocol.container.not_started", image="x", why=fragment("no such file")),
            "sure": True,
        },
    )
    await given_back(stage, "bad")
    await stage.says(other, {"op": "ready"})
    await stage.trains_on("n2")
    assert stage.ended is None


async def test_an_image_that_all_of_the_first_nodes_cannot_read_ends_the_trainer_with_the_second(stage: Stage) -> None:
    stage.grant("n1", "n2")
    for agent in (await stage.connect("n1"), await stage.connect("n2")):
        assert not stage.run.result.done()
        await stage.says(agent, {"op": "cannot", "text": "container=x did not start: no such file", "sure": True})
    await stage.run.result
    assert stage.ended == (1, "container=x did not start: no such file")


async def test_regression_a_trainer_that_went_on_from_a_state_was_ended_by_one_node_without_its_image(
    monkeypatch: pytest.MonkeyPatch, open_stage: OpenStage
) -> None:
    monkeypatch.setattr(TrainerContext, "saved_step", 7)
    async with open_stage() as stage:
        stage.grant("bad")
        agent = await stage.connect("bad")
        await stage.says(
            agent,
            {
                "op": "cannot",
                "text": excerpt("protocol.container.not_started", image="x", why=fragment("no such file")),
                "sure": True,
            },
        )
        await given_back(stage, "bad")
        assert stage.ended is None


async def test_a_step_that_ends_with_its_ready_node_is_no_fault_of_the_image(stage: Stage) -> None:
    await trains(stage, "n1")
    stage.starter.steps["n1"] = ["srun: error: n1: task 0: Killed"]
    agent = stage.pilot("n1").agent
    assert agent is not None
    await stage.says(agent, {"op": "step", "command": ["srun"]})
    await asyncio.sleep(0.02)
    assert stage.reports(CrashReport) == []
    assert stage.ended is None


async def test_what_two_nodes_cannot_before_any_could_ends_the_trainer_with_that_sentence(stage: Stage) -> None:
    stage.grant("n1", "n2")
    for node in ("n1", "n2"):
        assert not stage.run.result.done()
        await stage.says(await stage.connect(node), {"op": "cannot", "text": "no torch there"})
    assert stage.ended == (1, "no torch there")


async def test_regression_a_node_process_that_was_killed_again_and_again_was_told_of_to_nobody(stage: Stage) -> None:
    """The kernel's out-of-memory killer takes the node process, an import that crashes ends it before it is ready."""
    await trains(stage, "n1", "n2")
    agent = stage.pilot("n1").agent
    assert agent
    await stage.says(agent, {"op": "node_exit", "rc": -9})
    await stage.trains_on("n2")
    [report] = stage.reports(CrashReport)
    assert (report.node, report.rc) == ("n1", -9)
    stage.grant("n3")
    agent = await stage.connect("n3")
    await stage.says(agent, {"op": "out", "line": "Illegal instruction"})
    await stage.says(agent, {"op": "node_exit", "rc": -4})
    await until("told", lambda: len(stage.reports(CrashReport)) == 2)
    assert stage.reports(CrashReport)[-1].text == (
        wording(
            "elastic.policy.before_ready",
            text=wording("elastic.policy.node_process_ended", rc="signal SIGILL"),
            last="Illegal instruction",
        )
    )
    assert stage.ended is None


async def test_a_node_process_that_ends_after_its_node_was_asked_back_is_no_failure(stage: Stage) -> None:
    await trains(stage, "n1", "n2")
    agent = stage.pilot("n1").agent
    assert agent
    await stage.says(agent, {"op": "leaving", "at_s": 1.0})
    await stage.says(agent, {"op": "node_exit", "rc": -9})
    assert stage.reports(CrashReport) == []
    assert stage.ended is None


async def test_every_interpreter_that_crashes_at_import_ends_the_trainer(stage: Stage) -> None:
    stage.grant("n1", "n2")
    for node in ("n1", "n2"):
        await stage.says(await stage.connect(node), {"op": "node_exit", "rc": -4})
    ended = stage.ended
    assert ended is not None
    assert ended[0] == 1
    assert says(ended[1], "elastic.policy.before_ready", text="SIGILL")


async def test_regression_a_worker_whose_link_was_lost_counted_as_a_crash_of_the_script(stage: Stage) -> None:
    await trains(stage, "n1")
    for _ in range(9):
        await crash(stage, "n1", EXIT_LINK_LOST)
    assert not stage.run.result.done()
    assert stage.reports(CrashReport) == []
    await crash(stage, "n1", EXIT_LINK_LOST)
    ended = stage.ended
    assert ended is not None
    assert ended[0] == EXIT_LINK_LOST
    assert ended[1].startswith(wording("elastic.policy.links_lost") + " 10 times")


async def test_regression_a_script_that_exits_with_75_by_itself_was_started_ten_times(stage: Stage) -> None:
    await trains(stage, "n1")
    for _ in range(3):
        assert not stage.run.result.done()
        await stage.says(await begins(stage, "n1"), {"op": "error", "text": "sys.exit(75)"})
        await crash(stage, "n1", EXIT_LINK_LOST)
    ended = stage.ended
    assert ended is not None
    assert ended[0] == EXIT_LINK_LOST
    assert says(ended[1], "elastic.policy.failed_and_saved_nothing", times=3)


async def test_a_node_that_does_not_take_part_is_told_of_and_given_back(stage: Stage) -> None:
    await trains(stage, "n1", "n2")
    stage.backend._services.absent(stage.pilot("n2"), "n2 did not come to the rendezvous")
    await stage.trains_on("n1")
    [report] = stage.reports(CrashReport)
    assert (report.node, report.rc, report.text) == (
        "n2",
        None,
        wording("elastic.driver.not_at_rendezvous", node="n2"),
    )
    assert stage.ended is None


async def test_regression_the_peer_of_a_bad_node_was_told_of_and_given_back_in_its_place(stage: Stage) -> None:
    """Its end may even be heard of first: what its worker told was told after what caused it."""
    await trains(stage, "good", "bad")
    for _ in range(2):
        bad, good = await begins(stage, "bad"), await begins(stage, "good")
        await stage.says(bad, {"op": "error", "text": "RuntimeError: uncorrectable ECC error"})
        await stage.says(good, {"op": "error", "text": "RuntimeError: Connection closed by peer"})
        stage.crash("good", 1)
        await crash(stage, "bad", 1)
    await stage.trains_on("good")
    assert [report.node for report in stage.reports(CrashReport)] == ["bad", "bad"]
    assert says(
        stage.lines,
        "elastic.policy.worker_ended",
        node="good",
        error="exit code 1: RuntimeError: Connection closed by peer",
    )
    assert stage.ended is None


async def test_regression_nodes_were_given_back_for_a_rank_that_ended_with_0_early_and_the_rest_was_a_success(
    open_stage: OpenStage,
) -> None:
    early = wording("elastic.driver.ended_with_0", rank=0, at=" at step 40")
    async with open_stage() as stage:
        await trains(stage, "n1", "n2", "n3")
        for attempt in range(1, 4):
            for node in ("n2", "n3"):
                await stage.says(await begins(stage, node), {"op": "error", "text": LOST})
                stage.crash(node, 1, early)
            await asyncio.sleep(0)
            assert stage.run.result.done() == (attempt == 3)
            # A higher step that is saved does not settle it: each group would begin as the one before.
            await steps(stage, await begins(stage, "n1"), 40 + attempt, saved=40 + attempt)
        assert stage.reports(CrashReport) == []
        code, reason = stage.ended or (0, "")
    assert (code, reason) == (1, wording("elastic.policy.all_have_to_end", early=early, times="3 times"))


async def test_an_evaluation_that_fails_on_one_rank_at_the_end_ends_the_trainer_with_its_own_error(
    stage: Stage,
) -> None:
    await trains(stage, "n1", "n2")
    for _ in range(3):
        await stage.says(await begins(stage, "n1"), {"op": "error", "text": "ValueError: no such metric"})
        stage.crash("n1", 3, wording("elastic.driver.ended_with_0", rank=1, at=""))
        await asyncio.sleep(0)
    assert [report.node for report in stage.reports(CrashReport)] == ["n1"] * 3
    code, reason = stage.ended or (0, "")
    how = "exit code 3: ValueError: no such metric"
    assert code == 3
    assert says(reason, "elastic.policy.failed_and_saved_nothing", times=3, node="n1", how=how)


LOST = "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.7]:1559. This is typically caused by a crash"
NCCL_LOST = (
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, remote process exited or there was "
    "a network error\nLast error:\nsocketProgress: peer gone"
)


@pytest.mark.parametrize("lost", [LOST, NCCL_LOST, "horovod.common.exceptions.HorovodInternalError: Gloo"])
async def test_regression_a_script_that_takes_its_group_down_before_it_tells_its_error_had_its_peers_blamed(
    lost: str, stage: Stage
) -> None:
    """As `finally: destroy_process_group()` does: rank 0 is the last that is heard of, and ends the trainer."""
    nodes = ("n1", "n2", "n3")
    await trains(stage, *nodes)
    for _ in range(3):
        first, *peers = [await begins(stage, pilot.node) for pilot in stage.trainer.pilot_manager.all if pilot.wanted]
        failing, *others = [pilot.node for pilot in stage.trainer.pilot_manager.all if pilot.wanted]
        for peer in peers:
            await stage.says(peer, {"op": "error", "text": lost})
        await stage.says(first, {"op": "error", "text": "ValueError: no such split"})
        for node in others:
            stage.crash(node, 1)
        await crash(stage, failing, 5)
        await asyncio.sleep(0)
    ended = stage.ended
    assert ended is not None
    assert ended[0] == 5
    assert ended[1].startswith("the script failed 3 times")
    assert ended[1].endswith("with exit code 5: ValueError: no such split")


async def test_regression_peers_that_nccl_aborts_were_blamed_for_the_script_that_failed(stage: Stage) -> None:
    await trains(stage, "n1", "n2")
    for _ in range(2):
        first, _ = await begins(stage, "n1"), await begins(stage, "n2")
        await stage.says(first, {"op": "error", "text": "ValueError: no such split"})
        stage.crash("n2", -6)
        await crash(stage, "n1", 1)
    assert {report.node for report in stage.reports(CrashReport)} == {"n1"}
    assert says(stage.lines, "elastic.policy.worker_ended", node="n2", error="signal SIGABRT")
    assert stage.ended is None


@pytest.mark.parametrize("rc", [-9, -11, -6])
async def test_who_was_killed_is_the_cause_though_the_peers_told_of_it_before(rc: int, stage: Stage) -> None:
    await trains(stage, "n1", "n2")
    peer, _ = await begins(stage, "n1"), await begins(stage, "n2")
    await stage.says(peer, {"op": "error", "text": LOST})
    stage.crash("n1", 1)
    await crash(stage, "n2", rc)
    assert [(report.node, report.rc) for report in stage.reports(CrashReport)] == [("n2", rc)]
    assert stage.ended is None


def test_of_two_workers_on_a_node_the_one_that_only_lost_the_other_is_not_the_one_to_look_at() -> None:
    words = LastWords()
    words.take_error("a", LOST)
    words.take_error("a", "ValueError: no such split")
    words.take_error("a", "KeyError: 'later'")
    words.take_error("a", LOST)
    assert words.error("a") == "ValueError: no such split"
    assert not words.of_a_peer("a")


async def test_the_peers_of_a_node_that_slurm_takes_fail_of_that_and_of_nothing_else(stage: Stage) -> None:
    for number in range(2, 12):
        leaving = f"n{number}"
        await trains_also(stage, "n1", leaving)
        await begins(stage, "n1")
        agent = stage.pilot(leaving).agent
        assert agent
        await stage.says(agent, {"op": "leaving", "at_s": 1.0})
        await crash(stage, "n1", 1)
    assert stage.reports(CrashReport) == []
    for _ in range(3):
        assert not stage.run.result.done()
        await begins(stage, "n1")
        await crash(stage, "n1", 1)
    ended = stage.ended
    assert ended is not None
    assert says(ended[1], "elastic.policy.failed_and_saved_nothing", times=3)


async def test_regression_workers_that_trained_on_without_a_node_that_had_left_were_excused_by_it_for_ever(
    stage: Stage,
) -> None:
    await trains(stage, "n1", "n2", "n3")
    worker = await begins(stage, "n1")
    agent = stage.pilot("n3").agent
    assert agent
    await stage.says(agent, {"op": "leaving", "at_s": 1.0})
    said = {"op": "step", "first": True, "samples": 1, "rank": 0, "loss": None, "at_s": 1.0, "steps_lost": 0}
    said |= {"saved_step": 0, "saved_samples": 0}
    # Of the group that the node was part of; it came late.
    await stage.says(worker, said | {"step": 8, "size": 3, "nodes": 3})
    await crash(stage, "n1", 1)
    assert stage.reports(CrashReport) == []
    await stage.says(worker, said | {"step": 9, "size": 2, "nodes": 2})
    await crash(stage, "n1", 1)
    assert [report.node for report in stage.reports(CrashReport)] == ["n1"]
    assert stage.ended is None


async def test_regression_a_new_worker_whose_group_had_lost_a_node_while_it_was_formed_was_taken_for_one_that_crashed(
    stage: Stage,
) -> None:
    """Horovod's library aborts where a peer goes while they connect to each other."""
    await trains(stage, "n1", "n2", "n3")
    stage.backend._services.formed([stage.pilot(node).lease for node in ("n1", "n2", "n3")])
    stage.revoke("n2")
    await begins(stage, "n3")
    await crash(stage, "n3", -6)
    assert stage.reports(CrashReport) == []
    stage.backend._services.formed([stage.pilot(node).lease for node in ("n1", "n3")])
    await begins(stage, "n3")
    await crash(stage, "n3", -6)
    assert [report.node for report in stage.reports(CrashReport)] == ["n3"]
    assert stage.ended is None


async def test_regression_a_worker_that_ended_before_it_was_connected_was_excused_by_a_node_that_left_the_group_before(
    stage: Stage,
) -> None:
    await trains(stage, "n1", "n2", "n3")
    await begins(stage, "n1")
    stage.revoke("n3")
    stage.backend._services.started([stage.pilot(node).lease for node in ("n1", "n2")])
    await crash(stage, "n1", -9)
    assert [report.node for report in stage.reports(CrashReport)] == ["n1"]


async def test_an_error_that_is_heard_of_after_the_next_workers_began_is_not_forgotten(stage: Stage) -> None:
    await trains(stage, "n1")
    await stage.says(await begins(stage, "n1"), {"op": "error", "text": "ValueError: first"})
    await begins(stage, "n1")
    await crash(stage, "n1", 1)
    await begins(stage, "n1")
    await crash(stage, "n1", 1)
    assert [report.text.partition(": ")[2] for report in stage.reports(CrashReport)] == ["ValueError: first", ""]
    assert stage.ended is None


# -- a script that would train on other data without a word ---


async def first_step(stage: Stage, worker: Peer, step: int, rank: int, generation: str) -> None:
    message = {"op": "step", "first": True, "step": step, "samples": step, "rank": rank, "size": 2, "loss": None}
    message |= {"saved_step": 0, "saved_samples": 0, "at_s": 1.0, "steps_lost": 0, "generation": generation}
    await stage.says(worker, message)


async def test_regression_ranks_that_had_not_loaded_the_state_trained_on_other_steps_than_rank_0(stage: Stage) -> None:
    await trains(stage, "n1", "n2")
    for generation, at in (("1", (1, 1)), ("2", (36, 1))):
        assert not stage.run.result.done()
        for rank, node in enumerate(("n1", "n2")):
            await first_step(stage, await begins(stage, node), at[rank], rank, generation)
    assert stage.ended == (1, wording("elastic.policy.began_apart", rank=0, begun=35, other=1, at=0))


async def test_ranks_of_two_groups_begin_at_steps_of_their_own(stage: Stage) -> None:
    await trains(stage, "n1", "n2")
    await first_step(stage, await begins(stage, "n1"), 1, 0, "1")
    await first_step(stage, await begins(stage, "n2"), 36, 1, "2")
    assert stage.ended is None


@pytest.mark.parametrize("loads", [True, False])
async def test_regression_a_script_that_saves_and_never_loads_began_anew_each_time_and_nobody_told_it(
    loads: bool, stage: Stage
) -> None:
    await trains(stage, "n1")
    for attempt in ("1", "2", "3"):
        worker = await begins(stage, "n1")
        if loads:
            await stage.says(worker, {"op": "fetch"})
        await first_step(stage, worker, 1, 0, attempt)
        await put(stage.run.store, 43, b"state")
    assert stage.lines.count(NOT_LOADED) == (not loads)
    assert stage.ended is None


# -- a script that says nothing ---


async def resized(stage: Stage, workers: Sequence[Peer], graceful: bool = True) -> None:
    """What a back-end does that restarts all workers at a change of nodes."""
    await stage.backend._services.save_checkpoint(workers, graceful=graceful)


async def test_regression_a_script_that_saves_nothing_was_restarted_from_zero_without_a_word(
    monkeypatch: pytest.MonkeyPatch, open_stage: OpenStage
) -> None:
    monkeypatch.setattr(hosts, "REGROUPED_S", 0.01)
    async with open_stage() as stage:
        await trains(stage, "n1", "n2")
        for _ in range(2):
            workers = [await begins(stage, node) for node in ("n1", "n2")]
            resizing = asyncio.create_task(resized(stage, workers))
            await until("asked for what they saved", lambda: "ship" in ops(workers[0]))  # noqa: B023
            assert "pause" not in ops(workers[0]), "it has no step boundary to come to"
            for worker in workers:
                await stage.says(worker, {"op": "nothing_saved"})
            await resizing
            await begins(stage, "n1")
            await until("its cost is told", lambda: stage.reports(ResizeReport))
        report = stage.reports(ResizeReport)[0]
        assert (report.from_nodes, report.to_nodes, report.kind) == (2, 1, "down")
        assert stage.lines.count(SILENT) == 1


async def test_a_script_that_has_said_nothing_for_minutes_is_warned_about_and_one_that_loads_for_long_is_not(
    open_stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "SILENT_S", 0.02)
    async with open_stage() as stage:
        await trains(stage, "n1")
        await stage.worker("n1")
        await until("warned", lambda: SILENT in stage.lines)
    async with open_stage() as stage:
        await trains(stage, "n1")
        await stage.says(await stage.worker("n1"), {"op": "fetch"})
        await asyncio.sleep(0.1)
        assert SILENT not in stage.lines


async def test_a_script_that_tells_of_its_steps_and_never_saves_is_told_what_that_costs(stage: Stage) -> None:
    await trains(stage, "n1")
    worker = await stage.worker("n1")
    await steps(stage, worker, 7, saved=0)
    resizing = asyncio.create_task(resized(stage, [worker]))
    await until("asked to come to a boundary", lambda: "pause" in ops(worker))
    stage.connections.disconnected(worker)
    await resizing
    assert stage.lines.count(UNSAVED) == 1
    assert SILENT not in stage.lines


def test_what_a_resize_costs_a_silent_script_is_what_it_may_have_to_do_again() -> None:
    silence = Silence()
    assert silence.began("n1.1", 100.0)
    assert not silence.began("n2.1", 101.0)
    assert silence.resize(900.0) is None
    assert silence.ended(130.0)
    assert silence.began("n1.1", 132.0)
    assert silence.resize(900.0) == ResizeReport(900.0, 2, 1, "down", 30.0)
    assert silence.resize(900.0) is None
    assert silence.ended(132.0 + 10 * SILENT_COST_S)
    silence.began("n1.1", 140.0 + 10 * SILENT_COST_S)
    silence.began("n3.2", 141.0 + 10 * SILENT_COST_S)
    report = silence.resize(900.0)
    assert report is not None
    assert (report.kind, report.stall_s) == ("up", SILENT_COST_S)


def test_a_silent_script_that_was_suspended_in_between_was_not_resized() -> None:
    silence = Silence()
    silence.began("n1.1", 100.0)
    silence.ended(130.0)
    silence.began("n1.1", 4000.0)
    silence.began("n2.2", 4000.0)
    assert silence.resize(900.0) is None


def test_what_is_kept_of_the_output_is_little_and_goes_with_its_pilot() -> None:
    words = LastWords()
    for number in range(10_000):
        words.printed(f"n{number % 3}.1", "x" * 10_000)
    words.take_error("n0.1", "y\n" * 10_000)
    assert len(words.of("n1.1")) == LINES_KEPT
    assert {len(line) for line in words.of("n1.1")} == {LINE_MOST}
    assert sum(map(len, words.of("n0.1"))) <= TEXT_MOST
    words.forget({"n2.1"})
    assert (words.of("n0.1"), words.of("n1.1"), words.order("n0.1")) == ((), (), 0)
    assert words.of("n2.1")
