"""The measurement of `priced` on matrices that are made up, in small."""

from __future__ import annotations

import pytest

from benchmarks.synergy import generated_packing as generated

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("family", generated.FAMILIES)
def test_priced_reaches_95_percent_of_opt_with_one_gpu_jobs_of_every_family(family: str) -> None:
    case = generated.measure(family, "1 GPU", 4, draws=3, seed=1)
    assert case.priced_share >= 0.95
    assert case.priced_least_share <= case.priced_share <= 1 + 1e-6
    assert case.priced_least_job >= 1 - 1e-6
    assert case.priced <= case.opt + 1e-6


def test_few_jobs_move_where_places_are_kept() -> None:
    seen = generated.moves("limits", "1 GPU", 4, seed=1)
    assert seen.moved_kept < 0.3 < 0.7 < seen.moved_anew
    assert seen.throughput_kept_over_anew > 0.97
