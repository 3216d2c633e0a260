"""What changes slowly, as snapshots show it: read in turns, known late, and never worth a snapshot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurm_plugin.clients import slow_settings
from slurm_plugin.clients.slow_settings import LOAD, Background
from slurm_plugin.errors import SnapshotError
from slurm_plugin.read.types import NO_SCHEDULER, Job, JobRequest, Scheduler
from tests.slurm_plugin.pending import QUEUED

ASSETS = Path(__file__).parents[1] / "assets" / "22.05"
SITE = Path(__file__).parents[1] / "site" / "assets" / "22.05" / "recommended"
EVERYWHERE = ("--all", "--local")


class Slurm:
    """Answers as recorded, counts its requests, and fails for what it `refuses`."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.refuses: set[str] = set()
        self.partitions = ASSETS / "partitions.txt"
        self.columns = "JOBID{0}A{0}B{0}C{0}"
        self.wishes = "7{0}5:00{0}0{0}{0}\n"

    @classmethod
    def of_26_05(cls) -> Slurm:
        """Return one of 26.05, where only the wishes tell whether a job shares its nodes."""
        slurm = cls()
        slurm.partitions = ASSETS.with_name("26.05") / "partitions.txt"
        slurm.columns, slurm.wishes = "JOBID{0}A{0}B{0}C{0}EXCLUSIVE{0}", "7{0}0:00{0}0{0}{0}NODE{0}\n"
        return slurm

    def __call__(self, command: str, *arguments: str, timeout_s: float | None = None) -> str:
        what = arguments[1] if command == "scontrol" else command
        self.asked.append((what, *arguments))
        if what in self.refuses:
            raise SnapshotError(f"{what} refused")
        assert what == "reservation" or timeout_s == 2.0
        if what == "squeue":
            separator = arguments[0].partition("JobArrayID:0")[2].partition(",")[0]
            return f"{self.columns}\n{self.wishes}".format(separator)
        return {
            "reservation": ASSETS / "reservations.txt",
            "partition": self.partitions,
            "config": SITE / "config.txt",
            "sdiag": SITE / "sdiag.txt",
        }[what].read_text()

    @property
    def kinds(self) -> list[str]:
        return [what for what, *_ in self.asked]


def polled(slow: Background, polls: int, jobs: tuple[Job, ...] = (), from_s: float = 0.0) -> None:
    for poll in range(polls):
        if (turn := slow.turn(from_s + poll, jobs)) is not None:
            slow.read(turn, from_s + poll)


def test_four_polls_tell_all_that_is_known_of_a_site() -> None:
    slurm = Slurm()
    slow = Background(slurm, EVERYWHERE)
    assert (slow.partitions, slow.scheduler) == ({}, NO_SCHEDULER)
    polled(slow, 4)
    assert slurm.kinds == ["reservation", "config", "partition", "sdiag"]
    assert [one.name for one in slow.reservations] == ["repair"]
    assert {name: (one.priority_tier, one.exclusive) for name, one in slow.partitions.items()} == {
        "batch": (10, True),
        "elastic": (1, True),
        "bft-driver": (10, False),
    }
    assert slow.scheduler.read
    assert (slow.scheduler.cycle_s, slow.scheduler.cycled_s) == (133e-6, 1795315108.000133)


@pytest.mark.parametrize("what", ["config", "partition", "sdiag", "squeue"])
def test_what_cannot_be_read_fails_nothing_and_costs_nobody_else_a_turn(what: str) -> None:
    slurm = Slurm()
    slurm.refuses = {what}
    slow = Background(slurm, EVERYWHERE)
    polled(slow, 600, (QUEUED,))
    assert set(slurm.kinds) == {"reservation", "config", "partition", "sdiag", "squeue"}
    assert slow.scheduler.read is (what != "config")
    assert bool(slow.partitions) is (what != "partition")
    assert (slow.scheduler.cycle_s is None) is (what == "sdiag")


def test_a_controller_whose_parameters_cannot_be_read_leaves_slurms_defaults() -> None:
    slurm = Slurm()
    slurm.refuses = {"config", "sdiag"}
    slow = Background(slurm, EVERYWHERE)
    polled(slow, 10)
    assert slow.scheduler == NO_SCHEDULER


def test_what_was_read_holds_when_it_cannot_be_read_again_but_for_the_last_cycle() -> None:
    slurm = Slurm()
    slow = Background(slurm, EVERYWHERE)
    polled(slow, 4)
    slurm.refuses = {"config", "sdiag", "partition"}
    polled(slow, 1200, from_s=100.0)
    assert slow.partitions
    assert slow.scheduler.read
    assert (slow.scheduler.cycle_s, slow.scheduler.cycled_s) == (None, None)


