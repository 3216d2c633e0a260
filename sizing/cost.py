"""How long a step takes and what it costs: a rough rule on data-sheet figures, to rank plans by and for no more.

A step is its operators one after another, then its collectives. An operator takes as long as its arithmetic or its
memory traffic, whichever is longer (the roofline model), each at a share of what the data sheet says. A collective of
n GPUs is a ring's (Patarasuk and Yuan 2009). Nothing here was measured, so every time is `assumed`, and its interval
spans what well and badly tuned programs reach.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sizing.estimate import Estimate
from sizing.inventory import GpuType
from sizing.model.parallel import Parallel
from sizing.model.trace import StepTrace

Collectives = Mapping[str, float]
"""Bytes of the whole tensors of each kind of collective ("all_reduce", "all_gather", "reduce_scatter") in a step."""

WEIGHT_BYTES = 4
"""Of one weight or gradient that GPUs exchange in a traced step: torch's mixed precision keeps both in fp32."""


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of a data sheet's figure a program reaches: usually, at worst and at best."""

    usual: float
    least: float
    most: float


ARITHMETIC = Share(0.5, 0.25, 0.9)
"""Of the peak of matrix products, in one operator: large ones in training reach about half of the dense peak."""
TRAFFIC = Share(0.7, 0.4, 1.0)
"""Of the memory's bandwidth, in one operator."""
WHOLE = Share(0.35, 0.15, 0.6)
"""Of the peak, over a whole step, where its operators are not known one by one; 30 to 50 % are published of well tuned
transformers on A100 (Korthikanti et al. 2022), fewer of most others."""
LINKS = Share(0.7, 0.3, 1.0)
"""Of a link's or the network's bandwidth, in a collective of many bytes."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one rank does in a step: (FLOPs, bytes moved) by operator and precision, and its collectives by group.

    An operator whose bytes are not known has None of them, and then stands for the whole step. `tensor` is what
    tensor-parallel GPUs exchange, `sharded` those that share state (FSDP), `data` replicas.
    """

    operators: Mapping[tuple[str, str], tuple[float, float | None]]
    tensor: Collectives = field(default_factory=dict)
    sharded: Collectives = field(default_factory=dict)
    data: Collectives = field(default_factory=dict)

    def scaled(self, factor: float) -> Work:
        """The work of `factor` times the batch: of weights and their gradients there are as many as before."""
        return replace(
            self,
            operators={
                name: (flops * factor, moved and moved * factor) for name, (flops, moved) in self.operators.items()
            },
            tensor={kind: moved * factor for kind, moved in self.tensor.items()},
        )

    def cut(self, parallel: Parallel, weights: float) -> Work:
        """The work of one GPU as a rank of `parallel` would have it, with so many `weights` on all GPUs.

        Tensor parallelism is taken to move as much as FSDP does: it is not known before it is traced.
        """
        parts = parallel.tp
        operators = {name: (flops / parts, moved and moved / parts) for name, (flops, moved) in self.operators.items()}
        tensor = _of_weights(weights) if parallel.tp > 1 else {}
        return Work(operators, tensor, *_states(weights / parallel.tp, parallel))


def traced(trace: StepTrace) -> Work:
    """The work of a traced step.

    What replicas and shards exchange follows from the weights, whether the step wraps its model in
    DistributedDataParallel or leaves that to the script. The rest that is traced is tensor parallelism's.
    """
    parallel = trace.parallel
    own = float(trace.parameters * parallel.fsdp)
    operators = {(each.name, each.precision): (float(each.flops), float(each.bytes)) for each in trace.operators}
    sharded, data = _states(own, parallel)
    tensor: dict[str, float] = {}
    if parallel.tp > 1:
        tensor = {kind: float(moved) for kind, moved in trace.collectives.items()}
        if parallel.fsdp > 1:
            tensor = {"all_reduce": tensor.get("all_reduce", 0.0)}
        if "all_reduce" in tensor:
            tensor["all_reduce"] = max(0.0, tensor["all_reduce"] - data.get("all_reduce", 0.0))
    return Work(operators, tensor, sharded, data)


def configured(flops: float, parallel: Parallel, tensor: Collectives, others: Collectives) -> Work:
    """The work of a step of a model by its sizes, of whose operators only the FLOPs together are known.

    `tensor` is what tensor-parallel GPUs exchange, `others` all else: its gathers and scatters are of FSDP's shards
    where there are some, and else of the replicas' (ZeRO).
    """
    shards = {kind: moved for kind, moved in others.items() if kind != "all_reduce" and parallel.fsdp > 1}
    data = {kind: moved for kind, moved in others.items() if kind not in shards}
    return Work({("step", ""): (flops, None)}, dict(tensor), shards, data)


def _of_weights(weights: float) -> dict[str, float]:
    """What FSDP exchanges: weights are gathered for each forward and backward, gradients scattered."""
    return {"all_gather": 2 * WEIGHT_BYTES * weights, "reduce_scatter": WEIGHT_BYTES * weights}


