"""`bft`: the group of all commands, each loaded only when it is called."""

from __future__ import annotations

import os
from typing import Any

import click

from bftd import __version__, own_packages
from bftd.base import command
from bftd.cli.lazy import LazyGroup

# heading -> name -> (module, object, one line of help); the help is here so that `bft --help` imports no command
_COMMANDS = {
    "Train": {
        "sbatch": ("bftd.cli.jobs.submit", "sbatch", "Submit an elastic training job."),
        "run": ("bftd.cli.jobs.submit", "run", "Run an elastic training job with its driver in the foreground."),
        "logs": ("bftd.cli.jobs.manage", "logs", "Print a trainer's log; with -f, go on until it ends."),
        "cancel": ("bftd.cli.jobs.manage", "cancel", "End trainers."),
        "resize": ("bftd.cli.jobs.manage", "resize", "Change the number of nodes that a trainer may have."),
        "weight": ("bftd.cli.jobs.manage", "weight", "Change a trainer's weight."),
        "checkpoints": ("bftd.cli.jobs.checkpoints", "checkpoints", "Show and remove your trainers' checkpoints."),
    },
    "Look": {
        "status": ("bftd.cli.daemon.status", "status", "Show nodes, trainers and the last decisions."),
        "trainers": ("bftd.cli.daemon.trainers", "trainers", "Show the trainers, with --all also those that ended."),
        "explain": (
            "bftd.cli.daemon.explain",
            "explain",
            "Tell why a trainer has its nodes, or why a node is or is not lent.",
        ),
        "top": ("bftd.cli.daemon.top", "top", "Show nodes, trainers and decisions live; keys pause, tune and explain."),
        "nodes": ("bftd.cli.daemon.nodes", "nodes", "Show what is read from Slurm."),
        "history": (
            "bftd.cli.daemon.history",
            "history",
            "Show what the nodes did by the hour or day, and what happened.",
        ),
        "usage": ("bftd.cli.daemon.usage", "usage", "Tell how many node-hours users or accounts had."),
    },
    "Size a regular job": {
        "size": ("bftd.cli.size.group", "size", "Tell which GPUs, CPUs and memory a regular job should ask Slurm for."),
    },
    "Operate": {
        "pause": ("bftd.cli.daemon.control", "pause", "Stop lending: everything, some nodes, or to a user or account."),
        "unpause": ("bftd.cli.daemon.control", "unpause", "Lend again what was paused."),
        "tune": ("bftd.cli.daemon.tune", "tune", "Change the running daemon's settings; they survive its restart."),
        "doctor": (
            "bftd.cli.admin.doctor",
            "doctor",
            "Check this host, its Slurm and the daemon when something is wrong.",
        ),
        "site": ("bftd.cli.admin.site", "site", "Compare a site's Slurm settings with what bftd needs."),
    },
    "Evaluate a site": {
        "trace": (
            "bftd.cli.whatif.trace",
            "trace",
            "Record which nodes are idle when, or work it out from accounting.",
        ),
        "replay": ("bftd.cli.whatif.replay", "replay", "Tell what bftd would have made of a trace of idle nodes."),
        "advise": ("bftd.cli.whatif.advise", "advise", "Recommend t_fwd and pj_max for a site, judging by a trace."),
        "report": ("bftd.cli.whatif.report", "report", "Write a page on what idle nodes are worth."),
    },
    "Try out": {
        "sandbox": ("bftd.cli.admin.sandbox", "sandbox", "Start, end and look at private clusters on this machine."),
        "solve": ("bftd.cli.whatif.solve", "solve", "Solve an allocation problem in a file."),
    },
}
_OLD = {"state": "checkpoints", "resume": "unpause"}
_EXAMPLES = """\b
Examples:
  bft sbatch --elastic=1-64 train.py   # train on up to 64 idle nodes
  bft status --watch                   # what runs, and what was decided
  bft site check                       # for administrators: changes nothing
"""


@click.group(
    cls=LazyGroup,
    table=_COMMANDS,
    old=_OLD,
    epilog=_EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="bft")
def bft(**_: Any) -> None:
    """Train neural networks elastically on the idle nodes of a Slurm cluster."""


def main() -> None:
    """Run `bft`."""
    own_packages.find_first()
    if "_BFT_COMPLETE" in os.environ:
        from bftd.cli import completion

        completion.install()
    command.run(bft, "bft")


if __name__ == "__main__":
    main()
