"""Runs of jobs before what is assumed of the same GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sizing.base.errors import DoesNotFit
from sizing.base.parallel import Parallel, RankBatch
from sizing.choice.sources import Traces
from sizing.choice.timers.with_runs import WithRuns
from sizing.files.past_runs import Ran
from sizing.inventory.shapes import GpuShape
from tests.sizing.choice.cells_of import Table, pool
from tests.sizing.plans_of import GIB, trace

pytestmark = pytest.mark.slow

RAN = Ran("train.py:make_step", "w", "a100", 2, 1, 2, 1, 1, 32, 1, "home/42", 1e9, 0.5, 20 * GIB, host_bytes=7)
CUT = replace(RAN, dp=1, tp=2, batch=64, step_s=0.4, job="home/44", peak_bytes=None)
TWO = GpuShape(pool(), 1, 2)
ASSUMED = Table({("new", 2, 1): 2.0, ("new", 4, 1): 1.0, ("new", 2, 2): 0.7})


def runs(*each: Ran, timer: Table = ASSUMED, global_batch: int = 64) -> WithRuns:
    traces = Traces()
    for ran, gib in ((RAN, 30), (CUT, 12)):
        traces.add(ran.point, trace(ran.point, gib))
    return WithRuns(timer, each, traces, global_batch)


def test_what_ran_is_timed_by_the_runs_and_all_else_as_before() -> None:
    timer = runs(RAN, replace(RAN, job="home/43", step_s=0.7))
    found = timer.time(TWO, 1)
    assert (found.step_s.value, found.step_s.origin, found.runs) == (0.6, "measured", 2)
    assert (found.peak.value, found.peak.origin, found.splits) == (20 * GIB, "measured", (Parallel(2, 1),))
    assert found.host_bytes == 7
    assert timer.time(GpuShape(pool(), 1, 4), 1) == ASSUMED.time(GpuShape(pool(), 1, 4), 1)
    assert timer.time(TWO, 2) == ASSUMED.time(TWO, 2), "of a pipeline nothing has run"
    slow = runs(replace(RAN, step_s=9.0)).time(TWO, 1)
    assert slow.step_s.value == 9.0, "what ran is no quicker for what was assumed of it"


@pytest.mark.parametrize(
    "other",
    [replace(RAN, gpu_type="v100"), replace(RAN, nodes=2), replace(RAN, batch=16), replace(RAN, dp=1, fsdp=2)],
)
def test_runs_of_other_gpus_batches_and_spreads_time_nothing(other: Ran) -> None:
    assert runs(other).time(TWO, 1) == ASSUMED.time(TWO, 1)
    mixed = GpuShape(replace(pool(), mixed=("v100",)), 1, 2)
    assert runs(RAN).time(mixed, 1) == ASSUMED.time(mixed, 1)


def test_the_quickest_of_the_splits_counts_whether_it_ran_or_not() -> None:
    both = runs(RAN, CUT).time(TWO, 1)
    assert both.splits == (Parallel(1, 2),)
    assert both.peak.value == 12 * GIB, "its own"
    slow = runs(replace(CUT, step_s=40.0)).time(TWO, 1)
    assert slow == ASSUMED.time(TWO, 1)


def test_what_ran_is_no_longer_out() -> None:
    nowhere = Table({})
    found = runs(RAN, timer=nowhere).time(TWO, 1)
    assert (found.step_s.value, found.peak.value, found.splits) == (0.5, 20 * GIB, (Parallel(2, 1),))
    with pytest.raises(DoesNotFit):
        runs(RAN, timer=nowhere, global_batch=128).time(TWO, 1)
    assert RankBatch(Parallel(2), 32) == RAN.point
