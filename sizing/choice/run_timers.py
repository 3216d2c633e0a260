"""The timers of whole runs: from profiles if there are any, else assumed from traces or formulas."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sizing.base.errors import DoesNotFit, SizingError, Untraceable, UsageError
from sizing.base.parallel import Parallel, RankBatch
from sizing.base.progress import Progress
from sizing.cells.cell import Stage
from sizing.cells.size_graph import chain
from sizing.cells.stages import stages as cut
from sizing.child import tracing
from sizing.choice import profile_times, ran
from sizing.choice.by_formula import Formula
from sizing.choice.layout import Layout, Spread
from sizing.choice.runs import JobRun
from sizing.choice.sources import ends
from sizing.choice.timers.datasheet_time import Assumed, StagePart
from sizing.choice.timers.timers import Slowest, StepTimeModel, TimerChain
from sizing.choice.timers.with_runs import WithRuns
from sizing.choice.tracer import Tracer, spread_of
from sizing.inventory.pools import GpuPool
from sizing.inventory.shapes import shapes
from sizing.model.graph import GRAPH_BATCH, Graph
from sizing.model.request import ModelRequest
from sizing.profiles import comm_tables

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Splits:
    """The ways in which a script says that it can be cut: pipeline `stages` and `tensor` parallelism.

    At most that many stages; None means any number. `undeclared` explains how to declare the other ways.
    """

    stages: int | None
    tensor: bool
    undeclared: tuple[str, ...]

    @staticmethod
    def of(asked: ModelRequest, max_stages: int | None, tensor: bool) -> Splits:
        """Read the splits from the options, or else from the keywords of the function; raises UsageError."""
        takes = frozenset() if asked.step is None else tracing.takes(asked.step)
        if tensor and asked.step is not None and "tp" not in takes:
            raise UsageError(f"--tensor is for --config: {asked.step} says by a keyword tp that it can")
        stages = None if max_stages is None and "stages" in takes else max_stages or 1
        can = tensor or "tp" in takes
        ways = []
        if stages == 1 and max_stages is None:
            ways.append("in pipeline stages (--max-stages N, or def make_model(batch_size, *, stages=1))")
        if not can:
            ways.append(f"by tensor parallelism ({'--tensor' if asked.step is None else 'a keyword tp'})")
        told = (f"a script that can be cut says so: {' and '.join(ways)}",) if ways else ()
        return Splits(stages, can, told)


@dataclass(frozen=True)
class ByGraph:
    """The assumed stages of a model whose operators are known: those of its graph, as for profiles."""

    graph: Graph
    _cuts: dict[tuple[int, int], Sequence[Stage]] = field(default_factory=dict)

    def parts(self, gpus: int, stages: int) -> tuple[StagePart, ...]:
        """Return the stages that a cell would have; raise DoesNotFit."""
        try:
            if (gpus, stages) not in self._cuts:
                self._cuts[gpus, stages] = cut(self.graph, gpus, stages)
        except UsageError as error:
            raise DoesNotFit(str(error)) from None
        return tuple(
            StagePart(
                each.gpus,
                each.flops / max(1, self.graph.flops),
                each.parameters / max(1, self.graph.parameters),
                each.across_bytes / self.graph.batch,
            )
            for each in self._cuts[gpus, stages]
        )


@dataclass
class Timers:
    """The timer, notes on it, and the options besides --partition that make profiles for it."""

    timer: StepTimeModel
    unknown: Mapping[tuple[str, type[Exception]], str]
    said: list[str]
    profiling: str

    def notes(self, found: Sequence[JobRun]) -> list[str]:
        """Return notes on how reliable the times are and what would improve them."""
        told = list(self.said)
        assumed = sorted({run.partition for run in found if run.run_s.origin == "assumed"})
        if assumed:
            told.append(
                f"times in {', '.join(assumed)} are assumed from data sheets, for ranking: "
                f"bft size profile --partition {assumed[0]}{self.profiling} would measure them"
            )
        told += self.unknown.values()
        return told


def timers_of(
    asked: ModelRequest,
    chosen: Sequence[GpuPool],
    global_batch: int,
    max_gpus: int | None,
    splits: Splits,
    python: str,
    timeout_s: float,
    precision: str,
    *,
    folder: Path,
    progress: Progress,
) -> Timers:
    """Return the timers of a model, which is traced unless it is a configuration; `folder` has the site's files.

    Raises UsageError, and SizingError if tracing fails and there is no configuration to fall back on.
    """
    said: list[str] = []
    profiles = profile_times.Profiles.of(asked, precision, said)
    needed = profiles is not None or splits.stages != 1
    graph = profile_times.graph_of(asked, global_batch, python, timeout_s, said) if needed else None
    timers: list[StepTimeModel] = []
    measured = (
        None
        if profiles is None or graph is None
        else profiles.timer(graph, comm_tables.of_site(folder), global_batch, splits.tensor)
    )
    if measured is not None:
        timers.append(Slowest(measured))
    tracer = Tracer(asked.step, python, timeout_s, precision, progress) if asked.step is not None else None
    spread = replace(spread_of(asked, tracer), fsdp=False)
    ways = tuple(_ways(chosen, global_batch, max_gpus, spread))
    timers.append(
        Slowest(_assumed(asked, tracer, graph, global_batch, spread, {each.point for each in ways}, splits, said))
    )
    said += _either(chosen)
    said += splits.undeclared
    first = TimerChain(timers)
    timer: StepTimeModel = first
    if tracer is not None:
        places = {each.place for each in ways if not each.shape.pool.mixed}
        runs, more = ran.known(tracer, places, folder)
        timer = WithRuns(first, runs, tracer.traces, global_batch)
        said += more
    return Timers(timer, first.unknown, said, profile_times.profiling(asked, precision))


def _either(chosen: Sequence[GpuPool]) -> list[str]:
    """Note the pools in which Slurm may give one type of GPU or another, and how the centre could tell them apart."""
    told = {}
    for pool in chosen:
        if pool.mixed:
            unknown = [name for name in pool.mixed if name not in {other.name for other in pool.others}]
            kinds = sorted({pool.gpu.name, *pool.mixed})
            but = f", but for {', '.join(unknown)}, of which nothing is known" if unknown else ""
            told[(pool.partition, *kinds)] = (
                f"{pool.partition}: Slurm gives {' or '.join(kinds)} to the same request, so the slowest and the "
                f"smallest count{but}; a type in gres.conf or a feature of their nodes would tell them apart"
            )
    return list(told.values())


def _assumed(
    asked: ModelRequest,
    tracer: Tracer | None,
    graph: Graph | None,
    global_batch: int,
    spread: Spread,
    points: Collection[RankBatch],
    splits: Splits,
    said: list[str],
) -> StepTimeModel:

    if tracer is not None:
        try:
            _trace(tracer, points)
            said += tracer.told()
            sizes = None if graph is None else ByGraph(graph)
            return Assumed(tracer.traces, tracer.traces, global_batch, spread, sizes)
        except Untraceable as error:
            if asked.model is None:
                raise SizingError(f"{error}; give --config for an estimate by formula") from None
            said.append(f"by formula, as the model could not be traced: {error}")
    assert asked.model is not None
    if asked.model.parallel.gpus > 1:
        said.append("dp, tp and fsdp of --config do not count here: they are what is chosen")
    source, whole = Formula(asked.model, asked.micro_batch), Formula(replace(asked.model, accumulation=1))
    sizes = ByGraph(chain(asked.model, GRAPH_BATCH))
    return Assumed(source, whole, global_batch, replace(spread, tensor=splits.tensor), sizes)


def _ways(chosen: Sequence[GpuPool], global_batch: int, max_gpus: int | None, spread: Spread) -> Iterator[Layout]:
    """Yield each layout of the whole model on the GPUs that cells may have."""
    for shape in (shape for pool in chosen for shape in shapes(pool, max_gpus, cells=True)):
        for tp in spread.tensor_groups(shape.per_node):
            dp = shape.gpus // tp
            if global_batch % dp == 0:
                yield Layout(shape, (Parallel(dp, tp),), global_batch)


def _trace(tracer: Tracer, points: Collection[RankBatch]) -> None:
    """Trace the smallest and the largest batch of each split; raises Untraceable if no trace succeeds."""
    if not points:
        raise UsageError("no GPUs are left to choose from; bft size inventory shows which there are")
    wanted = sorted(set(ends(sorted(points))))
    for point, result in zip(wanted, tracer.measure(wanted), strict=True):
        if isinstance(result, Untraceable):
            tracer.traces.fail(point, str(result))
        else:
            tracer.traces.add(point, result)
    if not tracer.traces.found:
        raise Untraceable(next(iter(tracer.traces.failed.values())))
