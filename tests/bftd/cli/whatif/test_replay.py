"""`bft replay` as a user meets it: figures, JSON, and one line for every mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bftd.simulation import trace as traces
from bftd.simulation.replay import Options
from tests.bftd.simulation.replay.making import linear, week
from tests.support.messages import excerpt, fragment, says, wording
from tests.support.terminal import Ended, Run, Terminal


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs `bft replay` on a small trace."""
    traces.write(week(), tmp_path / "t.csv.gz")
    trainers = [linear("a-1", work_samples=20_000.0), linear("b-2")]
    (tmp_path / "x.json").write_text(json.dumps([trainer.to_json() for trainer in trainers]))
    monkeypatch.chdir(tmp_path)

    def call(*words: str, files: tuple[str, str] = ("t.csv.gz", "x.json")) -> Ended:
        return Terminal(monkeypatch, capsys, "replay")("--trace", files[0], "--trainers", files[1], *words)

    return call


def test_the_figures_are_told_to_people(run: Run) -> None:
    code, out, err = run("--pj-max", "1")
    assert (code, err) == (0, "")
    assert says(out, "cli.replay.efficiency", efficiency="99.2%", eq_nodes=2.4)
    assert "a" + wording("cli.replay.runtime", kind="", runtime_s="                0.24") in out


def test_the_json_holds_the_figures_and_how_to_get_them_again(run: Run, tmp_path: Path) -> None:
    words = ("--pj-max", "1", "--accounting", "reference", "--hours", "0.5", "--nodes", "n[1-2]")
    assert run(*words, "--json", "out.json", "--series")[0] == 0
    told = json.loads((tmp_path / "out.json").read_text())
    assert told["run"]["arguments"] == Options(pj_max=1, accounting="reference", hours=0.5, nodes="n[1-2]").to_json()
    assert told["run"]["inputs"]["trace"]["sha256"] == traces.read(tmp_path / "t.csv.gz").digest()
    assert [row["start_s"] for row in told["series"]] == [0.0]


def test_json_on_standard_output_is_nothing_but_json(run: Run) -> None:
    code, out, err = run("--policy", "scavenger", "--json", "-")
    assert (code, err) == (0, "")
    assert json.loads(out)["run"]["arguments"]["scavenger_nodes"] in (1, 2, 4)


def test_a_list_that_is_used_up_is_warned_of(run: Run, tmp_path: Path) -> None:
    (tmp_path / "short.json").write_text(json.dumps([linear("a-1", work_samples=9.0).to_json()]))
    code, _, err = run(files=("t.csv.gz", "short.json"))
    assert code == 0
    assert err == wording("cli.replay.trainers_done") + "\n"
    assert run("--endless", "--hours", "0.1", files=("t.csv.gz", "short.json"))[2] == ""


@pytest.mark.parametrize(
    ("words", "files", "fault"),
    [
        (
            ("--t-fwd", "-1"),
            ("t.csv.gz", "x.json"),
            excerpt("whatif.options.not_above", name="t_fwd_s", least=fragment("0")),
        ),
        (("--policy", "milk"), ("t.csv.gz", "x.json"), "'milk'"),
        (("--solver", "exakt"), ("t.csv.gz", "x.json"), "unknown solver 'exakt'"),
        (("--nodes", "n9"), ("t.csv.gz", "x.json"), "n9"),
        (("--json", "no/such/out"), ("t.csv.gz", "x.json"), "cannot write no/such/out"),
        ((), ("t.csv.gz", "none.json"), wording("cli.unreadable", path="none.json", strerror="No such file")),
        ((), ("none.csv", "x.json"), "none.csv"),
        (
            (),
            ("t.csv.gz", "bad.json"),
            wording("simulated.trainers.min_above_max", where="bad.json, entry 1 (a)", nodes_min=3, nodes_max=2),
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    run: Run, words: tuple[str, ...], files: tuple[str, str], fault: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.json").write_text(json.dumps([linear("a", nodes_min=3, nodes_max=2).to_json()]))
    code, out, err = run(*words, files=files)
    assert (code, out) == (2, "")
    assert fault in err
    assert err.startswith("bft: ")
    assert err.count("\n") == 1
