"""A profile: which points are run, what the cache and the budget do to it, and what comes of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sizing.base.errors import UsageError
from sizing.base.estimate import Estimate
from sizing.cpu import profiler
from sizing.cpu.profiler import ProfileRequest, cost, profile
from sizing.cpu.runs import affinity
from sizing.cpu.runs.measurement import Heard, ObservationLimits, PointResult, Runner, Unmeasured
from tests.sizing.cpu.commands import command
from tests.support.messages import pattern, says
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
QUICK = ObservationLimits(timeout_s=20, warmup_s=0.2, least_steps=10, least_s=0.3, enough_s=2)
STEP = r"step (?P<step>\d+)"
TRAIN = command("train", 600)


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr("sizing.cpu.runs.measurement._GRACE_S", 0.3)


class Clock:
    """Seconds that pass only when a point is measured."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return time.time()


Rates = Callable[[int, int], tuple[float, float]]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Rates], list[int]]:
    """A machine of so many CPUs, where points are made of rates (value and half width, by CPUs and how often)."""

    def made(cpus: int, rates: Rates) -> list[int]:
        clock, ran = Clock(), []
        found = affinity.confinement

        def measure(self: Runner, at: int, heard: Heard | None = None, most_s: float = 0.0) -> PointResult:
            clock.now_s += 10
            value, half = rates(at, ran.count(at))
            ran.append(at)
            if not value:
                raise Unmeasured("nothing", timed_out=True)
            blocks = tuple(value + half * (each - 2) / 2 for each in range(5))
            rate = Estimate(value, value - half, value + half, "measured")
            return PointResult(
                at, rate, "samples/s", blocks, 50, 5.0, 10.0, 2.0, "affinity", time.time(), at * 10**8, at * 1e6
            )

        monkeypatch.setattr(profiler, "time", clock)
        monkeypatch.setattr(Runner, "measure", measure)
        monkeypatch.setattr(
            affinity,
            "confinement",
            lambda *words: replace(found(*words), host=affinity.ProfilingHost("n", cpus, "EPYC", (), 64 * 10**9)),
        )
        return ran

    return made


def saturating(at: int, knee: int, half: float = 0.01) -> tuple[float, float]:
    return 100.0 * min(at, knee), half * 100 * min(at, knee)


def test_few_points_are_run_and_the_knee_is_found(machine: Callable[[int, Rates], list[int]]) -> None:
    ran = machine(32, lambda at, _: saturating(at, 12))
    found = profile(ProfileRequest(TRAIN))
    assert ran[0] == 32
    assert len(ran) <= 7
    assert found.matrix.demand().cpus == 12
    assert list(found.points) == ran
    assert found.matrix.memory_bytes == (32 * 10**8,)
    assert not found.memory_modelled
    assert found.left_out == ()


def test_cpus_are_shared_evenly_by_gpus(machine: Callable[[int, Rates], list[int]]) -> None:
    ran = machine(32, lambda at, _: saturating(at, 12))
    found = profile(ProfileRequest(TRAIN, gpus=4))
    assert all(at % 4 == 0 for at in ran)
    assert found.matrix.gpus == 4
    assert found.matrix.demand().cpus == 3


def test_a_second_profile_runs_nothing_and_says_how_old_the_first_is(
    machine: Callable[[int, Rates], list[int]],
) -> None:
    ran = machine(16, lambda at, _: saturating(at, 4))
    first, before = profile(ProfileRequest(TRAIN)), len(ran)
    assert cost(ProfileRequest(TRAIN)).points == 0
    second = profile(ProfileRequest(TRAIN))
    assert len(ran) == before
    assert second.matrix == first.matrix
    assert set(second.ages_s) == set(first.points)
    profile(ProfileRequest(TRAIN, again=True))
    assert len(ran) == 2 * before


def test_the_budget_bounds_it_and_the_same_command_goes_on_from_there(
    machine: Callable[[int, Rates], list[int]],
) -> None:
    ran = machine(32, lambda at, _: saturating(at, 12))
    found = profile(ProfileRequest(TRAIN, budget_s=35))
    assert len(ran) == 3
    assert found.took_s <= 35
    assert len(found.left_out) == 1
    assert found.matrix.demand().cpus >= 12  # what is not known asks for no less
    said = cost(ProfileRequest(TRAIN))
    assert said.known == 3
    assert said.points >= 1
    assert said.point_s == 10
    whole = profile(ProfileRequest(TRAIN))
    assert whole.matrix.demand().cpus == 12
    assert len(ran) == len(set(ran))


