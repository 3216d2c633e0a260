"""The time and cost of a step: a rough rule on data-sheet figures, meant only for ranking plans.

A step is its operators one after another, then its collectives. An operator takes as long as its arithmetic or its
memory traffic, whichever is longer (the roofline model), each at a share of the data sheet's figure; all of them
together take no less than their host takes to start them. A collective of n GPUs is a ring's (Patarasuk and Yuan 2009),
preceded by the hops of a tree. No figure here is fitted to a GPU, so times are `assumed`, and their interval spans
badly to well tuned programs; `bft size check` corrects them for a type.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sizing.base.estimate import Estimate
from sizing.base.parallel import Parallel
from sizing.inventory.gpus import GpuType
from sizing.model.trace import StepTrace

Collectives = Mapping[str, float]
"""Bytes of the whole tensors of each kind of collective ("all_reduce", "all_gather", "reduce_scatter") in a step."""

WEIGHT_BYTES = 4
"""Size of one weight or gradient that GPUs exchange in a traced step: torch's mixed precision keeps both in fp32."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The share of a data sheet's figure that a program reaches: usually, at worst and at best."""

    usual: float
    least: float
    most: float


ARITHMETIC = Efficiency(0.5, 0.25, 0.9)
"""Share of the peak of matrix products, in one operator: large ones in training reach about half of the dense peak."""
WINOGRAD = 2.25
"""A convolution with a 3 x 3 kernel may take this many times fewer products in fp32 at best (Lavin and Gray 2016)."""
TRAFFIC = Efficiency(0.7, 0.4, 1.0)
"""Share of the memory's bandwidth, in one operator."""
WHOLE = Efficiency(0.35, 0.15, 0.72)
"""Share of the peak over a whole step whose operators are not known one by one.

Published figures of well tuned transformers on A100 are 30 to 50 % (Korthikanti et al. 2022), 72 % for the best one
(Dao 2023), less for most others.
"""
LINKS = Efficiency(0.7, 0.3, 1.0)
"""Share of a link's or the network's bandwidth, in a collective of many bytes."""
STARTED = Efficiency(1.0e5, 3.3e4, 2.5e5)
"""Operators, views among them, that a process starts on a GPU per second.

On a CPU, without the call into a GPU's driver, PyTorch 2.13 started 1.7e5 to 3.6e5
(`python -m benchmarks.sizing.step_times --dispatch`).
"""
HOP_S, NETWORK_HOP_S = 3e-6, 10e-6
"""Time from one GPU to the next in a collective's tree, within a node and between two.

nccl-tests shows these times for small collectives.
"""
HOPS = Efficiency(1.0, 0.4, 2.0)
"""Speed of hops, relative to the times above."""
BUCKET_BYTES = 25 * 2**20
"""DistributedDataParallel reduces gradients in buckets of this size."""
BACKWARD = 2 / 3
"""The backward pass's share of a forward and backward pass: two matrix products for each forward one."""
HIDDEN = Efficiency(0.5, 0.0, 1.0)
"""Share of the backward pass behind which data-parallel collectives hide.

It is most of the pass if the network leaves the GPUs alone.
"""


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work of one rank in a step: (FLOPs, bytes moved) by operator and precision, and its collectives by group.

    An operator with unknown bytes (None) stands for the whole step. `tensor` is the traffic between tensor-parallel
    GPUs, `sharded` that between GPUs that share state (FSDP), `data` that between replicas. `calls` is the number of
    operators started, 0 if unknown, `tensor_calls` the number of collectives of `tensor`; those of the others are taken
    to be buckets. Gradients are added up over `passes` before they are reduced.
    """

    operators: Mapping[tuple[str, str], tuple[float, float | None]]
    tensor: Collectives = field(default_factory=dict)
    sharded: Collectives = field(default_factory=dict)
    data: Collectives = field(default_factory=dict)
    calls: float = 0.0
    tensor_calls: float = 0.0
    passes: int = 1

    def scaled(self, factor: float) -> StepWork:
        """Return the work of `factor` times the batch: as many operators, weights and gradients as before."""
        return replace(
            self,
            operators={
                name: (flops * factor, moved and moved * factor) for name, (flops, moved) in self.operators.items()
            },
            tensor={kind: moved * factor for kind, moved in self.tensor.items()},
        )

    def cut(self, parallel: Parallel, weights: float) -> StepWork:
        """Return the work of one GPU cut for a rank of `parallel`, with `weights` on all GPUs.

        Tensor parallelism is taken to move as much as FSDP does: its traffic is not known before it is traced.
        """
        parts = parallel.tp
        operators = {name: (flops / parts, moved and moved / parts) for name, (flops, moved) in self.operators.items()}
        tensor = _of_weights(weights) if parallel.tp > 1 else {}
        sharded, data = _states(weights / parallel.tp, parallel)
        return replace(self, operators=operators, tensor=tensor, sharded=sharded, data=data)


def traced(trace: StepTrace) -> StepWork:
    """Return the work of a traced step.

    The traffic of replicas and shards follows from the weights, whether the step wraps its model in
    DistributedDataParallel or leaves that to the script. The rest of the traced traffic is tensor parallelism's.
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
    started = sum(each.calls for each in trace.operators)
    tensor_calls = sum(trace.collective_calls.get(kind, 0) for kind in tensor)
    return StepWork(operators, tensor, sharded, data, float(started), max(0.0, float(tensor_calls) - _buckets(data)))


