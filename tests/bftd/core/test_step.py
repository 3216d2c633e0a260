"""The decision core, one situation a test; every step is validated and repeated (see builders.Core)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

import milp
from bftd.core.model.domain import CancelPilot, Happened, PoolNode, Settings
from bftd.core.model.events import Configured
from bftd.protocol.registration import Held
from bftd.protocol.reports import CrashReport, ProgressReport, ResizeReport, SuspendReport
from milp.errors import MilpError
from milp.running import solving
from tests.bftd.builders import NOW_S, Core, granted, lease, of, registration, revoked
from tests.support.messages import pattern, says, wording

OUT = PoolNode("n1", "ALLOCATED", False, "is needed by job 9 in 3 s", wanted=True)
DRAINED = PoolNode("n1", "IDLE+DRAIN", False, "is draining")
KNOWN: Any = {"curve": ((1, 100.0), (4, 400.0)), "up_cost_s": 1.0}


def test_L1_an_idle_node_goes_to_a_willing_trainer_in_the_step_that_sees_it() -> None:
    core = Core()
    core.arrive(registration("1"))
    assert {item.node for item in granted(core.pool("n1", "n2"))} == {"n1", "n2"}
    core.pool("n1", "n2", "n3")
    assert core.nodes("1") == {"n1", "n2", "n3"}


def test_a_trainer_that_arrives_gets_idle_nodes_at_once() -> None:
    core = Core()
    core.pool("n1", "n2")
    assert len(granted(core.arrive(registration("1")))) == 2


def test_decisions_are_sentences_with_numbers() -> None:
    core = Core()
    core.arrive(registration("1", name="train-a", **KNOWN))
    core.pool("n1", "n2")
    core.pool("n1", "n2", "n3", "n5")
    assert core.sentences() == [
        "train-a "
        + wording("core.sentences.starts", count="2 nodes", nodes="n[1-2]", rate="")
        + wording("core.sentences.rate", rate="about 200"),
        "train-a "
        + wording("core.sentences.grows", before=2, after="4 nodes", nodes="n[3,5]", gain="")
        + wording("core.sentences.gain", rate="about +200", t_fwd_s=120, stall_s=1.0),
    ]


def test_S1_a_pilot_gets_whole_minutes_that_fit_the_window_of_its_node() -> None:
    core = Core(Settings().changed(pilot_limit_s=3600))
    core.arrive(registration("1"))
    core.pool("n1", "n2", "n3", "n4", windows={"n1": 179.0, "n2": 30.0, "n4": 1e6})
    limits = {item.node: item.limit_s for item in core.leases("1")}
    # Slurm knows no limit below a minute: such a pilot is vacated before the minute is over
    # and those that nothing but the longest limit ends do not all end together
    assert limits == {"n1": 120.0, "n2": 60.0, "n3": 3360.0, "n4": 3600.0}


def test_nodes_that_stay_longest_are_taken_first() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=2))
    core.pool("n1", "n2", "n3", "n4", windows={"n1": 50.0, "n2": 500.0, "n3": 100.0})
    assert core.nodes("1") == {"n4", "n2"}


def test_S2_a_node_that_a_regular_job_needs_is_vacated_at_once_and_the_give_back_is_measured() -> None:
    core = Core()
    core.arrive(registration("1"))
    core.pool("n1", "n2")
    core.place_all()
    actions = core.pool("n2", out={"n1": OUT})
    assert [(item.node, item.vacate) for item in revoked(actions)] == [("n1", True)]
    assert (
        "train-1 "
        + wording(
            "core.sentences.gives_back",
            nodes="n1",
            left="1 node left",
            why="n1 " + wording("pool.judgement.needed", by="job 9", window_s=3),
        )
        in core.sentences()
    )
    (back,) = core.leases("1", live=False)
    actions = core.report("1", lease(back.id, "ended"), after_s=0.25)
    (measured,) = of(actions, Happened, kind="give_back")
    assert measured.data["duration_s"] == pytest.approx(0.25)


def test_S2_a_pilot_that_overstays_is_cancelled_and_alarmed_once() -> None:
    core = Core(Settings().changed(give_back_bound_s=5.0))
    core.arrive(registration("1", nodes_max=1))
    core.pool("n1")
    core.place_all()
    cancelled, alarms = [], []
    for _ in range(9):
        actions = core.pool(out={"n1": OUT})
        cancelled.append(bool(of(actions, CancelPilot)))
        alarms += of(actions, Happened, kind="alarm")
    assert cancelled == [False, False, True] + [False] * 6
    assert len(alarms) == 1


def test_regression_the_pilot_of_an_overstaying_lease_was_cancelled_anew_at_every_poll() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=1))
    core.pool("n1")
    core.place_all()
    times = [second for second in range(200) if of(core.pool(out={"n1": OUT}), CancelPilot)]
    assert [second - times[0] for second in times] == [0, 61, 122, 183]


def test_a_pilot_that_slurm_asks_to_leave_is_measured_from_its_notice() -> None:
    core = Core()
    core.arrive(registration("1"))
    core.pool("n1", "n2")
    core.place_all()
    asked, _ = core.leases("1")
    core.time_s += 10
    actions = core.report("1", lease(asked.id, "leaving", at_s=1009.0), lease(asked.id, "ended", at_s=1009.5))
    (measured,) = of(actions, Happened, kind="give_back")
    assert measured.data["duration_s"] == pytest.approx(0.5)


@pytest.mark.parametrize(("polls_with_pilot", "durations"), [(2, [2.0]), (0, [])])
def test_a_give_back_that_the_driver_does_not_report_is_measured_by_the_snapshots(
    polls_with_pilot: int, durations: list[float]
) -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=1))
    core.pool("n1")
    core.place_all()
    core.pool("n1")
    actions = []
    for _ in range(polls_with_pilot):
        actions += core.pool(out={"n1": OUT})
    core.pilots.clear()
    for _ in range(2):  # gone for two polls: the first one counts
        actions += core.pool(out={"n1": OUT})
    measured = of(actions, Happened, kind="give_back")
    assert [item.data["duration_s"] for item in measured] == durations
    assert not core.state.leases


def test_a_draining_node_is_given_back_gracefully() -> None:
    core = Core()
    core.arrive(registration("1"))
    core.pool("n1")
    core.place_all()
    assert [item.vacate for item in revoked(core.pool(out={"n1": DRAINED}))] == [False]
    # a job that then needs the node makes the leave urgent
    assert [item.vacate for item in revoked(core.pool(out={"n1": OUT}))] == [True]


def test_S4_a_node_moves_to_another_trainer_only_after_the_first_has_ended_its_lease() -> None:
    core = Core()
    slow: Any = {"curve": ((1, 1.0), (4, 1.5)), "up_cost_s": 0.0, "down_cost_s": 0.0}
    fast: Any = {"curve": ((1, 100.0), (4, 400.0)), "up_cost_s": 0.0}
    core.arrive(registration("1", name="slow", **slow))
    core.pool("n1", "n2", "n3", "n4")
    core.place_all()
    core.arrive(registration("2", name="fast", **fast), after_s=1)
    assert core.nodes("2") == set()
    given_up = core.leases("1", live=False)
    assert given_up
    assert says(core.sentences()[-1] + core.sentences()[-2], "core.sentences.gains_more", names="fast", value="s")
    core.report("1", *(lease(item.id, "ended") for item in given_up))
    for item in given_up:
        core.pilots.pop(item.job_id or "", None)
    core.pool("n1", "n2", "n3", "n4")
    assert core.nodes("2") == {item.node for item in given_up}


def test_S5_a_plan_of_an_older_pool_is_never_carried_out() -> None:
    core = Core()
    core.arrive(registration("1"))
    core.pool("n1", "n2")
    for names in (("n1",), (), ("n1", "n2", "n3")):
        core.pool(*names)
        assert core.state.planned.pool_version == core.state.pool.version
        assert core.nodes("1") <= set(names)


def test_S9_nothing_grows_while_a_job_waits_without_a_plan_and_shrinking_goes_on() -> None:
    core = Core()
    core.arrive(registration("1"))
    core.pool("n1", "n2")
    hold = "job 9 waits without a plan"
    assert not granted(core.pool("n1", "n2", "n3", hold=hold))
    assert says(core.sentences()[-1], "core.sentences.stays", held="2 nodes", why=hold)
    assert revoked(core.pool("n1", hold=hold))
    assert core.nodes("1") == {"n1"}
    core.report("1", *(lease(item.id, "ended") for item in core.leases("1", live=False)))
    assert granted(core.pool("n1", "n2", after_s=10))


def test_S9_nothing_grows_on_a_stale_snapshot() -> None:
    core = Core(Settings().changed(stale_after_s=10))
    core.pool("n1", "n2")
    core.tick(after_s=10.5)
    assert not granted(core.arrive(registration("1")))
    assert granted(core.pool("n1", "n2"))


def test_S9_a_snapshot_that_is_older_than_the_last_changes_nothing() -> None:
    core = Core()
    core.arrive(registration("1"))
    core.pool("n1", "n2", after_s=5)
    before = core.state
    core.pool(after_s=-3)
    assert core.state.pool == before.pool
    assert core.nodes("1") == {"n1", "n2"}


@pytest.mark.parametrize("error", [MilpError("no licence"), RuntimeError("boom"), MemoryError()])
def test_L2_a_solver_that_fails_leaves_the_current_map(error: Exception) -> None:
    core = Core()
    core.arrive(registration("1"))
    core.pool("n1", "n2", "n3")

    def fails(*_: object, **__: object) -> None:
        raise error

    core.solve = fails
    core.pool("n1", "n2", "n4")
    assert core.nodes("1") == {"n1", "n2"}
    told = wording("core.sentences.map_kept", error=wording("core.sentences.unsolved", error=""))
    assert told in " ".join(core.sentences())


def test_L2_a_plan_that_breaks_a_rule_is_not_carried_out() -> None:
    from dataclasses import replace

    import milp

    core = Core()
    core.arrive(registration("1", nodes_min=2))
    core.pool("n1", "n2")

    def zero_for_all(problem: milp.Problem, *_: object, **__: object) -> milp.Plan:
        plan = milp.solve(problem)
        return replace(plan, assignment={"1": ("n1",)}, counts={"1": 1})

    core.solve = zero_for_all
    core.pool("n1", "n2", "n3")
    assert core.nodes("1") == {"n1", "n2"}


def test_S6_a_plan_that_was_verified_for_another_problem_is_not_carried_out() -> None:
    core = Core()
    core.arrive(registration("1", nodes_min=2))
    core.pool("n1", "n2")

    def of_another(problem: milp.Problem, *_: object, **__: object) -> milp.Plan:
        return milp.solve(replace(problem, trainers=(replace(problem.trainers[0], nodes_min=1, nodes_max=1),)))

    core.solve = of_another
    core.pool("n1", "n2", "n3")
    assert core.nodes("1") == {"n1", "n2"}
    why = wording("core.sentences.unsolved", error=wording("milp.errors.not_carried_out", violations=""))
    assert wording("core.sentences.map_kept", error=why) in " ".join(core.sentences())


def test_S6_every_plan_is_verified_just_once_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[milp.Plan] = []

    def counted(problem: milp.Problem, plan: milp.Plan) -> None:
        checked.append(plan)
        verify(problem, plan)

    verify = milp.verify
    for module in (milp, solving):
        monkeypatch.setattr(module, "verify", counted)
    core = Core()
    core.arrive(registration("1"))
    core.pool("n1", "n2")
    assert core.nodes("1") == {"n1", "n2"}
    assert len(checked) == 2  # `Core` takes every step twice
    assert checked[0] is not checked[1]
    assert checked[0].reasons == {}  # the daemon writes its own
    checked.clear()
    core.solve = lambda *arguments, **options: replace(milp.solve(*arguments, **options))
    core.pool("n1", "n2", "n3")
    assert len(checked) == 4  # what another solver than `milp.solve` says, the core checks itself
    assert checked[0] == checked[1]


def test_L4_a_trainer_below_nodes_min_gives_back_the_rest_and_comes_back_later() -> None:
    core = Core()
    core.arrive(registration("1", nodes_min=2))
    core.pool("n1", "n2")
    core.place_all()
    core.pool("n2", out={"n1": OUT})
    assert core.nodes("1") == set()
    assert any(
        says(
            text,
            "core.sentences.suspended",
            nodes="n2",
            why=wording("core.sentences.too_few_left", left="1 node", needed=2),
        )
        for text in core.sentences()
    )
    for item in core.leases("1", live=False):
        core.report("1", lease(item.id, "ended"))
    core.pilots.clear()
    core.report("1", SuspendReport(NOW_S, 40))
    core.pool("n2", "n5")
    assert core.nodes("1") == {"n2", "n5"}
    assert any(
        re.match("train\\-1 " + pattern("core.sentences.resumes", count="2 nodes", nodes="n[2,5]"), text)
        for text in core.sentences()
    )


def test_L4_a_trainer_below_nodes_min_is_not_left_waiting_while_growth_is_on_hold() -> None:
    core = Core()
    core.arrive(registration("1", nodes_min=2))
    core.pool("n1", "n2")
    core.pool("n2", out={"n1": OUT}, hold="job 9 waits without a plan")
    assert core.nodes("1") == set()


def test_allowed_sizes_are_kept_when_a_node_is_lost() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=8, sizes=(2, 4, 8)))
    core.pool("n1", "n2", "n3", "n4")
    core.pool("n1", "n2", "n3", hold="job 9 waits")
    assert len(core.nodes("1")) == 2


def test_trainers_beyond_pj_max_wait_first_come_first_served() -> None:
    core = Core(Settings().changed(pj_max=1))
    core.pool("n1", "n2", "n3", "n4")
    core.arrive(registration("1", nodes_max=2))
    core.arrive(registration("2", nodes_max=2), after_s=1)
    assert (len(core.nodes("1")), len(core.nodes("2"))) == (2, 0)
    core.apply(Configured(core.time_s, Settings().changed(pj_max=2)))
    assert len(core.nodes("2")) == 2
    core.apply(Configured(core.time_s, Settings().changed(pj_max=1)))
    assert (len(core.nodes("1")), len(core.nodes("2"))) == (2, 0)
    core.finish("1")
    core.pool("n1", "n2", "n3", "n4")
    assert len(core.nodes("2")) == 2


def test_a_refused_placement_leaves_its_node_alone_for_a_time_that_doubles() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=2))
    core.pool("n2", "n3")
    core.place_all()
    core.arrive(registration("2", nodes_max=1))
    waits = []
    core.pool("n1", "n2", "n3")
    for _ in range(4):
        (item,) = core.leases("2")
        core.report("2", lease(item.id, "refused", reason="node busy"))
        refused_s = core.time_s
        while not core.leases("2"):
            core.pool("n1", "n2", "n3", after_s=0.5)
        waits.append(core.time_s - refused_s)
    assert waits == sorted(waits)
    assert waits[0] <= 1.5
    assert waits[3] >= 4 * waits[0]


def test_a_trainer_that_is_refused_everywhere_stops_taking_nodes_that_others_could_use() -> None:
    core = Core()
    limited = registration("1", nodes_max=4, curve=((1, 1000.0), (4, 4000.0)))
    other = registration("2", nodes_max=4, curve=((1, 1.0), (4, 4.0)))
    core.arrive(limited)
    core.arrive(other, after_s=1)
    names = [f"n{number}" for number in range(1, 5)]
    for _ in range(60):
        core.pool(*names)
        for item in core.leases("1"):
            core.report("1", lease(item.id, "refused", reason="QOSMaxJobsPerUserLimit"))
        core.place_all()
        for item in core.leases("2", live=False):
            del core.pilots[item.job_id]
            core.report("2", lease(item.id, "ended"))
    assert len(core.nodes("2")) >= 3


def test_three_different_pilots_failing_on_a_node_put_it_into_quarantine() -> None:
    core = Core(Settings().changed(quarantine_after=3, quarantine_s=300))
    crash = CrashReport(NOW_S, "n1", 1, "bus error")
    for number in range(3):
        core.arrive(registration(f"{number}", nodes_max=1), after_s=1)
        core.pool("n1")
        core.place_all()
        core.pool("n1")
        assert "n1" not in core.state.quarantined
        core.report(f"{number}", crash, crash)  # the same pilot counts once
        (item,) = core.leases(f"{number}")
        core.pilots.clear()
        core.report(f"{number}", lease(item.id, "ended"))
        core.finish(f"{number}")
    assert core.state.quarantined == {"n1": core.time_s + 300}
    core.pool(after_s=301)
    assert not core.state.quarantined


def test_a_lease_whose_pilot_is_gone_from_two_snapshots_ends() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=1))
    core.pool("n1")
    core.place_all()
    core.pool("n1")
    (before,) = core.leases("1")
    assert before.observed
    core.pilots.clear()
    core.pool("n1")
    assert core.leases("1") == [core.state.leases[before.id]]
    core.pool("n1")
    assert before.id not in core.state.leases


def test_a_lease_that_nobody_places_is_revoked() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=1))
    core.pool("n1")
    (item,) = core.leases("1")
    for _ in range(31):
        core.pool("n1")
    assert not core.state.leases[item.id].live


def test_a_pilot_is_given_back_gracefully_before_its_time_limit_ends() -> None:
    core = Core(Settings().changed(pilot_limit_s=120))
    core.arrive(registration("1", nodes_max=1))
    core.pool("n1")
    core.place_all()
    for _ in range(109):
        core.pool("n1")
    assert core.leases("1")
    core.pool("n1", after_s=2)
    (item,) = core.leases("1", live=False)
    assert not item.vacate


def test_a_lost_driver_ends_its_trainer_and_its_pilots_are_cancelled() -> None:
    core = Core()
    core.arrive(registration("1"))
    core.arrive(registration("2", nodes_max=1), after_s=1)
    core.pool("n1", "n2")
    core.place_all()
    core.job_ids = frozenset({"2"})  # job 2 still runs: its driver is only slow
    cancelled = set()
    for _ in range(70):
        actions = core.pool("n1", "n2")
        cancelled |= {(action.job_id, action.trainer) for action in of(actions, CancelPilot)}
    assert core.state.trainers["1"].state == "finished"
    assert core.state.trainers["2"].active
    assert {trainer_id for _, trainer_id in cancelled} == {"1"}


def test_a_returning_driver_keeps_the_leases_it_holds_and_fences_the_older_one() -> None:
    core = Core()
    core.arrive(registration("1"))
    core.pool("n1", "n2")
    core.place_all()
    kept, lost = core.leases("1")
    core.arrive(registration("1"), Held(kept.id, kept.node, kept.job_id), Held("n7.900", "n7", "55"))
    assert core.state.trainers["1"].epoch == 2
    assert kept.id in core.state.leases
    assert lost.id not in core.state.leases
    assert [one.id for one in core.state.trainers["1"].unknown_leases] == ["n7.900"]
    core.pool("n1", "n2", "n3")
    assert all(int(item.id.rpartition(".")[2]) > 900 for item in core.leases("1") if item.id != kept.id)
    core.report("1", lease("n7.900", "ended"))
    assert core.state.trainers["1"].unknown_leases == ()


def test_L3_a_pilot_of_a_known_trainer_that_belongs_to_no_lease_is_cancelled_after_a_grace() -> None:
    core = Core()
    core.arrive(registration("1"))
    core.pilots, core.owners = {"55": "n1", "56": "n2"}, {"55": "1", "56": "of-another-daemon"}
    cancelled = []
    for _ in range(17):
        cancelled.append([action.job_id for action in of(core.pool(), CancelPilot)])
    assert cancelled == [[]] * 16 + [["55"]]


def test_a_lease_of_another_trainer_is_not_adopted() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=1))
    core.pool("n1")
    (item,) = core.leases("1")
    core.arrive(registration("2"), Held(item.id, "n1", "55"))
    assert core.state.leases[item.id].trainer == "1"
    assert [one.id for one in core.state.trainers["2"].unknown_leases] == [item.id]


def test_a_lease_id_never_comes_back() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=1))
    seen = set()
    for _ in range(5):
        while not core.leases("1"):
            core.pool("n1", after_s=5)
        (item,) = core.leases("1")
        assert item.id not in seen
        seen.add(item.id)
        core.report("1", lease(item.id, "refused"))


def test_S8_no_more_pilots_are_asked_for_in_a_minute_than_allowed() -> None:
    core = Core(Settings().changed(submit_rate_per_min=3))
    core.arrive(registration("1", nodes_max=8))
    names = [f"n{number}" for number in range(1, 9)]
    counts = []
    for _ in range(130):
        counts.append(len(granted(core.pool(*names))))
        core.place_all()
    assert sum(counts[:59]) == 3
    assert len(core.nodes("1")) == 8


def test_S10_progress_never_goes_back() -> None:
    core = Core()
    core.arrive(registration("1"))
    progress = ProgressReport(NOW_S, step=50, samples=1600.0, samples_per_s=30.0, nodes=2, loss=0.5)
    core.report("1", progress)
    core.report("1", replace(progress, step=40, samples=1280.0))
    now = core.state.trainers["1"]
    assert (now.step, now.samples, now.loss) == (50, 1600.0, 0.5)


def test_S10_node_seconds_are_counted_once_and_split_by_what_the_pilots_do() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=2))
    core.pool("n1", "n2", "n3")
    core.place_all("placed")
    core.pool("n1", "n2", "n3")
    before = core.state.usage
    first, _ = core.leases("1")
    core.report("1", lease(first.id, "working"))
    core.pool("n1", "n2", "n3", after_s=2)
    after = core.state.usage
    assert after.pool_node_seconds - before.pool_node_seconds == 6.0
    assert after.used_node_seconds - before.used_node_seconds == 4.0
    assert after.training_node_seconds - before.training_node_seconds == 2.0


def test_S10_time_in_which_nobody_looked_is_not_counted() -> None:
    core = Core(Settings().changed(stale_after_s=10))
    core.arrive(registration("1"))
    core.pool("n1")
    before = core.state.usage
    core.pool("n1", after_s=3600)
    assert core.state.usage == before


def test_reports_teach_the_curve_and_the_stalls() -> None:
    core = Core()
    core.arrive(registration("1"))
    core.report("1", ProgressReport(NOW_S, step=1, samples=10.0, samples_per_s=30.0, nodes=2))
    core.report("1", ResizeReport(NOW_S, 2, 3, "up", stall_s=4.0))
    core.report("1", ResizeReport(NOW_S, 3, 1, "crash", stall_s=9.0, steps_lost=5))
    now = core.state.trainers["1"]
    assert now.knowledge.seen == ((2, 30.0),)
    assert now.knowledge.up_stalls == ((2, 0.0, 4.0),)
    assert now.knowledge.down_stalls == ()
    assert (now.resizes, now.steps_lost) == (2, 5)


def test_a_requeued_trainer_starts_again_behind_the_others() -> None:
    core = Core()
    core.arrive(registration("1"))
    core.finish("1", exit_code=3)
    core.arrive(registration("2"), after_s=1)
    core.arrive(registration("1"), after_s=1)
    assert list(core.state.trainers) == ["2", "1"]
    assert core.state.trainers["1"].exit_code is None


def test_a_finished_trainer_is_forgotten_after_an_hour() -> None:
    core = Core()
    core.arrive(registration("1"))
    core.finish("1")
    core.pool("n1", after_s=3500)
    assert "1" in core.state.trainers
    core.pool("n1", after_s=200)
    assert "1" not in core.state.trainers


def test_events_about_trainers_that_are_not_known_change_nothing() -> None:
    core = Core()
    core.report("9", lease("n1.1", "ended"))
    core.finish("9")
    assert not core.state.trainers


def test_nodes_that_slurm_takes_one_by_one_are_not_lent_again_before_the_next_snapshot() -> None:
    core = Core()
    core.arrive(registration("1"))
    core.arrive(registration("2"))
    core.pool("n1", "n2", "n3", "n4")
    core.place_all()
    for item in [*core.leases("1"), *core.leases("2")]:
        actions = core.report(item.trainer, lease(item.id, "leaving"), lease(item.id, "ended"))
        core.pilots.pop(item.job_id or "", None)
        assert granted(actions) == []
    busy = {name: PoolNode(name, "ALLOCATED", False, "runs a job") for name in ("n1", "n2", "n3", "n4")}
    assert granted(core.pool(out=busy)) == []


def test_a_node_is_not_traded_for_a_gain_that_its_warm_up_eats() -> None:
    def plan_for(warm_up_s: float) -> set[str]:
        core = Core(Settings().changed(objective="throughput"))
        free: Any = {"up_cost_s": 0.0, "down_cost_s": 0.0}
        core.arrive(registration("1", nodes_max=2, curve=((1, 100.0), (2, 200.0)), **free))
        core.pool("n1", "n2", "n3")
        core.place_all()
        core.arrive(registration("2", nodes_max=2, curve=((1, 100.0), (2, 206.0)), warm_up_s=warm_up_s, **free))
        return {item.node for item in core.leases("1", live=False)}

    assert plan_for(warm_up_s=0.0)
    assert not plan_for(warm_up_s=12.0)


def test_regression_a_node_that_slurm_preempted_was_lent_again_before_the_job_had_it() -> None:
    core = Core()
    core.arrive(registration("1"))
    core.pool("n1", "n2")
    core.place_all()
    (taken,) = (item for item in core.leases("1") if item.node == "n2")
    core.report("1", lease(taken.id, "working"), lease(taken.id, "leaving"), lease(taken.id, "ended"))
    core.pilots.pop(taken.job_id or "", None)
    for _ in range(4):
        assert granted(core.pool("n1", "n2")) == []
    assert {item.node for item in granted(core.pool("n1", "n2", after_s=2.0))} == {"n2"}


def test_regression_an_idle_node_was_lent_while_a_job_that_had_just_preempted_counted_on_it() -> None:
    core = Core()
    core.arrive(registration("1"))
    busy = {"n1": PoolNode("n1", "ALLOCATED", False, "runs a job")}
    for _ in range(2):
        assert granted(core.pool("n2", "n3", out=busy, counted_on={"n2", "n3"})) == []
    assert granted(core.arrive(registration("2"))) == [], "nor between two snapshots"
    assert says(" ".join(core.sentences()), "core.sentences.settling")
    assert {item.node for item in granted(core.pool("n2", "n3", out=busy, counted_on={"n2"}))} == {"n3"}
    assert {item.node for item in granted(core.pool("n2", "n3", out=busy))} == {"n2"}


def test_a_node_on_which_a_job_counts_stays_with_the_trainer_that_has_it() -> None:
    core = Core()
    core.arrive(registration("1"))
    core.pool("n1", "n2")
    core.place_all()
    core.pool("n1", "n2", counted_on={"n1", "n2"})
    assert core.nodes("1") == {"n1", "n2"}


def test_regression_a_driver_that_said_that_it_leaves_kept_everybody_from_growing() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=2, user="mallory"))
    core.pool("n1", "n2", "n3", "n4")
    core.place_all()
    core.pool("n1", "n2", "n3", "n4")
    left = core.leases("1")[0]
    core.report("1", lease(left.id, "working"), lease(left.id, "leaving"))
    lent = {item.node for item in granted(core.arrive(registration("2")))}
    assert lent == {"n1", "n2"}, "a driver's word concerns its own node alone"
