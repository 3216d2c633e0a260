"""bftd on the simulated cluster: its masks decide as the pool does, and pilots are where they may be."""

from __future__ import annotations

from math import floor

from benchmarks.twin.streams import BEGIN_S, Shape, stream_on
from bftd.config.keys import PoolConfig
from bftd.pool.harvest import Harvest
from bftd.pool.membership import PoolMemory, observe
from bftd.simulation.slurm.controller import Controller
from bftd.simulation.slurm.courses import course
from bftd.simulation.slurm.harvester import Harvester, HarvestSettings
from bftd.simulation.slurm.lines import WaitingJob
from bftd.simulation.slurm.nodes import bits
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
