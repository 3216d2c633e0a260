"""`bft replay`: what bftd would have made of a recorded trace."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from bftd.errors import UsageError
from bftd.replay.options import Accounting, Objective, Options, Policy, RescaleModel

if TYPE_CHECKING:
    from bftd.replay.result import Result

_DEFAULT = Options()


def _choice(of: Any) -> click.Choice[str]:
    return click.Choice(list(get_args(of)))


@click.command()
@click.option("--trace", "trace_path", required=True, metavar="T.csv.gz", help="Which nodes were idle when.")
@click.option("--trainers", "trainers_path", required=True, metavar="X.json.gz", help="What is to be trained.")
@click.option("--nodes", metavar="NODES", help='Only these nodes of the trace: names, "n[1-4]" or ranges "0-1023".')
@click.option("--hours", type=float, metavar="H", help="Only the first hours.")
@click.option(
    "--t-fwd", "t_fwd_s", type=float, default=_DEFAULT.t_fwd_s, show_default=True, help="Forward-looking time, s."
)
@click.option("--pj-max", type=int, default=_DEFAULT.pj_max, show_default=True, help="Trainers considered at once.")
@click.option(
    "--policy",
    type=_choice(Policy),
    default=_DEFAULT.policy,
    show_default=True,
    help="Who gets the nodes: the optimum, equal shares, or rigid jobs that are killed and requeued.",
)
@click.option(
    "--objective",
    type=_choice(Objective),
    default=_DEFAULT.objective,
    show_default=True,
    help="What a plan maximises: the file's curve_objective, samples/s, or speed-up over one node.",
)
@click.option(
    "--accounting",
    type=_choice(Accounting),
    default=_DEFAULT.accounting,
    show_default=True,
    help="Completions and arrivals as events and starts at their cost, or as the paper's own replay does it.",
)
@click.option(
    "--rescale-model",
    type=_choice(RescaleModel),
    default=_DEFAULT.rescale_model,
    show_default=True,
    help="Resizes that stop the trainer for the file's costs, or as the Horovod back-end was measured.",
)
@click.option("--cost-multiplier", type=float, default=_DEFAULT.cost_multiplier, help="Multiply all rescale costs.")
@click.option("--solver", default=_DEFAULT.solver, show_default=True, metavar="NAME", help="See `bft solve --help`.")
@click.option("--scavenger-nodes", type=int, metavar="K", help="Size of the rigid jobs; default: the best power of 2.")
@click.option(
    "--checkpoint-every",
    "checkpoint_every_s",
    type=float,
    default=_DEFAULT.checkpoint_every_s,
    show_default=True,
    metavar="S",
    help="Seconds between two checkpoints of a rigid job.",
)
@click.option("--endless", is_flag=True, help="Start the list of trainers again when it is used up.")
@click.option("--series", is_flag=True, help="Write the figures of every six hours to the JSON too.")
@click.option("--json", "json_path", metavar="OUT", help='Write the result as JSON; "-" is standard output.')
def replay(trace_path: str, trainers_path: str, series: bool, json_path: str | None, **arguments: Any) -> None:
    """Replay a trace of idle nodes with simulated trainers, through the daemon's own decision core."""
    from bftd import replay as replaying
    from bftd import trace as traces
    from bftd.replay import trainers

    options = Options(**arguments)
    trace, training = traces.read(Path(trace_path)), trainers.read(trainers_path)
    with _progress() as progress:
        result = replaying.run(trace, training, options, progress=progress)
    _warn(result, len(training), options)
    if json_path is not None:
        _write(json_path, json.dumps(result.to_json(series=series), indent=2))
    if json_path != "-":
        click.echo("\n".join(_told(result)))


def _warn(result: Result, trainers: int, options: Options) -> None:
    if result.trainers_completed >= trainers and not options.endless:
        click.echo("bft: all trainers were done before the trace ended: add more, or use --endless", err=True)


def _write(path: str, text: str) -> None:
    if path == "-":
        click.echo(text)
        return
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


@contextmanager
def _progress() -> Iterator[Callable[[float], None] | None]:
    """A bar on standard error where that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("replay", total=1.0)
        yield lambda part: bar.update(task, completed=part)


def _told(result: Result) -> Iterator[str]:
    """The result for people."""
    yield f"efficiency U          {result.efficiency:.1%} of {result.eq_nodes:.1f} dedicated nodes"
    yield f"outcome               {result.outcome_samples:.4g} of {result.static_outcome_samples:.4g} samples"
    yield f"node-hours            {result.node_hours:,.0f} idle, {result.used_node_hours:,.0f} used"
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
