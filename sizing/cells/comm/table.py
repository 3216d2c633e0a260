"""Communication tables: measured times of collectives over a link, interpolated for sizes in between."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sizing.base.errors import NoTable, UsageError
from sizing.base.estimate import Estimate
from sizing.base.json_fields import Fields, decoded
from sizing.cells.comm.protocol import Link

PROGRAMS: Mapping[str, str] = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "all_to_all": "alltoall_perf",
    "broadcast": "broadcast_perf",
    "send_recv": "sendrecv_perf",
}
"""The program of nccl-tests that measures each kind of communication."""

BYTES = tuple(4**at * 1024 for at in range(9))
"""The sizes of our own measurement, 1 KiB to 64 MiB."""

CPU = "cpu"
RANKS = (2, 8)
"""The fewest and most processes on one machine in our own measurement."""

_VERSION = 1
_SLACK = 1.25  # beyond the largest size the bandwidth may still change, by an assumed quarter


@dataclass(frozen=True, slots=True, order=True)
class TimedSize:
    """One size (of the whole tensor, as in nccl-tests): the median, least and largest of `samples` times."""

    nbytes: int
    value_s: float
    low_s: float
    high_s: float
    samples: int


@dataclass(frozen=True, slots=True)
class Table:
    """The measurements of one kind over one link: points of rising sizes, from `source`, on the day `day`."""

    kind: str
    link: Link
    points: tuple[TimedSize, ...]
    source: str
    day: str

    @property
    def key(self) -> tuple[str, Link]:
        """The key of the table: a later table with the same key replaces it."""
        return self.kind, self.link

    def reaches(self, other: Table) -> bool:
        """Whether it covers all sizes that another table covers."""
        return self.points[0].nbytes <= other.points[0].nbytes and self.points[-1].nbytes >= other.points[-1].nbytes


def table(kind: str, link: Link, samples: Mapping[int, Sequence[float]], source: str, day: str) -> Table:
    """Make a table of the seconds that were measured for each size."""
    points = tuple(
        TimedSize(nbytes, statistics.median(times), min(times), max(times), len(times))
        for nbytes, times in sorted(samples.items())
    )
    return Table(kind, link, points, source, day)


class CommTables:
    """The tables by kind and link; of two for the same, the later one counts."""

    def __init__(self, tables: Iterable[Table] = (), *, extrapolate: bool = False) -> None:
        """`extrapolate` allows sizes above the largest measured one, with times of origin "assumed"."""
        self._by_key: dict[tuple[str, Link], Table] = {each.key: each for each in tables}
        self._extrapolate = extrapolate

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables, sorted by link and kind."""
        return tuple(sorted(self._by_key.values(), key=lambda each: (each.link, each.kind)))

    def add(self, tables: Iterable[Table]) -> tuple[Table, ...]:
        """Add tables; returns those that they replace."""
        new = {each.key: each for each in tables}
        replaced = tuple(self._by_key[key] for key in new if key in self._by_key)
        self._by_key |= new
        return replaced

    def time_s(self, kind: str, nbytes: float, link: Link) -> Estimate:
        """Return the seconds of one `kind` over `link` for a whole tensor of `nbytes`.

        A measured size gives the measured time. Between two sizes the time is interpolated in the logarithms of both.
        Below the smallest size the value is that size's time, which is mostly latency; `low` is its share by size (both
        "interpolated"). Above the largest size, unless extrapolation is allowed, and for a link without a table:
        raises NoTable, which names the command to measure it.
        """
        if link.size == 1 and kind != "send_recv":
            return Estimate(0.0, 0.0, 0.0, "formula")  # there is no other rank
        found = self._by_key.get((kind, link))
        if found is None:
            raise NoTable(f"no times of {kind} over {named(link)}; {_way(kind, link)}")
        sizes = [point.nbytes for point in found.points]
        at = bisect_left(sizes, nbytes)
        if at == len(sizes):
            if not self._extrapolate:
                raise NoTable(
                    f"{kind} over {named(link)} was measured up to {shown(sizes[-1])}, not for {shown(nbytes)}; "
                    f"{_way(kind, link, nbytes)}; or allow --extrapolate"
                )
            return _beyond(found.points, nbytes)
        point = found.points[at]
        if point.nbytes == nbytes:
            return Estimate(point.value_s, point.low_s, point.high_s, "measured")
        if at == 0:
            return Estimate(point.value_s, point.low_s * max(0.0, nbytes) / point.nbytes, point.high_s, "interpolated")
        return _between(found.points[at - 1], point, nbytes)


def named(link: Link) -> str:
    """Return a link in words."""
    if link.gpu_type == CPU and link.nodes == 1:
        return f"{link.per_node} processes of one CPU node"
    if link.nodes == 1:
        return f"{link.per_node} {link.gpu_type} of one node"
    return f"{link.nodes} nodes of {link.per_node} {link.gpu_type} each"


