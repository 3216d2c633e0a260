"""The stream of regular jobs: one seed, one stream, the same in every run."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

FEATURE = "fast"
"""The first half of the nodes has it."""

RESERVATION = "bench"
RESERVED_NODES = 1

_MEAN_NODE_S = 42.0  # a job; sixty of them take sixteen nodes three minutes
_BRIEF_NODE_S = 8.0
_LOAD = 0.93
_SHORTEST_S = 2.0
_LONGEST_S = 50.0
_RESERVED_RUN_S = 45.0
_BURST_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class RegularJob:
    """A job of `nodes` whole nodes that runs for `run_s`, submitted `at_s` after the stream's start.

    `kind` says what is special about it; `after` is the number of the job on whose end it depends; `options` are
    sbatch's.
    """

    number: int
    at_s: float
    nodes: int
    run_s: float
    limit_min: int
    kind: str = "plain"
    after: int | None = None
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes set aside for `length_min` from `at_s` after the stream's start; its jobs have the kind "reservation"."""

    at_s: float
    nodes: tuple[str, ...]
    length_min: int = 1


@dataclass(frozen=True, slots=True)
class Stream:
    """Jobs in the order of their submission, and the reservation among them."""

    jobs: tuple[RegularJob, ...]
    reservation: Reservation


def make_stream(seed: int, count: int, nodes: int, *, brief: bool = False, stretch: int = 1) -> Stream:
    """Draw `count` jobs for a cluster of `nodes` nodes, n1 upwards.

    A quarter of them comes in the first second, so that a queue stands from the start; the rest arrives over the time
    in which the nodes can do the drawn work. Nodes and seconds are heavy-tailed. `brief` has jobs of a few seconds,
    and none that needs a minute to end just below its limit. `stretch` shows the same stream so many times slower:
    arrivals, run times, limits and the reservation.
    """
    rng = random.Random(seed)
    special = _special(rng, count, brief)
    shapes = [_shape(rng, special.get(number, "plain"), nodes) for number in range(count)]
    shapes = _scaled(shapes, special, count * (_BRIEF_NODE_S if brief else _MEAN_NODE_S))
    work_node_s = sum(size * run_s for size, run_s, _ in shapes)
    span_s = work_node_s / nodes / _LOAD
    arrivals = _arrivals(rng, count, span_s)
    reservation = Reservation(round(span_s * 0.4), tuple(f"n{nodes - back}" for back in range(RESERVED_NODES)))
    jobs: list[RegularJob] = []
    for number, (size, run_s, limit_min) in enumerate(shapes):
        kind = special.get(number, "plain")
        after = rng.randrange(max(0, number - 8), number) if kind == "dependency" and number else None
        options = _options(rng, kind, size, nodes)
        jobs.append(RegularJob(number, arrivals[number], size, run_s, limit_min, kind, after, options))
    slower = replace(reservation, at_s=reservation.at_s * stretch, length_min=reservation.length_min * stretch)
    return Stream(tuple(_stretched(job, stretch) for job in jobs), slower)


def _stretched(job: RegularJob, stretch: int) -> RegularJob:
    """The job in slow motion. What ends just below its limit still does so by the same few seconds."""
    run_s = 60.0 * (stretch - 1) * job.limit_min + job.run_s if job.kind == "true_plan" else stretch * job.run_s
    return replace(
        job,
        at_s=round(stretch * job.at_s, 2),
        run_s=round(run_s, 2),
        limit_min=stretch * job.limit_min,
    )


def _special(rng: random.Random, count: int, brief: bool) -> dict[int, str]:
    """Which jobs are not plain: about four in ten, the kinds spread over the stream."""
    wanted = {"true_plan": 0.15, "dependency": 0.1, "nodelist": 0.06, "constraint": 0.06, "contiguous": 0.06}
    if brief:
        del wanted["true_plan"]
    kinds = [kind for kind, share in wanted.items() for _ in range(max(1, math.floor(share * count)))]
    rng.shuffle(kinds)
    # The reservation's job is submitted ahead of it: among the first, after the burst.
    places = rng.sample(range(1, count), min(len(kinds) + 1, count - 1))
    first = min(places, key=lambda place: abs(place - _BURST_SHARE * count))
    places.remove(first)
    return {first: "reservation", **dict(zip(places, kinds, strict=False))}


def _shape(rng: random.Random, kind: str, nodes: int) -> tuple[int, float, int]:
    """Nodes, seconds and the limit in minutes, before the seconds are scaled."""
    size = min(round(rng.paretovariate(1.1)), nodes * 3 // 4)
    if kind == "true_plan":
        # Ends just below its limit, so that what waits for it starts when it was planned to.
        return min(max(2, size), nodes // 4), rng.uniform(56.5, 58.0), 1
    if kind == "reservation":
        return RESERVED_NODES, _RESERVED_RUN_S, 1
    if kind == "contiguous":
        size = min(max(2, size), nodes // 2)
    if kind == "constraint":
        size = min(size, nodes // 2)
    if kind == "nodelist":
        size = min(size, 2)
    run_s = rng.lognormvariate(math.log(7.0), 0.8)
    # Users ask for more than they need, and some for much more.
    return size, run_s, rng.choice((1, 1, 1, 2, 2, 5))


def _scaled(
    shapes: list[tuple[int, float, int]], special: dict[int, str], wanted_node_s: float
) -> list[tuple[int, float, int]]:
    """Stretch the run times that are free, so that the stream is the same length for every seed."""
    fixed = {number for number, kind in special.items() if kind in ("true_plan", "reservation")}
    given = sum(size * run_s for number, (size, run_s, _) in enumerate(shapes) if number in fixed)
    free = sum(size * run_s for number, (size, run_s, _) in enumerate(shapes) if number not in fixed)
    factor = max(0.2, (wanted_node_s - given) / free) if free else 1.0
    return [
        shape
        if number in fixed
        else (shape[0], round(min(_LONGEST_S, max(_SHORTEST_S, shape[1] * factor)), 1), shape[2])
        for number, shape in enumerate(shapes)
    ]


def _arrivals(rng: random.Random, count: int, span_s: float) -> list[float]:
    burst = max(1, round(_BURST_SHARE * count))
    # The last quarter of the span is left to the queue that has grown.
    later = sorted(rng.uniform(1.0, 0.75 * span_s) for _ in range(count - burst))
    return [round(0.9 * number / burst, 2) for number in range(burst)] + [round(at_s, 2) for at_s in later]


def _options(rng: random.Random, kind: str, size: int, nodes: int) -> tuple[str, ...]:
    if kind == "nodelist":
        return ("--nodelist=" + ",".join(f"n{number}" for number in sorted(rng.sample(range(1, nodes - 2), size))),)
    if kind == "constraint":
        return (f"--constraint={FEATURE}",)
    if kind == "contiguous":
        return ("--contiguous",)
    if kind == "reservation":
        return (f"--reservation={RESERVATION}",)
    return ()
