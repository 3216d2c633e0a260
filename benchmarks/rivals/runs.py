"""The runs of the systems: each in a process of its own, and kept in files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.impact import record
from benchmarks.impact.comparison import NODES, keep, logs_of
from benchmarks.impact.recipe import RECIPES
from benchmarks.impact.run import Setting, perform
from benchmarks.impact.stream import make_stream
from benchmarks.rivals.comparison import Outcome
from benchmarks.rivals.systems import System
from benchmarks.rivals.training import Costs, Group


@dataclass(frozen=True, slots=True)
class Streams:
    """The settings common to the streams of all seeds, and the folder of their runs."""

    folder: Path
    release: str
    jobs: int
    stretch: int
    brief: bool
    warm_up_s: float

    def path(self, seed: int, recipe: str, system: System) -> Path:
        """The file of a run under the recipe of this name."""
        name = system.recipe(RECIPES[recipe]).name
        of_stream = (NODES, self.jobs, seed, self.stretch, system.pair, _kind(system))
        return self.folder / record.file_name(name, self.release, system.name, *of_stream)


def _kind(system: System) -> record.Kind:
    return "A" if system.make is None else "B"


def _groups_of(path: Path) -> Path:
    """The file with what was trained in the run of another one."""
    return path.with_suffix(".groups.json")


def run(seed: int, recipe: str, system: System, streams: Streams, costs: Costs) -> None:
    """Make one run; this process is for it alone."""
    path = streams.path(seed, recipe, system)
    site = system.recipe(RECIPES[recipe])
    setting = Setting(
        site, _kind(system), system.pair, seed, NODES, system.name, streams.stretch, streams.warm_up_s
    )  # fmt: skip
    stream = make_stream(seed, streams.jobs, NODES, brief=streams.brief, stretch=streams.stretch)
    harvester = None if system.make is None else system.make(costs)

    def make(say: Callable[[str], None]) -> record.Run:
        made = perform(setting, stream, streams.release, logs_of(path), say, harvester=harvester)
        groups = [] if harvester is None else harvester.groups
        path.parent.mkdir(parents=True, exist_ok=True)
        _groups_of(path).write_text(json.dumps([group.told() for group in groups]))
        return made

    keep(path, make)


def read(path: Path) -> Outcome:
    """Read what a run has left."""
    groups = json.loads(_groups_of(path).read_text())
    return Outcome(record.load(path), [Group(row["size"], tuple(row["steps_s"]), row["kept"]) for row in groups])