def configured(
    flops: float,
    parallel: Parallel,
    tensor: Collectives,
    others: Collectives,
    calls: float = 0.0,
    tensor_calls: float = 0.0,
    passes: int = 1,
) -> StepWork:
    """Return the work of a step of a model given by its sizes, with operators known only by total FLOPs and number.

    `tensor` is the traffic between tensor-parallel GPUs, `others` all else: its gathers and scatters are of FSDP's
    shards if there are any, otherwise of the replicas' (ZeRO).
    """
    shards = {kind: moved for kind, moved in others.items() if kind != "all_reduce" and parallel.fsdp > 1}
    data = {kind: moved for kind, moved in others.items() if kind not in shards}
    return StepWork({("step", ""): (flops, None)}, dict(tensor), shards, data, calls, tensor_calls, passes)


def _of_weights(weights: float) -> dict[str, float]:
    """Return FSDP's traffic: weights are gathered for each forward and backward pass, gradients scattered."""
    return {"all_gather": 2 * WEIGHT_BYTES * weights, "reduce_scatter": WEIGHT_BYTES * weights}


def _states(weights: float, parallel: Parallel) -> tuple[Collectives, Collectives]:
    """Return the traffic of shards and of replicas, for `weights` of a tensor-parallel rank."""
    sharded = _of_weights(weights) if parallel.fsdp > 1 else {}
    data = {"all_reduce": WEIGHT_BYTES * weights / parallel.fsdp} if parallel.dp > 1 else {}
    return sharded, data


def between(low: StepWork, high: StepWork, part: float) -> StepWork:
    """Return the work at a batch between two others, linear in the batch; `part` is 0 at `low` and 1 at `high`."""

    def mixed(first: Collectives, second: Collectives) -> Collectives:
        return {kind: _mix(first.get(kind, 0.0), second.get(kind, 0.0), part) for kind in {**first, **second}}

    names = {**low.operators, **high.operators}
    nothing = (0.0, 0.0)
    pairs = {name: (low.operators.get(name, nothing), high.operators.get(name, nothing)) for name in names}
    return StepWork(
        {name: (_mix(a[0], b[0], part), _mix(a[1] or 0.0, b[1] or 0.0, part)) for name, (a, b) in pairs.items()},
        mixed(low.tensor, high.tensor),
        mixed(low.sharded, high.sharded),
        mixed(low.data, high.data),
        _mix(low.calls, high.calls, part),
        _mix(low.tensor_calls, high.tensor_calls, part),
        low.passes,
    )


def _mix(low: float, high: float, part: float) -> float:
    return low + (high - low) * part


