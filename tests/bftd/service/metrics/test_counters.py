"""What a service's metrics say of what happens to it, by its real core and ledger in simulated time."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.core.model.classes import NodeClass
from bftd.core.model.domain import Earmark, EarmarkOver, PoolNode, PoolView, State
from bftd.core.model.events import PoolObserved, Registered
from bftd.core.model.pause import Pause
from bftd.ledger.history.quota import HistoryQuota
from bftd.protocol.reports import ProgressReport, ResizeReport
from bftd.service import clock as clocks
from bftd.service.metrics import gauges
from bftd.service.metrics.counters import FAILURES, STALL_MOST_S, STEPS_LOST_MOST, Counters
from bftd.service.metrics.exposition import Exposition
from bftd.service.service import Service
from elastic.backends import KINDS
from slurm_plugin.clients.client import OUTCOMES
from slurm_plugin.read.types import Snapshot
from tests.bftd.builders import job, lease, node, registration, reported, trainer
from tests.bftd.ledger.test_file import Clock, see, start
from tests.support.messages import wording


class Watched:
    """A service that is measured, its clock, and what it shows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = Clock()
        self.begin()

    def begin(self) -> None:
        """Start, or start again."""
        self.measured = Counters(self.clock)
        self.service: Service = start(self.folder / "ledger", self.clock)
        self.service.meters = self.measured

    def value(self, name: str, **labels: str) -> float | None:
        """A sample as a scrape has it."""
        for family in Exposition(self.measured, self.service.figures(), "1").collect():
            for sample in family.samples:
                if sample.name == f"bftd_{name}" and sample.labels == labels:
                    return float(sample.value)
        return None

    def working(self) -> str:
        """Let a trainer work on n1, the only node; returns the lease's id."""
        self.service.apply(Registered(self.clock.now, registration("1", nodes_max=1)))
        see(self.service, self.clock, "n1")
        see(self.service, self.clock, "n1")
        (only,) = self.service.core.leases.values()
        told = (lease(only.id, "placed", job_id="71"), lease(only.id, "working"))
        self.service.apply(reported(self.clock.now, "1", *told))
        see(self.service, self.clock, "n1", n1="71")
        return only.id


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_a_lease_is_counted_from_its_grant_to_the_regular_job_that_gets_its_node(watched: Watched) -> None:
    id_ = watched.working()
    assert watched.value("lease_changes_total", change="granted") == 1.0
    assert watched.value("leases", backend="horovod", state="working") == 1.0
    assert watched.value("nodes", state="leased", node_class="cpu4-1G") == 1.0
    watched.clock.now += 1.0
    watched.service.apply(reported(watched.clock.now, "1", lease(id_, "leaving")))
    assert watched.value("give_back_oldest_seconds") == 0.0
    watched.clock.now += 6.0  # longer than give_back_bound_s
    see(watched.service, watched.clock, "n1", n1="71")
    assert watched.value("give_back_oldest_seconds") == 7.0
    assert watched.value("overdue_nodes") == watched.value("give_backs_overdue_total") == 1.0
    watched.service.apply(reported(watched.clock.now, "1", lease(id_, "ended")))
    assert watched.value("give_back_duration_seconds_sum") == pytest.approx(7.0)
    assert watched.value("give_backs_late_total") == 1.0
    watched.clock.now += 1.0
    regular = job("9", "RUNNING", nodes=("n1",))
    watched.service.observe(Snapshot(watched.clock.now, {"n1": node("n1", "ALLOCATED")}, (regular,), ()))
    assert watched.value("handover_duration_seconds_sum") == pytest.approx(8.0)
    assert watched.value("nodes", state="regular", node_class="cpu4-1G") == 1.0


def test_a_node_that_a_pause_asks_back_is_awaited_by_no_job(watched: Watched) -> None:
    id_ = watched.working()
    watched.service.pause((Pause("node", "n1", "root", watched.clock.now, "a new disk", release=True),))
    watched.service.apply(reported(watched.clock.now, "1", lease(id_, "ended")))
    watched.clock.now += 1.0
    regular = job("9", "RUNNING", nodes=("n1",))
    watched.service.observe(Snapshot(watched.clock.now, {"n1": node("n1", "ALLOCATED")}, (regular,), ()))
    assert watched.value("handover_duration_seconds_count") == 0.0
    assert watched.value("pauses", kind="node") == 1.0


