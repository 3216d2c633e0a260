"""The cases of a report, from the files given: stored results are used, missing ones are replayed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bftd.simulation.report import sweep
from bftd.simulation.report.model import EQUAL_SHARE, OURS, RIGID, Case, Replayed
from bftd.simulation.report.pool import pool_of, use_of
from bftd.simulation.report.stored import Key, Stored

if TYPE_CHECKING:
    from bftd.simulation.drivers.trainers import SimTrainer
    from bftd.simulation.price import Price
    from bftd.simulation.replay import Options
    from bftd.simulation.replay.options import Policy
    from bftd.simulation.trace import Trace
    from bftd.simulation.trace.job_model import JobLog

Progress = Callable[[float], None]
# The price of a log takes about as long as so many replays.
_PRICED = 6
_POLICIES: tuple[Policy, ...] = (OURS, EQUAL_SHARE, RIGID)

_USED_UP = (
    "All trainers were done before the trace ended, and what was idle then found no use: give more trainers, or start "
    "their list again with --endless."
)


@dataclass(frozen=True)
class NamedTrace:
    """A trace, its name in the report, and the log of jobs beside it."""

    name: str
    trace: Trace
    log: JobLog | None = None


@dataclass(frozen=True)
class NamedLog:
    """A log of jobs without a trace, and its name in the report."""

    name: str
    log: JobLog


def gather(
    traces: Sequence[NamedTrace],
    stored: Sequence[Stored],
    trainers: Sequence[SimTrainer],
    options: Options,
    *,
    logs: Sequence[NamedLog] = (),
    jobs: int | None = None,
    sweeping: bool = True,
    progress: Progress = lambda _: None,
) -> list[Case]:
    """Return one case for each trace, for each other trace with stored results, and for each log, in the order given.

    Traces are replayed with each policy, and with other settings if `sweeping`, on `jobs` processes (default: one per
    core); `progress` is called with the fraction done, in 0..1.
    """
    cases: dict[Key, Case] = {}
    for named in traces:
        cases[_key(named.trace, trainers, options)] = Case(named.name, pool_of(_cut(named.trace, options)))
    for each in stored:
        cases[each.key] = _with(cases.get(each.key, Case(each.name)), each)
    swept = [named for named in traces if sweeping and not cases[_key(named.trace, trainers, options)].points]
    priced = [log for log in (*(named.log for named in traces), *(named.log for named in logs)) if log is not None]
    whole = max(1, len(_POLICIES) * len(traces) + sweep.TRIED * len(swept) + _PRICED * len(priced))
    replayed = _replayed(
        traces, trainers, options, jobs, lambda part: progress(part * len(_POLICIES) * len(traces) / whole)
    )
    for named, replays in zip(traces, replayed, strict=True):
        key = _key(named.trace, trainers, options)
        idled = [] if options.endless or not _used_up(replays[0], trainers) else [_USED_UP]
        # the requested replays come first, so the page is about them
        case = cases[key]
        cases[key] = replace(case, replays=(*replays, *case.replays), notes=(*case.notes, *idled))
    for place, named in enumerate(swept):
        begun = len(_POLICIES) * len(traces) + sweep.TRIED * place

        def report(part: float, begun: int = begun) -> None:
            progress((begun + sweep.TRIED * part) / whole)

        points, expected = sweep.tried(_cut(named.trace, options), trainers, options, jobs, report)
        key = _key(named.trace, trainers, options)
        cases[key] = replace(cases[key], points=points, expected=expected)
    begun = len(_POLICIES) * len(traces) + sweep.TRIED * len(swept)
    prices = _prices(priced, jobs, lambda part: progress((begun + _PRICED * len(priced) * part) / whole))
    for named in traces:
        if named.log is not None:
            key = _key(named.trace, trainers, options)
            cases[key] = replace(cases[key], price=next(prices))
    return [*cases.values(), *(Case(named.name, price=next(prices)) for named in logs)]


def _prices(logs: Sequence[JobLog], jobs: int | None, progress: Progress) -> Iterator[Price]:
    """Yield the price for each log."""
    from bftd.simulation.price import price

    for place, log in enumerate(logs):

        def report(part: float, place: int = place) -> None:
            progress((place + part) / len(logs))

        yield price(log, jobs=jobs, progress=report)


def _replayed(
    traces: Sequence[NamedTrace], trainers: Sequence[SimTrainer], options: Options, jobs: int | None, progress: Progress
) -> list[list[Replayed]]:
    """Replay each trace with each policy."""
    if not traces:
        return []
    from bftd.simulation.advise.workers import each
    from bftd.simulation.replay import run

    wanted = [(named.trace, replace(options, policy=policy)) for named in traces for policy in _POLICIES]

    def work(index: int, report: Progress) -> Replayed:
        trace, asked = wanted[index]
        result = run(trace, trainers, asked, progress=report)
        return Replayed(result.to_json(series=True), use_of(result.account, _cut(trace, asked)))

    found = each(work, range(len(wanted)), jobs or len(os.sched_getaffinity(0)), progress)
    return [found[first : first + len(_POLICIES)] for first in range(0, len(found), len(_POLICIES))]


def _used_up(replayed: Replayed, trainers: Sequence[SimTrainer]) -> bool:
    return int(replayed.data["trainers_completed"]) >= len(trainers)


def _with(case: Case, each: Stored) -> Case:
    if each.replayed is not None:
        return replace(case, replays=(*case.replays, each.replayed))
    return replace(case, points=each.points, expected=each.expected, recommended=True)


def _cut(trace: Trace, options: Options) -> Trace:
    return trace if options.hours is None else trace.first(options.hours)


def _key(trace: Trace, trainers: Sequence[SimTrainer], options: Options) -> Key:
    from bftd.simulation.drivers.trainers import digest

    return (trace.digest(), len(trace.nodes), options.hours, digest(trainers))
