"""The progress of an unmodified script: read from its lines, bounded in time, and honest about what is done twice."""

from __future__ import annotations

import time
from contextlib import AbstractAsyncContextManager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.protocol.reports import LeaseReport, NoteReport, ProgressReport, ResizeReport, SuspendReport
from elastic.base.timing import MATCH_S
from elastic.driver.progress.regex import TOO_LONG, UNMATCHED, Printed
from elastic.driver.progress.uninstrumented import SILENT
from elastic.link.wire import Message
from tests.elastic.driver.stage import OpenStage, Stage
from tests.elastic.driver.test_faults import begins, resized, trains, trains_also
from tests.elastic.fakes import ops, until
from tests.support.messages import wording

pytestmark = pytest.mark.slow

STEP = r"step (?P<step>[0-9,]+)(?:.* loss (?P<loss>\S+))?"
SAMPLES = "(?P<samples>[0-9]+)/60000"


@pytest.fixture
def stage(open_stage: OpenStage) -> AbstractAsyncContextManager[Stage]:
    return open_stage("1-8,progress=" + STEP)


def read(printed: Printed, line: str, at_s: float = 0.0, lease: str = "n1.1", size: int = 2) -> Message | None:
    return printed.read(lease, line, at_s, lambda: (size, size))


def seen(message: Message | None, *names: str) -> tuple[object, ...] | None:
    return None if message is None else tuple(message[name] for name in names)


def test_a_line_that_fits_is_a_step_of_the_group_and_the_first_of_it_is_told_at_once() -> None:
    printed = Printed(STEP)
    assert read(printed, "loading 1,000 files") is None
    assert not printed.matched
    message = read(printed, "[2026] step 1,200 | loss 0.5 |", 10.0)
    assert seen(message, "first", "step", "samples", "loss", "size", "nodes", "rank") == (
        True,
        1200,
        2400,
        0.5,
        2,
        2,
        0,
    )
    message = read(printed, "step 1210", 11.5)
    assert seen(message, "first", "step", "samples", "loss") == (False, 1210, 2420, 0.5)


def test_one_report_a_second_is_made_and_the_last_of_a_group_is_not_forgotten() -> None:
    printed = Printed(STEP)
    told = [read(printed, f"step {step}", step / 10) for step in range(1, 16)]
    assert [message["step"] for message in told if message] == [1, 11]
    assert seen(printed.take_unreported(), "step") == (15,)
    assert printed.take_unreported() is None


def test_one_node_is_read_until_the_workers_are_started_again() -> None:
    printed = Printed(STEP)
    assert read(printed, "no such line", lease="n0.1") is None
    assert read(printed, "step 5", 0.0)
    assert read(printed, "step 7", 5.0, lease="n2.1") is None
    printed.began(joined=False)
    assert seen(read(printed, "step 6", 9.0, lease="n2.1"), "first", "step") == (True, 6)


def test_a_count_that_begins_again_at_each_epoch_goes_on_and_one_that_a_worker_prints_late_is_left_out() -> None:
    printed = Printed(SAMPLES)
    values = (30000, 60000, 59000, 600, 30000)
    steps = [seen(read(printed, f"{value}/60000", 2.0 * at), "step") for at, value in enumerate(values)]
    assert steps == [(30000,), (60000,), None, (60600,), (90000,)]
    printed.began(joined=False)  # after a restart within the epoch it counts there
    assert seen(read(printed, "600/60000", 99.0), "first", "step", "samples") == (True, 60600, 60600)


def test_samples_are_the_scripts_own_where_it_prints_them_and_else_one_a_step_and_worker() -> None:
    both = Printed(STEP + " (?P<samples>[0-9]+)")
    assert seen(read(both, "step 3 loss x 777"), "step", "samples", "loss") == (3, 777, None)
    steps = Printed(STEP)
    read(steps, "step 10", 0.0, size=2)
    steps.began(joined=False)
    assert seen(read(steps, "step 20", 9.0, size=4), "step", "samples") == (20, 10 * 2 + 10 * 4)


@pytest.mark.parametrize("line", ["step ,", "step 9999999999999999", "ste", ""])
def test_what_is_no_number_is_no_step(line: str) -> None:
    printed = Printed(STEP)
    assert read(printed, line) is None
    assert not printed.matched


