"""`python -m studies.crius simulate` as a user meets it."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from studies.crius.command import crius
from tests.support.messages import says, wording
from tests.support.terminal import Terminal

pytestmark = pytest.mark.slow

TRACE = """submission_time,duration,num_gpu,model_name,gpu_type,deadline
0,3600,1,bert-0.76b/128,t4,
600,3600,2,bert-0.76b/128,t4,9000
"""
CLUSTER = {
    "partitions": [
        {
            "partition": "gpu",
            "groups": [
                {"nodes": "n[1-2]", "gpu_type": "t4", "gpus": 2, "cpus": 64, "memory_bytes": 2**39},
            ],
        }
    ]
}


class CriusTerminal(Terminal):
    """Stands beside a trace and a file of GPUs."""

    program, name = crius, "studies.crius"

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(monkeypatch, capsys, "simulate")
        self.trace = folder / "trace.csv"
        self.trace.write_text(TRACE)
        self.cluster = folder / "gpus.json"
        self.cluster.write_text(json.dumps(CLUSTER))


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CriusTerminal:
    return CriusTerminal(tmp_path, monkeypatch, capsys)


def test_a_centres_own_trace_on_its_own_cluster(terminal: CriusTerminal) -> None:
    code, out, _ = terminal(
        "--jobs", str(terminal.trace), "--cluster", str(terminal.cluster), "--policy", "fcfs", "--seeds", "1"
    )
    assert code == 0
    head, line, *notes = out.splitlines()
    assert head.split()[:3] == ["POLICY", "MEAN", "JCT"]
    assert line.split()[:3] == ["fcfs", "1.00", "h"]
    assert "2 of 2" in line
    assert "2 jobs, 1 seed, 4 t4" in notes[0]
    assert "none was measured" in notes[1]


def test_json_has_all_figures_and_ratios_to_the_first(terminal: CriusTerminal) -> None:
    code, out, err = terminal(
        *("--count", "12", "--policy", "crius", "--policy", "fcfs", "--seeds", "2", "--error", "0.2", "--json")
    )
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert list(found["policies"]) == ["crius", "fcfs"]
    assert found["policies"]["fcfs"]["restarts"]["mean"] == 0
    assert found["policies"]["fcfs"]["finished"]["mean"] == 12
    ratio = found["crius_over"]["fcfs"]["mean_jct_s"]
    assert 0 < ratio["low"] <= ratio["mean"] <= ratio["high"]
    assert (found["jobs"], found["error"], found["load"], found["seeds"]) == (12, 0.2, 1.5, 2)
    assert found["gpus"]["a40"] == 320


def test_a_trace_comes_on_standard_input_and_deadlines_when_asked_for(
    terminal: CriusTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stdin:
        buffer = io.BytesIO(TRACE.encode())

    monkeypatch.setattr(sys, "stdin", Stdin())
    args = ("--jobs", "-", "--cluster", str(terminal.cluster), "--policy", "elasticflow", "--seeds", "1")
    code, out, _ = terminal(*args, "--deadlines")
    assert code == 0
    assert "IN TIME" in out
    assert "100%" in out


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("--policy", "fcsf"), wording("studies.packers.unknown_policy", name="fcsf", near="fcfs")),
        (("--jobs", "missing.csv"), "cannot read missing.csv"),
        (("--cluster", "missing.json"), "cannot read missing.json"),
        (("--seeds", "0"), "--seeds"),
        (("--error", "2"), "--error"),
        (("--load", "0"), "--load"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(terminal: CriusTerminal, args: tuple[str, ...], complaint: str) -> None:
    code, out, err = terminal(*args)
    assert code == 2
    assert complaint in err
    assert out == ""
    assert "Traceback" not in err


def test_a_model_that_no_gpu_of_the_cluster_holds_is_named(terminal: CriusTerminal) -> None:
    terminal.trace.write_text("submission_time,duration,num_gpu,model_name\n0,5,1,moe-27b/256\n")
    code, _, err = terminal("--jobs", str(terminal.trace), "--cluster", str(terminal.cluster))
    assert code == 2
    assert "moe-27b/256 does not fit" in err
    assert len(err.strip().splitlines()) == 1


def test_regression_counts_that_are_not_those_of_the_trace_were_not_told(terminal: CriusTerminal) -> None:
    head = "submission_time,duration,num_gpu,model_name\n"
    terminal.trace.write_text(f"{head}0,60,3,bert-0.76b/128\n9,60,4,bert-0.76b/128\n9,60,200,bert-0.76b/128\n")
    args = ("--jobs", str(terminal.trace), "--policy", "fcfs", "--seeds", "2")
    assert says(terminal(*args)[1].splitlines()[-1], "studies.crius_command.gpus_changed", more=1, value="")
    found = json.loads(terminal(*args, "--json")[1])
    assert (found["num_gpu_raised"], found["num_gpu_cut"]) == (1, 1)


def test_regression_options_that_a_trace_cannot_follow_were_ignored(terminal: CriusTerminal) -> None:
    terminal.trace.write_text("submission_time,duration,num_gpu\n5,60,1\n5,60,1\n")
    args = ("--jobs", str(terminal.trace), "--cluster", str(terminal.cluster), "--policy", "fcfs", "--seeds", "1")
    for option in (("--load", "2"), ("--deadlines",)):
        code, out, err = terminal(*args, *option)
        assert (code, out, len(err.strip().splitlines())) == (2, "", 1)
        assert option[0] in err
    _, out, _ = terminal(*args)
    line = out.splitlines()[1]
    assert line.split()[-2] == "-", "no time passes until the last submission, so there is no throughput of it"


def test_regression_models_were_drawn_that_a_small_cluster_cannot_hold(terminal: CriusTerminal) -> None:
    small = {"nodes": "n1", "gpu_type": "t4", "gpus": 1, "cpus": 64, "memory_bytes": 2**39}
    terminal.cluster.write_text(json.dumps({"partitions": [{"partition": "gpu", "groups": [small]}]}))
    code, out, _ = terminal("--cluster", str(terminal.cluster), "--policy", "fcfs", "--count", "20", "--seeds", "2")
    assert code == 0
    assert "20 of 20" in out


def test_regression_without_slurm_an_option_was_named_that_there_is_not(
    terminal: CriusTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    code, _, err = terminal("--cluster", "auto")
    assert code == 1
    assert says(err, "cli.size_inventory.without_slurm", option="--cluster")


def test_regression_a_scheduler_that_drops_all_jobs_was_shown_as_the_quickest(terminal: CriusTerminal) -> None:
    terminal.trace.write_text("submission_time,duration,num_gpu,model_name,deadline\n0,900,1,bert-0.76b/128,1\n")
    args = ("--jobs", str(terminal.trace), "--cluster", str(terminal.cluster), "--seeds", "1", "--policy", "crius-ddl")
    _, out, _ = terminal(*args, "--deadlines")
    assert out.splitlines()[1].split()[1:5] == ["-", "-", "-", "-"]
    found = json.loads(terminal(*args, "--deadlines", "--json")[1])["policies"]["crius-ddl"]
    assert "mean_jct_s" not in found
    assert found["dropped"]["mean"] == 1
    assert says(terminal(*args)[1], "studies.crius_command.deadlines_ignored")
