"""The profile of a command: points chosen by the search, run or found in the cache, within a budget of seconds."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from sizing.base.errors import UsageError
from sizing.base.estimate import Estimate
from sizing.cpu import cache_inputs, dataset
from sizing.cpu.dataset import DataFiles
from sizing.cpu.patterns import COUNT_MOST
from sizing.cpu.runs.affinity import How, Kind
from sizing.cpu.runs.measurement import ObservationLimits, PointProgress, PointResult, Runner, Unmeasured, too_few
from sizing.cpu.sensitivity import cache_model, search
from sizing.cpu.sensitivity.matrix import Matrix
from sizing.cpu.sensitivity.rates import interval
from sizing.cpu.store import Points, age_s, key_of

_MOST_CPUS = 4096
_START_S = 5.0  # assumed, until a point has shown it
_SLOWER = 1.2  # factor on the points before: with fewer CPUs a command starts more slowly
_NOISY = 0.05  # of a rate: so wide an interval is worth a second measurement if the search depends on it
_COUNT_S = 30.0  # for the files of a data set; a file server may take a second for a thousand
_TWICE = "measured twice"


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """A request for a profile: a command with the CPUs to choose from, in total (none: all there are).

    `gpus` is the number of GPUs the command uses, 0 for none. Without `regex` the progress API is listened to. `data`
    are files and folders that it reads, `dataset_bytes` their size if these are only some; without `data` there is no
    memory axis. `dataset_samples` is the number of samples of an epoch (steps, if these are counted), computed by
    default. `again` measures points anew that the cache has.
    """

    command: tuple[str, ...]
    cpus: tuple[int, ...] = ()
    gpus: int = 0
    regex: str | None = None
    budget_s: float = 600.0
    limits: ObservationLimits = field(default_factory=ObservationLimits)
    dataset_bytes: float | None = None
    data: tuple[Path, ...] = ()
    how: How = "auto"
    again: bool = False
    dataset_samples: float | None = None

    def __post_init__(self) -> None:
        if not self.budget_s > 0:
            raise UsageError(f"--budget {self.budget_s:g}: seconds, more than 0")
        if any(not 1 <= each <= _MOST_CPUS for each in self.cpus):
            raise UsageError(f"--cpus {','.join(map(str, self.cpus))}: from 1 to {_MOST_CPUS}")
        if self.gpus < 0:
            raise UsageError(f"--gpus {self.gpus}: 0 or more")
        if self.dataset_samples is not None and not 1 <= self.dataset_samples < COUNT_MOST:
            raise UsageError(f"--dataset-samples {self.dataset_samples:g}: how many an epoch has, 1 or more")


@dataclass(frozen=True, slots=True)
class ProfileCost:
    """The expected cost of a profile: at most `points` points of about `point_s` each; `known` ones are cached."""

    points: int
    point_s: float
    known: int
    budget_s: float


@dataclass(frozen=True, slots=True)
class Profile:
    """The result of a profile: points in the order they were tried, and the matrix for each GPU.

    `ages_s` has the age of the points from the cache. `left_out` are CPUs that the search wanted and the budget did not
    allow. `memory_modelled` says whether the matrix has a memory axis; if not, its one column is `process_bytes`.
    `available` is the number of CPUs of the host or the allocation.
    """

    ask: ProfileRequest
    points: Mapping[int, PointResult]
    matrix: Matrix
    host: str
    kind: Kind
    available: int
    process_bytes: int
    memory_modelled: bool
    dataset_bytes: float | None = None
    disk_bytes_s: float | None = None
    memory_bytes_s: float | None = None
    ages_s: Mapping[int, float] = field(default_factory=dict)
    left_out: tuple[int, ...] = ()
    said: tuple[str, ...] = ()
    took_s: float = 0.0


def cost(ask: ProfileRequest) -> ProfileCost:
    """Return what `profile` would take, before it starts; raise UsageError for an invalid request."""
    work = _Work(ask)
    found = search.begin(tuple(map(float, work.axis)))
    while (at := found.following()) is not None and int(at) in work.known:
        found = found.tell(at, work.known[int(at)].rate.value)
    points = 0 if found.following() is None else max(1, search.points_most(len(work.axis)) - len(found.tried))
    usual_s = ask.limits.usual_s + _START_S
    took = [point.took_s for point in work.known.values()]
    return ProfileCost(points, sum(took) / len(took) if took else usual_s, len(found.tried), ask.budget_s)


def profile(
    ask: ProfileRequest,
    *,
    heard: Callable[[PointProgress], None] | None = None,
    done: Callable[[PointResult], None] | None = None,
) -> Profile:
    """Run the points; call `heard` on the running one a few times a second, `done` on each finished one.

    Every point is written to the cache as soon as it is measured. Ctrl-C ends the command and passes on. Raises
    UsageError for an invalid request, Unmeasured if no throughput was found.
    """
    work = _Work(ask, heard, done)
    files = _files(ask)
    found = search.begin(tuple(map(float, work.axis)))
    while (at := found.following()) is not None:
        rate = work.rate(int(at), found)
        if rate is None:
            break
        found = found.tell(at, rate)
        if (other := work.uncertain(int(at), found)) is not None:
            found = found.tell(float(other), work.points[other].rate.value)
        if (slow := work.cold(found)) is not None:
            found = found.tell(float(slow), work.points[slow].rate.value)
    return work.made(found, files)


def _files(ask: ProfileRequest) -> DataFiles | None:
    """Return the files of the data set; None without paths. Raise UsageError if there are none, or too many."""
    if not ask.data:
        return None
    found = dataset.find(ask.data, most_s := min(_COUNT_S, ask.budget_s))
    if ask.dataset_bytes is None and not found.whole:
        raise UsageError(f"--data: not all files could be counted in {most_s:g} s: say --dataset-bytes SIZE too")
    return found


class _Work:
    """The work of one profile."""

    def __init__(
        self,
        ask: ProfileRequest,
        heard: Callable[[PointProgress], None] | None = None,
        done: Callable[[PointResult], None] | None = None,
    ) -> None:
        self._ask, self._heard, self._done = ask, heard, done
        self._began_s = time.monotonic()
        self._runner = Runner(ask.command, regex=ask.regex, gpus=ask.gpus, limits=ask.limits, how=ask.how)
        self._host = self._runner.confinement.host
        self.axis = self._axis()
        key = key_of(ask.command, ask.regex, ask.gpus, self._host, os.environ, Path.cwd(), ask.limits)
        self._store = Points(key, " ".join(ask.command)[:200])
        self.known = {} if ask.again else self._store.known()
        self.points: dict[int, PointResult] = {}
        self._ages: dict[int, float] = {}
        self._measured: list[PointResult] = []
        self._again: set[int] = set()
        self._left_out: list[int] = []
        self._said: list[str] = []

    def rate(self, cpus: int, found: search.SearchState) -> float | None:
        """Return the rate with `cpus` CPUs, from the cache or measured now; None if there is no time for it."""
        point = self.known.get(cpus)
        if point is not None and all(point.unit == other.unit for other in self.points.values()):
            self._ages[cpus] = age_s(point)
        else:
            try:
                point = self._run(cpus)
            except Unmeasured as error:
                if not (error.timed_out and self.points):
                    raise
                see = f"; all that it printed is in {error.output}" if error.output else ""
                on = "1 CPU: it counts" if cpus == 1 else f"{cpus} CPUs: they count"
                self._said.append(f"no throughput within {self._ask.limits.timeout_s:g} s on {on} as too few{see}")
                return 0.0
            if point is None:
                self._left_out.append(cpus)
                return None
        self.points[cpus] = point
        if self._done is not None:
            self._done(point)
        return point.rate.value

    def uncertain(self, cpus: int, found: search.SearchState) -> int | None:
        """Measure a point again if its interval leaves the search's decision open; return its CPUs, if any.

        That is the point just told or the best one, whichever is less certain; each at most once.
        """
        best = max(self.points.values(), key=lambda each: each.rate.value)
        here = self.points.get(cpus)
        if here is None or here is best:
            return None
        least, most = (1 + found.threshold) * here.rate.low, (1 + found.threshold) * here.rate.high
        if most < best.rate.low or least > best.rate.high:
            return None
        again = max((here, best), key=_width)
        if _width(again) < _NOISY or _TWICE in again.notes:
            return None
        if (second := self._second(again)) is None:
            return None
        self._replace(pooled(again, second))
        return again.cpus

    def cold(self, found: search.SearchState) -> int | None:
        """Measure a point again that was slower than one with fewer CPUs; return its CPUs, if any, each at most once.

        The first point may have read its data from the disk, and later points from memory: if the second measurement is
        clearly faster, the first does not count.
        """
        first = None if found.slower is None else self.points.get(int(found.slower))
        if first is None or _TWICE in first.notes or (second := self._second(first)) is None:
            return None
        was_cold = second.rate.low > first.rate.high
        self._replace(replace(second, notes=(*second.notes, _TWICE)) if was_cold else pooled(first, second))
        return first.cpus

    def _second(self, first: PointResult) -> PointResult | None:
        """Measure the point once more; return None if that fails, or was tried before."""
        if first.cpus in self._again:
            return None
        self._again.add(first.cpus)
        try:
            second = self._run(first.cpus)
        except Unmeasured as error:
            _without_output(error)
            return None
        return None if second is None or second.unit != first.unit else second

    def _replace(self, point: PointResult) -> None:
        self.points[point.cpus] = point
        self._store.put(point)
        self._ages.pop(point.cpus, None)
        if self._done is not None:
            self._done(point)

    def made(self, found: search.SearchState, files: DataFiles | None) -> Profile:
        """Return the profile of the points tried."""
        ask, confined = self._ask, self._runner.confinement
        process_bytes = max(point.process_bytes for point in self.points.values())
        most = self.points[max(self.points)]
        cached = cache_inputs.caching(files, ask.dataset_bytes, ask.dataset_samples, most, process_bytes)
        memory: tuple[float, ...] = (float(max(1, process_bytes)),)
        if cached.loading is not None:
            memory = cache_model.memory_axis(
                found.best, cached.loading, float(max(self._host.memory_bytes, process_bytes))
            )
        made = cache_model.matrix(found, ask.gpus, cached.loading, memory)
        made = replace(made, searched=found.demand / made.gpus)
        said = [*self._said, *self._store.said, *cached.said]
        if cached.why and (ask.data or ask.dataset_bytes is not None):
            said.append(f"no memory axis: {cached.why}")
        if len(found.tried) == 1 and self._left_out:
            said.append("one point says nothing of fewer CPUs: the same command with a longer --budget goes on from it")
        return Profile(
            ask=ask,
            points=self.points,
            matrix=made,
            host=self._host.name,
            kind=confined.kind,
            available=self._host.cpus,
            process_bytes=process_bytes,
            memory_modelled=cached.loading is not None,
            dataset_bytes=cached.dataset_bytes,
            disk_bytes_s=cached.disk_bytes_s,
            memory_bytes_s=cached.memory_bytes_s,
            ages_s=self._ages,
            left_out=tuple(self._left_out),
            said=tuple(said),
            took_s=time.monotonic() - self._began_s,
        )

    def _run(self, cpus: int) -> PointResult | None:
        """Measure a point and keep it; return None if the budget does not allow it."""
        left_s = self._ask.budget_s - (time.monotonic() - self._began_s)
        expected_s = max((_SLOWER * point.took_s for point in self._measured), default=0.0)
        if self._measured and left_s < expected_s:
            return None
        cut = left_s < self._ask.limits.timeout_s
        if cut and left_s < 1.0:
            if self.points:
                return None
            raise Unmeasured(f"--budget {self._ask.budget_s:g} was over before the command could be run: a larger one")
        try:
            point = self._runner.measure(cpus, self._heard, left_s if cut else math.inf)
        except Unmeasured as error:
            if not (cut and error.timed_out):
                raise
            if self.points:
                _without_output(error)
                return None
            raise Unmeasured(f"{error}; --budget {self._ask.budget_s:g} ended it", error.output) from None
        self._measured.append(point)
        self._store.put(point)
        return point

    def _axis(self) -> tuple[int, ...]:
        """Return the CPUs to choose from, ascending: as many for each GPU if possible."""
        there, gpus = self._runner.available, max(1, self._ask.gpus)
        if self._ask.cpus:
            if max(self._ask.cpus) > there:
                raise UsageError(too_few(max(self._ask.cpus), self._runner.confinement))
            return tuple(sorted(set(self._ask.cpus)))
        return tuple(range(gpus, there + 1, gpus)) or (there,)


def pooled(first: PointResult, second: PointResult) -> PointResult:
    """Combine two measurements of a point: the blocks of both, if these may have the same rate.

    Otherwise the faster one counts: other programs make a command slower, never faster.
    """
    if first.rate.high < second.rate.low or second.rate.high < first.rate.low:
        faster, slower = (first, second) if first.rate.value > second.rate.value else (second, first)
        told = f"the other time it was {1 - slower.rate.value / faster.rate.value:.0%} slower: is the machine shared?"
        return replace(faster, made_s=second.made_s, notes=(*faster.notes, _TWICE, told))
    blocks = first.blocks + second.blocks
    value, low, high = interval(blocks)
    return replace(
        second,
        rate=Estimate(value, low, high, "measured"),
        blocks=blocks,
        steps=first.steps + second.steps,
        steady_s=first.steady_s + second.steady_s,
        took_s=second.took_s,
        process_bytes=max(first.process_bytes, second.process_bytes),
        notes=tuple(dict.fromkeys((*first.notes, *second.notes, _TWICE))),
    )


def _without_output(error: Unmeasured) -> None:
    """Remove the output file of a run that is not reported."""
    with suppress(OSError):
        os.unlink(error.output)


def _width(point: PointResult) -> float:
    return (point.rate.high - point.rate.low) / point.rate.value
