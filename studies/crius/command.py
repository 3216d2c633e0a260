"""`python -m studies.crius`: compares schedulers on simulated jobs, and replays the tuner on logs of a search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bftd.base.errors import UsageError
from bftd.cli import common, options
from bftd.cli.progress import progress_bar
from bftd.cli.size.shared import inventory

if TYPE_CHECKING:
    from studies.crius.comparison import Site
    from studies.crius.search_log import Replay
    from studies.simulation.clusters import Pool
    from studies.simulation.report import Figures, Interval
    from studies.simulation.types import SimulatedJob
    from studies.simulation.workload import TraceJob

_COUNT, _ROWS = 200, 12
_LOAD = 1.5
_MOST_JOBS = 20_000


@click.group()
def crius() -> None:
    """Schedulers of Crius on a simulated GPU cluster, and its tuner on logs of a search."""


@crius.command()
@click.option("--jobs", "path", metavar="TRACE.csv", help="Jobs; else 200 are generated for each seed. - is stdin.")
@click.option("--cluster", metavar="FILE.json|auto", help="GPUs of a file, or of live Slurm; else Crius's 1,280.")
@click.option("--policy", "policies", multiple=True, metavar="NAME", help="A scheduler; may be given several times.")
@click.option("--seeds", type=click.IntRange(1, 100), default=3, metavar="N", help="How many; default 3.")
@click.option("--count", type=click.IntRange(2, _MOST_JOBS), metavar="N", help="So many jobs in a row, by the seed.")
@click.option("--load", type=click.FloatRange(0.01, 100), metavar="X", help="Stretch time until so much is asked for.")
@click.option("--error", type=click.FloatRange(0, 0.9), default=0.0, metavar="SHARE", help="Of what schedulers know.")
@click.option("--deadlines", is_flag=True, help="With the trace's deadlines (for crius-ddl and elasticflow).")
@options.config
@options.as_json
def simulate(
    path: str | None,
    cluster: str | None,
    policies: Sequence[str],
    seeds: int,
    count: int | None,
    load: float | None,
    error: float,
    deadlines: bool,
    config_path: str | None,
    as_json: bool,
) -> None:
    """Compare schedulers on a simulated GPU cluster.

    TRACE.csv has a line of headings and a line for each job: submission_time, duration (s), num_gpu, and where they are
    known job_id, model_name (bert-1.3b/256, or gpt:h=...,l=... as in --config, with batch_size), gpu_type and deadline.
    A seed draws the rest: a model for jobs that name none of them, and then up to 8 times the fewest GPUs that it fits,
    num_gpu at least. Counts are powers of two, and 64 the most. --load 1.5 makes all jobs ask for 1.5 times the GPUs
    that there are until the last of them is submitted. Speeds are of data sheets: differences between schedulers mean
    something, hours do not.
    """
    from studies.crius import comparison
    from studies.crius.schedulers import NEED_DEADLINES, USUAL, maker
    from studies.simulation import workload

    names = list(dict.fromkeys(policies or USUAL))
    for name in names:
        maker(name)
    trace = None if path is None else _trace(path)
    pools = _pools(cluster, config_path)
    site = comparison.Site.of(pools, workload.models_of(trace or ()))
    if trace is None and load is None:
        load = _LOAD
    if deadlines and trace is not None and all(each.late is None for each in trace):
        raise UsageError(f"--deadlines: no job of {path} has one: write a column deadline, or leave the option out")
    every = [_jobs(trace, site, seed, count, load, deadlines=deadlines) for seed in range(seeds)]
    runs: dict[str, list[Figures]] = {name: [] for name in names}
    with progress_bar("Simulating") as done:
        for seed, jobs in enumerate(every):
            for at, name in enumerate(names):
                runs[name].append(comparison.run(name, jobs, site, error=error, seed=seed))
                done((seed * len(names) + at + 1) / (seeds * len(names)))
    more, fewer = _changed(trace or (), every)
    if as_json:
        asked: dict[str, Any] = {"jobs": len(every[0]), "load": load, "error": error, "gpus": _counts(pools)}
        asked |= {"num_gpu_raised": more, "num_gpu_cut": fewer}
        common.echo_json({**comparison.to_json(runs), **asked})
        return
    common.echo(_shown(runs, pools, len(every[0]), seeds, error))
    if not deadlines and (named := [name for name in names if name in NEED_DEADLINES]):
        click.echo(f"{' and '.join(named)}: deadlines are only looked at with --deadlines")
    if more or fewer:
        click.echo(
            f"num_gpu is taken for more in {more} job{'s' * (more != 1)} (powers of two, and what the model needs) and "
            f"for fewer in {fewer} (at most 64, and what there is of the type)"
        )


@crius.command("search-log")
@click.argument("log", metavar="FILE.csv")
@options.as_json
def search_log(log: str, as_json: bool) -> None:
    """Replay the tuner of bft size split on a recorded search that measured every plan.

    Nothing is run: the log has the time of every plan, and the tuner sees only those that it asks for.
    """
    from sizing.files.text import text_of
    from studies.crius import search_log as logs

    name = "standard input" if log == "-" else Path(log).name
    replays = logs.replay(logs.parse(text_of(log), name))
    if as_json:
        common.echo_json(logs.to_json(replays))
    else:
        common.echo(_replayed(replays))


def _trace(path: str) -> Sequence[TraceJob]:
    from sizing.files.text import text_of
    from studies.simulation.workload import parse

    where = "standard input" if path == "-" else path
    trace = parse(text_of(path), where)
    if len(trace) > _MOST_JOBS:
        raise UsageError(f"{where} has {len(trace)} jobs: simulate at most {_MOST_JOBS}, a week or two")
    return trace


def _pools(cluster: str | None, config_path: str | None) -> Mapping[str, Pool]:
    from studies.simulation.clusters import of_inventory, table1

    if cluster is None:
        return table1()
    return of_inventory(inventory.found(None if cluster == "auto" else cluster, config_path, option="--cluster"))


def _jobs(
    trace: Sequence[TraceJob] | None, site: Site, seed: int, count: int | None, load: float | None, *, deadlines: bool
) -> Sequence[SimulatedJob]:
    from studies.simulation import workload

    if trace is None:
        part: Sequence[TraceJob] = workload.generated(seed, count or _COUNT)
    else:
        part = workload.window(trace, count, seed) if count else trace
    return workload.jobs_of(part, site.models, site.pools, site.speeds, seed=seed, load=load, deadlines=deadlines)


def _changed(trace: Sequence[TraceJob], every: Sequence[Sequence[SimulatedJob]]) -> tuple[int, int]:
    """Count the trace's jobs that ask for more GPUs than it says, and for fewer, each by the seed with the most."""
    said = {each.id: each.gpus for each in trace}
    more, fewer = (
        max(sum(sign * job.gpus > sign * said.get(job.id, job.gpus) for job in jobs) for jobs in every)
        for sign in (1, -1)
    )
    return more, fewer


