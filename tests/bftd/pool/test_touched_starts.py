"""Which starts of regular jobs pilots touched, and since when these could have started without them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.config.keys import PoolConfig
from bftd.core.model.delays import TouchedStart
from bftd.core.model.domain import PoolView
from bftd.pool.harvest import Harvest
from bftd.pool.membership import observe
from slurm_plugin.read.types import Job, Scheduler, Snapshot
from tests.bftd.builders import PARTITION, Pool, job, node, pilot

NAMES = [f"n{number}" for number in range(1, 5)]


class Slurm(Pool):
    """Nodes of which some have pilots; `look` takes a snapshot."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(PoolConfig(debounce_polls=1, **fields))

    def look(
        self,
        *jobs: Job,
        pilots: tuple[str, ...] = (),
        leased: tuple[str, ...] = (),
        after_s: float = 1.0,
        scheduler: Scheduler | None = None,
    ) -> PoolView:
        """A snapshot with pilots on these nodes, and leases on them and others."""
        self.time_s += after_s
        busy = {name for one in jobs for name in one.nodes if one.state != "PENDING"} | set(pilots)
        nodes = {name: node(name, "ALLOCATED" if name in busy else "IDLE") for name in NAMES}
        shown = (*(pilot(f"7{name}", name) for name in pilots), *jobs)
        snapshot = Snapshot(self.time_s, nodes, shown, (), scheduler=scheduler or Scheduler())
        held: dict[str, str | None] = {name: f"7{name}" for name in {*pilots, *leased}}
        self.memory, view = observe(self.memory, snapshot, self.config, Harvest.of(PARTITION), held, {})
        return view


def waits(slurm: Slurm, count: int = 4, **fields: Any) -> Job:
    """A job that waits since the look before the next."""
    return job("9", node_count=count, **{"submit_s": slurm.time_s, **fields})


def runs(*nodes: str, start_s: float, **fields: Any) -> Job:
    return job("9", "RUNNING", nodes=nodes, start_s=start_s, **fields)


def test_a_job_that_comes_and_starts_between_two_looks_was_delayed_since_its_submission() -> None:
    slurm = Slurm()
    slurm.look(pilots=("n1", "n2"))
    view = slurm.look(runs("n1", "n3", start_s=1003.0, submit_s=1002.0), pilots=("n2",), after_s=3.0)
    assert view.touched == (TouchedStart("9", ("n1", "n3"), 1002.0, 1003.0),)
    assert view.touched[0].delay_s == 1.0
    assert not slurm.look(runs("n1", "n3", start_s=1003.0, submit_s=1002.0), pilots=("n2",)).touched, "it counts once"


@pytest.mark.parametrize("ahead_s", [0.0, 30.0])
def test_a_start_counts_once_where_it_may_be_after_the_last_look_and_its_lease_has_not_ended(ahead_s: float) -> None:
    slurm = Slurm()
    slurm.time_s += 0.4
    slurm.look(pilots=("n1",))
    first = job("9_1", "RUNNING", nodes=("n1",), start_s=1002.0 + ahead_s, submit_s=1002.0 + ahead_s)
    rest = job("9_[2-3]", submit_s=1001.0, start_s=1002.0, sched_nodes=("n2",))
    told = [slurm.look(first, rest, pilots=("n2",), leased=("n1", "n2")).touched for _ in range(3)]
    assert [len(starts) for starts in told] == [1, 0, 0]


