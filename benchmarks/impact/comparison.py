"""Pairs of runs in turn, A B A B: what the machine does meanwhile meets both kinds alike."""

from __future__ import annotations

import heapq
import math
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.impact import record
from benchmarks.impact.recipe import Recipe, without_bftd
from benchmarks.impact.record import NO_TRAINING, Kind, Run
from benchmarks.impact.run import WARM_UP_S, Setting, perform
from benchmarks.impact.stream import make_stream
from bftd.base.errors import BftError
from slurm_plugin.errors import SlurmError, SlurmMissing

NODES = 16
_KINDS: tuple[Kind, ...] = ("A", "B")
_APART_CORE_S = 20.0
"""Between the starts of two runs side by side, over the number of cores.

A start with bftd has seventeen slurmds, the daemon, four drivers and sixteen agents to begin.
"""

_BUSY = 4.0
"""Processes a core that want to run: with more, no further run is started..."""
_PATIENCE_S = 120.0
"""...for so long, as what else the machine does may never end."""

_STREAM_S = 3.8
"""A job takes a stream that is not stretched so long: the last of 60 started after 683 s at stretch 3, 1,834 s at 8."""
_AROUND_S = 15.0
"""A cluster's start and end, and the writing of the record."""

_LOOK_S = 0.5
_ENDS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Comparison:
    """How often and on what to run recipes; runs whose file is in `folder` are not repeated.

    `parallel` runs go on at a time: they wait for most of their time. To `record` is to do only the runs without bftd,
    and to keep what their pollers read.
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
    record: bool = False


@dataclass(frozen=True, slots=True)
class Planned:
    """A run that is to be done, and from when to when after the begin, as far as can be told."""

    path: Path
    setting: Setting
    begin_s: float
    end_s: float


def compare(recipes: Iterable[Recipe], comparison: Comparison) -> None:
    """Do the runs that are missing; raises BftError when one failed, after the others."""
    release = slurm_release()
    left = _missing(recipes, comparison, release)
    if left:
        log(summary(schedule(left, comparison), comparison))
    work = [(path.stem, _perform, (setting, comparison, release, path)) for path, setting in left]
    side_by_side(work, comparison.parallel)


def side_by_side(work: Iterable[tuple[str, Callable[..., None], tuple[Any, ...]]], parallel: int) -> None:
    """Do `parallel` runs at a time, each a name and a call in a process of its own, and their starts apart.

    Raises BftError when one failed, after the others.
    """
    left = list(work)
    going: list[SpawnProcess] = []
    failed: list[str] = []
    begun_s = -math.inf
    context = multiprocessing.get_context("spawn")
    try:
        while left or going:
            if left and len(going) < parallel and _may_begin(time.monotonic() - begun_s, bool(going)):
                name, call, arguments = left.pop(0)
                process = context.Process(target=call, args=arguments, name=name)
                process.start()
                going.append(process)
                begun_s = time.monotonic()
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


def _may_begin(since_s: float, beside: bool) -> bool:
    """Whether another run may start, `since_s` after the last one, where others are under way `beside` it."""
    if not beside:
        return True
    if since_s < apart_s():
        return False
    return os.getloadavg()[0] <= _BUSY * _cores() or since_s >= _PATIENCE_S


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def apart_s() -> float:
    """The time between the starts of two runs on this machine."""
    return _APART_CORE_S / _cores()


def planned(recipes: Iterable[Recipe], comparison: Comparison) -> list[Planned]:
    """The runs that are missing and when each would be done, on a machine that keeps up with them."""
    return schedule(_missing(recipes, comparison, slurm_release()), comparison)


def schedule(runs: Sequence[tuple[Path, Setting]], comparison: Comparison) -> list[Planned]:
    """When each of `runs` begins and ends, `comparison.parallel` at a time and their starts apart."""
    ends: list[float] = []
    found: list[Planned] = []
    begin_s = 0.0
    for path, setting in runs:
        if ends:
            begin_s += apart_s() if comparison.parallel > 1 else 0.0
        if len(ends) >= comparison.parallel:
            begin_s = max(begin_s, heapq.heappop(ends))
        end_s = begin_s + setting.warm_up_s + _STREAM_S * comparison.jobs * setting.stretch + _AROUND_S
        heapq.heappush(ends, end_s)
        found.append(Planned(path, setting, begin_s, end_s))
    return found


def summary(runs: Sequence[Planned], comparison: Comparison) -> str:
    """How many runs are missing and how long they take, in words."""
    last_s = max((run.end_s for run in runs), default=0.0)
    return f"{len(runs)} runs are missing: about {math.ceil(last_s / 60)} minutes, {comparison.parallel} at a time"


def _missing(recipes: Iterable[Recipe], comparison: Comparison, release: str) -> list[tuple[Path, Setting]]:
    """The runs whose file is not there, each with that file, in turn."""
    runs: dict[Path, Setting] = {}
    for recipe, seed, pair, kind in product(recipes, comparison.seeds, range(comparison.pairs), _KINDS):
        if kind == "B" and comparison.record:
            continue
        # Without bftd, recipes that differ in bftd's settings only are one.
        ran, training = (recipe, comparison.training) if kind == "B" else (without_bftd(recipe), NO_TRAINING)
        of_stream = (NODES, comparison.jobs, seed, comparison.stretch)
        path = comparison.folder / record.file_name(ran.name, release, training, *of_stream, pair, kind)
        if path.exists():
            record.load(path)  # one of an older version would stand for other settings
        else:
            setting = Setting(ran, kind, pair, seed, NODES, training, comparison.stretch, comparison.warm_up_s)
            runs.setdefault(path, setting)
    return list(runs.items())


def logs_of(path: Path) -> Path:
    """The folder with the logs of the run in a file."""
    return path.parent / "logs" / path.stem


def _perform(setting: Setting, comparison: Comparison, release: str, path: Path) -> None:
    stream = make_stream(setting.seed, comparison.jobs, NODES, brief=comparison.brief, stretch=comparison.stretch)
    keep(path, lambda say: perform(setting, stream, release, logs_of(path), say, record=comparison.record))


def keep(path: Path, make: Callable[[Callable[[str], None]], Run]) -> None:
    """Keep in a file the run that `make` makes in this process, which is for it alone; `make` gets a log to say to."""
    for number in _ENDS:
        signal.signal(number, _interrupt)

    def say(text: str) -> None:
        log(f"{path.stem}: {text}")

    say("begins")
    began_s = time.time()
    try:
        run = make(say)
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


def exit_code(main: Callable[[], int]) -> int:
    """Run a benchmark's main function; return its exit code, 1 after the line of an error that a user can cause."""
    try:
        return main()
    except KeyboardInterrupt:
        return 130
    except (BftError, SlurmError, OSError, ValueError) as error:
        log(str(error))
        return 1


def log(text: str) -> None:
    """Tell on stderr how it goes."""
    print(text, file=sys.stderr, flush=True)


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
