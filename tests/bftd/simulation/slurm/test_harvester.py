"""bftd on the simulated cluster: its masks decide as the pool does, and pilots are where they may be."""

from __future__ import annotations

from dataclasses import replace
from math import floor, inf

import pytest

from benchmarks.twin.streams import BEGIN_S, Shape, stream_on
from bftd.config.keys import PoolConfig
from bftd.pool.backfill.model import Component
from bftd.pool.harvest import Harvest
from bftd.pool.membership import PoolMemory, observe
from bftd.simulation.slurm.controller import Controller
from bftd.simulation.slurm.courses import course
from bftd.simulation.slurm.harvester import Harvester, HarvestSettings
from bftd.simulation.slurm.lines import WaitingJob
from bftd.simulation.slurm.model import SimulatedJob, SimulatedPartition, SimulatedSite
from bftd.simulation.slurm.nodes import bits
from bftd.simulation.slurm.plans import Ahead
from bftd.simulation.slurm.priority import Multifactor
from slurm_plugin.read.types import Job, JobRequest, Node, Partition, Reservation, Scheduler, Snapshot
from tests.bftd.builders import job, node

HARVEST = Harvest.of("elastic")
CONFIG = PoolConfig()
QUICK, SLOW = Shape(stretch=1), Shape()


class Beside(Harvester):
    """A harvester that asks `observe` at every look, and keeps where both differ."""

    def __init__(self, controller: Controller) -> None:
        super().__init__(controller, HarvestSettings())
        self.controller = controller
        self.pool = PoolMemory()
        self.looks = self.lent = self.left = self.kept = 0
        self.differences: list[str] = []

    def look(self) -> tuple[int, int]:
        controller = self.controller
        controller.news_for_pool = True
        given_up, lent = super().look()
        numbering = controller.site.numbering
        ours = controller.pilots | controller.leaving
        leased: dict[str, str | None] = {name: f"9{name[1:]}" for name in numbering.of_mask(ours)}
        self.pool, view = observe(self.pool, snapshot(controller), CONFIG, HARVEST, leased, {})
        mine = numbering.mask(leased)
        members = numbering.mask(name for name, one in view.nodes.items() if one.in_pool)
        offered = members & ~mine & ~numbering.mask(view.counted_on)
        out = controller.pilots & numbering.mask(name for name, one in view.nodes.items() if one.wanted)
        kept = numbering.mask(name for one in view.earmarks.values() for name in one.nodes)
        self.looks += 1
        self.lent += bool(lent)
        self.left += bool(given_up)
        self.kept += bool(kept)
        for what, one, other in (
            ("lent", lent, offered),
            ("given up", given_up, out),
            ("earmarked", self.earmarked, kept),
        ):
            if one != other:
                self.differences.append(f"{controller.now_s:.1f} {what}: {one:b}, pool {other:b}")
        return given_up, lent


def snapshot(controller: Controller) -> Snapshot:
    """What Slurm would show of a simulated cluster."""
    names = controller.site.numbering.of_mask
    nodes: dict[str, Node] = {}
    for name, bit in controller.site.numbering.bit.items():
        leaving = ("COMPLETING",) if bit & controller.leaving else ()
        state = "IDLE" if bit & controller.idle or leaving else "ALLOCATED"
        nodes[name] = node(name, state, *leaving)
    jobs: list[Job] = [shown(one, names(one.plan)) for one in controller.queue]
    for one in controller.running.values():
        began = {"nodes": names(one.run.nodes), "start_s": float(floor(one.run.start_s))}
        jobs.append(job(one.entry.id, "RUNNING", user="user", time_limit_s=one.job.limit_s, **began))
    for bit in bits(controller.pilots | controller.leaving):
        (name,) = names(bit)
        state = "COMPLETING" if bit & controller.leaving else "RUNNING"
        jobs.append(job(f"9{name[1:]}", state, partition=("elastic",), nodes=(name,), start_s=controller.now_s))
    site = controller.site
    reservations = tuple(
        Reservation(f"r{number}", names(one.mask), one.start_s, one.end_s, frozenset())
        for number, one in enumerate(site.bookings)
    )
    scheduler = Scheduler(read=True, cycle_s=site.cycle_s, cycled_s=controller.cycled_s)
    partitions = {name: Partition(name, tuple(nodes), "UP", None, 1) for name in ("batch", "elastic")}
    return Snapshot(controller.now_s, nodes, tuple(jobs), reservations, partitions, scheduler)


