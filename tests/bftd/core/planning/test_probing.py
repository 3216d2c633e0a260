"""Trainers are tried on other numbers of nodes where that is worth it, seldom, and for a short while."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftd.core.model.decisions import Tried
from bftd.core.model.domain import Decided, Settings
from bftd.core.planning import probing
from bftd.core.scaling import amdahl
from bftd.protocol.reports import ProgressReport
from milp import Points
from tests.bftd.builders import NOW_S, Core, lease, of, registration

pytestmark = pytest.mark.slow

NODES = [f"n{number}" for number in range(1, 17)]
POLL_S = 10.0


class Training:
    """Trainers that report what they reach, by their serial parts."""

    def __init__(self, serials: list[float], curves: bool = False, nodes: list[str] = NODES) -> None:
        self.core = Core(Settings())
        self.serials = {str(number): serial for number, serial in enumerate(serials)}
        self.nodes = nodes
        self.core.pool(*nodes)
        self.at: dict[str, int] = {}
        for id_, serial in self.serials.items():
            curve: Points = ((1, 100.0), (4, self.rate(serial, 4)), (16, self.rate(serial, 16))) if curves else ()
            self.core.arrive(
                registration(id_, nodes_max=16, user=f"u{id_}", curve=curve, up_cost_s=0.5, down_cost_s=0.5)
            )

    def rate(self, serial: float, nodes: int) -> float:
        """Samples/s."""
        return 100.0 * amdahl.speed_up(serial, nodes)

    def poll(self, for_s: float) -> None:
        """Time passes; whoever has had the same nodes for a poll reports."""
        core = self.core
        for _ in range(round(for_s / POLL_S)):
            core.pool(*self.nodes, after_s=POLL_S)
            core.place_all()
            for item in [item for item in core.state.leases.values() if not item.live]:
                core.pilots.pop(item.job_id or "", None)
                core.report(item.trainer, lease(item.id, "ended"))
            for id_, serial in self.serials.items():
                count = len(core.nodes(id_))
                if count and self.at.get(id_) == count:
                    rate = self.rate(serial, count)
                    core.report(id_, ProgressReport(NOW_S, 1, 1.0, samples_per_s=rate, nodes=count, window_s=10.0))
                self.at[id_] = count

    @property
    def tried(self) -> list[Tried]:
        """All trials so far."""
        return [item.decision for item in of(self.core.actions, Decided) if isinstance(item.decision, Tried)]

    def counts(self) -> list[int]:
        """The nodes of each trainer."""
        return [len(self.core.nodes(id_)) for id_ in self.serials]


def test_two_trainers_that_tie_are_told_apart_and_share_as_if_their_curves_were_known() -> None:
    unknown, known = Training([0.0, 0.5]), Training([0.0, 0.5], curves=True)
    for each in (unknown, known):
        each.poll(1800.0)
    assert unknown.tried
    made = [
        sum(amdahl.speed_up(s, n) for s, n in zip((0.0, 0.5), each.counts(), strict=True)) for each in (unknown, known)
    ]
    assert made[0] == pytest.approx(made[1], rel=0.05)


def test_nobody_is_tried_whose_curve_is_told() -> None:
    training = Training([0.0, 0.3, 0.5], curves=True)
    training.poll(1800.0)
    assert training.tried == []


def test_nobody_is_tried_for_whose_nodes_nobody_else_asks() -> None:
    training = Training([0.3])
    training.poll(1800.0)
    assert training.tried == []


def test_a_trial_ends_and_what_was_seen_counts() -> None:
    training = Training([0.0, 0.5])
    while not training.tried:
        training.poll(POLL_S)
        assert training.core.time_s < 5000.0
    [trainer] = [item for item in training.core.state.trainers.values() if item.probe_nodes]
    training.poll(probing.PROBE_MOST_S)
    after = training.core.state.trainers[trainer.id]
    assert not after.probe_nodes or after.probes > trainer.probes
    assert trainer.probe_nodes in dict(after.knowledge.seen)


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 5))
def test_trials_are_bounded_whatever_happens(seed: int, count: int) -> None:
    random_ = random.Random(seed)
    training = Training([random_.choice([0.0, 0.02, 0.1, 0.3, 0.5]) for _ in range(count)])
    for _ in range(8):
        if random_.random() < 0.3:
            training.nodes = NODES[: random_.randint(4, 16)]
        training.poll(random_.choice([30.0, 120.0, 300.0]))
        for item in training.core.state.trainers.values():
            assert item.probes <= probing.PROBES_MOST
            if item.probe_until_s is not None:
                assert item.probe_until_s - training.core.time_s <= probing.PROBE_MOST_S
    assert len(training.tried) <= probing.PROBES_MOST * count


def test_after_all_was_seen_nothing_changes_any_more() -> None:
    training = Training([0.0, 0.1, 0.5])
    training.poll(3600.0)
    before, tried = training.counts(), len(training.tried)
    training.poll(1800.0)
    assert training.counts() == before
    assert len(training.tried) == tried
