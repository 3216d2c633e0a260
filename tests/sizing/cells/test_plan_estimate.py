"""Plans put together from made-up profiles: which is best, what fits, and what a quicker network does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sizing.base.errors import NoProfile, NoTable, UsageError
from sizing.base.estimate import Estimate
from sizing.base.parallel import Parallel
from sizing.cells.cell import Cell, CellEstimate
from sizing.cells.comm.protocol import Link
from sizing.cells.plan_estimate import assembly, fastest, hybrids, peak_of
from sizing.cells.required import micro_batches_of, more_micro_batches, shard_of, splits_of, wanted
from sizing.cells.shards import Exchange, ShardProfile, StageShard
from sizing.memory.peak import guarded_bytes
from tests.sizing.cells.made import DATA, GIB, TENSOR, Wires, cell_of, graph_of, profile_of, with_peak
from tests.support.messages import wording

pytestmark = pytest.mark.slow

ROOMY = 80 * GIB
REDUCED = (Exchange("all_reduce", 2**20, 4),)


def estimate(*data: Any, **how: Any) -> CellEstimate:
    return fastest(assembly(*data, **how))


def profiled(cell: Cell, compute_s: dict[Parallel, float], global_batch: int = 32) -> dict[StageShard, ShardProfile]:
    """The same for every stage; tensor-parallel ranks exchange four all-reduces of 1 MiB."""
    micro_batch = global_batch // micro_batches_of(cell, global_batch)
    found = {}
    for stage in cell.stages:
        for split, took_s in compute_s.items():
            shard = shard_of(stage, split, micro_batch)
            assert shard is not None
            found[shard] = profile_of(shard, took_s, exchanges=REDUCED if split.tp > 1 else ())
    return found


def asked(cell: Cell, profiles: dict[StageShard, ShardProfile], comm: Wires | None = None, **more: float) -> Estimate:
    found = estimate(
        cell,
        graph_of(cell),
        profiles,
        comm or Wires(),
        global_batch=32,
        per_node=4,
        gpu_bytes=more.get("gpu_bytes", ROOMY),
    )
    assert found.best is not None
    return found.best.step_s


def test_the_faster_extreme_is_the_estimate_by_hand() -> None:
    cell = cell_of(4)
    profiles = profiled(cell, {DATA: 0.010, TENSOR: 0.008})
    found = estimate(cell, graph_of(cell), profiles, Wires(), global_batch=32, per_node=4, gpu_bytes=ROOMY)
    assert found.best is not None
    assert found.tried == 2
    assert found.best.splits == (TENSOR,)  # 8 ms and 4 all-reduces of 1.06 ms; data: 10 ms, then 4 MB once
    assert found.best.step_s.value == pytest.approx(0.008 + 4 * (1e-5 + 2**20 / 1e9))
    wires = Wires(bytes_s=1e7)  # a hundred times slower: four exchanges of 105 ms lose against 4 MB once
    found = estimate(cell, graph_of(cell), profiles, wires, global_batch=32, per_node=4, gpu_bytes=ROOMY)
    assert found.best is not None
    assert found.best.splits == (DATA,)


def test_micro_batches_multiply_the_slowest_stage_and_not_the_all_reduce_of_gradients() -> None:
    cell = cell_of(4, 4, across_bytes=2**20)
    step_s = asked(cell, profiled(cell, {DATA: 0.010}))
    # graph's batch is 32, a micro-batch 4: 1/8 of 1 MiB, a quarter of it to each replica, there and back
    transfer_s = 2 * (1e-5 + 2**20 / 8 / 4 / 1e9)
    # both stages sum 4 MB up at once, the second one while the first still goes backward
    assert step_s.value == pytest.approx(2 * 0.010 + transfer_s + 7 * 0.010 + 1e-5 + 4e6 / 1e9)
    assert step_s.origin == "interpolated"


def test_on_a_cpu_nothing_hides_behind_anything() -> None:
    gpu, cpu = cell_of(4, 4), cell_of(4, 4, gpu_type="cpu")
    profiles = profiled(gpu, {DATA: 0.010})
    on_cpu = {shard: replace(profile, device="cpu") for shard, profile in profiles.items()}
    assert asked(cpu, on_cpu).value > asked(gpu, profiles).value
    assert asked(cpu, on_cpu).value == asked(cpu, on_cpu).high


def test_one_gpu_that_was_measured_stays_measured() -> None:
    cell = cell_of(1)
    assert asked(cell, profiled(cell, {Parallel(1, 1): 0.010})).origin == "measured"
    two = cell_of(1, 1)
    assert asked(two, profiled(two, {Parallel(1, 1): 0.010})).origin == "interpolated"
    # what was put together was not run, however well its parts are known
    known = Wires(origin="measured")
    assert asked(two, profiled(two, {Parallel(1, 1): 0.010}), known).origin == "formula"


def test_what_does_not_fit_is_dropped_with_its_bytes_and_the_slower_one_taken() -> None:
    cell = cell_of(4)
    profiles = profiled(cell, {DATA: 0.001, TENSOR: 0.008})
    data, tensor = StageShard(0, 0, 8, 1), StageShard(0, 0, 32, 4)
    profiles[data] = with_peak(profiles[data], 90 * GIB)
    found = estimate(cell, graph_of(cell), profiles, Wires(), global_batch=32, per_node=4, gpu_bytes=ROOMY)
    assert found.best is not None
    assert found.best.splits == (TENSOR,)
    assert found.dropped == (
        wording(
            "sizing.cells_assemble.stage_too_large", index=1, split="dp 4 x tp 1", high=95.4, gpu_bytes=80.0, over=15.4
        ),
    )
    profiles[tensor] = with_peak(profiles[tensor], 90 * GIB)
    found = estimate(cell, graph_of(cell), profiles, Wires(), global_batch=32, per_node=4, gpu_bytes=ROOMY)
    assert found.best is None
    assert len(found.dropped) == 3  # the third: more micro-batches were not profiled


def test_where_nothing_fits_a_stage_takes_its_batch_in_more_parts() -> None:
    cell = cell_of(2)
    large = {StageShard(0, 0, 16, 1): 90 * GIB, StageShard(0, 0, 32, 2): 90 * GIB}
    small = {StageShard(0, 0, 8, 1): 85 * GIB, StageShard(0, 0, 16, 2): 85 * GIB}
    tiny = {StageShard(0, 0, 4, 1): 40 * GIB}
    known: dict[StageShard, ShardProfile] = {}

    def said() -> tuple[int | None, tuple[str, ...]]:
        found = estimate(cell, graph_of(cell), known, Wires(), global_batch=32, per_node=4, gpu_bytes=ROOMY)
        return (found.best.micro_batches if found.best else None), found.dropped

    known |= {shard: profile_of(shard, 0.1, peak_bytes=peak) for shard, peak in large.items()}
    count, why = said()
    assert count is None
    assert why[-1] == wording("sizing.cells_assemble.more_may_fit", count=2)
    known |= {shard: profile_of(shard, 0.05, peak_bytes=peak) for shard, peak in small.items()}
    assert said()[0] is None
    known |= {shard: profile_of(shard, 0.03, peak_bytes=peak) for shard, peak in tiny.items()}
    count, why = said()
    assert count == 4
    assert len(why) == 4
    assert why[-1].endswith("too many), 2 micro-batches")
    # shards for which the device had too little memory while they were profiled have no profile at all
    known = {shard: profile for shard, profile in known.items() if shard not in large}
    assert said()[0] == 4
    known.clear()
    with pytest.raises(NoProfile, match="for micro-batches of 32"):
        said()


def test_more_micro_batches_leave_no_replica_empty_and_are_of_no_use_to_a_pipeline() -> None:
    assert [more_micro_batches(cell_of(4), 32, count) for count in (1, 2, 4, 8)] == [2, 4, 8, None]
    assert more_micro_batches(cell_of(2), 12, 2) == 6
    assert more_micro_batches(cell_of(2, 2), 64, 8) is None


def test_gpipe_holds_all_micro_batches_and_1f1b_as_many_as_there_are_stages_behind() -> None:
    cell = cell_of(1, 1, 1, 1)
    shards = [StageShard(i, i, 2, 1) for i in range(4)]
    profiles = {shard: profile_of(shard, 0.01, activation_bytes=2 * GIB, peak_bytes=10 * GIB) for shard in shards}
    peaks = {}
    for schedule in ("gpipe", "1f1b"):
        found = estimate(
            cell,
            graph_of(cell),
            profiles,
            Wires(),
            global_batch=32,
            per_node=4,
            gpu_bytes=ROOMY,
            schedule=schedule,  # type: ignore[arg-type]
        )
        assert found.best is not None
        assert found.best.micro_batches == 16
        peaks[schedule] = [peak.value / GIB for peak in found.best.peaks]
    assert peaks == {"gpipe": [40.0] * 4, "1f1b": [16.0, 14.0, 12.0, 10.0]}


def test_replicas_hold_their_gradients_twice() -> None:
    profile = profile_of(StageShard(0, 0, 8, 1), 0.01, parameters=GIB, peak_bytes=20 * GIB)
    assert peak_of(profile, 1, 1).value == 20 * GIB
    assert peak_of(profile, 1, 2).value == 24 * GIB
    assert peak_of(profile, 1, 2).high == guarded_bytes(24 * GIB)


def test_profiles_of_another_device_and_missing_ones_are_refused_with_the_command() -> None:
    cell = cell_of(4)
    with pytest.raises(NoProfile, match=r"stage 1 of 1 .*`bft size profile`"):
        asked(cell, {})
    on_v100 = {shard: replace(profile, device="v100") for shard, profile in profiled(cell, {DATA: 0.01}).items()}
    with pytest.raises(NoProfile, match="made on v100, not on a100"):
        asked(cell, on_v100)


def test_a_link_without_a_table_ends_in_its_error() -> None:
    class Nothing:
        def time_s(self, kind: str, nbytes: float, link: Link) -> Estimate:
            raise NoTable(f"no table of {kind} for {link}")

    cell = cell_of(4)
    with pytest.raises(NoTable, match="all_reduce"):
        estimate(
            cell,
            graph_of(cell),
            profiled(cell, {DATA: 0.01}),
            Nothing(),
            global_batch=32,
            per_node=4,
            gpu_bytes=ROOMY,
        )


def test_batches_that_cannot_be_cut_are_refused_in_one_line() -> None:
    cell = cell_of(4)
    for given_count in (0, 5):
        with pytest.raises(UsageError, match="choose a divisor"):
            micro_batches_of(cell, 32, given_count)
    with pytest.raises(UsageError, match="at least 1"):
        micro_batches_of(cell, 0)


def test_micro_batches_are_four_a_stage_and_fewer_where_replicas_would_go_empty() -> None:
    assert micro_batches_of(cell_of(8), 256) == 1
    assert micro_batches_of(cell_of(2, 2), 256) == 8
    assert micro_batches_of(cell_of(4, 4), 16) == 4  # 8 would leave 2 samples to 4 replicas
    assert micro_batches_of(cell_of(4, 4), 6) == 6  # no way to give each a sample: as many as divide


def test_the_extremes_of_each_stage_are_wanted_and_hybrids_where_they_matter() -> None:
    cell = cell_of(4, 1)
    extremes = (StageShard(0, 0, 1, 1), StageShard(0, 0, 4, 4), StageShard(1, 1, 4, 1))
    assert wanted(cell, 32) == extremes
    assert wanted(cell, 32, tensor=False) == (StageShard(0, 0, 1, 1), StageShard(1, 1, 4, 1))
    middle = StageShard(0, 0, 2, 2)
    assert middle in wanted(cell, 32, hybrids=True)
    # two samples are too few for four replicas
    assert wanted(cell_of(4), 2) == (StageShard(0, 0, 2, 4),)

    def open_for(data_s: float, tensor_s: float, peak_bytes: int = 0) -> tuple[StageShard, ...]:
        profiles = {shard: profile_of(shard, 0.01) for shard in extremes}
        profiles[extremes[0]] = profile_of(extremes[0], data_s, peak_bytes=peak_bytes)
        profiles[extremes[1]] = profile_of(extremes[1], tensor_s)
        return hybrids(
            assembly(cell, graph_of(cell), profiles, Wires(1e15, 0), global_batch=32, per_node=4, gpu_bytes=ROOMY)
        )

    assert open_for(1.0, 2.0) == ()
    assert open_for(1.0, 1.1) == (middle,)
    assert open_for(1.0, 2.0, peak_bytes=90 * GIB) == (middle,)


def test_the_sum_over_replicas_on_several_nodes_shares_their_ways_out() -> None:
    cell = cell_of(16)
    hybrid = Parallel(4, 4)
    shard = shard_of(cell.stages[0], hybrid, 32)
    assert shard is not None
    wires = Wires()
    estimate(cell, graph_of(cell), {shard: profile_of(shard, 0.1)}, wires, global_batch=32, per_node=8, gpu_bytes=ROOMY)
    # two replicas on each of two nodes: four rings of 2 x 2 GPUs at once are one of 8 x 2 with four times the bytes
    assert ("all_reduce", 4 * 4e6, Link("a100", 8, 2)) in wires.asked


SPLITS = st.sampled_from([1, 2, 4])


@st.composite
def _cells(draw: st.DrawFn) -> tuple[Cell, dict[StageShard, ShardProfile]]:
    cell = cell_of(*draw(st.lists(SPLITS, min_size=1, max_size=3)), across_bytes=draw(st.integers(1, 2**26)))
    micro_batch = 32 // micro_batches_of(cell, 32)
    profiles = {}
    for stage in cell.stages:
        for split in splits_of(stage):
            shard = shard_of(stage, split, micro_batch)
            if shard is None:
                continue
            profiles[shard] = profile_of(
                shard,
                draw(st.floats(1e-4, 1.0)),
                parameters=draw(st.integers(1, 10**8)),
                activation_bytes=draw(st.integers(0, GIB)),
                peak_bytes=draw(st.integers(0, 40 * GIB)),
                exchanges=(Exchange("all_reduce", draw(st.integers(1, 2**26)), 4),) if split.tp > 1 else (),
                update_s=draw(st.floats(0, 0.1)),
                spread=0.05,
            )
    return cell, profiles


@settings(max_examples=150)
@given(_cells(), st.floats(1e7, 1e11), st.floats(1.0, 100.0))
def test_more_bandwidth_never_makes_a_cell_slower(
    made: tuple[Cell, dict[StageShard, ShardProfile]], bytes_s: float, quicker: float
) -> None:
    cell, profiles = made
    slow = asked(cell, profiles, Wires(bytes_s, spread=0.1), gpu_bytes=1e15)
    fast = asked(cell, profiles, Wires(bytes_s * quicker, spread=0.1), gpu_bytes=1e15)
    assert fast.value <= slow.value * (1 + 1e-9)


@settings(max_examples=150)
@given(_cells(), st.floats(1.0, 64.0))
def test_no_plan_is_given_whose_peak_with_its_guard_exceeds_the_gpu(
    made: tuple[Cell, dict[StageShard, ShardProfile]], gib: float
) -> None:
    cell, profiles = made
    found = estimate(cell, graph_of(cell), profiles, Wires(), global_batch=32, per_node=4, gpu_bytes=gib * GIB)
    if found.best is None:
        assert found.dropped
    else:
        assert max(peak.high for peak in found.best.peaks) <= gib * GIB
        assert [split.gpus for split in found.best.splits] == [stage.gpus for stage in cell.stages]


@settings(max_examples=100)
@given(_cells(), st.floats(1.0, 64.0))
def test_a_larger_gpu_never_makes_a_cell_slower(made: tuple[Cell, dict[StageShard, ShardProfile]], gib: float) -> None:
    cell, profiles = made
    small, large = (
        estimate(cell, graph_of(cell), profiles, Wires(), global_batch=32, per_node=4, gpu_bytes=each * GIB).best
        for each in (gib, 2 * gib)
    )
    assume(small is not None)
    assert large is not None
    assert small is not None
    assert large.step_s.value <= small.step_s.value * (1 + 1e-9)
