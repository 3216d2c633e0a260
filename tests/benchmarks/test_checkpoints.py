"""What the benchmark of checkpoints makes of what its workers, ranks and clients have told."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import checkpoints, checkpoints_clients, checkpoints_distributed, checkpoints_training
from tests.support.messages import wording

pytestmark = pytest.mark.slow


def line(what: str, at_s: float, **more: Any) -> dict[str, Any]:
    return {"what": what, "pid": 1, "at_s": at_s, **more}


def told() -> list[dict[str, Any]]:
    """Steps of 0.1 s, of 0.2 s while the state of a save is uploaded from 5 to 6 and from 15 to 16 s."""
    lines = [line("step", at_s / 10, took_s=0.1) for at_s in range(1, 49)]
    for begin_s, stall_s in ((5.0, 0.6), (15.0, 0.2)):
        lines.append(line("written from", begin_s))
        lines.append(line("save", begin_s, stall_s=stall_s, copy_s=0.2, cpu_s=0.3))
        lines += [line("step", begin_s + fifth / 5, took_s=0.2) for fifth in range(1, 6)]
        lines.append(line("written", begin_s + 1, bytes=2_000_000, serialize_cpu_s=0.1, send_cpu_s=0.7))
        lines += [line("step", begin_s + 1 + tenth / 10, took_s=0.1) for tenth in range(2, 20)]
    return lines


def test_the_pace_is_that_of_steps_which_lie_wholly_in_an_upload_against_those_that_touch_none() -> None:
    found = checkpoints_training.figures(told(), hashed_bytes_s=4e6, saves=2)
    assert found[wording("benchmarks.checkpoints_training.steps_meanwhile")] == 10
    assert found[wording("benchmarks.checkpoints.pace")] == pytest.approx(0.5)
    assert found["upload s"] == pytest.approx(1.0)


def test_the_first_save_which_touches_fresh_memory_is_told_apart() -> None:
    found = checkpoints_training.figures(told(), hashed_bytes_s=4e6, saves=2)
    assert found["stall / memory copy"] == pytest.approx(1.0)
    assert found[wording("benchmarks.checkpoints_training.first_save")] == pytest.approx(3.0)


def test_what_sending_takes_is_divided_into_sealing_and_the_rest() -> None:
    found = checkpoints_training.figures(told(), hashed_bytes_s=4e6, saves=2)
    parts = {name.removeprefix("cpu: "): value for name, value in found.items() if name.startswith("cpu: ")}
    assert parts == pytest.approx({"copy s": 0.3, "serialize s": 0.1, "seal s": 0.5, "write s": 0.2})


def test_a_checkpoint_that_is_still_uploaded_is_in_no_figure() -> None:
    assert checkpoints_training.spans([line("written from", 1.0)]) == []


def shard(rank: int) -> dict[str, Any]:
    about = {"name": "step-1", "path": "/x", "step": 1, "samples": 2, "size": 2, "took_s": 0.1}
    return {"op": "shards", **about, "rank": rank, "files": [[f"__{rank}_0.distcp", 8, "digest"]]}


def test_a_version_has_the_files_of_all_ranks_in_their_order() -> None:
    assert checkpoints_distributed.together([shard(1), {"op": "saving", "bytes": 3}, shard(0)]) == {
        "name": "step-1",
        "path": "/x",
        "step": 1,
        "samples": 2,
        "size": 2,
        "files": [["__0_0.distcp", 8, "digest"], ["__1_0.distcp", 8, "digest"]],
    }


@pytest.mark.parametrize("lines", [[], [shard(0)], [shard(0), {"op": "unwritten", "text": "disk full"}]])
def test_a_version_that_is_not_whole_ends_the_benchmark(lines: list[dict[str, Any]]) -> None:
    with pytest.raises(SystemExit, match="not all ranks"):
        checkpoints_distributed.together(lines)


def test_ratios_are_taken_by_pairs_of_one_repetition() -> None:
    assert (
        checkpoints_clients.ratios([1.0, 2.0, 4.0], [3.0, 4.0, 4.0])[wording("benchmarks.checkpoints.all_over_one")]
        == 2.0
    )
    rows = [
        {
            wording("benchmarks.checkpoints_distributed.saved_by", savers=4, how="plain"): plain,
            wording("benchmarks.checkpoints_distributed.saved_by", savers=4, how="distributed"): plain * 1.5,
            "bit-equal": True,
        }
        for plain in (1, 9)
    ]
    assert checkpoints_distributed.summary(rows, ["saved by 4"])[
        wording("benchmarks.checkpoints.saved_by_four")
    ] == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("part", "figure", "value", "said"),
    [
        ("training", "stall / memory copy", 1.3, "at most 1.3"),
        ("training", "stall / memory copy", 1.4, "at most 1.3, missed"),
        ("training", wording("benchmarks.checkpoints.pace"), 0.7, "at least 0.8, missed"),
        ("training", wording("benchmarks.checkpoints.resumed_exactly"), True, "at least 1"),
        ("training", wording("benchmarks.checkpoints.resumed_exactly"), False, "at least 1, missed"),
        ("training", "upload s", 9.0, ""),
        ("training", wording("benchmarks.checkpoints.pace"), None, ""),
    ],
)
def test_a_figure_is_set_against_what_was_asked_for(part: str, figure: str, value: Any, said: str) -> None:
    assert checkpoints.verdict(part, figure, value) == said


def test_quick_sizes_stand_in_for_those_that_are_not_given() -> None:
    options = checkpoints.parsed(["--quick", "--gb", "0.5", "--only", "clients"])
    assert (options.gb, options.nodes, options.only) == (0.5, 2, ["clients"])
    assert checkpoints.parsed([]).gb == 4.0


@pytest.mark.parametrize("words", [["--gb", "0"], ["--saves", "0"], ["--only", "gpus"]])
def test_sizes_that_measure_nothing_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        checkpoints.parsed(words)