def _counts(pools: Mapping[str, Pool]) -> dict[str, int]:
    return {name: pool.gpus for name, pool in pools.items()}


def _shown(
    runs: Mapping[str, Sequence[Figures]], pools: Mapping[str, Pool], jobs: int, seeds: int, error: float
) -> Iterable[str]:
    """Yield a line for each policy, and the assumptions."""
    from bftd.base.tables import Column
    from studies.simulation.report import summary

    columns = [
        Column("POLICY"),
        Column("MEAN JCT", right=True),
        Column("MEDIAN", rank=2, right=True),
        Column("99 %", rank=3, right=True),
        Column("QUEUED", rank=1, right=True),
        Column("ENDED", right=True),
        Column("IN TIME", rank=1, right=True),
        Column("DROPPED", rank=2, right=True),
        Column("THROUGHPUT", right=True),
        Column("RESTARTS", rank=1, right=True),
    ]
    rows = []
    for name, found in runs.items():
        each = summary(found)
        rows.append(
            (
                name,
                _hours(each.get("mean_jct_s")),
                _hours(each.get("median_jct_s"), alone=True),
                _hours(each.get("p99_jct_s"), alone=True),
                _hours(each.get("mean_queue_s"), alone=True),
                f"{each['finished'].value:.0f} of {jobs}",
                f"{each['deadlines'].value:.0%}" if "deadlines" in each else "-",
                f"{each['dropped'].value:.0f}",
                # if all jobs were submitted at once, there is no time until the last submission
                _number(each["window_normalised"]) if any(run.window_raw for run in found) else "-",
                f"{each['restarts'].value:.1f}",
            )
        )
    shown = [at for at, column in enumerate(columns) if column.title != "IN TIME" or any(r[at] != "-" for r in rows)]
    yield from common.table([columns[at] for at in shown], [[row[at] for at in shown] for row in rows])
    yield (
        f"{jobs} job{'s' if jobs > 1 else ''}, {seeds} seed{'s' if seeds > 1 else ''}, "
        + ", ".join(f"{count} {name}" for name, count in _counts(pools).items())
        + (f"; schedulers' speeds are wrong by up to {error:.0%}" if error else "")
        + ("; +/- is the 95 % confidence interval" if seeds > 1 else "")
    )
    yield (
        "THROUGHPUT: until the last submission, a job that runs as it was asked for counts 1. All but crius's are "
        "simplified; speeds are worked out from data sheets, none was measured"
    )


