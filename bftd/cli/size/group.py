"""`bft size`: the resources that a regular job should ask Slurm for; needs no daemon."""

from __future__ import annotations

import click

from bftd.cli.lazy import LazyGroup

_COMMANDS = {
    "Commands": {
        "fit": ("bftd.cli.size.fit", "fit", "Choose GPUs for a model, and write the #SBATCH lines."),
        "choose": ("bftd.cli.size.choose", "choose", "Choose the GPUs on which a training run ends first."),
        "cpu": ("bftd.cli.size.cpu", "cpu", "Find how many CPUs and how much memory a command needs."),
        "inventory": ("bftd.cli.size.place", "inventory", "Show which GPUs this centre has, as a file to edit."),
    },
    "More of a step and its jobs": {
        "mem": ("bftd.cli.size.mem", "mem", "Tell how much memory of a GPU a training step takes."),
        "need": ("bftd.cli.size.need", "need", "Show what bft size cpu found for a script, for elastic jobs too."),
        "curve": ("bftd.cli.size.curve", "curve", "Tell how fast an elastic script would train on how many nodes."),
        "learn": ("bftd.cli.size.learn", "learn", "Keep what a job used, so that the next one is planned by it."),
        "check": (
            "bftd.cli.size.check",
            "check",
            "Compare estimates of steps with a GPU; with --into keep the correction.",
        ),
    },
    "Large models": {
        "cells": ("bftd.cli.size.cells", "cells", "Cut a model into pipeline stages on N GPUs."),
        "profile": ("bftd.cli.size.profile", "profile", "Time a model's stages on one device, for estimates."),
        "split": ("bftd.cli.size.split", "split", "Find the fastest split of a stage's GPUs, with few measured."),
        "comm": ("bftd.cli.size.comm", "comm", "Keep tables of how long collectives take between GPUs or CPUs."),
    },
    "What if": {
        "place": ("bftd.cli.size.place", "place", "Tell on which nodes plans would be placed."),
    },
    "": {"auto": ("bftd.cli.size.auto", "auto", "Answer sbatch --auto-gpus, whose plug-in runs this.")},
}
_OLD = {"tune": "split"}
_GONE = {"pack": "python -m studies.synergy pack", "simulate": "python -m studies.crius simulate"}
_EXAMPLES = """\b
Examples:
  bft size inventory                                  # which GPUs are here
  bft size fit train.py:make_step --global-batch 256  # which of them suffice
  bft size cpu -- python train.py                     # how many CPUs it needs
"""


@click.group(cls=LazyGroup, table=_COMMANDS, old=_OLD, gone=_GONE, epilog=_EXAMPLES)
def size() -> None:
    """Tell which GPUs, CPUs and memory a regular job should ask Slurm for."""
