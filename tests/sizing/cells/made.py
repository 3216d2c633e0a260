"""Cells, profiles and communication tables that are made up, for tests of what is pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sizing.base.estimate import Estimate, Origin
from sizing.base.parallel import Parallel
from sizing.cells.cell import Cell, Stage
from sizing.cells.comm.protocol import Link
from sizing.cells.shards import Exchange, ShardProfile, StageShard
from sizing.model.graph import Graph, Operator

GIB = 2**30


def sure(value: float, origin: Origin = "measured") -> Estimate:
    return Estimate(value, value, value, origin)


@dataclass
class Wires:
    """A link of a fixed latency and bandwidth, whoever asks; `asked` is what was asked for."""

    bytes_s: float = 1e9
    latency_s: float = 1e-5
    spread: float = 0.0
    origin: Origin = "interpolated"

    def __post_init__(self) -> None:
        self.asked: list[tuple[str, float, Link]] = []

    def time_s(self, kind: str, nbytes: float, link: Link) -> Estimate:
        self.asked.append((kind, nbytes, link))
        took_s = self.latency_s + nbytes / self.bytes_s
        return Estimate(took_s, took_s * (1 - self.spread), took_s * (1 + self.spread), self.origin)


def cell_of(*gpus: int, gpu_type: str = "a100", across_bytes: int = 2**20) -> Cell:
    """A cell of one operator a stage."""
    last = len(gpus) - 1
    return Cell(
        gpu_type,
        tuple(Stage(i, i, count, 10**9, 0 if i == last else across_bytes, 10**6) for i, count in enumerate(gpus)),
    )


def graph_of(cell: Cell, batch: int = 32) -> Graph:
    operators = tuple(
        Operator(f"op{i}", "", stage.flops, stage.across_bytes, stage.parameters) for i, stage in enumerate(cell.stages)
    )
    return Graph("made up", batch, operators, "export")


def profile_of(
    shard: StageShard,
    compute_s: float,
    *,
    device: str = "a100",
    parameters: int = 10**6,
    activation_bytes: int = 0,
    peak_bytes: int = 0,
    exchanges: tuple[Exchange, ...] = (),
    update_s: float = 0.0,
    spread: float = 0.0,
) -> ShardProfile:
    took = Estimate(compute_s, compute_s * (1 - spread), compute_s * (1 + spread), "measured")
    return ShardProfile(
        shard=shard,
        device=device,
        compute_s=took,
        update_s=sure(update_s),
        parameters=parameters,
        weight_bytes=4 * parameters,
        state_bytes=12 * parameters,
        activation_bytes=activation_bytes,
        peak_bytes=peak_bytes,
        exchanges=exchanges,
        rounds=20,
        profile_s=1.0,
        torch="2.13.0",
    )


def with_peak(profile: ShardProfile, peak_bytes: int) -> ShardProfile:
    return replace(profile, peak_bytes=peak_bytes)


DATA, TENSOR = Parallel(4, 1), Parallel(1, 4)
