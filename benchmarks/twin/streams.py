"""The streams of the impact benchmark as jobs of a simulated cluster."""

from __future__ import annotations

from benchmarks.impact.stream import RegularJob, make_stream
from bftd.pool.backfill.model import Booking, Component
from bftd.simulation.slurm.model import SimulatedJob, SimulatedSite
from slurm_plugin.read.types import Scheduler

BEGIN_S = 1_800_000_000.0
SPECIAL = ("nodelist", "constraint", "contiguous")


def stream_on(
    seed: int,
    *,
    nodes: int = 16,
    count: int = 60,
    stretch: int = 3,
    special: bool = True,
    begin_s: float = BEGIN_S,
    scheduler: Scheduler | None = None,
    **settings: float,
) -> tuple[SimulatedSite, list[SimulatedJob]]:
    """Return the site and jobs of a stream; without `special` jobs those that want certain nodes take any."""
    stream = make_stream(seed, count, nodes, stretch=stretch)
    reserved = stream.reservation
    site = SimulatedSite.of(nodes, scheduler=scheduler or Scheduler(), **settings)
    mask = site.numbering.mask(reserved.nodes)
    start_s = begin_s + reserved.at_s
    site = SimulatedSite.of(
        nodes,
        scheduler=scheduler or Scheduler(),
        bookings=(Booking(mask, start_s, start_s + 60.0 * reserved.length_min),),
        **settings,
    )
    return site, [_job(job, site, begin_s, special) for job in stream.jobs]


def _job(job: RegularJob, site: SimulatedSite, begin_s: float, special: bool) -> SimulatedJob:
    everything, nodes = site.everything, len(site.numbering.names)
    kind = job.kind if special or job.kind not in SPECIAL else "plain"
    allowed, required = everything, 0
    if kind == "nodelist":
        required = site.numbering.mask(job.options[0].partition("=")[2].split(","))
    elif kind == "constraint":
        allowed = (1 << max(1, nodes // 2)) - 1
    return SimulatedJob(
        number=job.number,
        submit_s=begin_s + job.at_s,
        run_s=job.run_s,
        limit_s=60.0 * job.limit_min,
        component=Component(allowed, job.nodes, required, kind == "contiguous", within=everything),
        after=() if job.after is None else (job.after,),
        booked=0 if kind == "reservation" else None,
        kind=kind,
    )
