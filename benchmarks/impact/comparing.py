"""Pairs of runs in turn, A B A B: what the machine does meanwhile meets both kinds alike."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.impact import record
from benchmarks.impact.recipe import Recipe, without_bftd
from benchmarks.impact.record import NO_TRAINING, Kind
from benchmarks.impact.run import WARM_UP_S, Setting, perform
from benchmarks.impact.stream import make_stream
from slurm_plugin.errors import SlurmMissing

NODES = 16
_KINDS: tuple[Kind, ...] = ("A", "B")


@dataclass(frozen=True, slots=True)
class Comparison:
    """How often and on what to run a recipe; runs whose file is in `folder` are not repeated."""

    folder: Path
    pairs: int
    seed: int
    jobs: int
    brief: bool
    training: str
    warm_up_s: float = WARM_UP_S


def compare(recipe: Recipe, comparison: Comparison, log: Callable[[str], None]) -> None:
    """Do the runs of `recipe` that are missing."""
    release = slurm_release()
    stream = make_stream(comparison.seed, comparison.jobs, NODES, brief=comparison.brief)
    for pair in range(comparison.pairs):
        for kind in _KINDS:
            # Without bftd, recipes that differ in bftd's settings only are one.
            ran, training = (recipe, comparison.training) if kind == "B" else (without_bftd(recipe), NO_TRAINING)
            name = record.file_name(ran.name, release, training, NODES, comparison.jobs, comparison.seed, pair, kind)
            path = comparison.folder / name
            if path.exists():
                continue
            log(f"{ran.name} on Slurm {release}: run {pair + 1}{kind} of {comparison.pairs}")
            began_s = time.time()
            setting = Setting(ran, kind, pair, comparison.seed, NODES, training, comparison.warm_up_s)
            run = perform(setting, stream, release, comparison.folder / "logs" / path.stem, log)
            record.save(run, path)
            log(f"{path.name} after {time.time() - began_s:.0f} s{': ' + run.note if run.note else ''}")


def slurm_release() -> str:
    """The release of the Slurm that a sandbox finds, as in 22.05.8."""
    # Its clients want a slurm.conf before they say their version.
    controller = shutil.which("slurmctld", path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin")))
    said = ""
    if controller is not None:
        said = subprocess.run([controller, "-V"], capture_output=True, text=True, timeout=10, check=False).stdout
    found = re.search(r"\d+\.\d+\.\d+", said)
    if found is None:
        raise SlurmMissing("slurmctld not found: install Slurm, on Debian and Ubuntu with `tools/setup.sh full`")
    return found[0]