def step_s(
    work: StepWork, parallel: Parallel, gpu: GpuType, nodes: int, network_bytes_s: float, precision: str
) -> Estimate:
    """Return the seconds of a step of `parallel` on `nodes` nodes: assumed, and corrected if `gpu` was checked.

    All arithmetic is timed in `precision`; if it is "", each operator in its own.
    """
    usual, slow, fast = (_compute_s(work, gpu, precision, which) for which in ("usual", "least", "most"))
    tensor = _exchange(work.tensor, work.tensor_calls or _buckets(work.tensor), parallel.tp, 1, gpu.link_bytes_s)
    compute = _corrected(Estimate(usual, fast, slow, "assumed"), work, gpu, precision)
    if parallel.gpus == 1:
        return compute
    compute = Estimate(compute.value + tensor.value, compute.low + tensor.low, compute.high + tensor.high, "assumed")
    return beside(compute, _data(work, parallel, gpu, nodes, network_bytes_s), work.passes)


def bound_by(work: StepWork, gpu: GpuType, precision: str) -> str:
    """Return the bound of most of a step's time: "host" (starting operators), "memory", or its products' precision.

    Returns "" if its operators are not known one by one.
    """
    parts: dict[str, float] = {}
    for kind, arithmetic_s, traffic_s in _operators_s(work, gpu, precision):
        bound = kind if arithmetic_s > traffic_s else "memory"
        parts[bound] = parts.get(bound, 0.0) + max(arithmetic_s, traffic_s)
    if not parts or work.calls / STARTED.usual >= sum(parts.values()):
        return "host" if parts else ""
    return max(parts, key=parts.__getitem__)


def _operators_s(work: StepWork, gpu: GpuType, precision: str) -> list[tuple[str, float, float]]:
    """Return each operator's precision of products and the usual seconds of its arithmetic and its traffic.

    Returns nothing if operators are not known one by one.
    """
    found = []
    for (name, own), (flops, moved) in work.operators.items():
        if moved is None:
            return []
        timed = precision or own
        found.append((timed.partition("-")[0], *_operator_s(name, timed, flops, moved, gpu, "usual")))
    return found


def _corrected(compute: Estimate, work: StepWork, gpu: GpuType, precision: str) -> Estimate:
    """Return the assumed time, each part scaled by the measured ratio of checked steps with the same bound.

    The range moves along, and is widened until it holds all checked steps, whatever bound them. Products of a precision
    that was not checked use the median ratio of the others.
    """
    operators = _operators_s(work, gpu, precision) if gpu.checked and compute.value else []
    if not operators:
        return compute
    products = [each.value for kind, each in gpu.checked.items() if kind not in ("host", "memory")]
    others = statistics.median(products) if products else 1.0

    def over(kind: str, unknown: float = 1.0) -> float:
        return gpu.checked[kind].value if kind in gpu.checked else unknown

    work_s = sum(max(one * over(kind, others), two * over("memory")) for kind, one, two in operators)
    value = max(work_s, work.calls / STARTED.usual * over("host"))
    least, most = min(each.low for each in gpu.checked.values()), max(each.high for each in gpu.checked.values())
    low = min(value, compute.low * value / compute.value, compute.value * least)
    high = max(value, compute.high * value / compute.value, compute.value * most)
    return Estimate(value, low, high, "interpolated")


def beside(compute: Estimate, exchange: Estimate, passes: int = 1) -> Estimate:
    """Return the seconds of both together: at best one hides the other, at worst nothing is hidden.

    Usually a part of the last of the backward `passes` hides the exchange of data-parallel workers.
    """
    low = max(compute.low, exchange.low)
    shown_s = max(0.0, exchange.value - HIDDEN.usual * BACKWARD * compute.value / passes)
    return Estimate(max(low, compute.value + shown_s), low, compute.high + exchange.high, "assumed")


def all_reduce_s(moved: float, size: int, nodes: int, bytes_s: float) -> Estimate:
    """Return the seconds for `size` workers on `nodes` nodes to sum `moved` bytes in buckets over `bytes_s` links."""
    collectives = {"all_reduce": moved}
    return _exchange(collectives, _buckets(collectives), size, nodes, bytes_s)