def _hours(found: Interval | None, *, alone: bool = False) -> str:
    if found is None:  # in one of the runs no job got that far
        return "-"
    half = (found.high - found.low) / 7200
    return f"{found.value / 3600:.2f}" + (f" +/- {half:.2f}" if half and not alone else "") + " h"


def _number(found: Interval) -> str:
    half = (found.high - found.low) / 2
    return f"{found.value:.0f}" + (f" +/- {half:.0f}" if half else "")


def _replayed(replays: tuple[Replay, ...]) -> Iterable[str]:
    """Yield the cells on which the tuner did worst, and the overall figures."""
    from bftd.base.tables import Column
    from studies.crius import search_log as logs

    feasible = [each for each in replays if each.accuracy is not None]
    columns = [
        Column("LAYERS"),
        Column("GPUS", right=True),
        Column("BEST S", right=True),
        Column("TUNED S", right=True),
        Column("SPLIT"),
        Column("ACCURACY", right=True),
        Column("TRIED", right=True),
    ]
    worst = sorted(feasible, key=lambda each: (each.accuracy, -each.cell.gpus))[:_ROWS]
    if worst:
        yield from common.table(columns, [_row(each) for each in worst])
    if len(feasible) > len(worst):
        yield f"and {len(feasible) - len(worst)} cells that are no worse (--json has them)"
    scores = logs.accuracies(replays)
    tried, there = (sum(getattr(each.tuned, name) for each in replays) for name in ("tried", "candidates"))
    if scores:
        mean = sum(scores) / len(scores)
        yield f"tuned plans: {mean:.1%} of the best on average, {min(scores):.1%} in the worst cell"
    yield (
        f"{len(replays)} cells, {len(feasible)} of them feasible, {logs.missed(replays)} of these missed; "
        f"{tried} of {there} splits tried"
    )


def _row(each: Replay) -> tuple[str, ...]:
    tuned = each.tuned
    return (
        f"{each.cell.first_layer}-{each.cell.last_layer}",
        str(each.cell.gpus),
        f"{each.best_s:.4g}",
        "missed" if tuned.time_s is None else f"{tuned.time_s:.4g}",
        "" if tuned.best is None else f"dp{tuned.best.dp} tp{tuned.best.tp}",
        f"{each.accuracy:.1%}",
        f"{tuned.tried} of {tuned.candidates}",
    )
