"""From files to a page, through `bft report`."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bftd.cli.main import bft
from bftd.simulation.replay import Options
from bftd.simulation.report.gather import NamedTrace, gather
from bftd.simulation.report.stored import read
from bftd.simulation.trace import write
from tests.bftd.simulation.report.making import SITE, advice, result, trace, trainers
from tests.support.messages import excerpt, wording
from tests.support.waiting import STILL_S

pytestmark = [pytest.mark.slow, pytest.mark.plot]


def _files(tmp_path: Path) -> tuple[str, str]:
    """The small trace and its trainers."""
    write(trace(), tmp_path / "site.csv.gz")
    packed = gzip.compress(json.dumps([trainer.to_json() for trainer in trainers()]).encode())
    (tmp_path / "x.json.gz").write_bytes(packed)
    return str(tmp_path / "site.csv.gz"), str(tmp_path / "x.json.gz")


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(bft, ["report", *arguments])


def test_a_trace_is_replayed_with_each_policy_and_other_settings() -> None:
    heard: list[float] = []
    (case,) = gather([NamedTrace("x", trace())], [], trainers(), Options(), jobs=2, progress=heard.append)
    assert [each.policy for each in case.replays] == ["milp", "equal-share", "scavenger"]
    assert all(len(each.series) == 3 for each in case.replays)
    assert {(point.t_fwd_s, point.pj_max) for point in case.tried()} >= {(10.0, 10), (120.0, 10), (120.0, 35)}
    assert case.recovered_per_week is not None
    assert case.pool is not None
    assert case.main is not None
    assert case.main.use is not None
    assert case.main.use.held.shape == case.pool.idle_nodes.shape
    assert heard == sorted(heard)
    assert heard[-1] == pytest.approx(1.0)


def test_the_weekly_figure_is_that_of_the_sweep_at_the_settings_asked_for() -> None:
    (case,) = gather([NamedTrace("x", trace())], [], trainers(), Options(pj_max=5), jobs=1)
    (asked,) = [point for point in case.points if (point.t_fwd_s, point.pj_max) == (120.0, 5)]
    assert case.recovered_per_week == pytest.approx(asked.node_hours_per_week)
    assert case.main is not None
    assert asked.efficiency is not None
    assert case.recovered_per_week == pytest.approx(asked.efficiency * case.main.idle_per_week)


def test_a_list_of_trainers_that_is_too_short_is_told_of() -> None:
    few = trainers()[:2]
    (short,) = gather([NamedTrace("x", trace())], [], few, Options(), jobs=1, sweeping=False)
    (endless,) = gather([NamedTrace("x", trace())], [], few, Options(endless=True), jobs=1, sweeping=False)
    assert "--endless" in "".join(short.notes)
    assert not endless.notes


def test_results_of_the_same_trace_are_one_case_and_of_another_are_another(tmp_path: Path) -> None:
    other = result()
    other["run"]["inputs"]["trace"]["sha256"] = "ef" * 32
    stored = []
    for number, data in enumerate([result(), result(policy="equal-share"), advice(), other]):
        (tmp_path / f"{number}.json").write_text(json.dumps(data))
        stored.append(read(tmp_path / f"{number}.json"))
    first, second = gather([], stored, (), Options())
    assert [each.policy for each in first.replays] == ["milp", "equal-share"]
    assert len(first.points) == 3
    assert len(second.replays) == 1


def test_a_stored_advice_stands_for_the_sweep_of_its_trace(tmp_path: Path) -> None:
    from bftd.simulation.drivers.trainers import digest

    data = advice()
    data["run"]["inputs"] = {
        "trace": {"source": "", "sha256": trace().digest(), "nodes": 16},
        "trainers": {"sha256": digest(trainers()), "count": 40},
    }
    (tmp_path / "a.json").write_text(json.dumps(data))
    (case,) = gather([NamedTrace("x", trace())], [read(tmp_path / "a.json")], trainers(), Options(), jobs=1)
    assert len(case.points) == 3
    assert case.recommended
    assert len(case.replays) == 3


def test_the_command_writes_the_same_page_twice(tmp_path: Path) -> None:
    site, training = _files(tmp_path)
    output = str(tmp_path / "r.html")
    pages = []
    for _ in range(2):
        done = _run(site, "--trainers", training, "-o", output, "--no-sweep", "--jobs", "1")
        assert done.exit_code == 0, done.output
        pages.append(Path(output).read_bytes())
    assert pages[0] == pages[1]
    assert b"Tiny &lt;b&gt;site&lt;/b&gt;" in pages[0]
    assert SITE.encode() not in pages[0]


def test_without_trainers_those_of_the_paper_are_trained(tmp_path: Path) -> None:
    site, _ = _files(tmp_path)
    done = _run(site, "-o", str(tmp_path / "r.html"), "--no-sweep", "--hours", "7", "--nodes", "n[00-07]")
    assert done.exit_code == 0, done.output
    text = (tmp_path / "r.html").read_text()
    assert "Table 2" in text
    assert "endless True" in text
    assert "nodes n[00-07]" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{site}", "-o", "{folder}"], excerpt("cli.common.is_a_directory")),
        (["{site}", "-o", "{folder}/none/r.html"], excerpt("cli.common.no_such_directory")),
        (["{folder}/site.json", "-o", "{folder}/r.html"], "holds no result"),
        (["{folder}/none.csv.gz", "-o", "{folder}/r.html"], "cannot read"),
        (["{site}", "-o", "{folder}/r.html", "--nodes", "zzz"], "no node zzz"),
        (["{site}", "-o", "{folder}/r.html", "--pj-max", "0"], excerpt("whatif.options.too_few", name="pj_max")),
    ],
)
def test_what_cannot_be_is_said_before_any_replay(tmp_path: Path, arguments: list[str], message: str) -> None:
    site, _ = _files(tmp_path)
    done = _run(*(part.format(site=site, folder=tmp_path) for part in arguments))
    assert done.exception is not None
    assert message in str(done.exception)
    assert getattr(done.exception, "exit_code", None) == 2


def test_without_matplotlib_one_line_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = _run("t.csv.gz", "-o", str(tmp_path / "r.html"))
    assert str(done.exception) == wording("whatif.canvas.no_matplotlib")
    assert getattr(done.exception, "exit_code", None) == 2


def test_help_imports_no_plotting() -> None:
    code = "import sys\nfrom bftd.cli.main import bft\ntry: bft(['{}', '--help'][{}:])\nexcept SystemExit: pass\n"
    for part in (0, 1):
        script = code.format("report", part) + "assert not {'matplotlib', 'highspy'} & sys.modules.keys()"
        subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=STILL_S)
