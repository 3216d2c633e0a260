"""`bft size curve --matrices`: what a search on a recorded matrix finds, and one line for what cannot be asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bftd.cli.sizing_commands import SizeTerminal
from tests.support.messages import excerpt, wording

pytestmark = pytest.mark.slow

ALEXNET = [[0.3], [0.66], [1], [1.25], [1.53], [1.75], [2], [2.94], [2.94]]
MATRICES = {
    "alexnet_1": {
        "gpus": 1,
        "throughput": [[0.1, *row * 4] if row[0] <= 2 else [0.1, 2.0, *row * 3] for row in ALEXNET],
    },
    "gnmt_1": {"gpus": 1, "throughput": [[1] * 5] * 9},
    "res_4": {"gpus": 4, "throughput": [[0.4] * 4, [0.7] * 4, *[[1] * 4] * 4, *[[0] * 4] * 3]},
}


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> SizeTerminal:
    made = SizeTerminal(tmp_path, monkeypatch, capsys)
    (tmp_path / "m.json").write_text(json.dumps(MATRICES))
    return made


@pytest.mark.parametrize(
    ("model", "cpus", "memory_gb", "tried"), [("alexnet_1", 12, 125, 5), ("gnmt_1", 1, 20.8, 4), ("res_4", 3, 62.5, 4)]
)
def test_the_json_has_what_the_search_found_and_what_all_points_would(
    terminal: SizeTerminal, model: str, cpus: float, memory_gb: float, tried: int
) -> None:
    ended = terminal("size", "curve", "--matrices", "m.json", "--model", model, "--json")
    assert ended.json == {
        "format": 1,
        "cpus": cpus,
        "memory_gb": memory_gb,
        "points_tried": tried,
        "full_sweep_cpus": cpus,
        "full_sweep_memory_gb": memory_gb,
    }


def test_the_text_has_the_points_in_the_order_in_which_they_were_tried(terminal: SizeTerminal) -> None:
    ended = terminal("size", "curve", "--matrices", "m.json", "--model", "res_4")
    assert ended.out.splitlines() == [
        wording("cli.size_curve_recorded.matrix", name="res_4", gpus=4),
        "  search      CPUs 3, memory 62.5 GB",
        "  full sweep  CPUs 3, memory 62.5 GB",
        wording(
            "cli.size_curve_recorded.throughput_by_cpus",
            points_tried=4,
            cpus=6,
            points="1 with 6, 1 with 3, 0.4 with 1, 0.7 with 2",
        ),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--matrices", "m.json", "--model", "alexnet"), "did you mean alexnet_1?"),
        (("--matrices", "no.json", "--model", "gnmt_1"), "cannot read no.json: No such file or directory"),
        (("--matrices", "m.json"), wording("cli.size_curve_recorded.usage")),
        (("--model", "gnmt_1"), wording("cli.size_curve_recorded.usage")),
        (("train.py", "--matrices", "m.json", "--model", "gnmt_1"), wording("cli.size_curve_recorded.usage")),
        (("--matrices", "m.json", "--model", "gnmt_1", "--timeout", "5"), wording("cli.size_curve_recorded.usage")),
        ((), excerpt("cli.size_curve.script_missing")),
        (("train.py",), excerpt("cli.size_curve.script_missing")),
        (("--nodes", "1-4"), excerpt("cli.size_curve.script_missing")),
    ],
)
def test_what_cannot_be_asked_is_one_line(terminal: SizeTerminal, arguments: tuple[str, ...], said: str) -> None:
    ended = terminal("size", "curve", *arguments)
    assert ended.code == 2
    assert said in ended.err
    assert len(ended.err.splitlines()) == 1
    assert not ended.out


def test_regression_what_a_file_says_was_searched_passed_for_a_full_sweep(
    terminal: SizeTerminal, tmp_path: Path
) -> None:
    (tmp_path / "s.json").write_text(json.dumps({"gnmt_1": {**MATRICES["alexnet_1"], "cpus_searched": 9}}))
    found = terminal("size", "curve", "--matrices", "s.json", "--model", "gnmt_1", "--json").json
    assert (found["cpus"], found["full_sweep_cpus"]) == (12, 12)