def _states(weights: float, parallel: Parallel) -> tuple[Collectives, Collectives]:
    """What shards and what replicas exchange, of so many weights of a tensor-parallel rank."""
    sharded = _of_weights(weights) if parallel.fsdp > 1 else {}
    data = {"all_reduce": WEIGHT_BYTES * weights / parallel.fsdp} if parallel.dp > 1 else {}
    return sharded, data


def between(low: Work, high: Work, part: float) -> Work:
    """The work at a batch between two others, all of it linear in the batch; `part` is 0 at `low` and 1 at `high`."""

    def mixed(first: Collectives, second: Collectives) -> Collectives:
        return {kind: _mix(first.get(kind, 0.0), second.get(kind, 0.0), part) for kind in {**first, **second}}

    names = {**low.operators, **high.operators}
    nothing = (0.0, 0.0)
    pairs = {name: (low.operators.get(name, nothing), high.operators.get(name, nothing)) for name in names}
    return Work(
        {name: (_mix(a[0], b[0], part), _mix(a[1] or 0.0, b[1] or 0.0, part)) for name, (a, b) in pairs.items()},
        mixed(low.tensor, high.tensor),
        mixed(low.sharded, high.sharded),
        mixed(low.data, high.data),
    )


def _mix(low: float, high: float, part: float) -> float:
    return low + (high - low) * part


def step_s(
    work: Work, parallel: Parallel, gpu: GpuType, nodes: int, network_bytes_s: float, precision: str
) -> Estimate:
    """How long a step of `parallel` takes on `nodes` nodes, in seconds, assumed.

    All arithmetic is timed in `precision`, that of each operator in its own where it is "".
    At best the collectives of data parallelism hide behind the arithmetic, at worst nothing hides behind anything.
    """
    usual, slow, fast = (_compute_s(work, gpu, precision, which) for which in ("usual", "least", "most"))
    tensor_s = _collectives_s(work.tensor, parallel.tp, gpu.link_bytes_s)
    data_s = _data_s(work, parallel, gpu, nodes, network_bytes_s)
    return Estimate(
        usual + (tensor_s + data_s) / LINKS.usual,
        max(fast + tensor_s / LINKS.most, data_s / LINKS.most),
        slow + (tensor_s + data_s) / LINKS.least,
        "assumed",
    )


def peak_flops(gpu: GpuType, precision: str) -> float:
    """The dense peak of a precision; what a GPU has no units for runs as fp32 does, and fp64 at half of that."""
    wanted = precision.partition("-")[0]  # bf16-pure, fp16-amp
    plain = gpu.flops.get("fp32") or max(gpu.flops.values())
    return gpu.flops.get(wanted) or (plain / 2 if wanted == "fp64" else plain)


def _compute_s(work: Work, gpu: GpuType, precision: str, which: str) -> float:
    arithmetic, traffic, whole = (getattr(share, which) for share in (ARITHMETIC, TRAFFIC, WHOLE))
    total_s = 0.0
    for (_, own), (flops, moved) in work.operators.items():
        peak = peak_flops(gpu, precision or own)
        if moved is None:
            total_s += flops / (peak * whole)
        else:
            total_s += max(flops / (peak * arithmetic), moved / (gpu.memory_bytes_s * traffic))
    return total_s


def _data_s(work: Work, parallel: Parallel, gpu: GpuType, nodes: int, network_bytes_s: float) -> float:
    """All-reduce of gradients between replicas, and FSDP's gathers, at the links' full bandwidth.

    The rings of a node's tensor-parallel ranks share its way out. Shards are kept within nodes where they fit.
    """
    across = min(gpu.link_bytes_s, network_bytes_s / parallel.tp)
    per_node = parallel.gpus // nodes // parallel.tp
    sharded_bw = gpu.link_bytes_s if nodes == 1 or parallel.fsdp <= per_node else across
    gradients_bw = gpu.link_bytes_s if nodes == 1 else across
    sharded_s = _collectives_s(work.sharded, parallel.fsdp, sharded_bw)
    return _collectives_s(work.data, parallel.dp, gradients_bw) + sharded_s


def _collectives_s(collectives: Collectives, size: int, bytes_s: float) -> float:
    """Rings of `size` GPUs: of a gather or a scatter each GPU passes on all parts but one, of an all-reduce twice."""
    if size == 1:
        return 0.0
    passed = sum(moved * (2 if kind == "all_reduce" else 1) for kind, moved in collectives.items())
    return passed * (size - 1) / size / bytes_s


def cost_of(step: Estimate, gpus: int, gpu: GpuType) -> Estimate:
    """GPUs x seconds x what an hour of the type is worth, in the inventory's unit (GPU-seconds where all are 1)."""
    factor = gpus * gpu.cost
    return Estimate(step.value * factor, step.low * factor, step.high * factor, step.origin)