def test_settings_read_again_leave_what_is_known_of_the_last_cycle() -> None:
    slurm = Slurm()
    slow = Background(slurm, EVERYWHERE)
    polled(slow, 4)
    for poll in range(4, 1500):
        polled(slow, 1, from_s=poll)
        assert slow.scheduler.cycle_s == 133e-6
    assert slurm.kinds.count("config") == 3


def test_reservations_that_cannot_be_read_are_an_error_and_tried_again_at_once() -> None:
    slurm = Slurm()
    slow = Background(slurm, EVERYWHERE)
    slurm.refuses = {"reservation"}
    for _ in range(2):
        turn = slow.turn(0.0)
        assert turn == slow_settings.RESERVATIONS
        with pytest.raises(SnapshotError):
            slow.read(turn, 0.0)


def test_wishes_are_granted_to_the_jobs_that_have_them_and_to_no_other() -> None:
    slurm = Slurm()
    slow = Background(slurm, EVERYWHERE)
    jobs = (QUEUED, replace(QUEUED, id="8"), replace(QUEUED, id="7_1", state="RUNNING"))
    assert slow.granted(jobs) is jobs
    polled(slow, 400, jobs)
    first, *others = slow.granted(jobs)
    assert first == replace(QUEUED, request=JobRequest(least_s=300.0))
    assert others == list(jobs[1:])
    assert slow.granted(jobs)[0] is first  # nothing changed, and nothing is made again


def test_a_job_that_was_not_asked_yet_shares_its_nodes_where_only_the_asked_tell() -> None:
    slurm = Slurm.of_26_05()
    slow = Background(slurm, EVERYWHERE)
    polled(slow, 4)
    assert not slow.granted((QUEUED,))[0].request.exclusive
    polled(slow, 240, (QUEUED,), from_s=4.0)
    assert "squeue" in slurm.kinds
    assert slow.granted((QUEUED,))[0].request.exclusive


def test_jobs_that_come_all_the_time_leave_the_load_its_turns() -> None:
    slurm = Slurm.of_26_05()
    slow = Background(slurm, EVERYWHERE)
    for poll in range(3000):
        polled(slow, 1, (replace(QUEUED, id=str(1000 + poll)),), from_s=poll)
    assert slurm.kinds.count("squeue") >= 12
    assert slurm.kinds.count("sdiag") >= 45


def test_a_job_that_changed_is_granted_its_wish_anew() -> None:
    slow = Background(Slurm(), EVERYWHERE)
    polled(slow, 400, (QUEUED,))
    slow.granted((QUEUED,))
    (job,) = slow.granted((replace(QUEUED, priority=9),))
    assert (job.priority, job.request.least_s) == (9, 300.0)


def test_wishes_are_asked_for_only_while_a_job_waits_that_was_not_looked_at() -> None:
    slurm = Slurm()
    slow = Background(slurm, EVERYWHERE)
    polled(slow, 1000)
    polled(slow, 1000, (replace(QUEUED, state="RUNNING"),), from_s=1000.0)
    assert slurm.kinds.count("squeue") == 0
    polled(slow, 1000, (QUEUED,), from_s=2000.0)
    assert slurm.kinds.count("squeue") == 1
    polled(slow, 1000, (QUEUED, replace(QUEUED, id="9")), from_s=3000.0)
    assert slurm.kinds.count("squeue") > 1  # it is not in the answer, and looked for again


def test_sdiag_is_asked_right_after_the_cycle_that_was_due_and_not_before() -> None:
    now_s = 1000.0
    slow = Background(Slurm(), EVERYWHERE, clock=lambda: now_s)
    asked_s = []
    for _ in range(600):
        known = slow.scheduler
        if (turn := slow.turn(now_s)) is not None:
            slow.read(turn, now_s)
        if turn == LOAD:
            asked_s.append((now_s, known.due_s))
            # the last cycle began when this one was due
            slow.scheduler = replace(slow.scheduler, cycle_s=0.1, cycled_s=now_s - 1.0)
        now_s += 1.0
    late_s = [at_s - due_s for at_s, due_s in asked_s if due_s is not None]
    assert len(late_s) >= 10
    assert min(late_s) >= 1.0, "before it nothing new could be told"
    assert sorted(late_s)[len(late_s) // 2] <= 2.0


def test_a_cycle_that_is_due_in_hours_by_a_clock_that_was_set_keeps_nobody_from_asking() -> None:
    slow = Background(Slurm(), EVERYWHERE, clock=lambda: 1000.0)
    slow.scheduler = Scheduler(True, cycle_s=0.1, cycled_s=8200.0)
    polled(slow, 4)
    assert slow.scheduler.cycled_s != 8200.0
