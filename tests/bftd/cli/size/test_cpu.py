"""`bft size cpu` as a user meets it, with a profile that is made up; tests/sizing/cpu has the real ones."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bftd.base.errors import BftError
from bftd.cli import progress
from bftd.cli.size import cpu as size_cpu
from bftd.cli.size.output import cpu as size_cpu_shown
from bftd.cli.size.output import cpu_plot
from sizing.base.estimate import Estimate
from sizing.cpu import profiler
from sizing.cpu.profiler import Profile, ProfileCost, ProfileRequest
from sizing.cpu.runs.measurement import PointProgress, PointResult
from sizing.cpu.sensitivity.matrix import Matrix
from sizing.sbatch.cpu import CpuNeed
from tests.bftd.cli.sizing_commands import SizeTerminal
from tests.support.messages import excerpt, fragment, pattern, says, wording
from tests.support.terminal import Ended

pytestmark = pytest.mark.slow

GIB = 2**30
COMMAND = ("--", "python", "train.py", "--epochs", "3")


def point(cpus: int, rate: float, **more: Any) -> PointResult:
    measured = Estimate(rate, rate * 0.97, rate * 1.02, "measured")
    return PointResult(cpus, measured, "samples/s", (rate,), 60, 5.4, 14.0, 4.0, "affinity", 4e9, 2 * GIB, **more)


def made(ask: ProfileRequest) -> Profile:
    """A job that 8 CPUs saturate, and with its data set a cache of 40 GiB."""
    rates = [min(800.0, 100.0 * cpus) for cpus in range(1, 17)]
    points = {cpus: point(cpus, rates[cpus - 1]) for cpus in (16, 8, 4, 6, 7)}
    each = max(1, ask.gpus)
    modelled = bool(ask.data or ask.dataset_bytes)
    sizes = tuple(size * GIB / each for size in (2, 20, 42, 82)) if modelled else (2.0 * GIB / each,)
    most = (100.0, 400.0, 800.0, 800.0) if modelled else (800.0,)
    table = Matrix(
        each,
        tuple(cpus / each for cpus in range(1, 17)),
        sizes,
        tuple(tuple(min(rate, bound) for bound in most) for rate in rates),
        tuple("measured" if cpus in points else "interpolated" for cpus in range(1, 17)),
        searched=8 / each,
    )
    return Profile(ask, points, table, "here", "affinity", 16, 2 * GIB, modelled, said=("a thing to know",))


class Made(SizeTerminal):
    """Runs the command on `profile`; `asked` is what it was asked for."""

    asked: ProfileRequest
    cost = ProfileCost(5, 20.0, 0, 600.0)
    profile: Callable[[ProfileRequest], Profile] = staticmethod(made)

    def cpu(self, *words: str) -> Ended:
        return self("size", "cpu", *words)


@pytest.fixture
def bft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Made:
    terminal = Made(tmp_path, monkeypatch, capsys)

    def profile(
        ask: ProfileRequest, *, heard: Callable[[PointProgress], None], done: Callable[[PointResult], None], **_: object
    ) -> Profile:
        terminal.asked = ask
        found = terminal.profile(ask)
        for result in found.points.values():
            heard(PointProgress(result.cpus, "measuring", 3.0, 20.0, 10, None))
            done(result)
        return found

    monkeypatch.setattr(profiler, "cost", lambda _: terminal.cost)
    monkeypatch.setattr(profiler, "profile", profile)
    for name in list(os.environ):
        if name.startswith("SLURM") or name == "CUDA_VISIBLE_DEVICES":
            monkeypatch.delenv(name)
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH --gres=gpu:2\npython train.py\n")
    return terminal


def test_the_lines_come_last_and_can_be_pasted(bft: Made) -> None:
    ended = bft.cpu("--gpus", "2", "--dataset-bytes", "80G", *COMMAND)
    assert ended.code == 0
    why = "processes 1.0 GiB (measured) + cache 20.0 GiB (formula) + guard 256 MiB (assumed)"
    assert ended.out.splitlines()[-2:] == [
        wording(
            "sizing.cpu_lines.share_of_most",
            share="#SBATCH --cpus-per-gpu=4   # 100",
            unit="samples/s",
            origin="measured",
        ),
        f"#SBATCH --mem-per-gpu=22G  # {why}",
    ]
    assert "demand: 2 GPUs, each with 4 CPUs, 21.0 GiB" in ended.out


def test_what_is_printed_instead_of_steps_is_said_once_with_an_expression_that_would_find_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PRINTED_AFTER_S", 0.0)
    with size_cpu_shown.progress(ProfileCost(2, 15.0, 0, 600.0)) as (tell, _):
        for elapsed_s in (1.0, 4.0, 5.0):
            tell(PointProgress(2, "starting", elapsed_s, 120.0, printed="at 5", expression="at (?P<step>[0-9]+)"), 0)
    first, note = capsys.readouterr().err.splitlines()
    assert first == "bft: 2 CPUs: starting: 3 %"
    assert note == wording(
        "cli.size_cpu_shown.unseen", elapsed_s=4, printed="at 5", do="add --regex 'at (?P<step>[0-9]+)'"
    )
    assert says(
        size_cpu_shown.unseen(PointProgress(2, "starting", 15.0, 120.0, printed="x")),
        "cli.size_cpu_shown.unseen",
        printed="x",
    )


def test_what_it_costs_is_said_first_and_each_run_when_it_is_over_beside_the_result(bft: Made) -> None:
    bft.cost = ProfileCost(5, 20.0, 2, 600.0)
    ended = bft.cpu(*COMMAND)
    first, *runs = ended.err.splitlines()
    assert first.startswith(wording("cli.size_cpu.runs_planned", points="at most 5", point_s=20))
    assert says(first, "cli.size_cpu.beside_cached", known=2)
    assert says(first, "cli.size_cpu.at_most_in_all", budget_s=600)
    assert runs[0] == wording(
        "cli.size_cpu_shown.measured",
        cpus="16 CPUs",
        value=800,
        unit="samples/s",
        low=776,
        high=816,
        steps=60,
        steady_s=5,
        old="",
    )
    assert len(runs) == 5


def test_the_command_gets_its_words_as_they_are_and_the_rest_of_them_is_ours(bft: Made) -> None:
    bft.cpu("--regex", "(?P<rate>.)", "--gpus", "2", "--budget", "30", "--timeout", "9", "--cpus", "4-8", *COMMAND)
    assert bft.asked.command == ("python", "train.py", "--epochs", "3")
    assert (bft.asked.regex, bft.asked.budget_s, bft.asked.limits.timeout_s) == ("(?P<rate>.)", 30, 9)
    assert bft.asked.cpus == (4, 6, 8)


def test_without_the_two_dashes_the_command_begins_at_its_first_word(bft: Made) -> None:
    bft.cpu("--gpus", "1", "python", "train.py", "--gpus", "7")
    assert bft.asked.command == ("python", "train.py", "--gpus", "7")
    assert bft.asked.gpus == 1


def test_json_alone_is_on_standard_output(bft: Made) -> None:
    found = bft.cpu("--json", "--gpus", "2", "--dataset-bytes", "80G", *COMMAND).json
    assert found["demand"] == {"gpus": 2, "cpus": 4.0, "memory_bytes": 21.0 * GIB}
    assert [line["text"] for line in found["sbatch"]] == ["#SBATCH --cpus-per-gpu=4", "#SBATCH --mem-per-gpu=22G"]
    assert [each["cpus"] for each in found["points"]] == [16, 8, 4, 6, 7]
    assert found["sensitive"] is True


def test_without_the_size_of_the_data_a_note_says_how_to_give_it_and_memory_is_the_processes_own(bft: Made) -> None:
    ended = bft.cpu(*COMMAND)
    assert says(ended.out, "cli.size_cpu_shown.cache_not_looked_at")
    assert "#SBATCH --mem=2560M" in ended.out
    assert not says(ended.out, "cli.size_cpu_shown.by_cpus_and_memory")


def test_a_plot_of_bars_fits_the_terminal_and_marks_the_demand() -> None:
    need = CpuNeed(made(ProfileRequest(("x",))).matrix, 0, None, modelled=False)
    for width in (40, 80, 200):
        title, *rows = size_cpu_shown.plot(need, width)
        assert all(len(row) <= width for row in rows)
        assert len(rows) == 16
        assert [row.split()[0] for row in rows if row.endswith("<- demand")] == ["8"]
    assert title == "samples/s by CPUs"


def test_of_many_numbers_of_cpus_those_measured_the_demand_and_both_ends_are_shown() -> None:
    rates = tuple((min(800.0, 10.0 * cpus),) for cpus in range(1, 129))
    origins = tuple("measured" if cpus in (128, 64, 80) else "interpolated" for cpus in range(1, 129))
    table = Matrix(1, tuple(map(float, range(1, 129))), (1.0,), rates, origins, searched=80.0)
    rows = list(size_cpu_shown.plot(CpuNeed(table, 1, None, modelled=False), 80))[1:]
    assert [row.split()[0] for row in rows] == ["1", "64", "79", "80", "81", "128"]


def test_a_profile_out_of_the_cache_says_how_old_it_is(bft: Made) -> None:
    bft.profile = lambda ask: replace(made(ask), ages_s=dict.fromkeys((16, 8, 4, 6, 7), 7300.0))
    assert says(
        bft.cpu(*COMMAND).out, "cli.size_cpu_shown.from_cache", count=5, of=5, value="are", old="up to 2 hours old"
    )


def test_a_budget_that_was_too_short_is_said(bft: Made) -> None:
    bft.profile = lambda ask: replace(made(ask), left_out=(3, 5))
    assert says(
        bft.cpu("--budget", "20", *COMMAND).out,
        "cli.size_cpu_shown.budget_spent",
        budget_s=20,
        left=fragment("3 CPUs and 5 CPUs"),
    )


def test_a_rate_that_is_uncertain_is_said_to_be(bft: Made) -> None:
    def noisy(ask: ProfileRequest) -> Profile:
        found = made(ask)
        unsure = replace(found.points[4], rate=Estimate(400.0, 300.0, 450.0, "measured"))
        return replace(found, points={**found.points, 4: unsure})

    assert says(_with(bft, noisy), "cli.size_cpu_shown.uncertain", rates="300 to 450 with 4 CPUs")
    assert "uncertain" not in _with(bft, made)


def _with(bft: Made, profile: Callable[[ProfileRequest], Profile]) -> str:
    bft.profile = profile
    return bft.cpu(*COMMAND).out


def test_the_lines_go_into_a_copy_and_the_script_stays(bft: Made) -> None:
    before = (bft.folder / "job.sh").read_text()
    ended = bft.cpu("--gpus", "2", "--into", "job.sh", "--yes", *COMMAND)
    assert ended.code == 0
    assert "wrote job.cpu.sh" in ended.out
    assert (bft.folder / "job.sh").read_text() == before
    copy = (bft.folder / "job.cpu.sh").read_text().splitlines()
    assert copy[1] == "#SBATCH --gres=gpu:2"
    assert copy[2].startswith("#SBATCH --cpus-per-gpu=4 ")
    assert copy[3].startswith("#SBATCH --mem-per-gpu=1280M ")


def test_options_of_the_script_stay_and_are_told(bft: Made) -> None:
    (bft.folder / "job.sh").write_text("#!/bin/bash\n#SBATCH --cpus-per-task=3 --mem=8G\npython train.py\n")
    ended = bft.cpu("--gpus", "2", "--into", "job.sh", "--yes", *COMMAND)
    assert says(
        ended.out,
        "sizing.script.script_stays",
        mine="--cpus-per-task=3",
        whose="profile",
        option="cpus-per-gpu",
        value=4,
    )
    assert (bft.folder / "job.cpu.sh").read_text() == (bft.folder / "job.sh").read_text()


@pytest.mark.parametrize(
    ("script", "words", "said"),
    [
        ("#!/bin/bash\n", ("--gpus", "2"), wording("cli.size_cpu.script_without_gpus", path="job.sh", gpus=2)),
        (
            "#!/bin/bash\n#SBATCH --gres=tmp:9G\n",
            ("--gpus", "2"),
            excerpt("cli.size_cpu.script_without_gpus", path="job.sh"),
        ),
        ("#!/bin/bash\n#SBATCH --gres=tmp:9G,gpu:2\n", (), excerpt("cli.size_cpu.profile_without_gpus", path="job.sh")),
        ("#!/bin/bash\n#SBATCH -n4\n", (), excerpt("cli.size_cpu.tasks_on_a_node", path="job.sh", tasks=4)),
    ],
)
def test_what_makes_the_lines_wrong_in_a_script_is_told(
    bft: Made, script: str, words: tuple[str, ...], said: str
) -> None:
    (bft.folder / "job.sh").write_text(script)
    assert said in bft.cpu(*words, "--into", "job.sh", "--yes", *COMMAND).out


def test_a_copy_that_is_there_is_refused_before_anything_runs(bft: Made) -> None:
    (bft.folder / "job.cpu.sh").write_text("mine")
    ended = bft.cpu("--into", "job.sh", "--yes", *COMMAND)
    assert (ended.code, hasattr(bft, "asked")) == (2, False)
    assert says(ended.err, "cli.size_script.target_exists", target="job.cpu.sh")
    assert bft.cpu("--into", "job.sh", "--yes", "--overwrite", *COMMAND).code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--cpus", "8-4"), excerpt("cli.size_cpu.cpus_malformed", text="8-4")),
        (("--cpus", "0,2"), "--cpus 0,2: a range"),
        (("--cpus", "two"), "--cpus two: a range"),
        (("--cpus", ","), "--cpus ,: a range"),
        (("--cpus", "1,\u00b2"), "--cpus 1,\u00b2: a range"),
        (("--cpus", "1_0"), "--cpus 1_0: a range"),
        (("--dataset-samples", "nan"), excerpt("sizing.cpu_profiling.samples_too_few", dataset_samples="nan")),
        (("--dataset-samples", "inf"), excerpt("sizing.cpu_profiling.samples_too_few", dataset_samples="inf")),
        (("--dataset-bytes", "lots"), excerpt("cli.size_cpu.bytes_malformed", text="lots")),
        (("--budget", "0"), "--budget 0: seconds, from 1"),
        (("--budget", "nan"), "--budget nan: seconds, from 1"),
        (("--warmup", "-1"), "--warmup -1: seconds, from 0"),
        (
            ("--seconds", "120"),
            wording("cli.size_cpu.seconds_out_of_range", name="seconds", seconds=120, least=0.5, timeout_s=120),
        ),
        (("--timeout", "0"), "--timeout 0: seconds, from 1"),
        (("--output", "x.sh"), excerpt("cli.size_cpu.output_without_script")),
        (("--into", "none.sh"), "none.sh: No such file"),
        (("--plot", "x.pdf"), wording("cli.size_cpu_plot.ending", name="x.pdf")),
        (("--plot", "no/x.svg"), "no such directory"),
    ],
)
def test_wrong_words_end_in_one_line_before_anything_runs(bft: Made, words: tuple[str, ...], said: str) -> None:
    ended = bft.cpu(*words, *COMMAND)
    assert (ended.code, hasattr(bft, "asked")) == (2, False)
    assert said in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_command_that_is_not_there_is_asked_for(bft: Made) -> None:
    ended = bft.cpu("--gpus", "1")
    assert ended.code == 2
    assert "-- COMMAND" in ended.err


@pytest.mark.parametrize(("text", "count"), [("150G", 150 * GIB), ("1.5TiB", 1.5 * 2**40), ("7", 7), ("3kb", 3072)])
def test_sizes_are_read_as_du_and_slurm_have_them(text: str, count: float) -> None:
    assert size_cpu.bytes_of(text) == count


def test_after_an_interruption_it_is_said_that_the_runs_are_kept(bft: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(ask: ProfileRequest, *, heard: object, done: Callable[[PointResult], None]) -> Profile:
        done(point(16, 800))
        raise KeyboardInterrupt

    monkeypatch.setattr(profiler, "profile", interrupted)
    ended = bft.cpu(*COMMAND)
    assert ended.code == 130
    assert says(ended.err, "cli.size_cpu.interrupted", kept="1 run is")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_who_sits_at_a_terminal_is_asked_before_a_long_profile(bft: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    bft.cost = ProfileCost(7, 100.0, 0, 3600.0)
    assert bft.cpu(*COMMAND).code == 0  # nobody there: not asked
    del bft.asked
    monkeypatch.setattr("sys.stdin", _Terminal("n\n"))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    ended = bft.cpu(*COMMAND)
    assert (ended.code, hasattr(bft, "asked")) == (130, False)
    assert bft.cpu("--yes", *COMMAND).code == 0


def test_regression_words_of_slurm_that_are_none_lost_the_profile_or_ended_in_a_traceback(
    bft: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    lies = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1-", "SLURM_GPUS_ON_NODE": "\u00b2", "PATH": ""}
    for name, value in lies.items():
        monkeypatch.setenv(name, value)
    ended = bft.cpu(*COMMAND)
    assert (ended.code, "#SBATCH --cpus-per-task=8" in ended.out) == (0, True)


@pytest.mark.plot
def test_a_plot_becomes_a_file_and_none_is_replaced_unasked(bft: Made) -> None:
    ended = bft.cpu("--plot", "cpus.svg", "--gpus", "2", "--dataset-bytes", "80G", *COMMAND)
    assert (ended.code, "wrote cpus.svg" in ended.out) == (0, True)
    text = (bft.folder / "cpus.svg").read_text()
    assert "<svg" in text
    assert "there already" in bft.cpu("--plot", "cpus.svg", *COMMAND).err
    assert (bft.folder / "cpus.svg").read_text() == text
    assert sorted(each.name for each in bft.folder.iterdir() if each.name.startswith(".")) == []


def test_without_matplotlib_one_line_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(BftError, match=pattern("cli.size_cpu_plot.no_matplotlib")):
        cpu_plot.refuse(str(tmp_path / "x.svg"), overwrite=False)


def test_json_and_a_copy_at_once_leave_json_alone_on_standard_output(bft: Made) -> None:
    ended = bft.cpu("--json", "--gpus", "2", "--into", "job.sh", "--yes", *COMMAND)
    json.loads(ended.out)
    assert "wrote job.cpu.sh" in ended.err