def test_a_clock_that_is_set_moves_no_age(watched: Watched) -> None:
    elapsed_s = [watched.clock.now]
    watched.service._clock = clocks.WallClock(watched.clock, lambda: elapsed_s[0])
    id_ = watched.working()  # which takes three seconds of both clocks
    watched.service.apply(reported(watched.clock.now, "1", lease(id_, "leaving")))
    elapsed_s[0] += 3.0
    watched.clock.now += 3.0 - 7200.0
    assert watched.value("give_back_oldest_seconds") == pytest.approx(3.0, abs=0.1)
    assert watched.value("events_total", event="clock_set") == 1.0
    watched.service.apply(reported(watched.clock.now, "1", lease(id_, "ended")))
    watched.clock.now, elapsed_s[0] = watched.clock.now + 1.0, elapsed_s[0] + 1.0
    regular = job("9", "RUNNING", nodes=("n1",))
    watched.service.observe(Snapshot(watched.clock.now, {"n1": node("n1", "ALLOCATED")}, (regular,), ()))
    assert watched.value("handover_duration_seconds_sum") == pytest.approx(4.0, abs=0.1)


def test_S10_node_seconds_go_on_after_a_restart_and_what_is_measured_begins_anew(watched: Watched) -> None:
    watched.working()
    for _ in range(5):
        see(watched.service, watched.clock, "n1", n1="71")
    held_s, solved = watched.value("held_node_seconds_total"), watched.value("decision_duration_seconds_count")
    assert held_s == watched.value("used_node_seconds_total") == pytest.approx(5.0)
    parts_s = [watched.value(f"{what}_node_seconds_total") for what in ("training", "starting", "resizing")]
    assert sum(parts_s) == held_s
    assert solved
    watched.service.ledger.close()
    watched.clock.now += 60.0
    watched.begin()
    assert watched.value("held_node_seconds_total") == held_s
    assert [watched.value(f"{what}_node_seconds_total") for what in ("training", "starting", "resizing")] == parts_s
    assert watched.value("decision_duration_seconds_count") == 0.0


def test_what_is_counted_of_earmarks_has_its_old_name_too(watched: Watched) -> None:
    earmark = Earmark("9", ("n1", "n2"), watched.clock.now + 1.0)
    for view in (
        PoolView(1, watched.clock.now + 1.0, earmarks={"9": earmark}, wary="too many were wasted"),
        PoolView(2, watched.clock.now + 3.0, earmarks_over=(EarmarkOver(earmark, "started"),)),
    ):
        watched.service.apply(PoolObserved(view.time_s, view))
    for new, old in (
        ("earmarks_made_total", "rooms_made_total"),
        ("earmarks_started_total", "rooms_started_total"),
        ("earmark_start_duration_seconds_sum", "room_start_duration_seconds_sum"),
        ("earmark_node_seconds_total", "room_node_seconds_total"),
    ):
        assert watched.value(new) == watched.value(old) != 0.0
    for new, old in (
        ("earmarks", "rooms"),
        ("earmarks_wary", "rooms_wary"),
        ("earmarks_wasted_total", "rooms_in_vain_total"),
        ("earmark_wasted_node_seconds_total", "room_vain_node_seconds_total"),
    ):
        assert watched.value(new) == watched.value(old) == 0.0


def test_each_solution_is_timed_under_its_solver(watched: Watched) -> None:
    watched.working()
    text = Exposition(watched.measured, watched.service.figures(), "1").encoded()[0].decode()
    assert 'bftd_solve_duration_seconds_count{solver="exact",status="optimal"}' in text
    assert watched.value("solver_failures_total") == 0.0


def test_what_a_driver_makes_up_spoils_no_sum(watched: Watched) -> None:
    watched.working()
    now_s = watched.clock.now
    huge = ResizeReport(now_s, 1, 1, "up", stall_s=1e15, steps_lost=10**15)
    watched.service.apply(reported(now_s, "1", huge, ProgressReport(now_s, step=1, samples=1.0, steps_lost=10**15)))
    assert watched.value("resize_stall_seconds_sum", kind="up") == STALL_MOST_S
    assert watched.value("steps_lost_total") == STEPS_LOST_MOST
    plain = ResizeReport(now_s, 1, 1, "crash")
    watched.service.apply(reported(now_s, "1", plain))
    assert watched.value("resizes_total", kind="crash") == 1.0
    assert watched.value("resize_stall_seconds_count", kind="crash") == 0.0


