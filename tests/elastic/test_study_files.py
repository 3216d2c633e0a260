"""The study of the examples: what it refuses, what its files survive, and what a trial may write."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

BEGIN_ANEW = "put it back, or move it away to begin anew"  # of the example

optuna = pytest.importorskip("optuna")

STUDY = Path(__file__).parents[2] / "examples" / "optuna_hpo.py"


@pytest.fixture(scope="module")
def study() -> dict[str, Any]:
    return runpy.run_path(str(STUDY))


@pytest.fixture
def begin(study: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Starts the study with these words, as a shell does."""

    def started(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", [str(STUDY), f"--folder={tmp_path / 'study'}", *words])
        return int(study["main"]())

    return started


def hpo(study: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    monkeypatch.setattr(sys, "argv", [str(STUDY), f"--folder={folder}", *words])
    folder.mkdir(exist_ok=True)
    options = study["parsed"]()
    return study["Hpo"](options, study["opened"](options))


def ended(hpo: Any, study: dict[str, Any], monkeypatch: pytest.MonkeyPatch, state: str, result: str | None) -> Any:
    """What becomes of a trial whose job Slurm shows so, with that in its result's file."""
    trial = hpo.study.ask()
    one = hpo.running[trial.number] = study["Running"](trial, hpo.folder_of(trial.number))
    one.folder.mkdir(parents=True)
    one.note(job="7")
    if result is not None:
        (one.folder / "result.json").write_text(result)
    names = study["Hpo"].look.__globals__
    monkeypatch.setitem(names, "jobs", lambda: {"7": (state, "a")} if state else {})
    monkeypatch.setitem(names, "trainers", dict)
    monkeypatch.setitem(names, "checkpoints", set)
    hpo.look()
    return hpo.study.trials[trial.number]


def test_regression_a_study_without_optuna_ended_in_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SystemExit, match=r"^optuna_hpo\.py needs Optuna: pip install optuna"):
        runpy.run_path(str(STUDY), run_name="__main__")


@pytest.mark.parametrize("broken", [b"garbage{\n", b'{"a": 1}\n', b"[]\n", b"\xa3\xff\n"])
def test_regression_a_journal_that_cannot_be_read_ended_in_a_traceback(
    broken: bytes, begin: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "journal").write_bytes(broken * 2)
    assert begin() == 1
    said = capsys.readouterr().err
    assert BEGIN_ANEW in said
    assert len(said.splitlines()) == 1


def test_regression_a_folder_that_cannot_be_written_ended_in_a_traceback(
    begin: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "study").touch()
    assert begin() == 1
    assert capsys.readouterr().err == f"{tmp_path}/study: File exists; start the study again once that is mended\n"


def test_regression_a_line_that_a_full_disk_had_cut_off_made_the_journal_useless_at_the_next_start(
    study: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hpo(study, tmp_path, monkeypatch).study.ask()
    with (tmp_path / "journal").open("a") as journal:
        journal.write('{"op_code": 5, "wo')
    assert len(hpo(study, tmp_path, monkeypatch).study.trials) == 1
    hpo(study, tmp_path, monkeypatch).study.ask()
    assert len(hpo(study, tmp_path, monkeypatch).study.trials) == 2


def test_regression_another_study_in_the_same_folder_took_the_first_ones_results_for_its_own(
    study: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (hpo(study, tmp_path, monkeypatch, f"--name={name}").folder_of(0) for name in ("one", "other"))
    assert one != other
    (tmp_path / "journal").unlink()
    assert hpo(study, tmp_path, monkeypatch, "--name=one").folder_of(0) != one, "a study of the same name, begun anew"


@pytest.mark.parametrize("result", ['{"loss": NaN}', "7", '{"loss": null}', "[]", "x", None])
def test_regression_a_result_that_is_no_number_ended_the_whole_study(
    result: str | None, study: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ended(hpo(study, tmp_path, monkeypatch), study, monkeypatch, "COMPLETED", result).state.name == "FAIL"


def test_reports_that_are_none_are_left_out(
    study: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = study["Running"](hpo(study, tmp_path, monkeypatch).study.ask(), tmp_path)
    odd = [
        "5",
        "[1]",
        "xx",
        '{"step": null}',
        json.dumps({"step": 1, "loss": None}),
        '{"step": 2, "loss": 0.5}',
        '{"st',
    ]
    (tmp_path / "reports.jsonl").write_text("\n".join(odd))
    assert one.report()
    assert one.reported == 2


def test_regression_a_trial_whose_job_had_ended_by_its_time_limit_while_the_study_was_away_was_failed(
    study: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, resumed = hpo(study, tmp_path, monkeypatch), []
    monkeypatch.setattr(one, "go_on", lambda trial, why, known: resumed.append(trial.job))
    assert ended(one, study, monkeypatch, "", None).state.name == "FAIL", "and nothing to go on from"
    monkeypatch.setattr(study["Hpo"], "tell", None)
    names = study["Hpo"].look.__globals__
    trial = one.study.ask()
    one.running[trial.number] = study["Running"](trial, one.folder_of(trial.number))
    one.running[trial.number].note(job="8")
    monkeypatch.setitem(names, "checkpoints", lambda: {"8"})
    one.look()
    assert resumed == ["8"]


def test_regression_a_study_gave_up_when_the_daemon_was_away_for_half_a_minute(
    study: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, answers = hpo(study, tmp_path, monkeypatch), [None] * 9
    waits: list[float] = []
    monkeypatch.setattr(one.stop, "wait", lambda wait_s: waits.append(wait_s))

    def submitted(*words: str) -> str:
        if answers and answers.pop() is None:
            raise study["SlurmError"]("bft sbatch: no daemon answers")
        return "Submitted batch job 12"

    monkeypatch.setitem(study["Hpo"].look.__globals__, "output_of", submitted)
    trial = study["Running"](one.study.ask(), one.folder_of(0))
    with pytest.raises(study["SlurmError"]):
        one.submit(trial)
    assert len(waits) == 3, "what was never taken may be wrong"
    answers.clear()
    one.submit(trial)
    answers += [None] * 9
    one.submit(trial)
    assert waits[3:] == [1.0, 5.0, 20.0, *[60.0] * 6]
    assert trial.job == "12"


@pytest.mark.parametrize("words", [("--trials=0",), ("--parallel=-1",), ("--name=../x",), ("--sbatch='",)])
def test_regression_options_that_make_no_sense_did_nothing_or_ended_in_a_traceback(
    words: tuple[str, ...], begin: Any, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as ended:
        begin(*words)
    assert ended.value.code == 2
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize("terminal", [True, False])
def test_how_far_a_study_is_stands_below_its_log_on_a_terminal_and_in_it_now_and_then_elsewhere(
    terminal: bool,
    study: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = hpo(study, tmp_path / "study", monkeypatch, "--trials=5")
    for value in (0.5, 0.25):
        one.study.tell(one.study.ask(), value)
    for number, state in ((2, "running"), (3, "suspended")):
        one.running[number] = study["Running"](one.study.ask(), one.folder_of(number))
        one.running[number].state = state
    said = "2/5 trials done, 1 running, 1 waiting, best 0.2500 (trial 1), 0:00:0"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    one.live()
    out = capsys.readouterr().out
    if terminal:
        assert out == f"\r\x1b[K{said}"[: 39 + len("\r\x1b[K")]
        study["say"]("trial 9 is job 7")
        assert capsys.readouterr().out.startswith("\r\x1b[K")
    else:
        assert out == ""
        one._live_s -= study["LIVE_S"]
        one.live()
        one.live()
        assert capsys.readouterr().out.count(said) == 1
