"""`bft advise`: recommends t_fwd and pj_max for a site, and what to expect, from a trace of that site."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from bftd.cli import common, options
from bftd.cli.progress import progress_bar
from bftd.cli.whatif import replay_options
from bftd.simulation import advise as advising
from bftd.simulation.advise import Prefer
from bftd.simulation.advise.advice import T_FWDS_S
from bftd.simulation.replay.options import Options

if TYPE_CHECKING:
    from bftd.simulation.advise import Advice, SweepPoint
    from bftd.simulation.price import Price

N = TypeVar("N", int, float)


def _several(kind: type[N]) -> Callable[[click.Context, click.Parameter, str | None], tuple[N, ...] | None]:
    """Return a click callback that parses numbers separated by commas."""

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[N, ...] | None:
        if value is None:
            return None
        try:
            return tuple(kind(part) for part in value.split(","))
        except ValueError:
            raise click.BadParameter(f"{value!r} is no list of numbers such as 10,20,40.") from None

    return read


@click.command()
@click.argument("path", metavar="TRACE")
@click.option("--trainers", "trainers_path", metavar="X.json.gz", help="What is to be trained [the paper's Table 2].")
@replay_options.nodes
@replay_options.hours
@click.option("--t-fwd", "t_fwds_s", callback=_several(float), metavar="S,S,...", help="Values to try, in seconds.")
@click.option("--pj-max", "pj_maxes", callback=_several(int), metavar="N,N,...", help="Values to try.")
@click.option(
    "--prefer",
    type=click.Choice(get_args(Prefer)),
    default="balanced",
    show_default=True,
    help="How much efficiency to give up for shorter run times: at most 1, 5 or 20 % of the best.",
)
@replay_options.objective
@replay_options.rescale_model
@replay_options.cost_multiplier
@replay_options.price
@click.option("--jobs", type=int, metavar="N", help="Replays at once [one for each core].")
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=replay_options.DEFAULT.seed,
    show_default=True,
    help="Seed of the bootstrap.",
)
@options.as_json
@click.option("-o", "--output", metavar="FILE", help="Write the JSON to a file too.")
def advise(
    path: str,
    trainers_path: str | None,
    nodes: str | None,
    t_fwds_s: tuple[float, ...] | None,
    pj_maxes: tuple[int, ...] | None,
    prefer: Prefer,
    pricing: bool,
    jobs: int | None,
    as_json: bool,
    output: str | None,
    **arguments: Any,
) -> None:
    """Recommend t_fwd and pj_max for the site whose idle nodes TRACE recorded, and tell what it may expect."""
    if output is not None:
        common.refuse_unwritable(Path(output))
    chosen = Options(**arguments)
    from bftd.simulation import trace as traces
    from bftd.simulation.drivers import trainers
    from bftd.simulation.price import price
    from bftd.simulation.trace import job_log

    trace = traces.read(Path(path))
    beside = replay_options.log_beside(path, pricing, nodes)
    log = None if beside is None else job_log.load(beside)
    if nodes is not None:
        trace = trace.select(nodes)
    training = None if trainers_path is None else trainers.read(trainers_path)
    with progress_bar("advise") as progress:
        advice = advising.advise(
            trace, training, t_fwds_s or T_FWDS_S, pj_maxes, options=chosen, prefer=prefer, jobs=jobs, progress=progress
        )
    paid = None
    if log is not None:
        with progress_bar("queue") as progress:
            paid = price(log, jobs=jobs, progress=progress)
    text = common.json_text(advice.to_json() | {"price": None if paid is None else paid.to_json()})
    if output is not None:
        common.write(Path(output), text)
    click.echo(text if as_json else "\n".join(_lines(advice, paid)))


def _lines(advice: Advice, paid: Price | None) -> Iterable[str]:
    """Yield the lines of the human-readable advice."""
    idle = advice.idle_node_hours_per_week
    yield f"{advice.eq_nodes:.1f} nodes are idle on average: {idle:,.0f} node-hours per week"
    yield ""
    yield from _table(advice)
    yield "* recommended   + on the Pareto curve of efficiency against run time"
    yield ""
    best, expected = advice.recommended, advice.expected
    yield f"recommended: t_fwd {best.t_fwd_s:g} s, pj_max {best.pj_max} ({advice.prefer})"
    yield f"why:         {advice.reason}"
    worth = f"{expected.node_hours_per_week:,.0f} node-hours per week ({best.efficiency:.1%} of what is idle)"
    if expected.low is None or expected.high is None or expected.confidence is None:
        yield f"expect:      {worth}; no confidence can be given: {expected.why_not}"
    else:
        bounds = f"{expected.low:,.0f} to {expected.high:,.0f} with {expected.confidence:.0%} confidence"
        yield f"expect:      {worth}, {bounds} (bootstrap of {expected.days} days)"
    if paid is not None:
        yield f"price:       {paid.sentence()}"
    yield from (f"note: {note}" for note in (*advice.notes, *(paid.notes if paid is not None else ())))


def _table(advice: Advice) -> Iterable[str]:
    from bftd.base.tables import Column

    columns = [
        Column(""),
        Column("PJ_MAX", right=True),
        Column("T_FWD", right=True),
        Column("EFFICIENCY", right=True),
        Column("NODE-HOURS/WEEK", rank=1, right=True),
        Column("MEAN RUN TIME", right=True),
        Column("DONE", rank=2, right=True),
        Column("NOT DONE", rank=3, right=True),
        Column("PREEMPTIONS", rank=4, right=True),
    ]
    on_curve = {(point.pj_max, point.t_fwd_s) for point in advice.pareto}
    rows = []
    for point in advice.grid:
        mark = "*" if point is advice.recommended else ""
        mark += "+" if (point.pj_max, point.t_fwd_s) in on_curve else ""
        rows.append((mark, *_row(point)))
    yield from common.table(columns, rows)


def _row(point: SweepPoint) -> tuple[str, ...]:
    return (
        str(point.pj_max),
        f"{point.t_fwd_s:g} s",
        f"{point.efficiency:.1%}",
        f"{point.node_hours_per_week:,.0f}",
        f"{point.mean_runtime_s / 3600:.2f} h" if isfinite(point.mean_runtime_s) else "endless",
        str(point.completed),
        str(point.unfinished),
        str(point.preemptions),
    )