@pytest.mark.parametrize("expression", ["(a+)+(?P<step>b)", "(.*)*(?P<step>b)", "(?P<step>(a|a|aa)*)c"])
def test_an_expression_that_would_take_for_ever_is_given_up_within_its_time(expression: str) -> None:
    printed = Printed(expression)
    began_s = time.process_time()
    assert read(printed, "a" * 3000) is None
    assert printed.gave_up
    assert not printed.reads
    assert read(printed, "ab") is None
    assert time.process_time() - began_s < 5 * MATCH_S


@settings(deadline=None, max_examples=200)
@given(st.lists(st.text(max_size=30) | st.integers(-5, 10**18).map(lambda n: f"step {n:,} loss {n}"), max_size=20))
def test_whatever_is_printed_steps_are_numbers_and_never_go_back_within_a_group(lines: list[str]) -> None:
    printed = Printed(STEP)
    told = [read(printed, line, 2.0 * at) for at, line in enumerate(lines)]
    steps = [message["step"] for message in told if message]
    assert steps == sorted(steps)
    assert all(isinstance(step, int) and step >= 0 for step in steps)


# -- the trainer ---


async def prints(stage: Stage, node: str, *lines: str) -> None:
    agent = stage.pilot(node).agent
    assert agent
    for line in lines:
        await stage.says(agent, {"op": "out", "line": line})


async def ends(stage: Stage, *nodes: str) -> None:
    """The group is stopped, as a back-end does; its workers have nothing saved."""
    workers = [stage.pilot(node).workers[0] for node in nodes]
    for worker in workers:
        stage.connections.disconnected(worker)
    await resized(stage, workers)
    assert "pause" not in [op for worker in workers for op in ops(worker)], "it has no step boundary to come to"


async def test_a_printed_step_is_the_trainers_progress_and_what_is_done_again_is_told_as_lost(stage: Stage) -> None:
    await trains(stage, "n1", "n2")
    for node in ("n1", "n2"):
        await begins(stage, node)
    await prints(stage, "n1", "starting", "step 1 loss 2.0", "step 40 loss 1.5")
    states = {(report.id[:2], report.state) for report in stage.reports(LeaseReport)}
    assert {("n1", "working"), ("n2", "working")} <= states
    await ends(stage, "n1", "n2")
    await begins(stage, "n1")
    await prints(stage, "n1", "step 31")
    [resize] = stage.reports(ResizeReport)
    assert (resize.from_nodes, resize.to_nodes, resize.kind, resize.steps_lost) == (2, 1, "down", 10)
    last = stage.reports(ProgressReport)[-1]
    assert (last.step, last.samples, last.nodes, last.loss, last.steps_lost) == (40, 80, 1, 1.5, 10)
    assert not stage.reports(NoteReport)


async def test_a_script_with_checkpoints_of_its_own_loses_nothing_by_a_suspension_that_it_goes_on_from(
    stage: Stage,
) -> None:
    await trains(stage, "n1")
    await begins(stage, "n1")
    await prints(stage, "n1", "step 1", "step 40")
    await ends(stage, "n1")
    stage.revoke("n1")
    [suspended] = await until("suspended", lambda: stage.reports(SuspendReport))
    assert suspended.step == 40
    await trains(stage, "n2")
    await begins(stage, "n2")
    await prints(stage, "n2", "step 41")
    last = stage.reports(ProgressReport)[-1]
    assert (last.step, last.steps_lost) == (41, 0)
    assert not stage.reports(ResizeReport)


async def test_regression_the_last_line_of_a_stopped_worker_was_the_first_of_the_next_group_and_its_resize_cost_nothing(
    stage: Stage,
) -> None:
    await trains(stage, "n1")
    await begins(stage, "n1")
    await prints(stage, "n1", "step 1", "step 40")
    await ends(stage, "n1")
    await trains_also(stage, "n1", "n2")
    await begins(stage, "n2")
    await prints(stage, "n1", "step 41")
    assert not stage.reports(ResizeReport)
    await begins(stage, "n1")
    await prints(stage, "n1", "step 31")
    [resize] = stage.reports(ResizeReport)
    assert (resize.from_nodes, resize.to_nodes, resize.steps_lost) == (1, 2, 10)


