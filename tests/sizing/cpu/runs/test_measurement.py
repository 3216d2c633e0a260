"""A real command, confined, measured and ended: what it has, what comes of it, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sizing.base.errors import UsageError
from sizing.cpu.runs.measurement import ObservationLimits, PointProgress, PointResult, Runner, Unmeasured
from tests.sizing.cpu.commands import alive, command
from tests.support.messages import fragment, pattern, says, wording
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow

QUICK = ObservationLimits(timeout_s=20, warmup_s=0.2, least_steps=10, least_s=0.3, enough_s=2)
STEP = r"step (?P<step>\d+)"
ALL = len(os.sched_getaffinity(0))
ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of commands that die go where the test ends."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr("sizing.cpu.runs.measurement._GRACE_S", 0.3)
    for name in ("SLURM_JOB_ID", "SLURM_CPUS_PER_TASK", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


def measured(*words: object, cpus: int = 1, regex: str | None = STEP, limits: ObservationLimits = QUICK) -> PointResult:
    return Runner(command(*words), regex=regex, limits=limits).measure(cpus)


def complaint(*words: object, regex: str | None = STEP, limits: ObservationLimits = QUICK) -> str:
    with pytest.raises((Unmeasured, UsageError)) as error:
        measured(*words, regex=regex, limits=limits)
    assert "\n" not in str(error.value)
    return str(error.value)


def gone(pid: int) -> bool:
    """Whether a process ends within a moment."""
    over_s = time.monotonic() + STILL_S
    while alive(pid) and time.monotonic() < over_s:
        time.sleep(0.02)
    return not alive(pid)


def test_a_command_is_measured_and_its_progress_heard() -> None:
    began_s, heard = time.time(), list[PointProgress]()
    point = Runner(command("train", 600), regex=STEP, limits=QUICK).measure(1, heard.append)
    assert point.cpus == 1
    assert point.unit == "steps/s"
    assert point.rate.low <= point.rate.value <= point.rate.high
    assert 0 < point.rate.value <= 101  # it rests for 10 ms a step, and longer on a busy machine
    assert point.rate.origin == "measured"
    assert point.steps >= 10
    assert 0.3 <= point.steady_s <= point.took_s
    assert point.process_bytes > 2**20
    assert began_s <= point.made_s <= time.time()
    assert {each.phase for each in heard} >= {"warming up", "measuring"}
    assert heard[-1].elapsed_s > 0


def test_regression_memory_that_a_run_took_shortly_before_we_ended_it_counts() -> None:
    """Its guard looks once a second, and when it ends the run."""
    assert measured("grows", 0.4, 50 * 2**20).process_bytes > 50 * 2**20


def test_the_command_and_what_it_starts_have_so_many_cpus_and_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROFILE_TEST", "kept")
    measured("where", tmp_path / "where")
    has = str(sorted(os.sched_getaffinity(0))[:1])
    assert (tmp_path / "where").read_text() == f"{has} {has} 1 None kept None"


@pytest.mark.parametrize(("threads", "told"), [("8", "1"), ("3", "3")])
def test_threads_of_openmp_follow_only_where_they_were_as_many_as_slurm_gave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: str, told: str
) -> None:
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "8")
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    measured("where", tmp_path / "where")
    assert (tmp_path / "where").read_text().split()[2:4] == ["1", told]


def test_nothing_is_left_of_a_command_that_daemonizes_and_ignores_signals(tmp_path: Path) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    measured("leaves", *files)
    pids = [int(file.read_text()) for file in files]
    assert not any(map(alive, pids))


def test_nothing_is_left_when_we_are_killed(tmp_path: Path) -> None:
    code = (
        "import sys; from sizing.cpu.runs.measurement import Runner; "
        f"Runner({command('leaves', tmp_path / 'a')!r}, regex={STEP!r}).measure(1)"
    )
    us = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    try:
        over_s = time.monotonic() + STILL_S
        while not (tmp_path / "a").exists() and time.monotonic() < over_s:
            time.sleep(0.02)
        time.sleep(0.1)
        pid = int((tmp_path / "a").read_text())
        assert alive(pid)
    finally:
        us.kill()
        us.wait()
    assert gone(pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_regression_a_run_that_slurm_ended_counted_as_too_slow(tmp_path: Path, number: signal.Signals) -> None:
    """Nothing is left where its guard is killed, by the kernel for memory, or told to end, with its allocation."""

    def heard(at: PointProgress) -> None:
        if at.phase == "measuring" or at.elapsed_s > 3:
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    words = (process / "cmdline").read_bytes()
                    environ = (process / "environ").read_bytes()
                except OSError:
                    continue
                if b"supervisor.py" in words and str(tmp_path).encode() in environ:
                    os.kill(int(process.name), number)

    limits = ObservationLimits(timeout_s=20, warmup_s=0.2, least_steps=10**6, least_s=15)
    with pytest.raises(Unmeasured, match="was ended") as error:
        Runner(command("leaves", tmp_path / "a"), regex=STEP, limits=limits).measure(1, heard)
    assert not error.value.timed_out
    assert not list(tmp_path.glob("bft-cpu-*.log"))  # of which it does not speak
    assert gone(int((tmp_path / "a").read_text()))


def test_ctrl_c_ends_the_command(tmp_path: Path) -> None:
    def heard(at: PointProgress) -> None:
        if (tmp_path / "a").exists() and (tmp_path / "a").read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Runner(command("leaves", tmp_path / "a"), regex=STEP, limits=ObservationLimits(timeout_s=20)).measure(1, heard)
    assert not alive(int((tmp_path / "a").read_text()))
    assert not list(tmp_path.glob("bft-cpu-*"))


def test_of_a_command_that_went_well_no_file_stays(tmp_path: Path) -> None:
    measured("train", 600)
    assert not list(tmp_path.glob("bft-cpu-*"))


def test_a_command_that_dies_says_how_its_last_line_and_where_the_rest_is(tmp_path: Path) -> None:
    said = complaint("dies")
    assert "ended with 7 on 1 CPU" in said
    assert says(said, "sizing.cpu_watching.last_line", last="KeyError: 'no such layer'")
    (log,) = tmp_path.glob("bft-cpu-*.log")
    assert str(log) in said
    assert "all is well" in log.read_text()


def test_a_command_that_is_killed_says_by_what(tmp_path: Path) -> None:
    said = _of("import os; print('hm', flush=True); os.kill(os.getpid(), 9)")
    assert says(said, "sizing.cpu_watching.killed", code="9" + wording("sizing.cpu_watching.enough_memory"))


def test_a_command_that_ends_too_soon_says_what_to_do() -> None:
    assert says(complaint("train", 0.2), "sizing.cpu_watching.ended_early", trained_s=0.2)
    assert says(complaint("train", 0.2), "sizing.cpu_watching.ended_early")


@pytest.mark.parametrize("program", ["print('hm')", "pass"])
def test_regression_a_command_that_had_ended_was_to_be_given_more_time(program: str) -> None:
    said = _of(program)
    assert "before it ended" in said
    assert "--timeout" not in said


def test_a_command_that_ends_after_a_while_is_measured_over_what_there_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sizing.cpu.runs.steady_state._SHORT_S", 0.8)
    point = measured("train", 1.2, limits=ObservationLimits(timeout_s=20, warmup_s=5, least_s=5))
    assert 1 < point.rate.value <= 101
    assert point.steady_s < 5


def test_output_without_progress_says_its_last_line_and_what_to_do() -> None:
    said = complaint("shouts", limits=ObservationLimits(timeout_s=1))
    assert says(
        said,
        "sizing.cpu_watching.no_throughput",
        when="within 1 s",
        on="1 CPU",
        wanted=wording("sizing.cpu_watching.no_line_fits"),
        last=wording("sizing.cpu_watching.last_line", last="no progress here"),
        do="another --regex",
    )
    said = complaint("shouts", regex=None, limits=ObservationLimits(timeout_s=1))
    assert says(
        said,
        "sizing.cpu_watching.no_throughput",
        wanted=wording("sizing.cpu_watching.no_step_called"),
        do=wording("sizing.cpu_watching.regex_for_lines"),
    )


def test_no_output_at_all_says_so() -> None:
    assert "nothing was printed within 1 s" in complaint("stays", os.devnull, limits=ObservationLimits(timeout_s=1))


def test_steps_too_slow_for_a_rate_say_so() -> None:
    said = complaint("train", 600, 0.9, limits=ObservationLimits(timeout_s=2.5))
    assert says(said, "sizing.cpu_watching.too_few_signs", on=fragment("1 CPU"))
    assert "a longer --timeout" in said


def test_an_expression_that_never_ends_ends_the_run() -> None:
    said = _of("print('step ' + 'a' * 60, flush=True); import time; time.sleep(600)", r"(a+)+(?P<step>\d)")
    assert "takes too long" in said


def test_a_progress_bar_is_read_though_its_line_never_ends() -> None:
    point = measured("bar", regex=r"(?P<samples>\d+) of 100")
    assert 1 < point.rate.value <= 101
    assert point.unit == "samples/s"


def test_the_progress_api_tells_samples() -> None:
    point = measured("api", regex=None)
    assert point.unit == "samples/s"
    assert 4 < point.rate.value <= 4000
    assert point.steps == pytest.approx(point.rate.value / 8 * point.steady_s, rel=0.5)  # it tells only some of them


def test_memory_that_processes_share_counts_once() -> None:
    point = measured("memory", 200_000_000, limits=ObservationLimits(timeout_s=20, warmup_s=0.5, least_s=1.5))
    assert 200_000_000 <= point.process_bytes < 300_000_000


def test_what_it_reads_is_counted(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x" * 1_000_000)
    point = measured("reads", tmp_path / "data", limits=ObservationLimits(timeout_s=20, warmup_s=0.2, least_s=2.5))
    assert point.read_bytes_s == pytest.approx(point.rate.value * 1_000_000, rel=0.3)


def test_what_others_take_of_its_cpus_is_told() -> None:
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile True: pass"
    other = subprocess.Popen([sys.executable, "-c", code])
    try:
        point = measured("train", 600, limits=ObservationLimits(timeout_s=20, warmup_s=0.2, least_s=2.5))
    finally:
        other.kill()
        other.wait()
    assert point.others > 0.3
    assert any(says(note, "sizing.cpu_watching.others_took") for note in point.notes)


def test_more_cpus_than_there_are_is_one_line_with_what_to_do() -> None:
    more = pattern("sizing.cpu_points.more_than_here", cpus=ALL + 1, there=ALL, there2=ALL)
    with pytest.raises(UsageError, match=more):
        measured("train", 1, cpus=ALL + 1)


@pytest.mark.parametrize("words", [("/no/such/program",), ("/etc/passwd",), ("no-such-program-at-all",)])
def test_a_command_that_cannot_be_started_says_why(tmp_path: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=pattern("sizing.cpu_watching.not_started")):
        Runner(words, regex=STEP, limits=QUICK).measure(1)
    assert not list(tmp_path.glob("bft-cpu-*"))


@pytest.mark.parametrize("words", [(), ("",), ("srun", "python"), ("/usr/bin/mpirun",), ("a\0b",)])
def test_a_command_that_cannot_be_confined_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        Runner(words, regex=STEP)


def test_no_allocation_is_no_step() -> None:
    with pytest.raises(UsageError, match="no allocation"):
        Runner(command("train", 1), regex=STEP, how="srun")


def _of(code: str, regex: str = STEP) -> str:
    with pytest.raises((Unmeasured, UsageError)) as error:
        Runner((sys.executable, "-c", code), regex=regex, limits=QUICK).measure(1)
    return str(error.value)
