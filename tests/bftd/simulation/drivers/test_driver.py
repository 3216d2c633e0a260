"""Simulated drivers: what they report, when their nodes train, and what is charged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftd.core.model.domain import Lease
from bftd.core.model.events import Finished, Reported
from bftd.protocol.reports import LeaseReport
from bftd.simulation.drivers.driver import Charge, Drivers, SimulatedDriver, Terms
from bftd.simulation.drivers.trainers import SimTrainer

CURVE = ((0, 0.0), (1, 10.0), (4, 40.0))
SPEC = SimTrainer("a-1", 1, 4, 1000.0, CURVE, CURVE, up_cost_s=3.0, down_cost_s=2.0)


class Books:
    """All charges that are not 0, and all node-seconds that stood still."""

    def __init__(self) -> None:
        self.charged: list[tuple[float, Charge, float]] = []
        self.still_node_s = 0.0

    def stand_still(self, time_s: float, node_s: float) -> None:
        """Add them up."""
        self.still_node_s += node_s

    def take_off(self, time_s: float, charge: Charge, samples: float) -> None:
        """Note a charge."""
        if samples:
            self.charged.append((time_s, charge, samples))


def lease(number: int) -> Lease:
    """A lease that was just granted to a-1."""
    return Lease(f"n{number}.{number}", f"n{number}", "a-1", granted_s=0.0, limit_s=60.0, reason="")


def revoked(number: int, now_s: float) -> Lease:
    """The same lease, asked back."""
    return replace(lease(number), job_id=f"p:n{number}.{number}", revoked_s=now_s)


def started(terms: Terms) -> tuple[Drivers, SimulatedDriver, Books]:
    """One driver that was lent n1 and n2 at 0 s."""
    books = Books()
    drivers = Drivers(terms, books)
    driver = drivers.add("a-1", SPEC, 0.0)
    drivers.obey([lease(1), lease(2)], 0.0)
    drivers.resize(0.0)
    return drivers, driver, books


def test_a_trainer_stands_still_on_all_its_nodes_for_as_long_as_its_resizes_cost_and_no_longer_than_it_has_them() -> (
    None
):
    drivers, driver, books = started(Terms())
    drivers.obey([lease(3)], 10.0)
    drivers.resize(10.0)
    driver.advance(11.0)
    assert books.still_node_s == 3, "one of the three seconds that growing costs, on three nodes"
    drivers.lose(["n3"], 11.0)
    driver.advance(100.0)
    assert books.still_node_s == 3 + 2 * (2.0 + 2.0), "what is left of them, and the two seconds that shrinking costs"
    drivers.obey([lease(4)], 100.0)
    drivers.resize(100.0)
    drivers.lose(["n1", "n2", "n4"], 101.0)
    driver.advance(200.0)
    assert books.still_node_s == 11 + 3, "no node is left to stand still on"


def test_without_a_warm_up_lent_nodes_train_at_once() -> None:
    drivers, driver, books = started(Terms())
    assert (drivers.rate, drivers.holders) == (20.0, {"n1": "a-1", "n2": "a-1"})
    assert driver.done_s == 50.0
    assert drivers.obey([lease(3)], 10.0) == {"a-1": [LeaseReport(10.0, "n3.3", "working", "n3.3")]}
    assert drivers.rate == 20.0, "what is told shows once all is told"
    drivers.resize(10.0)
    assert drivers.rate == 30.0
    assert books.charged == [(10.0, "rescale", 60.0)], "a start is free, and growing costs R_up at the rate before"


def test_a_start_is_charged_at_its_own_rate_where_that_is_asked_for() -> None:
    _, driver, books = started(Terms(startup_charge=True))
    assert books.charged == [(0.0, "rescale", 60.0)]
    assert driver.samples == -60.0


def test_nodes_warm_up_while_the_others_train() -> None:
    drivers, driver, books = started(Terms(warm_up_s=5.0, prefix="p:"))
    assert (driver.rate, drivers.warm(4.9)) == (0.0, [])
    reports = tuple(LeaseReport(5.0, f"n{n}.{n}", "working", f"p:n{n}.{n}") for n in (1, 2))
    assert drivers.warm(5.0) == [Reported(5.0, "a-1", reports)]
    told = drivers.obey([lease(3)], 6.0)
    assert told == {"a-1": [LeaseReport(6.0, "n3.3", "placed", "p:n3.3")]}
    drivers.resize(6.0)
    assert driver.rate == 20.0
    assert drivers.obey([revoked(3, 7.0)], 7.0) == {"a-1": [LeaseReport(7.0, "n3.3", "ended", "p:n3.3")]}
    drivers.resize(7.0)
    assert books.charged == [], "a node that never trained is no loss"
    assert drivers.pilots == {"p:n1.1": "n1", "p:n2.2": "n2"}


def test_lost_nodes_are_left_at_once_and_those_still_warming_up_are_told_as_left() -> None:
    drivers, driver, books = started(Terms(warm_up_s=5.0))
    drivers.warm(5.0)
    drivers.obey([lease(3)], 6.0)
    drivers.resize(6.0)
    [told] = drivers.lose(["n2", "n3", "n9"], 8.0)
    assert isinstance(told, Reported)
    states = [(report.id, report.state) for report in told.reports if isinstance(report, LeaseReport)]
    assert states == [("n2.2", "ended"), ("n3.3", "leaving"), ("n3.3", "ended")]
    assert books.charged == [(8.0, "preempt", 40.0)], "R_dw at the rate before"
    assert (driver.rate, drivers.holders, drivers.pilots) == (10.0, {"n1": "a-1"}, {"n1.1": "n1"})


@pytest.mark.parametrize(("debt", "samples"), [(True, -10.0), (False, 0.0)])
def test_a_trainer_owes_samples_only_where_it_may(debt: bool, samples: float) -> None:
    drivers, driver, _ = started(Terms(debt=debt))
    drivers.lose(["n2"], 1.5)
    assert driver.samples == samples


def test_who_is_done_leaves_all_nodes_and_its_work_beyond_the_end_does_not_count() -> None:
    drivers, driver, books = started(Terms())
    assert drivers.done(49.0) == []
    assert drivers.done(51.0) == [driver]
    finished, ended = drivers.finish(driver, 51.0)
    assert isinstance(finished, Finished)
    assert isinstance(ended, Reported)
    assert [report.state for report in ended.reports if isinstance(report, LeaseReport)] == ["ended", "ended"]
    assert books.charged == [(51.0, "overshoot", 20.0)]
    assert (driver.samples, drivers.in_play, drivers.holders, drivers.pilots) == (1000.0, {}, {}, {})


def test_a_lease_that_was_never_placed_is_told_as_ended_and_costs_no_node() -> None:
    drivers, driver, _ = started(Terms())
    assert drivers.obey([revoked(7, 5.0)], 5.0) == {"a-1": [LeaseReport(5.0, "n7.7", "ended", "n7.7")]}
    drivers.resize(5.0)
    assert (driver.training, driver.rate) == (2, 20.0)