async def test_regression_a_node_that_began_after_the_others_first_line_made_a_resize_that_cost_no_time(
    monkeypatch: pytest.MonkeyPatch, stage: Stage
) -> None:
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s)
    await trains(stage, "n1")
    await begins(stage, "n1")
    await prints(stage, "n1", "step 39")
    now_s += 1.0
    await prints(stage, "n1", "step 40")
    await ends(stage, "n1")
    await trains_also(stage, "n1", "n2")
    now_s += 5.0
    await begins(stage, "n2")
    await prints(stage, "n2", "step 31")
    now_s += 1.0
    await begins(stage, "n1")
    await prints(stage, "n1", "step 32")
    [resize] = stage.reports(ResizeReport)
    assert (resize.from_nodes, resize.to_nodes, resize.kind, resize.steps_lost) == (1, 2, "up", 10)
    assert resize.stall_s == 4.0, "five seconds, less the step of one second"
    assert stage.reports(ProgressReport)[-1].steps_lost == 10


async def test_a_start_on_nodes_of_which_one_begins_late_is_no_resize(stage: Stage) -> None:
    await trains(stage, "n1", "n2")
    await begins(stage, "n2")
    await prints(stage, "n2", "step 1")
    await begins(stage, "n1")
    await prints(stage, "n1", "step 2")
    assert not stage.reports(ResizeReport)
    assert stage.reports(ProgressReport)[-1].nodes == 2


async def test_a_script_that_begins_again_at_a_resize_is_told_so_once_in_its_output_and_to_the_daemon(
    stage: Stage,
) -> None:
    await trains(stage, "n1")
    for _ in range(3):
        await begins(stage, "n1")
        await prints(stage, "n1", "step 2", "step 40")
        await ends(stage, "n1")
    [note] = stage.reports(NoteReport)
    assert note.text == wording("elastic.printed.began_again", step=2, reached=40)
    assert stage.lines.count(note.text) == 1


@pytest.mark.parametrize(("spec", "note"), [("1-8,progress=" + STEP, UNMATCHED), ("1-8", SILENT)])
async def test_a_script_whose_output_never_fits_is_told_so_once_and_one_without_progress_that_it_says_nothing(
    open_stage: OpenStage, spec: str, note: str
) -> None:
    async with open_stage(spec) as stage:
        await trains(stage, "n1")
        for _ in range(2):
            await begins(stage, "n1")
            await prints(stage, "n1", "epoch 1")
            await ends(stage, "n1")
        assert [report.text for report in stage.reports(NoteReport)] == [note]


async def test_a_hostile_expression_costs_the_driver_a_moment_and_is_told_once(open_stage: OpenStage) -> None:
    async with open_stage("1-8,progress=(a+)+(?P<step>b)") as stage:
        await trains(stage, "n1")
        await begins(stage, "n1")
        await prints(stage, "n1", *["a" * 3000] * 3)
        assert [report.text for report in stage.reports(NoteReport)] == [TOO_LONG]


async def test_a_script_that_tells_its_steps_itself_is_believed_and_not_its_output(stage: Stage) -> None:
    await trains(stage, "n1")
    await stage.step("n1", 5, first=True)
    await prints(stage, "n1", "step 4000")
    assert stage.run.progress.step == 5
    assert stage.run.step == 0


async def test_the_last_lines_of_a_script_that_ends_well_count(stage: Stage) -> None:
    await trains(stage, "n1")
    await begins(stage, "n1")
    await prints(stage, "n1", *(f"step {step}" for step in range(1, 101)))
    stage.backend._services.finish(0, "training is complete")
    assert stage.reports(ProgressReport)[-1].step == 100
    assert stage.ended == (0, "training is complete")


def test_the_number_of_all_steps_is_read_and_believed_no_more_once_it_was_an_epochs() -> None:
    printed = Printed(r"(?P<step>[0-9]+)/(?P<total_steps>[0-9]+)")
    first = read(printed, "10/1,000: fine", 1.0)
    assert first is not None
    assert first["total_steps"] == 1
    later = read(printed, "900/1000", 3.0)
    assert later is not None
    assert later["total_steps"] == 1000
    again = read(printed, "5/1000", 5.0)
    assert again is not None
    assert (again["step"], again["total_steps"]) == (905, 0)
