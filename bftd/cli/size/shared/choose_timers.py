"""Step times for `bft size choose`: from profiles if there are any, else assumed from traces or formulas."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bftd.base.errors import BftError, UsageError
from bftd.cli.size import learn
from bftd.cli.size.cells import GRAPH_BATCH
from bftd.cli.size.shared import profiles as size_profiles
from bftd.cli.size.shared import trace

if TYPE_CHECKING:
    from bftd.cli.size.shared.model import ModelRequest
    from bftd.cli.size.shared.trace import Tracer
    from sizing.choose.candidates import Spread
    from sizing.choose.runs import JobRun
    from sizing.choose.shapes import GpuShape
    from sizing.choose.sources import RankBatch
    from sizing.choose.timers.timers import StepTimeModel
    from sizing.inventory.pools import GpuPool
    from sizing.model.graph import Graph


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
        from sizing.model import tracing

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
        notes = (f"a script that can be cut says so: {' and '.join(ways)}",) if ways else ()
        return Splits(stages, can, notes)


@dataclass
class Timers:
    """The timer, notes on it, and the options besides --partition that make profiles for it."""

    timer: StepTimeModel
    unknown: Mapping[tuple[str, type[Exception]], str]
    remarks: list[str]
    profiling: str

    def notes(self, found: Sequence[JobRun]) -> list[str]:
        """Return notes on how reliable the times are and what would improve them."""
        notes = list(self.remarks)
        assumed = sorted({run.shape.pool.partition for run in found if run.run_s.origin == "assumed"})
        if assumed:
            notes.append(
                f"times in {', '.join(assumed)} are assumed from data sheets, for ranking: "
                f"bft size profile --partition {assumed[0]}{self.profiling} would measure them"
            )
        notes += self.unknown.values()
        return notes


def made(
    asked: ModelRequest,
    chosen: Sequence[GpuPool],
    global_batch: int,
    max_gpus: int | None,
    splits: Splits,
    python: str,
    timeout_s: float,
    precision: str,
) -> Timers:
    """Return the timers of a model, which is traced unless it is a configuration.

    Raises UsageError, and BftError if tracing fails and there is no configuration to fall back on.
    """
    from sizing.choose.timers.timers import Slowest, TimerChain
    from sizing.choose.timers.with_runs import WithRuns

    notes: list[str] = []
    profiles = size_profiles.Profiles.of(asked, precision, notes)
    needed = profiles is not None or splits.stages != 1
    graph = size_profiles.graph_of(asked, global_batch, python, timeout_s, notes) if needed else None
    timers: list[StepTimeModel] = []
    measured = None if profiles is None or graph is None else profiles.timer(graph, global_batch, splits.tensor)
    if measured is not None:
        timers.append(Slowest(measured))
    tracer = trace.Tracer(asked.step, python, timeout_s, precision) if asked.step is not None else None
    spread = replace(trace.spread_of(asked, tracer), fsdp=False)
    ways = tuple(_ways(chosen, global_batch, max_gpus, spread))
    timers.append(
        Slowest(_assumed(asked, tracer, graph, global_batch, spread, {point for _, point in ways}, splits, notes))
    )
    notes += _either(chosen)
    notes += splits.undeclared
    first = TimerChain(timers)
    timer: StepTimeModel = first
    if tracer is not None:
        places = {(each.pool.gpu.name, each.gpus, each.nodes, point) for each, point in ways if not each.pool.mixed}
        runs, more = learn.known(tracer, places)
        timer = WithRuns(first, runs, tracer.traces, global_batch)
        notes += more
    return Timers(timer, first.unknown, notes, size_profiles.profiling(asked, precision))


def _either(chosen: Sequence[GpuPool]) -> list[str]:
    """Note the pools in which Slurm may give one type of GPU or another, and how the centre could tell them apart."""
    notes = {}
    for pool in chosen:
        if pool.mixed:
            unknown = [name for name in pool.mixed if name not in {other.name for other in pool.others}]
            kinds = sorted({pool.gpu.name, *pool.mixed})
            but = f", but for {', '.join(unknown)}, of which nothing is known" if unknown else ""
            notes[(pool.partition, *kinds)] = (
                f"{pool.partition}: Slurm gives {' or '.join(kinds)} to the same request, so the slowest and the "
                f"smallest count{but}; a type in gres.conf or a feature of their nodes would tell them apart"
            )
    return list(notes.values())


def _assumed(
    asked: ModelRequest,
    tracer: Tracer | None,
    graph: Graph | None,
    global_batch: int,
    spread: Spread,
    points: Collection[RankBatch],
    splits: Splits,
    notes: list[str],
) -> StepTimeModel:
    from sizing.base.errors import Untraceable
    from sizing.cells.size_graph import chain
    from sizing.choose.by_formula import Formula
    from sizing.choose.cuts import ByGraph
    from sizing.choose.timers.datasheet_time import Assumed

    if tracer is not None:
        try:
            _trace(tracer, points)
            notes += tracer.notes()
            cut = None if graph is None else ByGraph(graph)
            return Assumed(tracer.traces, tracer.traces, global_batch, spread, cut)
        except Untraceable as error:
            if asked.model is None:
                raise BftError(f"{error}; give --config for an estimate by formula") from None
            notes.append(f"by formula, as the model could not be traced: {error}")
    assert asked.model is not None
    if asked.model.parallel.gpus > 1:
        notes.append("dp, tp and fsdp of --config do not count here: they are what is chosen")
    source, whole = Formula(asked.model, asked.micro_batch), Formula(replace(asked.model, accumulation=1))
    sizes = ByGraph(chain(asked.model, GRAPH_BATCH))
    return Assumed(source, whole, global_batch, replace(spread, tensor=splits.tensor), sizes)


def _ways(
    chosen: Sequence[GpuPool], global_batch: int, max_gpus: int | None, spread: Spread
) -> Iterator[tuple[GpuShape, RankBatch]]:
    """Yield each way to spread the whole model, with the work of one rank."""
    from sizing.base.parallel import Parallel
    from sizing.choose.shapes import shapes
    from sizing.choose.sources import RankBatch

    for shape in (shape for pool in chosen for shape in shapes(pool, max_gpus)):
        tp = 1
        while tp <= shape.per_node and (tp == 1 or spread.tensor):
            dp = shape.gpus // tp
            if global_batch % dp == 0 and (spread.heads is None or spread.heads % tp == 0):
                yield shape, RankBatch(Parallel(dp, tp), global_batch // dp)
            tp *= 2


def _trace(tracer: Tracer, points: Collection[RankBatch]) -> None:
    """Trace the smallest and the largest batch of each split; raises Untraceable if no trace succeeds."""
    from sizing.base.errors import Untraceable
    from sizing.choose.sources import ends

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
