"""What profiles of a model there are, for `bft size choose` and `bft size fit`: a timer by them, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bftd import config

if TYPE_CHECKING:
    from bftd.cli.size_model import Asked
    from sizing.candidates import Candidate
    from sizing.cells.cell import Cell
    from sizing.cells.graph import Graph
    from sizing.cells.profile import Source
    from sizing.cells.shards import Shard, ShardProfile
    from sizing.choosing.measured import Measured
    from sizing.estimate import Estimate
    from sizing.fit import By, Choice

_GRAPH_BATCH = 8


def graph_of(asked: Asked, global_batch: int, python: str, timeout_s: float, said: list[str]) -> Graph | None:
    """The operators of a model in a file; None where it cannot be read, of which `said` is told."""
    from sizing.errors import SizingError
    from sizing.model import graphing

    if asked.step is None:
        return None
    try:
        found = graphing.graph(asked.step, min(global_batch, _GRAPH_BATCH), python=python, timeout_s=timeout_s)
    except SizingError as error:
        said.append(f"no pipelines, as the model could not be read operator by operator: {error}")
        return None
    if found.note:
        said.append(found.note)
    return found


def of_model(asked: Asked, global_batch: int, python: str, timeout_s: float, precision: str) -> Measured | None:
    """A timer by the profiles of a model, which is read only where it has some."""
    source = asked.step if asked.step is not None else asked.model
    if source is None or not has_profiles(source):
        return None
    return timer(asked, graph_of(asked, global_batch, python, timeout_s, []), global_batch, precision)


def timer(asked: Asked, graph: Graph | None, global_batch: int, precision: str) -> Measured | None:
    """A timer by the profiles of a model, None where it has none at all."""
    from sizing.cells import comm_file
    from sizing.cells.stages import stages
    from sizing.choosing.measured import Measured

    source = asked.step if asked.step is not None else asked.model
    if graph is None or source is None or not has_profiles(source):
        return None
    site = config.find(None).with_name(comm_file.NAME)
    tables = comm_file.load(site, comm_file.own_path())
    return Measured(graph, stages, lambda cell: _profiles(cell, graph, source, precision), tables, global_batch)


def retimed(choices: Sequence[Choice], measured: Measured, by: By) -> tuple[Choice, ...]:
    """The plans of `bft size fit` with measured times where there are profiles of just that spread, ranked anew."""
    from sizing.cells.cell import Split
    from sizing.choosing.shapes import Shape
    from sizing.errors import DoesNotFit, NoProfile, NoTable
    from sizing.fit import retimed as ranked

    def time(candidate: Candidate, micro_batches: int) -> Estimate | None:
        parallel = candidate.parallel
        if parallel.fsdp > 1:
            return None
        shape = Shape(candidate.pool, candidate.nodes, parallel.gpus // candidate.nodes)
        try:
            return measured.step_s(shape, Split(parallel.dp, parallel.tp), micro_batches)
        except (DoesNotFit, NoProfile, NoTable):
            return None

    return ranked(choices, time, by)


def has_profiles(source: Source) -> bool:
    """Whether a model was profiled as it is now, on any type of device."""
    from sizing.cells.store import Store

    store = Store()
    model = store.model(source)
    return model is not None and bool(store.devices(model))


def _profiles(cell: Cell, graph: Graph, source: Source, precision: str) -> Mapping[Shard, ShardProfile]:
    """Those of the precision that was asked for, else of the model as it is; raises NoProfile."""
    from sizing.cells.profile import Setting
    from sizing.cells.sources import profiles_for
    from sizing.errors import NoProfile

    try:
        return profiles_for([cell], graph, source, setting=Setting(precision=precision))
    except NoProfile:
        return profiles_for([cell], graph, source, setting=Setting())