def test_what_a_job_waits_for_once_its_earmark_is_free_of_pilots_is_not_their_delay() -> None:
    """A job with --switches, say: its user could stop the site's loans for an hour."""
    slurm, scheduler = Slurm(), Scheduler(read=True, interval_s=30.0, cycle_s=5.0)
    slurm.look(pilots=tuple(NAMES))
    waiting = job("9", node_count=1, submit_s=slurm.time_s)
    (left,) = slurm.look(waiting, pilots=tuple(NAMES), scheduler=scheduler).earmarks["9"].nodes
    others = tuple(name for name in NAMES if name != left)
    slurm.look(waiting, pilots=others, scheduler=scheduler)
    slurm.look(waiting, pilots=others, scheduler=scheduler)
    free_s = slurm.time_s
    for _ in range(30):
        slurm.look(waiting, pilots=others, scheduler=scheduler, after_s=2.0)
    late = job("9", "RUNNING", nodes=(left,), start_s=slurm.time_s + 1.0, submit_s=waiting.submit_s)
    (start,) = slurm.look(late, pilots=others, scheduler=scheduler).touched
    assert start.start_s == slurm.time_s
    assert start.since_s is not None
    assert start.delay_s == pytest.approx(free_s + 30.0 + 2 * 5.0 - start.since_s)


def test_a_job_that_waited_for_long_was_delayed_since_the_last_look_at_which_it_could_not_start() -> None:
    slurm = Slurm()
    waiting = job("9", node_count=4)
    busy = job("8", "RUNNING", nodes=("n3", "n4"), start_s=0.0)
    slurm.look(waiting, busy, pilots=("n1",))
    last_s = slurm.time_s
    slurm.look(waiting, pilots=("n1",), after_s=2.0)
    (start,) = slurm.look(runs(*NAMES, start_s=last_s + 5), after_s=4.0).touched
    assert (start.since_s, start.delay_s) == (last_s, 5.0)


def test_a_start_on_nodes_that_no_pilot_had_is_not_counted() -> None:
    slurm = Slurm()
    slurm.look(pilots=("n1",))
    assert not slurm.look(runs("n2", "n3", start_s=1002.0, submit_s=1001.0), pilots=("n1",)).touched


def test_a_job_in_an_earmark_that_no_pilot_had_to_leave_is_not_counted() -> None:
    slurm = Slurm()
    slurm.look(pilots=("n1",))
    slurm.look(waits(slurm, 2), pilots=("n1",))
    assert not slurm.look(runs("n2", "n3", start_s=1030.0), pilots=("n1",), after_s=9.0).touched


def test_where_only_backfill_starts_a_job_its_delay_begins_with_the_cycle_that_could_have_started_it() -> None:
    slurm = Slurm()
    first = job("8", node_count=4, priority=9, time_limit_s=36000.0)
    busy = job("7", "RUNNING", nodes=("n4",), start_s=0.0, time_limit_s=7200.0)
    cycle = Scheduler(interval_s=30.0, cycled_s=1000.0, cycle_s=0.1)
    small = waits(slurm, 3, time_limit_s=600.0, reason="Priority")
    slurm.look(first, busy, pilots=("n1", "n2", "n3"), scheduler=cycle)
    view = slurm.look(first, busy, small, pilots=("n1", "n2", "n3"), scheduler=cycle)
    assert view.earmarks["9"].due_s == 1030.0
    for at_s in range(2, 4):
        slurm.look(first, busy, small, after_s=10.0, pilots=("n3",) if at_s < 3 else (), scheduler=cycle)
    (start,) = slurm.look(first, busy, runs("n1", "n2", "n3", start_s=1031.0), after_s=9.0, scheduler=cycle).touched
    assert (start.since_s, start.delay_s) == (1030.0, 1.0)


def test_a_job_that_is_locked_out_counts_from_when_slurm_was_first_seen_preempting_for_it() -> None:
    slurm = Slurm(earmark=False)
    slurm.look(pilots=("n1", "n2"))
    came_s = slurm.time_s + 1.0
    for _ in range(12):
        now_s = slurm.time_s + 1.0
        slurm.look(waits(slurm, submit_s=came_s, start_s=now_s, sched_nodes=("n1", "n3")), pilots=("n2",))
    (start,) = slurm.look(runs("n1", "n3", "n4", start_s=came_s + 12), pilots=("n2",)).touched
    assert start.delay_s == 12.0