def test_a_budget_for_one_point_says_that_it_says_nothing(machine: Callable[[int, Rates], list[int]]) -> None:
    ran = machine(32, lambda at, _: saturating(at, 12))
    found = profile(ProfileRequest(TRAIN, budget_s=12))
    assert ran == [32]
    assert found.matrix.demand().cpus == 32
    assert any(says(said, "sizing.cpu_profiling.one_point") for said in found.said)


def test_regression_a_budget_that_was_over_before_the_first_point_ended_in_a_traceback(
    machine: Callable[[int, Rates], list[int]],
) -> None:
    ran = machine(32, lambda at, _: saturating(at, 12))
    with pytest.raises(Unmeasured, match=pattern("sizing.cpu_profiling.budget_too_short", budget_s=0.5)):
        profile(ProfileRequest(TRAIN, budget_s=0.5))
    assert ran == []


def test_regression_counting_the_files_of_a_data_set_took_longer_than_the_budget(
    machine: Callable[[int, Rates], list[int]], tmp_path: Path
) -> None:
    machine(8, lambda at, _: saturating(at, 8))
    for name in ("a", "b"):
        (tmp_path / name).write_text("1")
    with pytest.raises(UsageError, match=pattern("sizing.cpu_profiling.not_counted", most_s="1e-09")):
        profile(ProfileRequest(TRAIN, budget_s=1e-9, data=(tmp_path,)))


def test_a_point_is_measured_again_where_its_noise_leaves_the_decision_open(
    machine: Callable[[int, Rates], list[int]],
) -> None:
    ran = machine(8, lambda at, again: (1000.0, 10.0) if at == 8 else (910.0, 90.0))
    found = profile(ProfileRequest(TRAIN))
    assert ran[:3] == [8, 4, 4]
    assert "measured twice" in found.points[4].notes
    assert len(found.points[4].blocks) == 10


def test_of_two_measurements_that_do_not_agree_the_faster_one_counts(
    machine: Callable[[int, Rates], list[int]],
) -> None:
    """What else runs on a machine makes a command slower and never faster."""
    machine(8, lambda at, again: (1000.0, 1.0) if at == 8 else (910.0, 90.0) if again == 0 else (1090.0, 20.0))
    point = profile(ProfileRequest(TRAIN)).points[4]
    assert point.rate.value == 1090
    assert any(says(note, "sizing.cpu_profiling.slower_again", value="17%") for note in point.notes)


@pytest.mark.parametrize("half", [10.0, 0.0])
def test_a_point_is_not_measured_again_where_nothing_is_open(
    machine: Callable[[int, Rates], list[int]], half: float
) -> None:
    ran = machine(8, lambda at, _: (1000.0, half) if at == 8 else (500.0, 50.0))
    profile(ProfileRequest(TRAIN))
    assert len(ran) == len(set(ran))


def test_cpus_with_which_it_does_not_get_going_count_as_too_few(machine: Callable[[int, Rates], list[int]]) -> None:
    machine(8, lambda at, _: (0.0, 0.0) if at < 3 else (1000.0, 1.0))
    found = profile(ProfileRequest(TRAIN))
    assert found.matrix.demand().cpus in (3, 4)
    assert any("as too few" in said for said in found.said)


