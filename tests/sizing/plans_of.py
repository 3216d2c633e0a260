"""Small inventories and traces for the tests of plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sizing.base.errors import Untraceable
from sizing.base.parallel import Parallel, RankBatch
from sizing.files.past_runs import Ran
from sizing.inventory.inventory import GpuNodes, GpuType, Inventory, PartitionOffer
from sizing.model.trace import OperatorTotals, StepTrace

GIB = 2**30
RAN = Ran("train.py:make_step", "w", "a100", 2, 1, 2, 1, 1, 64, 10**8, "home/42", 1e9, 0.5)


def gpu(name: str = "a100", gib: float = 80, cost: float = 1.0, tflops: float = 312, slice: bool = False) -> GpuType:
    flops = {"fp32": tflops * 1e12 / 16, "tf32": tflops * 5e11, "fp16": tflops * 1e12, "bf16": tflops * 1e12}
    return GpuType(name, int(gib * GIB), flops, 2e12, 3e11, cost=cost, slice=slice)


def group(
    names: str = "g",
    count: int = 4,
    kind: str = "a100",
    gpus: int = 4,
    cpus: int = 64,
    gib: int = 512,
    gres_type: str | None = None,
    features: tuple[str, ...] = (),
) -> GpuNodes:
    nodes = tuple(f"{names}{at}" for at in range(1, count + 1))
    return GpuNodes(nodes, kind, gpus, cpus, gib * GIB, kind if gres_type is None else gres_type, features)


def inventory(*offers: PartitionOffer, types: Sequence[GpuType] = ()) -> Inventory:
    known = [*types, gpu(), gpu("v100", 32, 0.5, 125)]
    return Inventory({each.name: each for each in reversed(known)}, offers)


def trace(
    point: RankBatch,
    peak_gib: float,
    flops: float = 1e12,
    parameters: int = 10**8,
    collectives: dict[str, int] | None = None,
    state_gib: float | None = None,
    temporary_gib: float = 0.0,
) -> StepTrace:
    state = int((peak_gib / 2 if state_gib is None else state_gib) * GIB)
    temporary = int(temporary_gib * GIB)
    rest = int(peak_gib * GIB) - state - temporary
    return StepTrace(
        batch=point.batch,
        parallel=point.parallel,
        target="cuda",
        peak_bytes=state + rest + temporary,
        by_category={"parameters": state, "activations": rest, "temporary": temporary},
        parameters=parameters,
        operators=(OperatorTotals("mm", 1, int(flops), 10**9, "bf16"),),
        collectives=collectives or {},
        torch="2.13.0",
        trace_s=1.0,
    )


class Step:
    """A step that takes `state` GiB, shared by FSDP and tensor parallelism, and `each` GiB a sample."""

    def __init__(
        self, state: float, each: float, refuses: Callable[[RankBatch], bool] = lambda point: False, sums: bool = False
    ) -> None:
        self.state, self.each, self.refuses, self.sums = state, each, refuses, sums
        self.points: list[RankBatch] = []
        self.calls: list[int] = []

    def peak_gib(self, parallel: Parallel, batch: int) -> float:
        # the optimizer's moment and that of the activations: the larger counts
        state = self.state / parallel.tp / parallel.fsdp
        return max(1.2 * state, state + self.each * batch / parallel.tp)

    def measure(self, points: Sequence[RankBatch]) -> list[StepTrace | Untraceable]:
        self.points += points
        self.calls.append(len(points))
        return [
            Untraceable("line 7: it looks at a loss") if self.refuses(point) else self._trace(point) for point in points
        ]

    def _trace(self, point: RankBatch) -> StepTrace:
        tp, state = point.parallel.tp, self.state / point.parallel.tp / point.parallel.fsdp
        peak = self.peak_gib(point.parallel, point.batch)
        return trace(
            point,
            peak,
            1e12 * point.batch / tp,
            collectives={"all_reduce": 4 * 10**8} if self.sums and point.parallel.dp > 1 else {},
            state_gib=state,
            temporary_gib=max(0.0, peak - state - self.each * point.batch / tp),
        )
