"""The times of a model by its profiles: a timer based on them, or None."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sizing.base.errors import DoesNotFit, NoProfile, NoTable, SizingError
from sizing.base.estimate import Estimate
from sizing.cells.cell import Cell
from sizing.cells.comm.table import CommTables
from sizing.cells.shards import ShardProfile, StageShard
from sizing.cells.size_graph import chain
from sizing.child import graphing
from sizing.choice.fit import By, GpuPlan
from sizing.choice.fit import retimed as ranked
from sizing.choice.layout import Layout
from sizing.choice.timers.profiled_time import ProfiledTime
from sizing.choice.timers.timers import slowest_of
from sizing.model.graph import GRAPH_BATCH, Graph
from sizing.model.request import ModelRequest
from sizing.profiles import comm_tables
from sizing.profiles.profile import PRECISIONS, Setting, Source
from sizing.profiles.sources import profiles_for
from sizing.profiles.store import Store

if TYPE_CHECKING:
    from pathlib import Path

AS_IT_IS = "fp32"
"""The precision of profiles of a model run as it is, in its own data types, without autocast."""


@dataclass(frozen=True)
class Profiles:
    """The cached profiles of a model; `settings` are those that it was profiled with, best first."""

    store: Store
    source: Source
    settings: tuple[Setting, ...]

    @staticmethod
    def of(asked: ModelRequest, precision: str, notes: list[str]) -> Profiles | None:
        """Return the profiles, or None if the model was not profiled in its present form and in this precision.

        A configuration's own precision and optimizer count; profiles with another optimizer come last. Notes are added
        to `said`.
        """
        source = asked.step if asked.step is not None else asked.model
        store = Store()
        model = None if source is None else store.model(source)
        notes += store.said
        if source is None or model is None or not store.devices(model):
            return None
        words = dict.fromkeys(row[2] for row in store.listed() if row[0] == model.name)
        precision, optimizer = precision or AS_IT_IS, ""
        if asked.step is None and asked.model is not None:
            precision, optimizer = asked.model.precision, asked.model.optimizer
        every = list(filter(None, map(_setting, words)))
        alike = _alike(precision, whole=asked.step is None)
        found = sorted(
            (each for each in every if each.precision in alike),
            key=lambda each: (alike.index(each.precision), each.optimizer != optimizer),
        )
        ways = ", ".join(f"{each.precision} with {each.optimizer}" for each in found or every)
        if found:
            notes.append(f"profiled in {ways}")
            return Profiles(store, source, tuple(found))
        notes.append(
            f"profiled in {ways}, not in {precision}, so profiles do not count: {_advice(alike, every, asked)}"
        )
        return None

    def timer(self, graph: Graph, comm: CommTables, global_batch: int, tensor: bool = True) -> ProfiledTime:
        """Return a timer that uses the profiles and the communication tables.

        Without `tensor`, profiles with tensor parallelism are left out.
        """

        def profiles(cell: Cell) -> Mapping[StageShard, ShardProfile]:
            found = self._of_cell(cell, graph)
            return {shard: each for shard, each in found.items() if tensor or shard.tp == 1}

        return ProfiledTime(graph, profiles, comm, global_batch)

    def _of_cell(self, cell: Cell, graph: Graph) -> Mapping[StageShard, ShardProfile]:
        """Return the profiles of the first setting that has all of the cell's shards; raises NoProfile."""
        why = NoProfile(f"the model was not profiled on {cell.gpu_type}")
        for setting in self.settings:
            try:
                return profiles_for([cell], graph, self.source, setting=setting, store=self.store)
            except NoProfile as error:
                why = error
        raise why


def graph_of(asked: ModelRequest, global_batch: int, python: str, timeout_s: float, notes: list[str]) -> Graph | None:
    """Return the operators of a model; None, with a note in `said`, if they cannot be read."""
    batch = min(global_batch, GRAPH_BATCH)
    if asked.step is None:
        return None if asked.model is None else chain(asked.model, batch)
    try:
        found = graphing.graph(asked.step, batch, python=python, timeout_s=timeout_s)
    except SizingError as error:
        notes.append(f"no pipelines, as the model could not be read operator by operator: {error}")
        return None
    if found.note:
        notes.append(found.note)
    return found


def retimed(
    plans: Sequence[GpuPlan],
    asked: ModelRequest,
    global_batch: int,
    python: str,
    timeout_s: float,
    precision: str,
    by: By,
    folder: Path,
    notes: list[str],
) -> tuple[GpuPlan, ...]:
    """Return the plans, ranked again with measured times where profiles of the same split exist.

    `folder` has the site's files.
    """
    profiles = Profiles.of(asked, precision, notes)
    graph = None if profiles is None else graph_of(asked, global_batch, python, timeout_s, [])
    if profiles is None or graph is None:
        return tuple(plans)
    measured = profiles.timer(graph, comm_tables.of_site(folder), global_batch)

    def time(layout: Layout) -> Estimate | None:
        if layout.parallel.fsdp > 1:
            return None
        try:
            return slowest_of([measured.step_s(replace(layout, shape=each)) for each in layout.shape.possible])
        except (DoesNotFit, NoProfile, NoTable):
            return None

    return ranked(plans, time, by)


def profiling(asked: ModelRequest, precision: str) -> str:
    """Return the option of `bft size profile` for profiles that count here; "" for a precision it does not have."""
    precision = precision or AS_IT_IS
    if asked.step is None and asked.model is not None:
        precision = asked.model.precision
    return "".join(f" --precision {each}" for each in _alike(precision, whole=asked.step is None)[:1])


def _alike(precision: str, *, whole: bool) -> tuple[str, ...]:
    """Return the precisions of profiles that match a precision, the best match first.

    `whole` says that the precision is also that of the weights. For a traced step only the precision of its arithmetic
    is known.
    """
    if whole:
        return tuple(each for each in PRECISIONS if each == precision)
    return tuple(each for each in PRECISIONS if each.partition("-")[0] == precision)


def _advice(alike: Sequence[str], every: Sequence[Setting], asked: ModelRequest) -> str:
    """Say how to make or use profiles when all of them are in other precisions."""
    ways = []
    if alike:
        ways.append(f"bft size profile --precision {alike[0]} makes some that do")
    if every:
        other = every[0].precision
        option = "--precision " + other.partition("-")[0] if asked.step is not None else f"precision={other}"
        ways.append(f"{option} here takes these")
    return ", ".join(ways)


def _setting(words: str) -> Setting | None:
    """Parse a setting as the cache lists it (optimizer, precision, threads); None if it is malformed."""
    parts = words.split()
    return Setting(parts[0], parts[1], int(parts[2])) if len(parts) == 3 and parts[2].isdigit() else None
