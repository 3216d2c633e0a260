"""The streams of the impact benchmark as jobs of a simulated cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.impact.stream import RegularJob, make_stream
from bftd.pool.backfill.model import Booking, Component
from bftd.simulation.slurm.model import SimulatedJob, SimulatedSite

BEGIN_S = 1_800_000_000.0
_SPECIAL = ("nodelist", "constraint", "contiguous")


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of streams: `jobs` on `nodes`, so many times slower; the `special` ones of them want certain nodes."""

    nodes: int = 16
    jobs: int = 60
    stretch: int = 3
    special: bool = True

    def site(self) -> SimulatedSite:
        """Return the site, with Slurm's default settings."""
        return SimulatedSite.of(self.nodes)


def stream_on(
    site: SimulatedSite, shape: Shape, seed: int, begin_s: float = BEGIN_S
) -> tuple[SimulatedSite, list[SimulatedJob]]:
    """Return the site with the stream's reservation, and the stream's jobs."""
    stream = make_stream(seed, shape.jobs, shape.nodes, stretch=shape.stretch)
    reserved = stream.reservation
    start_s = begin_s + reserved.at_s
    booking = Booking(site.numbering.mask(reserved.nodes), start_s, start_s + 60.0 * reserved.length_min)
    jobs = [_job(job, site, begin_s, shape.special) for job in stream.jobs]
    return replace(site, bookings=(booking,)), jobs


def _job(job: RegularJob, site: SimulatedSite, begin_s: float, special: bool) -> SimulatedJob:
    allowed = everything = site.everything
    required = 0
    kind = job.kind if special or job.kind not in _SPECIAL else "plain"
    if kind == "nodelist":
        required = site.numbering.mask(job.options[0].partition("=")[2].split(","))
    elif kind == "constraint":
        allowed = (1 << max(1, len(site.numbering.names) // 2)) - 1
    return SimulatedJob(
        number=job.number,
        submit_s=begin_s + job.at_s,
        run_s=job.run_s,
        limit_s=60.0 * job.limit_min,
        component=Component(allowed, job.nodes, required, kind == "contiguous", within=everything),
        after=() if job.after is None else (job.after,),
        booked=0 if kind == "reservation" else None,
    )
