"""Options of the commands that replay traces: `bft replay`, `bft advise` and `bft report`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from bftd.simulation.replay.options import Accounting, Objective, Options, Policy, RescaleModel

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT = Options()


def choice(name: str, of: Any, help: str) -> Callable[[Command], Command]:
    """Return an option that takes one of the values of a Literal; its default is that of `Options`."""
    default = getattr(DEFAULT, name.removeprefix("--").replace("-", "_"))
    return click.option(name, type=click.Choice(list(get_args(of))), default=default, show_default=True, help=help)


def log_beside(trace: str, pricing: bool, nodes: str | None) -> Path | None:
    """Return the log of jobs beside a trace; None if there is none, or no price is wanted or known of these nodes."""
    from bftd.simulation.trace import job_log

    path = job_log.path_of(Path(trace))
    return path if pricing and nodes is None and path.exists() else None


nodes = click.option(
    "--nodes", metavar="NODES", help='Only these nodes of the trace: names, "n[1-4]" or ranges "0-1023".'
)
hours = click.option("--hours", type=float, metavar="H", help="Only the first hours.")
t_fwd = click.option(
    "--t-fwd", "t_fwd_s", type=float, default=DEFAULT.t_fwd_s, show_default=True, help="Forward-looking time, s."
)
pj_max = click.option(
    "--pj-max", type=int, default=DEFAULT.pj_max, show_default=True, help="Trainers considered at once."
)
policy = choice("--policy", Policy, "Who gets the nodes: the optimum, equal shares, or rigid jobs killed and requeued.")
objective = choice(
    "--objective",
    Objective,
    "What a plan maximises: the file's curve_objective, samples/s, or speed-up over one node.",
)
accounting = choice(
    "--accounting",
    Accounting,
    "Completions and arrivals as events and starts at their cost, or as the paper's own replay does it.",
)
rescale_model = choice(
    "--rescale-model",
    RescaleModel,
    "Resizes that stop the trainer for the file's costs, or as the Horovod back-end was measured.",
)
cost_multiplier = click.option(
    "--cost-multiplier", type=float, default=DEFAULT.cost_multiplier, help="Multiply all rescale costs."
)
price = click.option(
    "--price/--no-price",
    "pricing",
    default=True,
    help="Whether to simulate the queue by a log of jobs [yes].",
)
endless = click.option("--endless", is_flag=True, help="Start the list of trainers again when it is used up.")
