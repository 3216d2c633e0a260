"""The benchmark of real loaders: what it makes of its rounds."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from benchmarks.synergy.loaders import Round, shown, summary

pytestmark = pytest.mark.slow


def test_rounds_are_told_by_their_medians_with_every_gain_and_demand() -> None:
    rounds = [
        Round("image_loader.py", 100, 190, 2, 0.01, 30),
        Round("image_loader.py", 100, 105, 1, 0.30, 30),
        Round("image_loader.py", 110, 220, 2, 0.00, 33),
    ]
    found = summary(rounds)
    assert found.gain == pytest.approx(0.9)
    assert found.gains == pytest.approx((0.05, 0.9, 1.0))
    assert found.demands == {"1": 1, "2": 2}
    assert (found.one, found.two, found.others) == (100, 190, 0.01)
    assert "| 100 | 190 | 90 % (5, 90, 100) | 1, 2, 2 |" in shown({"jobs": {"image_loader.py": asdict(found)}})
