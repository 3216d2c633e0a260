"""The simulated slurmctld: which job starts when and where."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.pool.backfill.model import Booking, Component
from bftd.simulation.slurm.controller import Controller
from bftd.simulation.slurm.harvester import Harvester, HarvestSettings
from bftd.simulation.slurm.model import Delays, JobRun, SimulatedJob, SimulatedSite

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
    assert T0 + 500.0 <= later.start_s <= T0 + 505.0


def test_a_reservation_keeps_its_nodes_for_its_jobs() -> None:
    booked = Booking(0b11, T0 + 300.0, T0 + 600.0)
    inside, short, long = ran(
        site(2, bookings=(booked,)),
        job(0, 1, booked=0, run_s=60.0),
        job(1, 2, 10.0),
        job(2, 1, 20.0, limit_s=7200.0),
    )
    assert T0 + 300.0 <= inside.start_s <= T0 + 302.0
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
