"""What `bft size profile` adds to the extremes: smaller micro-batches without room, hybrids where both are close."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from bftd.cli import size_hybrids
from bftd.cli.size_profile import _Work
from sizing.cells.comm import CommTables
from sizing.cells.profile import Unfit
from sizing.cells.shards import Shard
from tests.sizing.cells.made import Wires, cell_of, graph_of, profile_of


class Device(_Work):
    """A device that has room for so many samples at once."""

    def __init__(self, room: int) -> None:
        self.results, self._tensor, self.room = {}, True, room
        self.asked: list[Shard] = []

    def run(self, shards: Sequence[Shard]) -> None:
        for shard in shards:
            self.asked.append(shard)
            fits = shard.batch <= self.room
            self.results[shard] = cast(Any, profile_of(shard, 0.1) if fits else Unfit(shard, "a100", "out of memory"))


def test_a_stage_without_room_is_profiled_with_smaller_micro_batches_until_it_fits() -> None:
    device = Device(room=8)
    device.smaller(cell_of(2), 64)
    assert device.asked == [Shard(0, 0, batch // 2 * tp, tp) for batch in (64, 32, 16) for tp in (1, 2)]


def test_a_stage_that_fits_and_a_pipeline_are_left_alone() -> None:
    device = Device(room=32)
    device.smaller(cell_of(2), 64)
    assert len(device.asked) == 2
    device = Device(room=0)
    device.smaller(cell_of(2, 2), 64)
    assert {shard.batch for shard in device.asked} == {4, 8}


def test_hybrids_are_added_where_the_extremes_are_close_and_a_table_says_so() -> None:
    cell, wires = cell_of(4, gpu_type=""), Wires(1e15, 0.0)
    for tensor_s, expected in ((0.11, [Shard(0, 0, 16, 2)]), (0.2, [])):
        timed = [profile_of(Shard(0, 0, 8, 1), 0.1), profile_of(Shard(0, 0, 32, 4), tensor_s)]
        assert size_hybrids.close([cell], graph_of(cell), timed, wires, 32) == expected
    timed = [profile_of(Shard(0, 0, 8, 1), 0.1), profile_of(Shard(0, 0, 32, 4), 0.1)]
    assert size_hybrids.close([cell], graph_of(cell), timed, CommTables(), 32) == []