def shown(one: WaitingJob, plan: tuple[str, ...]) -> Job:
    """A waiting job."""
    part = one.job.component
    return job(
        one.entry.id,
        user="user",
        node_count=one.need.count,
        submit_s=one.job.submit_s,
        time_limit_s=one.job.limit_s,
        start_s=one.plan_s,
        sched_nodes=plan,
        reservation="" if one.job.booked is None else f"r{one.job.booked}",
        request=JobRequest(
            required=tuple(f"n{bit.bit_length()}" for bit in bits(part.required)),
            excluded=tuple(f"n{bit.bit_length()}" for bit in bits(part.within & ~part.allowed)),
            contiguous=part.contiguous,
        ),
    )


def test_masks_decide_at_every_look_as_the_pool_does() -> None:
    looks = lent = left = kept = 0
    differences: list[str] = []
    for seed in range(1, 6):
        site, jobs = stream_on(QUICK.site(), QUICK, seed)
        controller = Controller(site, jobs, seed)
        beside = Beside(controller)
        beside.begin(jobs[0].submit_s - 5.0)
        controller.run(14.6)
        looks, lent, left, kept = looks + beside.looks, lent + beside.lent, left + beside.left, kept + beside.kept
        differences += beside.differences
    assert looks > 500
    assert min(lent, left, kept) > 20
    assert differences == []


class EverySecond(Harvester):
    """A harvester that polls although it would find nothing to do."""

    idle_polls = 0

    def _poll_at(self, least_s: float) -> None:
        super()._poll_at(-inf)

    def _poll(self, due_s: float) -> None:
        if self._controller.news_for_pool or due_s >= self._next_s:
            super()._poll(due_s)
        else:
            self.idle_polls += 1
            self._polled_s = due_s
            self._poll_at(due_s)


def whole_walk(ahead: Ahead, before_s: float) -> None:
    """Walk through the whole queue at once, as slurmctld does."""
    while ahead.step():
        pass


def stream_of(seed: int, depth: int) -> tuple[SimulatedSite, list[SimulatedJob]]:
    """A stream; where backfill looks at few jobs, wide ones come first, and the others keep their plans."""
    shape = (QUICK, SLOW)[seed % 2]
    plain = shape.site()
    scheduler = replace(plain.scheduler, depth=depth, interval_s=(30.0, 7.0)[seed % 3 == 0])
    priority = Multifactor(job_size=1000) if depth < 500 else None
    return stream_on(replace(plain, scheduler=scheduler, priority=priority), shape, seed)


def course_of(seed: int, depth: int, harvester: type[Harvester] | None) -> tuple[object, Harvester | None]:
    site, jobs = stream_of(seed, depth)
    controller = Controller(site, jobs, seed)
    own = None
    if harvester is not None:
        own = harvester(controller)
        own.begin(jobs[0].submit_s - 5.0)
    runs = controller.run(14.6)
    told = [(run.start_s, run.nodes, run.by, run.preempted_s) for run in runs]
    return (told, controller.preemptions, controller.late, own and (own.node_s, own.earmarks, own.useful)), own


def plans_of(seed: int, depth: int, backwards: bool) -> list[dict[int, tuple[float | None, int]]]:
    """The plans of all waiting jobs now and then, read in the order of the queue or backwards."""
    site, jobs = stream_of(seed, depth)
    controller = Controller(site, jobs, seed)
    found: list[dict[int, tuple[float | None, int]]] = []

    def read(_: object) -> None:
        lines = controller.queue[::-1] if backwards else controller.queue
        found.append({line.job.number: (line.plan_s, line.plan) for line in lines})

    for place in range(40):
        controller.at(jobs[0].submit_s + 40.0 * place, read)
    controller.run(14.6)
    return found