def test_regression_the_file_of_a_run_that_nobody_was_told_of_stayed(
    machine: Callable[[int, Rates], list[int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The run in which a budget was over; in an allocation its file lies in the user's folder."""
    machine(8, lambda at, _: saturating(at, 8))
    whole, file = Runner.measure, tmp_path / "bft-cpu.log"

    def measure(self: Runner, at: int, heard: Heard | None = None, most_s: float = 0.0) -> PointResult:
        if at == 8:
            return whole(self, at, heard, most_s)
        file.write_text("step 1")
        raise Unmeasured("nothing", str(file), timed_out=True)

    monkeypatch.setattr(Runner, "measure", measure)
    assert profile(ProfileRequest(TRAIN, budget_s=100)).left_out
    assert not file.exists()


def test_no_throughput_at_all_is_an_error(machine: Callable[[int, Rates], list[int]]) -> None:
    machine(8, lambda at, _: (0.0, 0.0))
    with pytest.raises(Unmeasured):
        profile(ProfileRequest(TRAIN))


def test_memory_that_pays_is_worked_out_of_what_was_read(
    machine: Callable[[int, Rates], list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sizing.cpu import bandwidth

    machine(8, lambda at, _: saturating(at, 8))  # 800 samples/s, 8 MB/s: 10 kB a sample
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "part").write_bytes(b"x" * 1000)
    monkeypatch.setattr(bandwidth, "disk", lambda files: bandwidth.Bandwidth(4e6, 1, 1.0, "direct"))
    found = profile(ProfileRequest(TRAIN, data=(tmp_path / "data",), dataset_bytes=10e9))
    assert found.memory_modelled
    assert found.matrix.rates[-1][0] == pytest.approx(400)  # from the disk alone
    assert found.matrix.rates[-1][-1] == pytest.approx(800)
    assert found.matrix.demand().memory_bytes == pytest.approx(8 * 10**8 + 5e9, rel=0.05)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        ({"cpus": (1, 10**4)}, "from 1 to 4096"),
        ({"cpus": (0,)}, "from 1"),
        ({"cpus": (4000,)}, pattern("sizing.cpu_points.more_than_here", cpus=4000)),
        ({"budget_s": 0.0}, "--budget"),
        ({"gpus": -1}, "--gpus"),
        ({"data": (Path("/no/such/data"),)}, "/no/such/data"),
        ({"command": ("srun", "x")}, "srun would start"),
        ({"regex": "x"}, "no named group"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_runs(ask: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        profile(ProfileRequest(**{"command": TRAIN, **ask}))  # type: ignore[arg-type]


def test_a_real_command_is_profiled() -> None:
    done: list[PointResult] = []
    found = profile(ProfileRequest(TRAIN, regex=STEP, limits=QUICK, cpus=(1,)), done=done.append)
    assert list(found.points) == [1]
    assert done == list(found.points.values())
    assert found.kind == "affinity"
    assert found.available == len(os.sched_getaffinity(0))
    assert found.matrix.rates[0][0] == found.points[1].rate.value


def test_a_profile_that_is_killed_is_resumed(tmp_path: Path) -> None:
    """The first point is in the cache when the second one runs."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two CPUs are needed")
    code = (
        "from sizing.cpu.profiler import *; import pathlib, sys; "
        f"profile(ProfileRequest({TRAIN!r}, regex={STEP!r}, cpus=(1, 2), limits={QUICK!r}), "
        "heard=lambda at: at.cpus == 1 and pathlib.Path(sys.argv[1]).touch())"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    for number in (signal.SIGKILL, signal.SIGINT):
        mark = tmp_path / f"second-{number}"
        us = subprocess.Popen([sys.executable, "-c", code, str(mark)], cwd=tmp_path, env=env, stderr=subprocess.DEVNULL)
        over_s = time.monotonic() + STILL_S
        while not mark.exists() and time.monotonic() < over_s:
            time.sleep(0.01)
        us.send_signal(number)
        us.wait(STILL_S)
        assert mark.exists()
    said = subprocess.run(
        [sys.executable, "-c", code.replace("profile(", "print(cost(").split(", heard")[0] + "))", str(mark)],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "known=1" in said


def test_regression_a_first_point_whose_data_were_not_in_memory_yet_does_not_hide_what_cpus_bring(
    machine: Callable[[int, Rates], list[int]],
) -> None:
    ran = machine(24, lambda at, before: (1100.0, 5.0) if at == 24 and not before else (100.0 * at, 5.0))
    found = profile(ProfileRequest(TRAIN))
    assert ran[:3] == [24, 12, 24]
    assert found.matrix.demand().cpus == 24
    assert found.points[24].rate.value == 2400.0
    assert "measured twice" in found.points[24].notes


def test_a_point_that_is_really_slower_with_more_cpus_is_measured_twice_and_no_more(
    machine: Callable[[int, Rates], list[int]],
) -> None:
    ran = machine(16, lambda at, _: (100.0 * (min(at, 8) - (at > 12)), 1.0))
    found = profile(ProfileRequest(TRAIN))
    assert ran.count(16) == 2
    assert found.matrix.demand().cpus == 8
