"""`bft`: the group of all commands, each loaded only when it is called."""

from __future__ import annotations

from typing import Any

import click

from bftd import __version__, entry
from bftd.cli.lazy import LazyGroup

# name -> (module, object, one line of help); the help is kept here so that `bft --help` imports no command
_COMMANDS = {
    "sbatch": ("bftd.cli.submit", "sbatch", "Submit an elastic training job."),
    "run": ("bftd.cli.submit", "run", "Run an elastic training job with its driver in the foreground."),
    "state": ("bftd.cli.state", "state", "Show and remove the saved states of your trainers."),
    "status": ("bftd.cli.status", "status", "Show nodes, trainers and the last decisions."),
    "top": ("bftd.cli.top", "top", "Show nodes, trainers and decisions live, with keys to pause, tune and explain."),
    "trainers": ("bftd.cli.trainers", "trainers", "Show the trainers, with --all also those that ended."),
    "explain": ("bftd.cli.explain", "explain", "Tell why a trainer has its nodes, or why a node is or is not lent."),
    "tune": ("bftd.cli.tune", "tune", "Change the running daemon's settings; they survive its restart."),
    "pause": ("bftd.cli.control", "pause", "Lend no more nodes: to anybody, on some nodes, or to a user or account."),
    "resume": ("bftd.cli.control", "resume", "Lend again what was paused."),
    "usage": ("bftd.cli.usage", "usage", "Tell how many node-hours users or accounts had."),
    "history": ("bftd.cli.history", "history", "Show what the nodes did by the hour or day, and what happened."),
    "nodes": ("bftd.cli.nodes", "nodes", "Show what is read from Slurm."),
    "solve": ("bftd.cli.solve", "solve", "Solve an allocation problem in a file."),
    "replay": ("bftd.cli.replay", "replay", "Tell what bftd would have made of a trace of idle nodes."),
    "trace": ("bftd.cli.trace", "trace", "Record which nodes are idle when, or work it out from accounting."),
    "advise": ("bftd.cli.advise", "advise", "Recommend t_fwd and pj_max for a site, judging by a trace."),
    "report": ("bftd.cli.report", "report", "Write a page on what idle nodes are worth."),
    "site": ("bftd.cli.site", "site", "Hold a site's Slurm settings against what bftd needs."),
    "size": ("bftd.cli.size", "size", "Tell which GPUs a regular job should ask Slurm for."),
    "sandbox": ("bftd.cli.sandbox", "sandbox", "Start, end and look at private clusters on this machine."),
}


@click.group(cls=LazyGroup, table=_COMMANDS)
@click.version_option(__version__, prog_name="bft")
def bft(**_: Any) -> None:
    """Train neural networks elastically on the idle nodes of a Slurm cluster."""


def main() -> None:
    """Run `bft`."""
    entry.run(bft, "bft")


if __name__ == "__main__":
    main()
