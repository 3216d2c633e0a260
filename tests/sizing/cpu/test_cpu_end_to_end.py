"""`bft size cpu` with real commands on two CPUs: what wants CPUs is found to, what does not is not.

Most of the commands sleep where others compute, so that a busy machine changes nothing; the last test decodes for real,
and waits for a machine that is quiet enough to tell one CPU from two.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.synergy import loaders
from sizing.cpu.runs.steady_state import ObservationLimits
from tests.bftd.cli.sizing_commands import SizeTerminal

ROOT = Path(__file__).parents[3]
QUIET = 0.1  # of the CPUs, that others may use
TRIES = 2

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs"),
]

STEPS = """
import os, sys, time
import elastic
cpus, counted = len(os.sched_getaffinity(0)), 0
apart_s, due_s = 0.03 / (cpus if sys.argv[1] == "loads" else 1), time.monotonic()
while True:
    due_s += apart_s  # a step that a busy machine delays makes none after it late
    time.sleep(max(0.0, due_s - time.monotonic()))
    counted += 4
    if sys.argv[2] == "prints":
        print(f"samples {counted}", flush=True)
    else:
        elastic.step(samples=4)
"""
QUICK = ("--cpus", "1-2", "--warmup", "0.3", "--seconds", "1", "--timeout", "60")


@pytest.fixture
def bft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> SizeTerminal:
    path = os.environ["PATH"]
    terminal = SizeTerminal(tmp_path, monkeypatch, capsys)
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in list(os.environ):
        if name.startswith("SLURM"):
            monkeypatch.delenv(name)
    (tmp_path / "steps.py").write_text(STEPS)
    return terminal


def command(kind: str, way: str) -> tuple[str, ...]:
    return ("--", sys.executable, "steps.py", kind, way)


def test_what_loads_on_cpus_is_found_sensitive_by_what_it_prints(bft: SizeTerminal) -> None:
    ended = bft("size", "cpu", *QUICK, "--regex", r"samples (?P<samples>\d+)", "--json", *command("loads", "prints"))
    found = ended.json
    assert (found["sensitive"], found["demand"]["cpus"]) == (True, 2)
    assert found["sbatch"][0]["text"] == "#SBATCH --cpus-per-task=2"
    assert 0.1 < found["gain"] < 1.5  # twice as fast, and less on a busy machine


def test_what_does_not_is_found_insensitive_by_its_calls_and_a_second_profile_is_the_first(bft: SizeTerminal) -> None:
    first = bft("size", "cpu", *QUICK, *command("computes", "calls"))
    assert first.code == 0
    assert "demand: 1 CPU" in first.out.splitlines()
    assert "#SBATCH --cpus-per-task=1 " in first.out
    again = bft("size", "cpu", *QUICK, "--json", *command("computes", "calls"))
    assert again.json["ages_s"].keys() == {"1", "2"}
    assert "from the cache" in json.dumps(again.json["notes"])


def test_a_command_that_prints_no_throughput_ends_in_one_line_that_says_what_to_do(bft: SizeTerminal) -> None:
    words = ("--timeout", "2", "--cpus", "1", "--", sys.executable, "-c", "import time; print('hello'); time.sleep(60)")
    ended = bft("size", "cpu", *words)
    assert ended.code == 1
    *_, said = ended.err.splitlines()
    assert said.startswith("bft: no throughput within 2 s on 1 CPU")
    assert "'hello'" in said
    assert "--regex" in said


def test_a_command_that_dies_ends_in_one_line_that_names_its_output(bft: SizeTerminal) -> None:
    ended = bft("size", "cpu", "--cpus", "1", "--", sys.executable, "-c", "raise SystemExit('no data here')")
    assert ended.code == 1
    *_, said = ended.err.splitlines()
    assert "no data here" in said
    output = Path(next(word for word in said.split() if word.endswith(".log")))
    assert "no data here" in output.read_text()
    output.unlink()


def test_more_cpus_than_there_are_end_in_one_line(bft: SizeTerminal) -> None:
    ended = bft("size", "cpu", "--cpus", "1,4096", *command("loads", "calls"))
    assert ended.code == 2
    assert len(ended.err.splitlines()) == 1
    assert "4096 CPUs" in ended.err


@pytest.mark.torch
def test_of_the_examples_the_one_that_decodes_is_sensitive_to_cpus_and_the_other_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_CACHE_HOME", "PYTHONPATH"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # put back at the end
    waits_s = time.monotonic() + 5.0
    while not _quiet() and time.monotonic() < waits_s:
        pass
    if not _quiet():
        pytest.skip("others use the CPUs of this machine")
    loaders.prepared(tmp_path)
    limits = ObservationLimits(warmup_s=1.0, least_s=2.0)
    seen: list[loaders.Round] = []
    for _ in range(TRIES):
        image, language = (loaders.profiled(job, tmp_path, limits) for job in loaders.JOBS)
        if max(image.others, language.others) > QUIET:
            continue
        seen += [image, language]
        if (image.demand, language.demand) == (2, 1):
            assert image.gain > 0.3 > language.gain
            return
    if not seen:
        pytest.skip("others use the CPUs of this machine")
    pytest.fail(f"on a quiet machine it is taken for something else: {seen}")


def _quiet() -> bool:
    return psutil.cpu_percent(0.5) < 100 * QUIET
