"""What `bft size profile` does where a stage has no room with the whole batch at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from bftd.cli.size_profile import _Work
from sizing.cells.profile import Unfit
from sizing.cells.shards import Shard
from tests.sizing.cells.made import cell_of, profile_of


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