def test_each_task_of_an_array_counts_for_itself() -> None:
    slurm = Slurm()
    slurm.look(pilots=("n1", "n2"))
    slurm.look(job("9_[1-3]", submit_s=slurm.time_s, start_s=slurm.time_s + 1, sched_nodes=("n1",)), pilots=("n2",))
    first = job("9_1", "RUNNING", nodes=("n1",), start_s=slurm.time_s + 1)
    view = slurm.look(first, job("9_[2-3]"), pilots=("n2",))
    assert [start.job for start in view.touched] == ["9_1"]
    second = job("9_2", "RUNNING", nodes=("n2",), start_s=slurm.time_s + 1)
    assert [start.job for start in slurm.look(first, second, job("9_[3]")).touched] == ["9_2"]


def test_after_a_gap_between_looks_nobody_knows_the_delay() -> None:
    slurm = Slurm()
    slurm.look(pilots=("n1",))
    (start,) = slurm.look(runs("n1", start_s=slurm.time_s + 50), after_s=60.0).touched
    assert start.delay_s is None


def test_what_ran_before_the_first_look_is_not_counted() -> None:
    assert not Slurm().look(runs("n1", start_s=1000.0), pilots=("n1",)).touched


def test_a_job_beside_a_pilot_that_runs_since_long_does_not_start_now() -> None:
    slurm = Slurm()
    slurm.look(pilots=("n1",))
    assert not slurm.look(runs("n1", start_s=500.0), pilots=("n1",)).touched


def test_another_pilot_on_a_node_is_no_regular_start() -> None:
    slurm = Slurm()
    slurm.look(pilots=("n1",))
    other = pilot("99", "n1", start_s=slurm.time_s + 1.0)
    ending = pilot("7n1", "n1", start_s=slurm.time_s + 1.0)
    ending = job(ending.id, "COMPLETING", partition=(PARTITION,), nodes=("n1",), start_s=slurm.time_s + 1.0)
    assert not slurm.look(other, ending).touched


def test_a_clock_that_is_set_moves_what_is_remembered() -> None:
    slurm = Slurm(earmark=False)
    slurm.look(pilots=("n1", "n2"))
    slurm.look(waits(slurm, start_s=slurm.time_s + 1, sched_nodes=("n1",)), pilots=("n2",))
    slurm.memory, slurm.time_s = slurm.memory.moved(5000.0), slurm.time_s + 5000.0
    (start,) = slurm.look(runs("n1", start_s=slurm.time_s + 1), pilots=("n2",)).touched
    assert start.delay_s == 2.0


@settings(deadline=None, max_examples=200)
@given(
    could_s=st.integers(0, 8),  # when Slurm could have started it had no pilot been there
    late_s=st.integers(0, 20),
    polls_s=st.lists(st.sampled_from([0.5, 1.0, 1.0, 3.0]), min_size=40, max_size=40),
)
def test_no_delay_is_ever_understated(could_s: int, late_s: int, polls_s: list[float]) -> None:
    slurm = Slurm(earmark=False)
    slurm.look(pilots=("n1", "n2"))
    could_at_s, start_at_s = slurm.time_s + could_s, slurm.time_s + could_s + late_s
    looks = 0
    for passed_s in polls_s:
        now_s = slurm.time_s + passed_s
        if now_s >= start_at_s:
            (start,) = slurm.look(runs("n1", "n3", start_s=start_at_s), pilots=("n2",), after_s=passed_s).touched
            assert start.delay_s is not None
            assert start.delay_s >= late_s
            return
        looks += now_s > could_at_s
        shown: dict[str, Any] = {}
        if looks:  # Slurm has preempted: as long as a pilot is there, or the plan shows it, the daemon can know
            shown = {"start_s": now_s, "sched_nodes": ("n1", "n3")}
        slurm.look(job("9", node_count=2, **shown), pilots=("n1", "n2") if not looks else ("n2",), after_s=passed_s)


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING"])
def test_a_job_counts_in_whatever_state_it_is_first_seen(state: str) -> None:
    slurm = Slurm()
    slurm.look(pilots=("n1",))
    assert len(slurm.look(job("9", state, nodes=("n1",), start_s=slurm.time_s + 1)).touched) == 1