def test_what_the_ledger_leaves_out_is_counted_all_the_same(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    watched.working()
    monkeypatch.setattr(HistoryQuota, "is_spent", lambda *_: True)
    watched.service.apply(reported(watched.clock.now, "1", ResizeReport(watched.clock.now, 1, 1, "up", stall_s=1.0)))
    assert watched.value("resizes_total", kind="up") == 1.0
    assert "resize" not in {event["kind"] for event in watched.service.ledger.events(0, 1000)}


def test_a_back_end_that_bftd_does_not_have_counts_as_another(watched: Watched) -> None:
    watched.service.apply(Registered(watched.clock.now, registration("1", backend="mine")))
    for _ in range(2):
        see(watched.service, watched.clock, "n1")
    assert watched.value("leases", backend="other", state="granted") == 1.0


def test_a_step_that_cannot_be_measured_is_taken_all_the_same(
    watched: Watched, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bftd.service.metrics.counters.EVENTS", {})
    watched.working()
    assert len(watched.service.core.leases) == 1
    assert [record.message for record in caplog.records if record.exc_info] == [
        wording("metrics.measured.not_measured")
    ]


def test_the_age_of_the_snapshot_goes_by_a_clock_that_nobody_sets() -> None:
    elapsed_s = [50.0]
    measured = Counters(lambda: elapsed_s[0])
    elapsed_s[0] += 5.0
    assert measured.snapshot_age_s == 5.0  # none yet: since the start
    measured.snapshot(0.1, 0.01)
    elapsed_s[0] += 2.0
    measured.snapshot(0.1, None)
    assert measured.snapshot_age_s == 2.0


@settings(max_examples=25, deadline=None)
@given(st.text(min_size=1, max_size=30), st.text(min_size=1, max_size=30))
def test_no_label_is_what_a_user_chooses(name: str, backend: str) -> None:
    """The series of a strange trainer, route and command are those of any other."""
    known = trainer("1")
    odd = dataclasses.replace(known, request=dataclasses.replace(known.request, name=name, backend=backend, user=name))
    measured = Counters()
    measured.answered(name, "", 404)
    assert shown(measured, State(trainers={"1": odd})) == shown(answered(), State(trainers={"1": known}))


def answered() -> Counters:
    measured = Counters()
    measured.answered("GET", "", 404)
    return measured


def shown(measured: Counters, state: State) -> set[tuple[str, str]]:
    """Every series: its name and labels."""
    found = gauges.families(figures(state), "1", 0.0)
    families = (*found, *measured.registry.collect())
    return {(sample.name, str(sample.labels)) for family in families for sample in family.samples}


def figures(state: State, failure: str = "", now_s: float = 1000.0) -> gauges.Figures:
    size = {"bytes": 1, "max_bytes": 10, "oldest_event_s": None, "full": False}
    return gauges.Figures(state, now_s, "live", size, failure, 0, ())


def test_every_way_in_which_a_command_of_slurm_fails_is_counted_from_the_start() -> None:
    assert {"ok", *FAILURES} == set(OUTCOMES)
    measured = Counters()
    errors = {"command": "squeue", "outcome": "unanswered"}
    assert measured.registry.get_sample_value("bftd_slurm_command_errors_total", errors) == 0.0
    measured.slurm_called("squeue", "unanswered", 5.0)
    measured.slurm_called("squeue", "ok", 0.1)
    assert measured.registry.get_sample_value("bftd_slurm_command_errors_total", errors) == 1.0


def test_only_the_largest_classes_have_a_name_of_their_own() -> None:
    kinds = {f"c{n}": NodeClass(f"c{n}", 100 - n, {}, frozenset(), frozenset(), ()) for n in range(40)}
    nodes = {f"n{n}": PoolNode(f"n{n}", "IDLE", True, "is idle", node_class=f"c{n}") for n in range(40)}
    state = State(pool=PoolView(1, 1000.0, nodes=nodes, classes=kinds))
    (family,) = (item for item in gauges.families(figures(state), "1", 0.0) if item.name == "bftd_nodes")
    assert len({sample.labels["node_class"] for sample in family.samples}) == gauges.CLASSES_MOST + 1
    assert sum(sample.value for sample in family.samples) == 40.0
    others = {"state": "idle", "node_class": gauges.OTHERS}
    assert next(sample.value for sample in family.samples if sample.labels == others) == 40 - gauges.CLASSES_MOST


def test_the_back_ends_that_are_told_apart_are_those_that_there_are() -> None:
    assert set(gauges.BACKENDS) == set(KINDS)


SEEN = PoolView(1, 1000.0)


@pytest.mark.parametrize(
    ("state", "failure", "now_s", "why"),
    [
        (State(pool=SEEN), "", 1000.0, set()),
        (State(), "", 1000.0, {"unseen"}),
        (State(pool=SEEN), "", 2000.0, {"stale"}),
        (State(pool=SEEN), "no space", 1000.0, {"ledger"}),
        (State(pool=dataclasses.replace(SEEN, hold="no", refused="no")), "", 1000.0, {"partition"}),
        (State(pool=dataclasses.replace(SEEN, hold="a"), alarms={"daemon": "a"}), "", 1000.0, {"other_daemon"}),
        (State(pool=dataclasses.replace(SEEN, hold="40 of 40 lent nodes")), "", 1000.0, {"unheard"}),
        (State(pool=SEEN, pauses={"all:": Pause("all", "", "root", 0.0, "")}), "", 1000.0, {"paused"}),
    ],
)
def test_growth_is_blocked_for_its_reason_and_for_no_other(
    state: State, failure: str, now_s: float, why: set[str]
) -> None:
    blocked = gauges.blocks(figures(state, failure, now_s))
    assert {name for name, is_so in blocked.items() if is_so} == why
