"""The benchmark of GPUs runs from end to end on a CPU, and says that its figures are a CPU's."""

from __future__ import annotations

import json

import pytest

from benchmarks.gpu import training
from tests.support.messages import excerpt, says, wording

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--repeats=0"], "more than 0"),
        (["--gb=-1"], "more than 0"),
        (["--parts=resize,pause"], excerpt("benchmarks.gpu_training.no_such_part", unknown="pause")),
    ],
)
def test_what_cannot_be_measured_is_told_at_once(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        training.main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.torch
def test_resizing_and_giving_back_measure_on_a_cpu_what_they_would_on_a_gpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "found_gpu", lambda: "torch finds none")
    monkeypatch.setattr(training, "_SETTLED_S", 0.1)
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setenv("BFT_GPU_BENCH", "")
    training.main(["--quick", "--json", "--parts=resize,giveback"])
    printed = capsys.readouterr()
    assert says(printed.err, "benchmarks.gpu_training.no_gpu", gpu="torch finds none")
    found = json.loads(printed.out)
    assert found.pop("device") == "CPU: torch finds none"
    assert list(found) == ["resize", "giveback"]
    medians = {name: figure["median"] for part in found.values() for name, figure in part.items()}
    assert medians.pop(wording("benchmarks.gpu_training.gigabytes")) == 0
    assert not [name for name, median in medians.items() if not median > 0]
    assert {
        wording("benchmarks.gpu_training.grew_no_step"),
        wording("benchmarks.gpu_training.shrank_no_step"),
        "host memory: " + wording("benchmarks.gpu_training.last_process_gone_after") + " s",
    } <= set(medians)
    assert (
        medians["host memory: " + wording("benchmarks.gpu_training.agent_gone_after") + " s"]
        <= medians["host memory: " + wording("benchmarks.gpu_training.last_process_gone_after") + " s"]
    )


@pytest.mark.torch
def test_a_hung_collective_and_saving_measure_on_a_cpu_what_they_would_on_a_gpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "found_gpu", lambda: "torch finds none")
    monkeypatch.setattr(training, "_SETTLED_S", 0.1)
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setenv("BFT_GPU_BENCH", "")
    training.main(["--quick", "--json", "--parts=hung,state"])
    found = json.loads(capsys.readouterr().out)
    assert found.pop("device") == "CPU: torch finds none"
    assert {part: len(figures) for part, figures in found.items() if part == "hung"} == {"hung": 3}
    assert {"plain: copy GB/s", "bftd: load GB/s"} <= set(found["state"])
    assert all(figure["median"] > 0 for part in found.values() for figure in part.values())
