"""The measurement of decisions: a cluster that is full, and every depth at the same arrivals."""

from __future__ import annotations

import random
import sys

import pytest

from benchmarks.crius import decision

pytestmark = pytest.mark.slow


def test_every_depth_meets_the_same_full_cluster() -> None:
    seen = decision.measure(60, 3, seed=1, depths=(0, 1, 2))
    assert (seen["gpus"], seen["types"], seen["running"]) == (1280, 4, 60)
    assert list(seen["depths"]) == ["0", "1", "2"]
    assert all(0 < each["median_s"] <= each["worst_s"] for each in seen["depths"].values())
    gains = [each["mean_gain"] for each in seen["depths"].values()]
    assert gains == sorted(gains)
    assert seen["idle"] == decision.measure(60, 1, seed=1, depths=(0,))["idle"]


def test_the_cluster_is_filled_with_what_fits() -> None:
    speeds = decision.MadeUp()
    running = decision.fill(random.Random(2), 80, speeds)
    assert len(running) == 80
    used = dict.fromkeys(decision.CLUSTER, 0)
    for each in running:
        used[each.allocation.gpu_type] += each.allocation.gpus
        assert speeds.rate(each.job.model, each.allocation) > 0
    assert all(count <= decision.CLUSTER[gpu_type] for gpu_type, count in used.items())


@pytest.mark.parametrize("wrong", [("--depths", "1,x"), ("--arrivals", "0"), ("--jobs", "0")])
def test_regression_options_without_sense_ended_in_a_traceback(
    wrong: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["crius_decision", *wrong])
    with pytest.raises(SystemExit) as ended:
        decision.main()
    assert ended.value.code == 2
    assert wrong[0] in capsys.readouterr().err
