"""Pairs of runs in turn, A B A B: what the machine does meanwhile meets both kinds alike."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType

from benchmarks.impact import record
from benchmarks.impact.recipe import Recipe, without_bftd
from benchmarks.impact.record import NO_TRAINING, Kind
from benchmarks.impact.run import WARM_UP_S, Setting, perform
from benchmarks.impact.stream import make_stream
from bftd.errors import BftError
from slurm_plugin.errors import SlurmError, SlurmMissing

NODES = 16
_KINDS: tuple[Kind, ...] = ("A", "B")
_APART_S = 5.0
"""Between the starts of two runs side by side: that of a cluster takes all cores for a moment."""

_LOOK_S = 0.5
_ENDS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Comparison:
    """How often and on what to run recipes; runs whose file is in `folder` are not repeated.

    `parallel` runs go on at a time: they wait for most of their time.
    """

    folder: Path
    pairs: int
    seeds: tuple[int, ...]
    jobs: int
    brief: bool
    training: str
    stretch: int = 1
    parallel: int = 1
    warm_up_s: float = WARM_UP_S


def compare(recipes: Iterable[Recipe], comparison: Comparison) -> None:
    """Do the runs that are missing; raises BftError when one failed, after the others."""
    release = slurm_release()
    left = _missing(recipes, comparison, release)
    going: list[SpawnProcess] = []
    failed: list[str] = []
    context = multiprocessing.get_context("spawn")
    try:
        while left or going:
            if left and len(going) < comparison.parallel:
                path, setting = left.pop(0)
                process = context.Process(target=_perform, args=(setting, comparison, release, path), name=path.stem)
                process.start()
                going.append(process)
                time.sleep(_APART_S if comparison.parallel > 1 else 0.0)
            time.sleep(_LOOK_S)
            failed += [process.name for process in going if process.exitcode]
            going = [process for process in going if process.exitcode is None]
    finally:
        for process in going:
            process.terminate()
        for process in going:
            process.join()
    if failed:
        raise BftError(f"{len(failed)} runs failed, see above: {', '.join(failed)}")


def _missing(recipes: Iterable[Recipe], comparison: Comparison, release: str) -> list[tuple[Path, Setting]]:
    """The runs whose file is not there, each with that file, in turn."""
    runs: dict[Path, Setting] = {}
    for recipe, seed, pair, kind in product(recipes, comparison.seeds, range(comparison.pairs), _KINDS):
        # Without bftd, recipes that differ in bftd's settings only are one.
        ran, training = (recipe, comparison.training) if kind == "B" else (without_bftd(recipe), NO_TRAINING)
        of_stream = (NODES, comparison.jobs, seed, comparison.stretch)
        path = comparison.folder / record.file_name(ran.name, release, training, *of_stream, pair, kind)
        if not path.exists():
            setting = Setting(ran, kind, pair, seed, NODES, training, comparison.stretch, comparison.warm_up_s)
            runs.setdefault(path, setting)
    return list(runs.items())


def _perform(setting: Setting, comparison: Comparison, release: str, path: Path) -> None:
    """One run in a process of its own."""
    for number in _ENDS:
        signal.signal(number, _interrupt)

    def say(text: str) -> None:
        log(f"{path.stem}: {text}")

    say("begins")
    began_s = time.time()
    stream = make_stream(setting.seed, comparison.jobs, NODES, brief=comparison.brief, stretch=comparison.stretch)
    try:
        run = perform(setting, stream, release, comparison.folder / "logs" / path.stem, say)
    except KeyboardInterrupt:
        sys.exit(130)
    except (BftError, SlurmError, OSError) as error:
        say(str(error))
        sys.exit(1)
    record.save(run, path)
    say(f"done after {time.time() - began_s:.0f} s{': ' + run.note if run.note else ''}")


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Let the context managers end what was started, undisturbed: Ctrl-C reaches this process and its parent."""
    for end in _ENDS:
        signal.signal(end, lambda number, frame: None)
    raise KeyboardInterrupt


def log(text: str) -> None:
    """Tell on stderr how it goes."""
    print(f"impact: {text}", file=sys.stderr, flush=True)


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
