"""`python -m studies.synergy simulate` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from studies.synergy.__main__ import synergy
from tests.support.messages import excerpt, wording
from tests.support.terminal import Terminal

pytestmark = pytest.mark.slow

CPUS = [1, 3, 6]
MATRICES = {
    "decoder": {"class": "image", "throughput": [[30, 30], [90, 90], [180, 180]]},
    "reader": {"class": "language", "throughput": [[50, 50], [50, 50], [50, 50]]},
}


class SimulateTerminal(Terminal):
    """Stands beside a file of matrices."""

    program, name = synergy, "studies.synergy"

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.matrices = folder / "matrices.json"
        super().__init__(monkeypatch, capsys, "simulate", "--matrices", str(self.matrices))
        axes = {"gpus": 1, "iteration_s": 1.0, "cpus_per_gpu": CPUS, "memory_gb_per_gpu": [20, 60]}
        self.matrices.write_text(json.dumps({name: {**axes, **each} for name, each in MATRICES.items()}))


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> SimulateTerminal:
    return SimulateTerminal(tmp_path, monkeypatch, capsys)


def test_policies_are_compared_with_the_first_on_servers_of_the_centre(terminal: SimulateTerminal) -> None:
    code, out, _ = terminal(
        *("--mix", "50/50/0", "--servers", "1", "--server", "4/12/240", "--count", "40", "--seeds", "2"),
        *("--policy", "srtf-proportional", "--policy", "srtf-priced"),
    )
    assert code == 0
    head, first, second, *notes = out.splitlines()
    assert head.split()[0] == "POLICY"
    assert (first.split()[0], first.split()[-1]) == ("srtf-proportional", "-")
    assert second.split()[0] == "srtf-priced"
    assert float(second.split("x (")[0].split()[-1]) > 1
    assert notes[0] == wording(
        "studies.simulate_command.head",
        jobs="40 jobs (50/50/0)",
        seeds="load 1, 2",
        value="s",
        count=1,
        value2="",
        gpus=4,
        cpus=12,
        memory_bytes=240,
    )


def test_json_has_the_figures_of_each_policy_and_of_each_seed_the_same_jobs(terminal: SimulateTerminal) -> None:
    asked = ("--mix", "50/50/0", "--servers", "1", "--count", "24", "--seeds", "2", "--load", "0.8", "--json")
    code, out, _ = terminal(*asked)
    told = json.loads(out)
    assert code == 0
    assert (told["jobs"], told["load"], told["mix"], told["gpus"], told["seeds"]) == (24, 0.8, "50/50/0", 8, 2)
    assert list(told["policies"]) == ["fifo-proportional", "fifo-greedy", "fifo-tune", "fifo-priced"]
    tuned, shared = (told["policies"][name] for name in ("fifo-priced", "fifo-proportional"))
    assert tuned["slowest"]["mean"] >= 1
    assert shared["speedup"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
    assert tuned["speedup"]["mean"] > 1
    assert terminal(*asked)[1] == out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "Missing option '--mix'"),
        (["--mix", "50/50"], "give percentages"),
        (["--mix", "50/40/10"], excerpt("studies.generated_jobs.no_such_job", kind="speech", gpus=1)),
        (
            ["--mix", "50/50/0", "--policy", "tune"],
            excerpt("studies.simulate_command.policy_malformed", example="fifo-priced"),
        ),
        (["--mix", "50/50/0", "--policy", "fifi-tune"], wording("sizing.fields.hint", near="fifo")),
        (["--mix", "50/50/0", "--policy", "fifo-tuna"], wording("sizing.fields.hint", near="tune")),
        (["--mix", "50/50/0", "--server", "8"], excerpt("studies.parse_servers.server_malformed", text="8")),
        (["--mix", "50/50/0", "--server", "8/4/500"], excerpt("studies.generated_jobs.does_not_run")),
        (["--mix", "50/50/0", "--count", "2"], "too few jobs"),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_a_line(terminal: SimulateTerminal, args: list[str], words: str) -> None:
    code, out, err = terminal(*args)
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1
