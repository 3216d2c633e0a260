"""What a profile adds to the extremes: smaller micro-batches that fit, hybrids where both are close."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from sizing.base.errors import SizingError, Untraceable, UsageError
from sizing.cells import hybrids
from sizing.cells.comm.table import CommTables
from sizing.cells.shards import StageShard
from sizing.profiles import profile
from sizing.profiles.profile import NO_PLAN, Profiled, Setting, Unfit
from sizing.profiles.store import Store
from sizing.profiles.work import ProfileWork
from tests.sizing.cells.made import Wires, cell_of, graph_of, profile_of
from tests.support.messages import wording

pytestmark = pytest.mark.slow


class Device(ProfileWork):
    """A device that takes so many samples at once."""

    def __init__(self, most: int) -> None:
        self.results, self._tensor, self.most = {}, True, most
        self.asked: list[StageShard] = []

    def run(self, shards: Sequence[StageShard]) -> None:
        for shard in shards:
            self.asked.append(shard)
            fits = shard.batch <= self.most
            self.results[shard] = cast(Any, profile_of(shard, 0.1) if fits else Unfit(shard, "a100", "out of memory"))


def test_a_stage_that_is_too_large_is_profiled_with_smaller_micro_batches_until_it_fits() -> None:
    device = Device(most=8)
    device.smaller(cell_of(2), 64)
    assert device.asked == [StageShard(0, 0, batch // 2 * tp, tp) for batch in (64, 32, 16) for tp in (1, 2)]


def test_a_stage_that_fits_and_a_pipeline_are_left_alone() -> None:
    device = Device(most=32)
    device.smaller(cell_of(2), 64)
    assert len(device.asked) == 2
    device = Device(most=0)
    device.smaller(cell_of(2, 2), 64)
    assert {shard.batch for shard in device.asked} == {4, 8}


def test_hybrids_are_added_where_the_extremes_are_close_and_a_table_says_so() -> None:
    cell, wires = cell_of(4, gpu_type=""), Wires(1e15, 0.0)
    for tensor_s, expected in ((0.11, [StageShard(0, 0, 16, 2)]), (0.2, [])):
        timed = [profile_of(StageShard(0, 0, 8, 1), 0.1), profile_of(StageShard(0, 0, 32, 4), tensor_s)]
        assert hybrids.close([cell], graph_of(cell), timed, wires, 32) == expected
    timed = [profile_of(StageShard(0, 0, 8, 1), 0.1), profile_of(StageShard(0, 0, 32, 4), 0.1)]
    assert hybrids.close([cell], graph_of(cell), timed, CommTables(), 32) == []


NOT_DIVISIBLE = "tp=2 does not divide the 33 columns"
"""What one size of a model says, in words of its own."""


@pytest.mark.parametrize(
    ("error", "second"),
    [
        (UsageError(f"{NO_PLAN}: write def make_model(batch_size, *, tp=1)"), []),
        (UsageError(NOT_DIVISIBLE), [4]),
        (Untraceable("it takes more than 900 s"), [2, 4]),
    ],
    ids=["no plan", "a size", "a failure"],
)
def test_regression_a_model_that_cannot_be_cut_was_started_anew_at_every_run_to_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: SizingError, second: list[int]
) -> None:
    (tmp_path / "train.py").write_text("")
    files = (("train.py", hashlib.sha256(b"").hexdigest()),)
    started: list[int] = []

    def profiled(source: str, shards: Sequence[StageShard], *_: Any, done: Callable[..., None], **__: Any) -> Profiled:
        started.append(shards[0].tp)
        if shards[0].tp > 1:
            raise error
        results = [profile_of(each, 0.1, device="cpu") for each in shards]
        for each in results:
            done(each, files)
        return Profiled(tuple(results), files, ())

    monkeypatch.setattr(profile, "profiled", profiled)
    monkeypatch.setattr(profile, "torch_of", lambda *_: ("2.13.0", "cpu"))
    shards = [StageShard(0, 0, 8, tp) for tp in (1, 2)]

    def run(*more: StageShard, again: bool = False) -> tuple[list[int], list[str]]:
        started.clear()
        store, source = Store(tmp_path / "profiles.sqlite"), f"{tmp_path}/train.py:make_model"
        work = ProfileWork(store, source, graph_of(cell_of(4)), Setting(), "cpu", "", 1.0, again, lambda line: None)
        work.run([*shards, *more])
        return list(started), list(work.notes)

    begun, notes = run()
    assert begun == [1, 2]
    assert notes == [wording("cli.size_profile_work.tp_left_out", tp=2, why=error)]
    assert run(StageShard(0, 0, 8, 4))[0] == second
    assert notes[0] in run()[1], "it is said all the same"
    assert run(again=True)[0] == [1, 2]
    Store(tmp_path / "profiles.sqlite").forget("train.py:make_model")
    assert run()[0] == [1, 2]
