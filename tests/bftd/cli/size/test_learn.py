"""`bft size learn` as a user meets it: what a job used is kept, and the next plans go by it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from sizing.files import past_runs
from tests.bftd.cli.sizing_commands import SizeTerminal
from tests.sizing.plans_of import GIB, Step
from tests.support.messages import says, wording
from tests.support.programs import shell_script
from tests.support.terminal import Ended

pytestmark = pytest.mark.slow

STEP = ("train.py:make_step", "--global-batch", "64")
TRES = "gres/gpu:a100=2,gres/gpu=2"
CHOOSE = ("size", "choose", *STEP, "--steps", "1000", "--partitions", "centre.json", "--no-start", "--json")


@pytest.fixture
def bft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> SizeTerminal:
    terminal = SizeTerminal(tmp_path, monkeypatch, capsys)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("BFTD_CONFIG", str(tmp_path / "site" / "bftd.toml"))
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "bftd.toml").touch()
    (tmp_path / "site" / "gpus.json").write_text((tmp_path / "centre.json").read_text())
    (tmp_path / "commands").mkdir()
    terminal.traces(Step(10, 0.5))
    os.utime(tmp_path / "train.py", (1000, 1000))
    ended(terminal)
    return terminal


def ended(bft: SizeTerminal, tres: str = TRES, nodes: str = "new1", state: str = "COMPLETED", rss: str = "4G") -> None:
    """Let accounting know of any job that it is asked for: one of an hour, with a step of two tasks."""
    shell_script(
        bft.folder / "commands" / "sacct",
        "#!/bin/sh\nj=${1#--jobs=}\n"
        f'echo "$j|$j|home|{state}|5000|8600|{nodes}||{tres}|{tres}||"\n'
        f'echo "$j.0|$j.0|home|{state}|5000|8600|{nodes}|2|||{rss}|"\n',
    )


def learn(bft: SizeTerminal, *words: str, **report: Any) -> Ended:
    told = {"job": "42", "global_batch": 64, "steps": 60, "step_s": 40.0, **report}
    (bft.folder / "report.json").write_text(json.dumps(told))
    return bft("size", "learn", "train.py:make_step", "report.json", *words)


def plans(bft: SizeTerminal, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = bft.fit(*STEP, "--json", *words).json["plans"]
    return found


def test_plans_go_by_a_job_that_ran_on_the_same_gpus(bft: SizeTerminal) -> None:
    before = plans(bft)
    found = learn(bft, "--json", peak_bytes=20 * GIB)
    assert found.code == 0, found.err
    kept = found.json
    assert (kept["step"], kept["job"], kept["gpu_type"]) == ("train.py:make_step", "home/42", "a100")
    assert (kept["gpus"], kept["nodes"], kept["dp"], kept["batch"]) == (2, 1, 2, 32)
    assert (kept["step_s"], kept["peak_bytes"], kept["host_bytes"]) == (40.0, 20 * GIB, 2 * 4 * GIB)
    assert Path(kept["file"]) == bft.folder / "cache" / "bft" / "ran.jsonl"
    after = bft.fit(*STEP, "--json").json
    (same,) = [plan for plan in after["plans"] if plan["ran"]]
    assert (same["gpu_type"], same["gpus"], same["nodes"], same["ran"]) == ("a100", 2, 1, 1)
    assert (same["step_s"], same["step_origin"]) == (40.0, "measured")
    assert (same["peak_bytes"], same["origin"]) == (20 * GIB, "measured")
    assert any(wording("sizing.emit.ran_used", gib="8.0") in why for why in same["why"])
    others = [plan for plan in after["plans"] if not plan["ran"]]
    assert {plan["step_origin"] for plan in others} == {"assumed"}
    assert len(after["plans"]) == len(before)
    assert after["plans"].index(same) > [(plan["gpu_type"], plan["gpus"]) for plan in before].index(("a100", 2))
    assert says(after["notes"], "cli.size_learn.count", mine=1, last="home/42")
    shown = bft.fit(*STEP).out
    assert "40 s (36-44) measured" in shown
    assert shown.count("yes, 1 ran") == 1


def test_memory_of_a_node_is_raised_to_what_jobs_used(bft: SizeTerminal) -> None:
    ended(bft, rss="200G")
    assert learn(bft).code == 0
    (same,) = [plan for plan in plans(bft) if plan["ran"]]
    assert "#SBATCH --mem=440G" in same["sbatch"]
    (run,) = [run for run in bft(*CHOOSE).json["runs"] if run["ran"]]
    assert "#SBATCH --mem=440G" in run["sbatch"]
    ended(bft, rss="300G")
    assert learn(bft).code == 0
    (same,) = [plan for plan in plans(bft) if plan["ran"]]
    assert "#SBATCH --mem=512G" in same["sbatch"], "no node has more"
    ended(bft, rss="2250M")
    assert learn(bft).code == 0
    (same,) = [plan for plan in plans(bft) if plan["ran"]]
    assert "#SBATCH --mem=256G" in same["sbatch"], "the share is more"


def test_several_jobs_count_and_a_mended_report_replaces_the_first(bft: SizeTerminal) -> None:
    assert learn(bft, step_s=0.2).code == 0
    assert learn(bft, job="43", step_s=0.4).code == 0
    assert [(plan["step_s"], plan["ran"]) for plan in plans(bft) if plan["ran"]] == [(pytest.approx(0.3), 2)]
    assert learn(bft, job="43", step_s=0.4, global_batch=32).code == 0
    assert [(plan["step_s"], plan["ran"]) for plan in plans(bft) if plan["ran"]] == [(0.2, 1)]


def test_runs_are_published_for_all_and_count_once(bft: SizeTerminal, monkeypatch: pytest.MonkeyPatch) -> None:
    assert learn(bft, step_s=0.2).code == 0
    own = bft.folder / "cache" / "bft" / "ran.jsonl"
    shown = bft("size", "learn", "--publish", str(own))
    assert shown.code == 0, shown.err
    target = bft.folder / "site" / "ran.jsonl"
    assert says(shown.out, "cli.size_learn.published", runs=1, target=str(target))
    assert target.stat().st_mode & 0o777 == 0o644
    assert [plan["ran"] for plan in plans(bft) if plan["ran"]] == [1]
    monkeypatch.setenv("XDG_CACHE_HOME", str(bft.folder / "another"))
    assert [plan["ran"] for plan in plans(bft) if plan["ran"]] == [1]
    bft.traces(Step(12, 0.5))
    notes = bft.fit(*STEP, "--json").json["notes"]
    assert not says(notes, "cli.size_learn.other_models"), "others' steps of the same name are none of his"
    again = bft("size", "learn", "--publish", str(own), "nobody.jsonl", "--json")
    assert (again.json["runs"], again.json["file"]) == (1, str(target))
    assert again.code == 1
    assert says(again.err, "cli.size_learn.no_file", file="nobody.jsonl")
    assert says(again.err, "cli.size_learn.unread", unread=1)


def test_what_is_published_is_not_lost_and_stops_nobody(bft: SizeTerminal, monkeypatch: pytest.MonkeyPatch) -> None:
    assert learn(bft, step_s=0.2).code == 0
    own, target = bft.folder / "cache" / "bft" / "ran.jsonl", bft.folder / "site" / "ran.jsonl"
    target.write_text('{"step": "what another release wrote, say"}\n')
    refused = bft("size", "learn", "--publish", str(own))
    assert refused.code == 1
    assert says(refused.err, "cli.size_learn.lost")
    target.write_text(own.read_text())
    monkeypatch.setattr(past_runs, "MOST_BYTES", len(own.read_text()) + 10)
    assert learn(bft, job="43").code == 0
    own.write_text(own.read_text().splitlines()[1] + "\n")
    large = bft("size", "learn", "--publish", str(own))
    assert large.code == 1
    assert says(large.err, "cli.size_learn.too_large")
    assert len(target.read_text().splitlines()) == 1
    with monkeypatch.context() as context:
        context.setattr(past_runs, "MOST_BYTES", 2**20)
        context.setattr(Path, "chmod", lambda *_: (_ for _ in ()).throw(PermissionError(1, "not yours")))
        target.unlink()
        mask = os.umask(0o077)
        unreadable = bft("size", "learn", "--publish", str(own))
        os.umask(mask)
        assert unreadable.code == 1
        assert says(unreadable.err, "cli.size_learn.not_for_all", strerror="not yours")
    target.unlink()
    target.mkdir()
    ended = bft.fit(*STEP, "--json")
    assert ended.code == 0, "a file of all that cannot be read stops nobody"
    assert says(ended.json["notes"], "sizing.ran.unreadable", path=str(target))


def test_a_job_of_the_step_as_it_was_does_not_count_and_is_told(bft: SizeTerminal) -> None:
    assert learn(bft).code == 0
    bft.traces(Step(12, 0.5))
    after = bft.fit(*STEP, "--json").json
    assert not any(plan["ran"] for plan in after["plans"])
    assert says(after["notes"], "cli.size_learn.other_models", others=1)
    assert not says(after["notes"], "cli.size_learn.count")
    bft.traces(Step(10, 0.5, refuses=lambda point: point.batch == 32))
    after = bft.fit(*STEP, "--json").json
    assert says(after["notes"], "cli.size_learn.uncompared", unknown=1)
    bft.traces(Step(10, 0.5))
    after = bft.fit(*STEP, "--json", "--precision", "fp32").json
    assert says(after["notes"], "cli.size_learn.with_precision", there=1)
    assert not any(plan["ran"] for plan in after["plans"])


def test_a_spread_that_would_not_be_traced_is_where_a_job_ran_in_it(bft: SizeTerminal) -> None:
    bft.traces(Step(10, 0.5), frozenset({"tp"}))
    assert not [plan for plan in plans(bft) if plan["tp"] == 2 and plan["gpus"] == 2 and plan["origin"] == "measured"]
    assert learn(bft, tp=2, step_s=0.001, peak_bytes=30 * GIB).code == 0
    best = plans(bft)[0]
    assert (best["tp"], best["gpus"], best["step_s"]) == (2, 2, 0.001)


def test_choose_goes_by_a_job_that_ran(bft: SizeTerminal) -> None:
    assert learn(bft, step_s=0.01).code == 0
    winner = bft(*CHOOSE, "--by", "gpu-hours").json["winner"]
    assert (winner["gpus"], winner["step"]["origin"], winner["step"]["value"], winner["ran"]) == (
        2,
        "measured",
        0.01,
        1,
    )


def test_dcgm_tells_what_was_in_use_of_each_gpu(bft: SizeTerminal) -> None:
    line = "| Max GPU Memory Used (bytes)        | {} |\n"
    (bft.folder / "node1").write_text(line.format(5 * GIB) + line.format(6 * GIB))
    assert learn(bft, "--dcgm", "node1", "--json").json["in_use_bytes"] == 6 * GIB
    ended(bft, nodes="new[1-2]", tres="gres/gpu=4")
    few = learn(bft, "--dcgm", "node1")
    assert few.code == 2
    assert says(few.err, "sizing.ran.other_gpus", found=2, gpus=4)


def test_which_gpus_they_were_is_asked_for_where_it_is_not_sure(bft: SizeTerminal) -> None:
    for nodes, tres in (("gone1", TRES), ("new1,gone1", "gres/gpu=2"), ("new1,old1", "gres/gpu=4")):
        ended(bft, nodes=nodes, tres=tres)
        unsure = learn(bft)
        assert unsure.code == 2
        assert says(unsure.err, "cli.size_learn.not_sure", id="42")
    ended(bft, nodes="gone1")
    assert learn(bft, "--gpu", "a100", "--json").json["gpu_type"] == "a100"
    ended(bft)
    other = learn(bft, "--gpu", "v100")
    assert other.code == 2
    assert says(other.err, "cli.size_learn.not_sure", id="42")
    centre = json.loads((bft.folder / "centre.json").read_text())
    centre["partitions"] = []
    (bft.folder / "site" / "gpus.json").write_text(json.dumps(centre))
    away = learn(bft)
    assert away.code == 1
    assert says(away.err, "cli.size_learn.unreadable_nodes", id="42")


@pytest.mark.parametrize(
    ("report", "words", "key"),
    [
        ({"tp": 4}, (), "sizing.ran.no_groups"),
        ({"step_s": 400.0}, (), "sizing.ran.no_seconds"),
        ({"peak_bytes": 20}, (), "sizing.ran.no_bytes"),
        ({"job": "42.0"}, (), "sizing.ran.job_wanted"),
        ({}, ("--gpu", "gpu9000"), "sizing.checking.not_known"),
        ({}, ("more",), "cli.size_learn.name_two"),
        ({}, ("--publish", "--gpu", "a100"), "cli.size_learn.files_alone"),
        ({}, ("--dcgm", "train.py"), "sizing.ran.other_gpus"),
    ],
)
def test_what_cannot_be_is_usage_and_nothing_is_kept(
    bft: SizeTerminal, report: dict[str, Any], words: tuple[str, ...], key: str
) -> None:
    refused = learn(bft, *words, **report)
    assert refused.code == 2, refused.err
    assert says(refused.err, key)
    assert not (bft.folder / "cache").exists()


def test_what_is_not_known_to_have_run_is_not_learnt(bft: SizeTerminal) -> None:
    ended(bft, state="FAILED")
    failed = learn(bft)
    assert failed.code == 1
    assert says(failed.err, "slurm_plugin.finished.ended_badly", which="job 42", state="FAILED")
    ended(bft)
    os.utime(bft.folder / "train.py", (6000, 6000))
    changed = learn(bft)
    assert changed.code == 2
    assert says(changed.err, "cli.size_learn.changed", id="42")
    os.utime(bft.folder / "train.py", (1000, 1000))
    bft.traces(Step(10, 0.5, refuses=lambda point: True))
    untraced = learn(bft)
    assert untraced.code == 1
    assert says(untraced.err, "cli.size_learn.nothing")
    (bft.folder / "commands" / "sacct").unlink()
    assert learn(bft).code == 1
    assert not (bft.folder / "cache").exists()
    nothing = bft("size", "learn", "--publish")
    assert nothing.code == 2
    assert says(nothing.err, "cli.size_learn.name_files")
