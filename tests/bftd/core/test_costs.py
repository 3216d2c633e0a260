"""What resizes cost decides who is resized: an hour of a flickering pool, and starts from suspension."""

from __future__ import annotations

from collections import Counter
from typing import Any

from bftd.core.model.domain import Settings, Trainer
from bftd.protocol.reports import ProgressReport, ResizeKind, ResizeReport, SuspendReport
from tests.bftd.builders import NOW_S, Core, lease, registration

# Each further node brings less, so that two of these share the nodes between them.
BENT: Any = {"curve": ((1, 100.0), (4, 350.0), (8, 500.0), (12, 580.0)), "nodes_max": 12}
ALWAYS = [f"n{number}" for number in range(1, 9)]


class Drivers:
    """Obeys at once for every trainer, and tells of each resize the stall that it has there."""

    def __init__(self, core: Core, stalls_s: dict[str, float]) -> None:
        self.core = core
        self.stalls_s = stalls_s
        self.resizes: Counter[str] = Counter()
        self._sizes = dict.fromkeys(stalls_s, 0)

    def obey(self) -> None:
        core = self.core
        core.place_all()
        for id_, stall_s in self.stalls_s.items():
            for item in core.leases(id_, live=False):
                core.pilots.pop(item.job_id or "", None)
                core.report(id_, lease(item.id, "ended"))
            before, now = self._sizes[id_], len(core.leases(id_))
            self._sizes[id_] = now
            if before and now and before != now:
                kind: ResizeKind = "up" if now > before else "down"
                core.report(id_, ResizeReport(NOW_S, before, now, kind, stall_s))
                self.resizes[id_] += 1


def an_hour_of(stalls_s: dict[str, float]) -> tuple[Counter[str], float]:
    """Resizes of each trainer while four of twelve nodes come and go, and the part of all nodes that was used."""
    core = Core(Settings().changed(objective="throughput"))
    drivers = Drivers(core, stalls_s)
    for id_ in stalls_s:
        core.arrive(registration(id_, warm_up_s=1.0, **BENT))
    lent = there = 0
    for second in range(0, 3600, 10):
        there_now = [f"n{9 + place}" for place, every_s in enumerate((60, 90, 150, 210)) if second // every_s % 2]
        names = ALWAYS + there_now
        for _ in range(2):  # what one has given back the other gets at the next poll
            core.pool(*names, after_s=5.0)
            drivers.obey()
        lent, there = lent + len(core.leases("1")) + len(core.leases("2")), there + len(names)
    return drivers.resizes, lent / there


def test_of_two_trainers_the_one_whose_resizes_are_dear_is_left_alone() -> None:
    resizes, used = an_hour_of({"1": 60.0, "2": 1.0})
    assert resizes["2"] >= 60, "the pool changes 120 times"
    assert resizes["1"] <= 8, "that they are dear is seen at its first ones"
    assert used > 0.99
    turned, _ = an_hour_of({"1": 1.0, "2": 60.0})
    assert turned["1"] >= 60
    assert turned["2"] <= 8


def test_where_all_resizes_are_dear_nodes_that_come_for_a_moment_are_left_idle() -> None:
    resizes, used = an_hour_of({"1": 60.0, "2": 60.0})
    assert resizes.total() <= 30
    assert used < 0.9


def known(core: Core, id_: str = "1") -> Trainer:
    return core.state.trainers[id_]


def working(core: Core, *names: str) -> None:
    core.pool(*names)
    core.place_all()


def suspended(core: Core) -> None:
    """All nodes of the trainer go, and its state is saved."""
    core.pool()
    for item in core.leases("1", live=False):
        core.pilots.pop(item.job_id or "", None)
        core.report("1", lease(item.id, "ended"))
    core.report("1", SuspendReport(NOW_S, 5))
    core.time_s += 30.0  # growth waits for a while after Slurm took nodes


def test_a_start_from_suspension_is_learned_apart_from_a_warm_up() -> None:
    core = Core()
    core.arrive(registration("1", up_cost_s=0.0))
    working(core, "n1", "n2")
    assert known(core).knowledge.warm_ups_s == (0.0, 0.0)
    core.report("1", ProgressReport(NOW_S, 5, 50, save_s=40.0, state_bytes=14 * 10**9))
    assert known(core).knowledge.resume_s == 40.0, "a save tells how long the loading will take"
    suspended(core)
    assert known(core).resumed_s is None
    core.pool("n1", "n2")
    core.time_s += 70.0
    core.place_all()
    assert known(core).knowledge.resumes_s == (70.0,), "all nodes together are one resume"
    assert known(core).knowledge.warm_ups_s == (0.0, 0.0)
    core.pool("n1", "n2", "n3")
    core.time_s += 20.0
    core.place_all()
    assert known(core).knowledge.warm_ups_s == (0.0, 0.0, 20.0)
    assert known(core).knowledge.resumes_s == (70.0,)


def test_regression_a_trainer_whose_first_nodes_fetched_its_image_for_minutes_never_grew_again() -> None:
    core = Core(Settings().changed(objective="throughput", t_fwd_s=120.0))
    core.arrive(registration("1", curve=((1, 100.0), (4, 400.0)), up_cost_s=1.0, down_cost_s=1.0))
    core.pool("n1", "n2")
    core.time_s += 300.0
    core.place_all()
    assert known(core).knowledge.warm_up_s == 300.0
    core.pool("n1", "n2", "n3", "n4")
    assert len(core.nodes("1")) == 4


def test_a_trainer_with_a_large_state_resumes_on_idle_nodes_but_not_instead_of_one_that_starts_at_once() -> None:
    def resumed(resume_s: float, rival: bool) -> bool:
        core = Core(Settings().changed(objective="throughput", t_fwd_s=120.0))
        core.arrive(registration("1", curve=((1, 120.0), (4, 480.0)), nodes_min=2, nodes_max=2, warm_up_s=1.0))
        working(core, "n1", "n2")
        suspended(core)
        core.pool("n1", "n2")
        core.time_s += resume_s
        core.place_all()
        suspended(core)
        if rival:
            core.arrive(registration("2", curve=((1, 100.0), (2, 200.0)), nodes_min=2, nodes_max=2, warm_up_s=1.0))
        core.pool("n1", "n2")
        return bool(core.nodes("1"))

    assert resumed(resume_s=5.0, rival=True)
    assert not resumed(resume_s=90.0, rival=True)
    assert resumed(resume_s=1e4, rival=False), "however long that takes"
