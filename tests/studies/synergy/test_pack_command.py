"""`python -m studies.synergy pack` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from studies.synergy.__main__ import synergy
from tests.support.messages import excerpt, fragment, says, wording
from tests.support.terminal import Terminal

pytestmark = pytest.mark.slow

AXES = {"cpus_per_gpu": [1, 3, 6], "memory_gb_per_gpu": [20.8]}
MATRICES = {
    "eyes": {"class": "image", "gpus": 1, "throughput": [[0.4], [1], [2]], **AXES},
    "words": {"class": "language", "gpus": 1, "throughput": [[1], [1], [1]], **AXES},
    "words_2": {"class": "language", "gpus": 2, "throughput": [[1], [1], [1]], **AXES},
}
KEYS = {"format", "throughput_vs_proportional", "min_job_vs_proportional", "gpus_used", "gpus", "wall_ms"}


class PackTerminal(Terminal):
    """Stands beside a file of matrices."""

    program, name = synergy, "studies.synergy"

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.file = folder / "matrices.json"
        self.file.write_text(json.dumps(MATRICES))
        super().__init__(monkeypatch, capsys, "pack", "--matrices", str(self.file))

    def told(self, *args: str) -> dict[str, Any]:
        code, out, _ = self(*args, "--json")
        assert code == 0
        found: dict[str, Any] = json.loads(out)
        return found


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> PackTerminal:
    return PackTerminal(tmp_path, monkeypatch, capsys)


def test_policies_are_told_apart(terminal: PackTerminal) -> None:
    found = {
        policy: terminal.told("--servers", "4", "--mix", "50/50/0", "--policy", policy, "--seed", "2")
        for policy in ("priced", "tune", "opt", "greedy", "proportional")
    }
    assert all(each.keys() == KEYS and each["gpus"] == 32 for each in found.values())
    assert found["proportional"]["throughput_vs_proportional"] == 1
    for policy in ("priced", "tune", "opt", "proportional"):
        assert found[policy]["gpus_used"] == 32
        assert found[policy]["min_job_vs_proportional"] == 1
    assert found["opt"]["throughput_vs_proportional"] >= found["priced"]["throughput_vs_proportional"] > 1
    # 6 CPUs for each of about 16, of 96: greedy runs out of them and leaves jobs out, which count 0
    assert found["greedy"]["gpus_used"] < 32
    assert found["greedy"]["min_job_vs_proportional"] == 0


def test_the_same_seed_tells_the_same(terminal: PackTerminal) -> None:
    args = ("--servers", "3", "--mix", "30/70/0", "--seed", "5")
    first, again = terminal.told(*args), terminal.told(*args)
    assert first.pop("wall_ms") > 0
    assert again.pop("wall_ms") > 0
    assert first == again


def test_a_person_is_told_in_lines_and_what_could_be_at_most(terminal: PackTerminal) -> None:
    code, out, _ = terminal("--servers", "1", "--mix", "0/100/0", "--server", "4/12/100")
    assert code == 0
    first, second, third = out.splitlines()
    assert first == wording(
        "studies.pack_command.head", jobs=4, count=1, value="", gpus=4, value2="s", cpus=12, memory_bytes=100
    )
    assert says(
        second,
        "studies.pack_command.result",
        policy="priced",
        throughput_vs_proportional="1.000",
        min_job_vs_proportional="1.000",
    )
    assert "4 of 4 GPUs used" in second
    assert says(third, "studies.pack_command.bound", relaxed="1.000")


NOT_IN_RANGE = "is not in the range"
"""Of a number beyond the bounds of its option: click's words."""


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--servers", "0", "--mix", "50/50/0"), f"0 {NOT_IN_RANGE}"),
        (("--servers", "2", "--mix", "50/40/0"), excerpt("studies.pack_draw.percentages", percent=90)),
        (
            ("--servers", "2", "--mix", "50/40/10"),
            excerpt("studies.pack_draw.no_one_gpu_job", kind="speech", there=fragment("image, language")),
        ),
        (("--servers", "2", "--mix", "half"), "give percentages of image/language/speech"),
        (("--servers", "2", "--mix", "50/50/0", "--policy", "tun"), wording("sizing.fields.hint", near="tune")),
        (("--servers", "2", "--mix", "50/50/0", "--seed", "-1"), f"-1 {NOT_IN_RANGE}"),
        (("--servers", "2", "--mix", "50/50/0", "--seed", "x"), "'x' is not a valid"),
        (
            ("--servers", "2", "--mix", "50/50/0", "--server", "8"),
            excerpt("studies.parse_servers.server_malformed", PAPERS="8/24/500"),
        ),
        (("--mix", "50/50/0"), "--servers"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(terminal: PackTerminal, args: tuple[str, ...], told: str) -> None:
    code, out, err = terminal(*args)
    assert (code, out) == (2, "")
    assert told in err
    assert err.count("\n") == 1


def test_servers_on_which_jobs_do_not_run_with_their_share_are_told(terminal: PackTerminal) -> None:
    code, out, err = terminal("--servers", "2", "--mix", "50/50/0", "--server", "8/24/100")
    assert (code, out) == (1, "")
    assert says(err, "studies.throughput.share_too_small", cpus=3, memory_bytes=12.5)


def test_a_file_that_is_not_there_is_told(terminal: PackTerminal) -> None:
    terminal.file.unlink()
    code, _, err = terminal("--servers", "2", "--mix", "50/50/0")
    assert code == 2
    assert err.count("\n") == 1


def test_regression_a_row_beyond_a_tiny_share_counted_as_within_it(terminal: PackTerminal) -> None:
    job = {**MATRICES["eyes"], "cpus_per_gpu": [1e-9, 2e-9, 6], "throughput": [[1], [2], [3]]}
    terminal.file.write_text(json.dumps({"eyes": job}))
    found = terminal.told("--servers", "1", "--mix", "100/0/0", "--server", "8/1e-8/500")
    assert found["throughput_vs_proportional"] == 1 + 2 / 8, "of 10e-9 CPUs each has 1e-9, and two of them 2e-9"
