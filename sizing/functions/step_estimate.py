"""`sizing.estimate`: the memory of a training step on each GPU, and its time on a type of GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from sizing.base.errors import Untraceable, UsageError
from sizing.base.estimate import Estimate
from sizing.base.parallel import Parallel
from sizing.base.progress import Progress, quiet
from sizing.child import tracing
from sizing.child.threads import side_by_side
from sizing.choice.by_formula import Formula
from sizing.choice.curves import NETWORK_BYTES_S
from sizing.functions.site import HERE, Site
from sizing.inventory.gpus import GpuType
from sizing.memory import formula, traced
from sizing.memory.peak import MemoryPeak
from sizing.model import request
from sizing.model.config import ModelConfig
from sizing.model.trace import Target
from sizing.step_time import checking, datasheet
from sizing.step_time.datasheet import StepWork


@dataclass(frozen=True)
class StepEstimate:
    """The memory and time of a step, each with its origin; `step_s` is None if no type of GPU was named.

    `notes` are sentences on what the figures rest on.
    """

    memory: MemoryPeak
    gpu: GpuType | None = None
    step_s: Estimate | None = None
    notes: tuple[str, ...] = ()


def estimate(
    step: str | None = None,
    *,
    config: str | None = None,
    global_batch: int | None = None,
    dp: int | None = None,
    tp: int | None = None,
    fsdp: int | None = None,
    gpu: str | GpuType | None = None,
    nodes: int = 1,
    precision: str = "",
    device: Target = "cuda",
    python: str = "",
    timeout_s: float = tracing.TIMEOUT_S,
    site: Site = HERE,
    progress: Progress = quiet,
) -> StepEstimate:
    """Return the memory that a step takes of each GPU, and with `gpu` its time on GPUs of that type on `nodes` nodes.

    `step` is "FILE.py:make_step", which is traced; `config` gives the model by its sizes, and serves where there is no
    step or it cannot be traced. `dp`, `tp` and `fsdp` are the spread, by default that of the configuration or one GPU;
    `global_batch` is the samples of all GPUs together, by default one for each, or as the configuration says. `site`
    describes GPUs in its own names. `device` is whose memory counts; times are those of GPUs.

    Raises UsageError for an impossible request, and Untraceable without a configuration if the step cannot be traced.
    """
    if not timeout_s > 0:
        raise UsageError(f"--timeout {timeout_s:g}: seconds, more than 0")
    asked = request.asked(step, config, precision)
    if global_batch is not None:
        request.refuse_batch(global_batch)
    said = asked.model.parallel if asked.model is not None else Parallel()
    spread = ((dp, said.dp), (tp, said.tp), (fsdp, said.fsdp))
    parallel = Parallel(*(was if now is None else now for now, was in spread))
    batch = None if global_batch is None else parallel.batch_of(global_batch)
    if not 1 <= nodes <= parallel.gpus or parallel.gpus % nodes:
        raise UsageError(f"{parallel.gpus} GPUs cannot be spread evenly over {nodes} nodes: choose a divisor")
    kind = checking.named_type(gpu, site.types()) if isinstance(gpu, str) else gpu
    by_formula = None if asked.model is None else _by_formula(asked.model, asked.micro_batch, parallel, batch)
    work: StepWork | None = None
    if asked.step is None:
        assert by_formula is not None
        peak, work = by_formula
    else:
        take = partial(
            tracing.trace, asked.step, batch or 1, parallel, target=device, python=python, timeout_s=timeout_s
        )
        name = f"tracing {asked.step}"
        progress(name, 0.0)
        try:
            (trace,) = side_by_side([take], lambda: progress(name, 0.0))
        except Untraceable as error:
            if by_formula is None:
                raise Untraceable(f"{error}; give --config for an estimate by formula") from None
            peak, work = by_formula
            peak = replace(peak, why=str(error))
        else:
            peak, work = traced.peak_of(trace), datasheet.traced(trace)
            if by_formula is not None:
                peak = replace(peak, marp_bytes=by_formula[0].marp_bytes)
        progress(name, 1.0)
    if kind is None or work is None:
        return StepEstimate(peak, kind, notes=asked.notes)
    how = asked.model.precision if asked.model is not None and peak.peak.origin == "formula" else precision
    step_s = datasheet.step_s(work, parallel, kind, nodes, NETWORK_BYTES_S, how)
    return StepEstimate(peak, kind, step_s, asked.notes)


def _by_formula(
    model: ModelConfig, micro_batch: int | None, parallel: Parallel, batch: int | None
) -> tuple[MemoryPeak, StepWork | None]:
    """Return the peak and the work by formula; `batch` is a rank's, by default that of the configuration."""
    if batch is None:
        whole = Formula(model)
        return formula.peak_of(replace(model, parallel=parallel)), whole.work(
            parallel, model.batch * model.accumulation
        )
    source = Formula(model, micro_batch)
    return formula.peak_of(source.checked(parallel, batch)), source.work(parallel, batch)
