"""The benchmark of GPUs runs from end to end on a CPU, and says that its figures are a CPU's."""

from __future__ import annotations

import json

import pytest

from benchmarks.gpu import training
from tests.support.messages import says, wording

pytestmark = pytest.mark.slow


@pytest.mark.torch
def test_all_parts_measure_on_a_cpu_what_they_would_on_a_gpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "found_gpu", lambda: "torch finds none")
    monkeypatch.setattr(training, "_SETTLED_S", 0.1)
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setenv("BFT_GPU_BENCH", "")
    training.main(["--quick", "--json"])
    printed = capsys.readouterr()
    assert says(printed.err, "benchmarks.gpu_training.no_gpu", gpu="torch finds none")
    found = json.loads(printed.out)
    assert found.pop("device") == "CPU: torch finds none"
    assert tuple(found) == training.PARTS
    assert len(found["hung"]) == 3
    assert {"plain: copy GB/s", "bftd: load GB/s"} <= set(found["state"])
    on_device = wording("benchmarks.gpu_training.gigabytes")
    assert found["giveback"].pop(on_device)["median"] == 0
    assert all(figure["median"] > 0 for part in found.values() for figure in part.values())