def _way(kind: str, link: Link, nbytes: float = 0) -> str:
    """Return advice on how to get the times of a link, up to at least `nbytes`."""
    if link.gpu_type == CPU and (link.nodes > 1 or link.per_node > RANKS[1]):
        return f"of CPUs, bft measures {RANKS[0]} to {RANKS[1]} processes of one node: take a smaller cell"
    return f"measure them: {command(kind, link, nbytes)}"


def command(kind: str, link: Link, nbytes: float = 0) -> str:
    """Return the command that measures a kind over a link, up to at least `nbytes`."""
    most = 2 ** max(30, math.ceil(math.log2(max(1, nbytes))))
    if link.gpu_type == CPU:
        return f"bft size comm bench --ranks {link.per_node}" + (f" --max-bytes {most}" if nbytes > BYTES[-1] else "")
    ranks = f"srun --nodes={link.nodes} --ntasks-per-node={link.per_node} --gpus-per-node={link.per_node}"
    program = PROGRAMS.get(kind, "all_reduce_perf")
    return f"{ranks} {program} -b 1K -e {most} -f 2 -g 1 > {program}.log && bft size comm import {program}.log"


def shown(nbytes: float) -> str:
    """Format a number of bytes with a unit."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= size:
            return f"{nbytes / size:.4g} {unit}"
    return f"{nbytes:.4g} bytes"


def to_json(tables: Iterable[Table]) -> dict[str, Any]:
    """Return tables in the form of the file."""
    return {
        "version": _VERSION,
        "tables": [
            {
                "kind": each.kind,
                "gpu_type": each.link.gpu_type,
                "per_node": each.link.per_node,
                "nodes": each.link.nodes,
                "source": each.source,
                "day": each.day,
                "points": [
                    {
                        "bytes": point.nbytes,
                        "value_s": point.value_s,
                        "low_s": point.low_s,
                        "high_s": point.high_s,
                        "samples": point.samples,
                    }
                    for point in each.points
                ],
            }
            for each in tables
        ],
    }


def parse(text: str, name: str) -> tuple[Table, ...]:
    """Parse the text of a file of tables; raises UsageError with the place of an error."""
    whole = Fields(name, decoded(text, name), frozenset({"format", "version", "tables"}))
    if whole.count("version") != _VERSION:
        raise whole.wrong("version", f"{_VERSION}: another bft wrote this")
    return tuple(_table(each) for each in whole.each("tables", _TABLE))


_TABLE = frozenset({"kind", "gpu_type", "per_node", "nodes", "source", "day", "points"})
_POINT = frozenset({"bytes", "value_s", "low_s", "high_s", "samples"})


def _table(each: Fields) -> Table:
    if each.text("kind") not in PROGRAMS:
        raise each.wrong("kind", f"one of {', '.join(PROGRAMS)}")
    link = Link(each.word("gpu_type"), each.count("per_node", least=1), each.count("nodes", least=1))
    points = tuple(_point(item) for item in each.each("points", _POINT))
    sizes = [point.nbytes for point in points]
    if not points or sizes != sorted(set(sizes)):
        raise UsageError(f"{each.where}: points are not of rising sizes: give each size once, the least first")
    return Table(each.text("kind"), link, points, each.text("source", ""), each.text("day", ""))


def _point(item: Fields) -> TimedSize:
    value_s = item.number("value_s")
    low_s, high_s = item.number("low_s", value_s), item.number("high_s", value_s)
    if not 0 < low_s <= value_s <= high_s:
        raise item.wrong("value_s", "seconds above 0, between low_s and high_s")
    return TimedSize(item.count("bytes", least=1), value_s, low_s, high_s, item.count("samples", 1, least=1))


def _between(lower: TimedSize, upper: TimedSize, nbytes: float) -> Estimate:
    """Interpolate linearly in the logarithms of bytes and seconds."""
    share = math.log(nbytes / lower.nbytes) / math.log(upper.nbytes / lower.nbytes)
    low_s, value_s, high_s = (
        math.exp((1 - share) * math.log(one) + share * math.log(other))
        for one, other in (
            (lower.low_s, upper.low_s),
            (lower.value_s, upper.value_s),
            (lower.high_s, upper.high_s),
        )
    )
    # the three may be the same number, but rounded differently
    return Estimate(value_s, min(low_s, value_s), max(high_s, value_s), "interpolated")


def _beyond(points: Sequence[TimedSize], nbytes: float) -> Estimate:
    """Extrapolate with a latency and a bandwidth from the two largest sizes, or with the largest's bandwidth alone."""
    last = points[-1]
    in_proportion_s = last.value_s * nbytes / last.nbytes
    value_s = in_proportion_s
    if len(points) > 1 and last.value_s > points[-2].value_s:
        second = points[-2]
        slope = (last.value_s - second.value_s) / (last.nbytes - second.nbytes)
        value_s = min(in_proportion_s, last.value_s + slope * (nbytes - last.nbytes))
    return Estimate(value_s, value_s / _SLACK, max(value_s, in_proportion_s) * _SLACK, "assumed")