def peak_flops(gpu: GpuType, precision: str) -> float:
    """Return the dense peak of a precision; without units for it the peak of fp32, or half of that for fp64."""
    wanted = precision.partition("-")[0]  # bf16-pure, fp16-amp
    plain = gpu.flops.get("fp32") or max(gpu.flops.values())
    return gpu.flops.get(wanted) or (plain / 2 if wanted == "fp64" else plain)


def _compute_s(work: StepWork, gpu: GpuType, precision: str, which: str) -> float:
    total_s = 0.0
    for (name, own), (flops, moved) in work.operators.items():
        timed = precision or own
        if moved is None:
            total_s += flops / (peak_flops(gpu, timed) * getattr(WHOLE, which))
        else:
            total_s += max(_operator_s(name, timed, flops, moved, gpu, which))
    return max(total_s, work.calls / float(getattr(STARTED, which)))


def _operator_s(name: str, precision: str, flops: float, moved: float, gpu: GpuType, which: str) -> tuple[float, float]:
    """Return the seconds of an operator's arithmetic, and of its memory traffic."""
    peak = peak_flops(gpu, precision)
    in_fp32 = precision in ("fp32", "tf32") and peak <= gpu.flops.get("fp32", 0.0)
    fewer = WINOGRAD if which == "most" and in_fp32 and name.startswith("convolution") else 1.0
    arithmetic, traffic = getattr(ARITHMETIC, which), getattr(TRAFFIC, which)
    return flops / (peak * arithmetic * fewer), moved / (gpu.memory_bytes_s * traffic)


def _data(work: StepWork, parallel: Parallel, gpu: GpuType, nodes: int, network_bytes_s: float) -> Estimate:
    """Return the time of the replicas' all-reduce of gradients and of FSDP's gathers.

    The rings of a node's tensor-parallel ranks share its network link. Shards are kept within nodes if they fit.
    """
    across = min(gpu.link_bytes_s, network_bytes_s / parallel.tp)
    per_node = parallel.gpus // nodes // parallel.tp
    inside = nodes == 1 or parallel.fsdp <= per_node
    gradients_bw = gpu.link_bytes_s if nodes == 1 else across
    parts = (
        _exchange(work.data, _buckets(work.data), parallel.dp, min(nodes, parallel.dp), gradients_bw),
        _exchange(
            work.sharded,
            _buckets(work.sharded),
            parallel.fsdp,
            1 if inside else min(nodes, parallel.fsdp),
            gpu.link_bytes_s if inside else across,
        ),
    )
    value, low, high = (sum(getattr(each, end) for each in parts) for end in ("value", "low", "high"))
    return Estimate(value, low, high, "assumed")


def _buckets(collectives: Collectives) -> float:
    return float(sum(math.ceil(moved / BUCKET_BYTES) for moved in collectives.values()))


def _exchange(collectives: Collectives, calls: float, size: int, nodes: int, bytes_s: float) -> Estimate:
    """Return the time of `calls` collectives of `size` GPUs on `nodes` nodes: bytes in rings, plus a tree's hops.

    In a gather or a scatter each GPU passes on all parts but one, in an all-reduce twice.
    """
    whole = sum(collectives.values())
    if size == 1 or not whole:
        return Estimate(0.0, 0.0, 0.0, "assumed")
    twice = 1 + collectives.get("all_reduce", 0.0) / whole
    moving_s = whole * twice * (size - 1) / size / bytes_s
    hops_s = math.log2(size / nodes) * HOP_S + math.log2(nodes) * NETWORK_HOP_S
    waiting_s = calls * twice * hops_s
    usual, most, least = (
        moving_s / getattr(LINKS, end) + waiting_s / getattr(HOPS, end) for end in ("usual", "most", "least")
    )
    return Estimate(usual, most, least, "assumed")


def cost_of(step: Estimate, gpus: int, gpu: GpuType) -> Estimate:
    """Return GPUs x seconds x the type's hourly worth, in the inventory's unit (GPU-seconds if all are 1)."""
    factor = gpus * gpu.cost
    return Estimate(step.value * factor, step.low * factor, step.high * factor, step.origin)
