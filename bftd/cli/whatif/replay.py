"""`bft replay`: simulates bftd on a recorded trace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bftd.cli import common
from bftd.cli.progress import progress_bar
from bftd.cli.whatif import replay_options
from bftd.simulation.replay.options import Options

if TYPE_CHECKING:
    from bftd.simulation.replay.result import Result


@click.command()
@click.option("--trace", "trace_path", required=True, metavar="T.csv.gz", help="Which nodes were idle when.")
@click.option("--trainers", "trainers_path", required=True, metavar="X.json.gz", help="What is to be trained.")
@replay_options.nodes
@replay_options.hours
@replay_options.t_fwd
@replay_options.pj_max
@replay_options.policy
@replay_options.objective
@replay_options.accounting
@replay_options.rescale_model
@replay_options.cost_multiplier
@click.option(
    "--solver", default=replay_options.DEFAULT.solver, show_default=True, metavar="NAME", help="See `bft solve --help`."
)
@click.option("--scavenger-nodes", type=int, metavar="K", help="Size of the rigid jobs; default: the best power of 2.")
@click.option(
    "--checkpoint-every",
    "checkpoint_every_s",
    type=float,
    default=replay_options.DEFAULT.checkpoint_every_s,
    show_default=True,
    metavar="S",
    help="Seconds between two checkpoints of a rigid job.",
)
@replay_options.endless
@click.option("--series", is_flag=True, help="Write the figures of every six hours to the JSON too.")
@click.option("--json", "json_path", metavar="OUT", help='Write the result as JSON; "-" is standard output.')
def replay(trace_path: str, trainers_path: str, series: bool, json_path: str | None, **arguments: Any) -> None:
    """Replay a trace of idle nodes with simulated trainers, through the daemon's own decision core."""
    from bftd.simulation import replay as replaying
    from bftd.simulation import trace as traces
    from bftd.simulation.drivers import trainers

    options = Options(**arguments)
    trace, training = traces.read(Path(trace_path)), trainers.read(trainers_path)
    with progress_bar("replay") as progress:
        result = replaying.run(trace, training, options, progress=progress)
    _warn(result, len(training), options)
    if json_path is not None:
        common.write(json_path, common.json_text(result.to_json(series=series)))
    if json_path != "-":
        click.echo("\n".join(_lines(result)))


def _warn(result: Result, trainers: int, options: Options) -> None:
    if result.trainers_completed >= trainers and not options.endless:
        click.echo("bft: all trainers were done before the trace ended: add more, or use --endless", err=True)


def _lines(result: Result) -> Iterator[str]:
    """Yield the lines of the human-readable result."""
    yield f"efficiency U          {result.efficiency:.1%} of {result.eq_nodes:.1f} dedicated nodes"
    yield f"outcome               {result.outcome_samples:.4g} of {result.static_outcome_samples:.4g} samples"
    parts = ", ".join(_of_idle(result, word) for word in ("training", "held"))
    yield f"node-hours            {result.node_hours:,.0f} idle, {parts}"
    costs = f"rescaling {result.rescale_cost_samples:.3g}, preemption {result.preempt_cost_samples:.3g} samples"
    yield f"lost to               {costs} ({result.preemptions} preemptions)"
    yield f"trainers completed    {result.trainers_completed}"
    for kind, runtime_s in result.mean_runtime_s.items():
        yield f"  {kind:<19} {runtime_s / 3600:.2f} h on average"
    share = result.t_fwd_preempted_share
    yield f"decisions             {result.events}, with {share:.0%} of all preemptions within t_fwd of the last one"
    solve = result.solve_ms
    yield f"a plan takes          {solve['p50']:.2f} ms (p99 {solve['p99']:.2f}, most {solve['max']:.2f})"
    if result.run["arguments"]["policy"] == "scavenger":
        yield f"rigid jobs of         {result.run['arguments']['scavenger_nodes']} nodes"
    yield f"replayed in           {result.wall_s:.1f} s"


def _of_idle(result: Result, word: str) -> str:
    """Format the node-hours of one kind and their share of the idle node-hours."""
    hours: float = getattr(result, f"{word}_node_hours")
    return f"{hours:,.0f} {word}" + (f" ({hours / result.node_hours:.1%})" if result.node_hours > 0 else "")
