"""The figures of pages are those of the results that are kept."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.evidence import __main__ as command
from benchmarks.evidence import kept, pages
from benchmarks.evidence.kept import EvidenceError, Host, Kept
from benchmarks.evidence.model import Benchmark, Figure, rounded
from benchmarks.evidence.registry import benchmarks

pytestmark = pytest.mark.slow

MEASURED = re.compile(r"\d[\d.,]* ?(?:%|± |ms\b|s\b|h\b|[KMG]i?B\b)")
"""A number with a unit."""

FIGURE = Benchmark(
    ("benchmarks.made_up",),
    1.0,
    {"table": lambda result: f"| {result} |"},
    lambda result: {"wait": Figure(f"{result} s", result, (1.0, 3.0)), "share": Figure("4 %", 4.0)},
)
HOST = Host(2, 1 << 30, "some processor", 0.5)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results of a made-up benchmark."""
    monkeypatch.setattr(kept, "RESULTS", tmp_path)
    monkeypatch.setattr(pages, "_read", kept.read)
    monkeypatch.setattr(pages, "benchmarks", lambda: {"made_up": FIGURE})
    kept.write("made_up", Kept("python -m benchmarks.made_up", "abc", "2026-11-28", HOST, 2.0))
    return tmp_path


@pytest.mark.parametrize("path", pages.pages(), ids=lambda path: path.name)
def test_a_page_shows_what_its_results_say(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert pages.filled(text) == text, "python -m benchmarks.evidence --pages"


def test_every_figure_of_the_front_page_is_made_from_a_result() -> None:
    text = pages.without_figures((kept.REPOSITORY / "README.md").read_text(encoding="utf-8"))
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)  # a session is no measurement
    assert MEASURED.findall(prose) == []


def test_every_result_that_is_kept_is_shown_and_of_the_command_that_runs() -> None:
    shown = "".join(path.read_text(encoding="utf-8") for path in pages.pages())
    for name in kept.names():
        assert f"<!-- evidence {name}." in shown
        assert kept.read(name).command == " ".join(["python", "-m", *benchmarks()[name].words])


def test_tables_and_figures_are_made_from_results(folder: Path) -> None:
    end = "<!-- end of evidence -->"
    page = f"a\n<!-- evidence made_up.table -->old{end}\nb <!-- evidence made_up.wait -->{end}."
    made = pages.filled(page)
    assert "\n| 2.0 |\n" in made
    assert "abc, 2 cores" in made
    assert ">2.0 s<" in made
    assert pages.filled(made) == made
    assert not MEASURED.search(pages.without_figures(made))


@pytest.mark.parametrize("part", ["made_up.none", "nobody.table"])
def test_a_figure_that_no_result_has_is_refused(folder: Path, part: str) -> None:
    with pytest.raises(EvidenceError):
        pages.filled(f"<!-- evidence {part} --><!-- end of evidence -->")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"result": 1}'])
def test_a_file_that_is_no_result_is_refused(folder: Path, text: str) -> None:
    (folder / "made_up.json").write_text(text)
    with pytest.raises(EvidenceError):
        kept.read("made_up")


def test_figures_outside_their_interval_are_named() -> None:
    assert command.outside(FIGURE, 2.0, 2.9) == []
    assert [line.partition(":")[0] for line in command.outside(FIGURE, 2.0, 3.1)] == ["wait"]
    assert command.outside(replace(FIGURE, figures=lambda result: {}), 2.0, 2.0) == []


def test_the_shortest_whose_results_are_kept_are_run_within_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    minutes = {"a": 30.0, "b": 5.0, "c": 26.0, "not kept": 1.0}
    runs = {name: replace(FIGURE, minutes=each) for name, each in minutes.items()}
    monkeypatch.setattr(command, "benchmarks", lambda: runs)
    monkeypatch.setattr(kept, "names", lambda: ["a", "b", "c"])
    assert command.chosen([], 60.0) == ["b", "c"]
    assert command.chosen(["a"], 1.0) == ["a"]


def test_a_benchmark_runs_on_the_tree_of_its_commit_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "REPOSITORY", tmp_path)
    (tmp_path / "bench.py").write_text('import json, sys\nprint(json.dumps({"argv": sys.argv[1:]}))\n')
    (tmp_path / "fails.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "prints.py").write_text("print('none')\n")
    (tmp_path / ".gitignore").write_text("__pycache__/\n")
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path))
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "a")):
        subprocess.run([*git, *words], check=True)
    found: Any = kept.run(("bench", "--streams", "3"))
    assert found.result == {"argv": ["--streams", "3", "--json"]}
    assert found.command == "python -m bench --streams 3"
    assert len(found.commit) == 10
    for name in ("fails", "prints"):
        with pytest.raises(EvidenceError):
            kept.run((name,))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("a page may differ\n")
    assert json.dumps(kept.run(("bench",)).result)
    (tmp_path / "bench.py").write_text("print(1)\n")
    with pytest.raises(EvidenceError):
        kept.run(("bench",))


def test_an_unknown_benchmark_is_a_usage_error() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.evidence", "nothing"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2


def test_numbers_of_samples_keep_six_digits() -> None:
    assert rounded({"a": [1.23456789, 2], "b": (1e-9 / 3, True, None, "1.23456789")}) == {
        "a": [1.23457, 2],
        "b": [3.33333e-10, True, None, "1.23456789"],
    }