def test_a_plan_is_the_same_whenever_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [(seed, depth) for seed in range(1, 5) for depth in (500, 5)]
    found = [plans_of(seed, depth, backwards) for seed, depth in cases for backwards in (False, True)]
    monkeypatch.setattr(Ahead, "go", whole_walk)
    whole = [plans_of(seed, depth, False) for seed, depth in cases for _ in range(2)]
    assert sum(plan_s is not None for one in whole for each in one for plan_s, _ in each.values()) > 100
    assert found == whole


@pytest.mark.parametrize("harvester", [None, Harvester])
def test_a_walk_that_ends_where_nothing_behind_could_start_decides_as_a_whole_one(
    harvester: type[Harvester] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [(seed, depth) for seed in range(1, 7) for depth in (500, 5)]
    courses = [course_of(seed, depth, harvester)[0] for seed, depth in cases]
    monkeypatch.setattr(Ahead, "go", whole_walk)
    assert [course_of(seed, depth, harvester)[0] for seed, depth in cases] == courses


def test_polls_that_are_left_out_would_find_nothing_to_do() -> None:
    for seed in range(1, 7):
        told, every_second = course_of(seed, 500, EverySecond)
        assert isinstance(every_second, EverySecond)
        assert every_second.idle_polls > 100
        assert course_of(seed, 500, Harvester)[0] == told


def test_earmarks_save_most_preemptions() -> None:
    preemptions = {}
    for earmark in (True, False):
        settings = HarvestSettings(PoolConfig(earmark=earmark))
        courses = [course(*stream_on(SLOW.site(), SLOW, seed), seed, settings) for seed in range(1, 9)]
        preemptions[earmark] = sum(one.preemptions for one in courses)
    assert preemptions[True] < 0.7 * preemptions[False]


def test_allocations_of_the_beginning_hold_every_node_and_end_at_their_time() -> None:
    site, jobs = stream_on(SLOW.site(), SLOW, 1)
    controller = Controller(site, jobs, 1)
    harvester = Harvester(controller, HarvestSettings(only_s=60.0))
    harvester.begin(jobs[0].submit_s - 5.0)
    controller.run(14.6)
    assert not controller.pilots
    assert 0.0 < harvester.node_s <= 60.1 * len(site.numbering.names)


def test_the_order_of_those_allocations_is_chance() -> None:
    orders = set()
    for seed in range(4):
        controller = Controller(SLOW.site(), stream_on(SLOW.site(), SLOW, 1)[1], seed)
        Harvester(controller, HarvestSettings(only_s=60.0)).begin(BEGIN_S - 5.0)
        controller.run(until_s=BEGIN_S - 4.0)
        orders.add(tuple(sorted(controller.pilot_age, key=controller.pilot_age.__getitem__)))
    assert len(orders) == 4


def test_a_plan_that_only_an_earlier_cycle_made_keeps_pilots_away() -> None:
    plain = SimulatedSite.of(4)
    where = replace(
        plain,
        scheduler=replace(plain.scheduler, depth=1),
        partitions=(SimulatedPartition(0b1111), SimulatedPartition(0b1111, tier=10)),
    )
    jobs = [
        SimulatedJob(number, BEGIN_S + at_s, 400.0, 420.0, Component(0b1111, need, within=0b1111), partitions=(tier,))
        for number, (at_s, need, tier) in enumerate([(0.0, 4, 0), (5.0, 4, 0), (60.0, 1, 1)])
    ]
    controller = Controller(where, jobs, 1)
    harvester = Harvester(controller)
    harvester.begin(BEGIN_S - 5.0)
    controller.run(30.0, until_s=BEGIN_S + 200.0)
    high, low = controller.queue
    assert low.known_s is None
    soon, _, _ = harvester._claimed(BEGIN_S + 405.0, BEGIN_S + 405.0)
    assert (low.plan, soon) == (0b1111, 0b1111)
    assert high.plan_s is not None
