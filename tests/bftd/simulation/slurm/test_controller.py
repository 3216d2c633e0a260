"""The simulated slurmctld: which job starts when and where."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.pool.backfill.model import Booking, Component
from bftd.pool.backfill.order import lines as queue_lines
from bftd.simulation.slurm.controller import Controller
from bftd.simulation.slurm.harvester import Harvester, HarvestSettings
from bftd.simulation.slurm.lines import lines_of
from bftd.simulation.slurm.model import Delays, JobRun, Outage, SimulatedJob, SimulatedPartition, SimulatedSite
from slurm_plugin.read.types import Partition
from tests.bftd.builders import job as plain_job

T0 = 1_800_000_000.0
AT_ONCE = Delays(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, spread=0.0)
DAY_S = 86_400.0


def site(nodes: int = 4, **fields: Any) -> SimulatedSite:
    return replace(SimulatedSite.of(nodes), **{"delays": AT_ONCE, **fields})


def job(number: int, nodes: int, at_s: float = 0.0, run_s: float = 100.0, limit_s: float = 120.0, **fields: Any) -> Any:
    """A job of any nodes; what is no field of it is one of its component."""
    own = {name: fields.pop(name) for name in list(fields) if name not in SimulatedJob.__dataclass_fields__}
    part = Component(**{"allowed": (1 << 40) - 1, "need": nodes, "within": (1 << 40) - 1, **own})
    return SimulatedJob(number, T0 + at_s, run_s, limit_s, part, **fields)


def ran(where: SimulatedSite, *jobs: SimulatedJob, seed: int = 1, phase_s: float = 10.0) -> list[JobRun]:
    return Controller(where, jobs, seed).run(phase_s)


def test_a_job_alone_starts_within_seconds_on_the_smallest_run_of_nodes_that_will_do() -> None:
    holder, wide, small = ran(
        site(8), job(0, 1, required=0b100, allowed=0b100), job(1, 4, 10.0), job(2, 2, 20.0), seed=3
    )
    assert holder.nodes == 0b100
    assert wide.nodes == 0b1111000
    assert small.nodes == 0b11
    assert all(run.wait_s <= 5.0 for run in (holder, wide, small))


def test_the_main_scheduler_lets_no_job_pass_one_that_waits_and_backfill_does() -> None:
    first, wide, small = ran(site(), job(0, 3, run_s=600, limit_s=660), job(1, 4, 10.0), job(2, 1, 20.0), phase_s=59.0)
    assert (first.by, small.by) == ("main", "backfill")
    assert small.start_s == T0 + 59.0
    assert wide.start_s >= first.end_s


def test_backfill_starts_nothing_that_would_delay_a_plan() -> None:
    _, wide, long = ran(site(), job(0, 3, run_s=600, limit_s=660), job(1, 4, 10.0), job(2, 1, 20.0, limit_s=3600.0))
    assert long.start_s > wide.start_s


def test_a_job_that_names_its_nodes_closes_only_those_to_jobs_behind() -> None:
    jobs = job(0, 1, allowed=1, required=1), job(1, 1, 10.0, required=1), job(2, 1, 10.0)
    _, named, behind = ran(site(), *jobs, phase_s=59.0)
    assert named.wait_s > 90.0
    assert (behind.wait_s <= 5.0, behind.by) == (True, "main")


def test_a_job_waits_for_the_jobs_it_depends_on_and_for_its_time() -> None:
    first, after, later = ran(site(), job(0, 1), job(1, 1, after=(0,)), job(2, 1, eligible_s=T0 + 500.0))
    assert first.end_s <= after.start_s <= first.end_s + 5.0
    # its time alone makes nobody look: the main scheduler looks at the whole queue every minute
    assert T0 + 500.0 <= later.start_s <= T0 + 562.0


def test_backfill_looks_within_a_second_once_something_has_changed_after_a_quiet_time() -> None:
    where = site(sched_interval_s=1e6, batch_delay_s=1e6)
    long = job(0, 1, run_s=500.0, limit_s=600.0)
    _, first, second = ran(where, long, job(1, 1, 300.0), job(2, 1, 310.0), phase_s=7.0)
    assert first.by == second.by == "backfill"
    assert first.wait_s <= 1.0
    assert second.start_s == pytest.approx(first.start_s + 30.0, abs=0.1)


def test_a_reservation_keeps_its_nodes_for_its_jobs() -> None:
    booked = Booking(0b11, T0 + 300.0, T0 + 600.0)
    inside, short, long = ran(
        site(2, bookings=(booked,)),
        job(0, 1, booked=0, run_s=60.0),
        job(1, 2, 10.0),
        job(2, 1, 20.0, limit_s=7200.0),
    )
    assert T0 + 300.0 <= inside.start_s <= T0 + 309.0
    assert short.start_s < T0 + 300.0
    assert long.start_s >= T0 + 600.0


def test_what_can_never_start_ends_the_simulation() -> None:
    impossible, possible, dependent = ran(site(), job(0, 9), job(1, 2, 5.0), job(2, 1, 6.0, after=(0,)))
    assert (impossible.start_s, dependent.start_s) == (inf, inf)
    assert possible.start_s < inf


@pytest.mark.parametrize(("youngest", "taken"), [(False, 0b1), (True, 0b1000)])
def test_slurm_takes_pilots_by_their_age(youngest: bool, taken: int) -> None:
    controller = Controller(site(youngest_first=youngest), [job(0, 1)], 1)
    gone: list[int] = []
    for place in range(4):
        controller.at(T0 - 100.0 + place, lambda bit: controller.lend(bit), 1 << place)
    controller.left = gone.append
    (run,) = controller.run(20.0)
    assert (gone, run.nodes) == ([taken], taken)
    assert run.preempted_s is not None


def test_idle_nodes_are_taken_before_those_of_pilots() -> None:
    controller = Controller(site(), [job(0, 2)], 1)
    controller.at(T0 - 1.0, lambda _: controller.lend(0b11))
    (run,) = controller.run(20.0)
    assert (run.nodes, controller.preemptions) == (0b1100, 0)


def test_slurm_does_not_preempt_again_for_a_job_within_the_lock_out() -> None:
    slow = replace(AT_ONCE, give_back_s=1.0, look_after_pilot_s=0.2)
    controller = Controller(site(1, delays=slow), [job(0, 1)], 1)
    controller.at(T0 - 1.0, lambda _: controller.lend(1))
    # another pilot comes just as the first has left
    again = iter([True])

    def back(mask: int) -> None:
        if next(again, False):
            controller.at(controller.now_s + 1.1, lambda _: controller.lend(1))

    controller.left = back
    (run,) = controller.run(20.0)
    assert run.preempted_s is not None
    assert run.start_s >= run.preempted_s + 40.0


streams = st.lists(
    st.tuples(
        st.integers(1, 6), st.floats(0, 300), st.floats(1, 200), st.sampled_from([60.0, 120.0, 600.0]), st.booleans()
    ),
    min_size=1,
    max_size=12,
)


@given(shapes=streams, harvested=st.booleans(), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_no_node_has_two_jobs_and_every_job_runs_once_on_nodes_it_may_use(
    shapes: list[tuple[int, float, float, float, bool]], harvested: bool, seed: int
) -> None:
    where = replace(SimulatedSite.of(8), bookings=(Booking(0b10000000, T0 + 100.0, T0 + 200.0),))
    times_s = sorted(shape[1] for shape in shapes)
    jobs = [
        job(number, size, times_s[number], min(run_s, limit_s), limit_s, contiguous=near)
        for number, (size, _, run_s, limit_s, near) in enumerate(shapes)
    ]

    def courses() -> list[JobRun]:
        controller = Controller(where, jobs, seed)
        if harvested:
            Harvester(controller, HarvestSettings()).begin(T0 - 5.0)
        return controller.run()

    runs = courses()
    assert all(run.start_s < inf for run in runs)
    assert all(run.nodes.bit_count() == run.job.component.need for run in runs)
    assert all(run.start_s >= run.job.submit_s for run in runs)
    for one in runs:
        for other in runs:
            if one is not other and one.start_s < other.end_s and other.start_s < one.end_s:
                assert not one.nodes & other.nodes
        if one.nodes & 0b10000000:
            assert one.start_s + one.job.limit_s <= T0 + 100.0 or one.start_s >= T0 + 200.0
    assert [(run.start_s, run.nodes) for run in runs] == [(run.start_s, run.nodes) for run in courses()]


def test_a_tier_comes_before_the_order_of_submission_and_a_partition_keeps_to_its_nodes() -> None:
    parts = SimulatedPartition(0b1111), SimulatedPartition(0b1111, tier=10), SimulatedPartition(0b11)
    holder, low, high, half = ran(
        site(partitions=parts),
        job(0, 4, partitions=(0,)),
        job(1, 4, 10.0, partitions=(0,)),
        job(2, 3, 20.0, partitions=(1,)),
        job(3, 2, 30.0, partitions=(2,)),
    )
    assert holder.end_s <= high.start_s < low.start_s
    assert not half.nodes & ~0b11


def test_a_job_that_does_not_fit_closes_only_the_nodes_of_its_partition() -> None:
    parts = SimulatedPartition(0b0011), SimulatedPartition(0b1100), SimulatedPartition(0b1111)
    _, waits, other, both = ran(
        site(partitions=parts),
        job(0, 1, partitions=(0,)),
        job(1, 2, 10.0, partitions=(0,)),
        job(2, 1, 20.0, partitions=(1,)),
        job(3, 1, 30.0, partitions=(2,)),
        phase_s=59.0,
    )
    assert waits.wait_s > 60.0
    assert [(run.by, run.nodes & ~0b1100, run.wait_s <= 5.0) for run in (other, both)] == [("main", 0, True)] * 2


def test_a_job_in_two_partitions_starts_once_where_it_fits_first() -> None:
    parts = SimulatedPartition(0b0011), SimulatedPartition(0b1100)
    controller = Controller(
        site(partitions=parts),
        [job(0, 2, partitions=(0,)), job(1, 2, 10.0, partitions=(0, 1)), job(2, 2, 20.0, partitions=(0, 1))],
        1,
    )
    _, other, last = controller.run(20.0)
    assert (other.nodes, other.wait_s <= 5.0) == (0b1100, True)
    assert last.start_s >= T0 + 100.0
    assert not controller.queue


@given(
    st.lists(st.tuples(st.sampled_from([1, 5, 10]), st.integers(0, 2), st.booleans(), st.integers(0, 9)), max_size=12)
)
def test_the_order_of_the_queue_is_that_of_the_pools_copy(shapes: list[tuple[int, int, bool, int]]) -> None:
    parts = [SimulatedPartition(0b1111, tier) for tier in (1, 5, 10)]
    tiers = {str(one.tier): Partition(str(one.tier), (), "UP", None, one.tier) for one in parts}
    where = site(partitions=parts, bookings=(Booking(1, T0 + 1e6, T0 + 2e6),))
    lines, shown = [], []
    for number, (tier, _, booked, weight) in enumerate(shapes):
        names = sorted({tier, (1, 5, 10)[weight % 3]})
        own = job(number, 1, partitions=tuple((1, 5, 10).index(name) for name in names), booked=0 if booked else None)
        for line in lines_of(where, own):
            line.ranked(weight + 1)
            lines.append(line)
        shown.append(
            plain_job(
                str(number), "PENDING", partition=tuple(map(str, names)), priority=weight + 1,
                submit_s=T0, reservation="r0" if booked else "", reason="Resources",
            )
        )  # fmt: skip
    ours = [(one.entry.id, str(one.partition.tier)) for one in sorted(lines, key=lambda one: one.place)]
    assert ours == [(jobs[0].id, name) for jobs, name in queue_lines(shown, tiers).in_order()]


def test_nodes_are_of_no_use_while_an_epilog_runs() -> None:
    first, second, after = ran(site(), job(0, 4, epilog_s=50.0), job(1, 2, 10.0), job(2, 1, 20.0, after=(0,)))
    assert first.end_s + 50.0 <= second.start_s <= first.end_s + 55.0
    assert after.start_s >= first.end_s + 50.0


def test_backfill_takes_nodes_with_an_epilog_and_waits() -> None:
    where = site(2, sched_interval_s=1e6, batch_delay_s=1e6)
    controller = Controller(where, [job(0, 2, run_s=20.0, epilog_s=45.0), job(1, 2, 5.0)], 1)
    planned_s: list[float | None] = []
    controller.at(T0 + 35.0, lambda _: planned_s.append(controller.queue[0].plan_s))
    short, kept = controller.run(1.0)
    assert short.end_s + 45.0 <= kept.start_s <= short.end_s + 80.0
    assert planned_s == [pytest.approx(T0 + 31.01 + 1.0, abs=1.0)]
    assert controller.late == 0


def test_a_job_in_two_partitions_with_room_starts_in_the_first() -> None:
    parts = SimulatedPartition(0b1100), SimulatedPartition(0b0011)
    (run,) = ran(site(partitions=parts), job(0, 1, partitions=(0, 1)))
    assert run.nodes == 0b0100


def test_jobs_that_run_on_end_when_slurm_next_looks_for_them() -> None:
    (over,) = ran(site(over_time_limit_s=60.0), job(0, 1, run_s=1000.0, limit_s=120.0))
    assert over.start_s + 180.0 <= over.end_s <= over.start_s + 210.0
    (free,) = ran(site(), job(0, 1, run_s=1000.0, limit_s=120.0))
    assert free.end_s == free.start_s + 1000.0


@pytest.mark.parametrize("requeue", [True, False])
def test_a_node_that_goes_down_sends_its_jobs_back_or_ends_them(requeue: bool) -> None:
    down = Outage(0b1, T0 + 50.0, T0 + 1000.0)
    lost, other, wide = ran(
        site(2, outages=(down,)), job(0, 1, requeue=requeue), job(1, 1, 1.0), job(2, 2, 300.0), seed=2
    )
    assert lost.end_s < inf
    if requeue:
        assert lost.start_s >= T0 + 50.0 + 121.0
        assert lost.nodes == 0b10
    else:
        assert lost.end_s == T0 + 50.0
    assert other.end_s <= T0 + 110.0
    assert wide.start_s >= T0 + 1000.0


def test_a_job_on_a_drained_node_runs_to_its_end_and_no_other_starts_there() -> None:
    drained = Outage(0b1111, T0 + 50.0, T0 + 500.0, drained=True)
    first, second = ran(site(outages=(drained,)), job(0, 4), job(1, 1, 60.0))
    assert first.end_s == first.start_s + 100.0
    assert T0 + 500.0 <= second.start_s <= T0 + 505.0


def test_a_job_that_only_lacks_nodes_that_are_down_closes_none() -> None:
    down = Outage(0b1, T0 - 50.0, T0 + 1000.0)
    wide, behind = ran(site(outages=(down,)), job(0, 4), job(1, 3, 5.0, limit_s=7200.0), phase_s=59.0)
    assert wide.start_s >= T0 + 1000.0
    assert (behind.by, behind.wait_s <= 5.0) == ("main", True)


def test_pilots_leave_nodes_that_go_down() -> None:
    controller = Controller(site(2, outages=(Outage(0b1, T0 + 5.0, T0 + 500.0),)), [job(0, 2, 100.0)], 1)
    gone: list[int] = []
    controller.left = gone.append
    controller.at(T0, lambda _: controller.lend(0b11))
    controller.run(200.0, until_s=T0 + 50.0)
    assert (gone, controller.pilots) == ([0b1], 0b10)
