"""One look for all who ask at once: it counts for nobody who asked after it began."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from slurm_plugin.clients.client import CommandResult, SlurmClient
from slurm_plugin.errors import CommandError, NoAnswer, SnapshotError
from slurm_plugin.pilots.pending_reasons import Rules
from slurm_plugin.read.types import Job, Partition
from slurm_plugin.submission import submission
from slurm_plugin.submission.shared_queries import SharedQuery
from slurm_plugin.submission.submission import Leftover, PilotLauncher, PilotRequest, Placed, Refused
from tests.slurm_plugin.pending import NOW_S, queued
from tests.support.programs import shell_script
from tests.support.waiting import STILL_S, until

RULES = Rules(min_window_s=20.0, looked_s=NOW_S - 2)


class Gate:
    """A look that is over when the test says so, and shows the number of the look."""

    def __init__(self) -> None:
        self.looks = 0
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.failing = False

    def look(self) -> int:
        self.looks += 1
        number = self.looks
        self.begun.release()
        assert self.go_on.acquire(timeout=STILL_S)
        if self.failing:
            raise SnapshotError(f"look {number} failed")
        return number


def in_threads(times: int, ask: Callable[[], object]) -> tuple[ThreadPoolExecutor, list]:
    pool = ThreadPoolExecutor(times)
    return pool, [pool.submit(ask) for _ in range(times)]


def test_who_asks_while_a_look_is_under_way_gets_the_next_one_and_all_of_them_the_same() -> None:
    gate = Gate()
    shared = SharedQuery(gate.look)
    first_pool, [first] = in_threads(1, shared.fresh)
    assert gate.begun.acquire(timeout=STILL_S)
    pool, later = in_threads(20, shared.fresh)
    until("all ask", lambda: shared._asking == 21)
    gate.go_on.release()
    assert first.result(STILL_S) == 1
    assert gate.begun.acquire(timeout=STILL_S)
    assert not any(answer.done() for answer in later), "the look that was under way is not theirs"
    gate.go_on.release()
    assert [answer.result(STILL_S) for answer in later] == [2] * 20
    assert gate.looks == 2
    first_pool.shutdown()
    pool.shutdown()


def test_a_look_that_fails_fails_for_all_whom_it_was_for_and_the_next_one_is_new() -> None:
    gate = Gate()
    gate.failing = True
    shared = SharedQuery(gate.look)
    pool, asked = in_threads(3, shared.fresh)
    gate.go_on.release(3)
    for answer in asked:
        with pytest.raises(SnapshotError):
            answer.result(STILL_S)
    gate.failing = False
    gate.go_on.release(3)
    before = gate.looks
    assert shared.fresh() == before + 1
    pool.shutdown()


def test_who_asks_alone_does_not_wait_for_others_to_join(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    shared = SharedQuery(lambda: 0, apart_s=100.0)
    for _ in range(3):
        shared.fresh()
    assert slept == []


class Site(SlurmClient):
    """A controller that grants every node, counts what it is asked, and may be overtaken by a regular job."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.pending_jobs: tuple[Job, ...] = ()
        self.ended: list[str] = []
        self.looks: list[float] = []
        self.grants: dict[str, float] = {}
        self.at_once = 0
        self.most_at_once = 0
        self._lock = threading.Lock()

    def pending(self) -> tuple[Job, ...]:
        with self._lock:
            self.calls.append("squeue")
            self.looks.append(time.monotonic())
            jobs = self.pending_jobs
        time.sleep(0.02)
        return jobs

    def partitions(self) -> dict[str, Partition]:
        self.calls.append("partitions")
        return {"batch": Partition("batch", tuple(f"n{number}" for number in range(256)), "UP", None)}

    def run(self, command: str, *arguments: str, **_: object) -> CommandResult:  # type: ignore[override]
        assert command == "salloc"
        node = next(word for word in arguments if word.startswith("--nodelist=")).partition("=")[2]
        with self._lock:
            self.calls.append("salloc")
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        time.sleep(0.005)
        with self._lock:
            self.at_once -= 1
            self.grants[node] = time.monotonic()
        return CommandResult(0, "", f"salloc: Granted job allocation {1000 + int(node[1:])}\n")

    def cancel(self, job_ids, signal=None) -> None:  # type: ignore[no-untyped-def]
        with self._lock:
            self.ended += job_ids


def request(node: str) -> PilotRequest:
    return PilotRequest(node, "elastic", 600.0, "pilot", f"lease {node}.1")


def place_all(launcher: PilotLauncher, nodes: list[str]) -> list[Placed | Refused]:
    with ThreadPoolExecutor(len(nodes)) as pool:
        return list(pool.map(lambda node: launcher.place(request(node)), nodes))


def test_regression_hundreds_of_pilots_placed_at_once_asked_for_the_whole_queue_twice_each() -> None:
    site = Site()
    outcomes = place_all(PilotLauncher(site, RULES), [f"n{number}" for number in range(256)])
    assert all(isinstance(outcome, Placed) for outcome in outcomes)
    assert site.calls.count("salloc") == 256
    assert site.calls.count("squeue") <= 12, "it were 512"
    assert site.calls.count("partitions") == 1, "they are read once, not by each that finds them missing"
    assert site.most_at_once <= submission._AT_ONCE
    last_look_s = max(site.looks)
    assert max(site.grants.values()) < last_look_s, "a look after the last grant"


def test_placings_that_wait_for_a_controller_that_hangs_wait_together_and_not_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site, tries = Site(), 0
    launcher = PilotLauncher(site, RULES)
    monkeypatch.setattr(launcher, "_turns", threading.BoundedSemaphore(64))
    looks = launcher._partitions

    def partitions() -> dict[str, Partition]:
        nonlocal tries
        tries += 1
        if tries == 1:  # it hangs until the others wait for it
            until("all ask for the partitions", lambda: looks._asking == 64)
        raise SnapshotError("scontrol gave no answer for 5 s: is slurmctld up?")

    monkeypatch.setattr(site, "partitions", partitions)
    outcomes = place_all(launcher, [f"n{number}" for number in range(64)])
    assert all(isinstance(outcome, Refused) for outcome in outcomes)
    assert tries <= 2


def test_S1b_of_pilots_that_share_a_look_each_is_withdrawn_that_a_job_overtook_after_its_grant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site()
    monkeypatch.setattr(submission, "_LOOKS_APART_S", 0.05)
    launcher = PilotLauncher(site, RULES, clock=lambda: NOW_S)
    granted = site.run

    def overtaken(command: str, *arguments: str, **fields: object) -> CommandResult:
        answer = granted(command, *arguments, **fields)
        # Just as Slurm grants n7, it plans a regular job there: only a look that begins later shows it.
        if "--nodelist=n7" in arguments:
            site.pending_jobs = (queued(sched_nodes=("n7",), start_s=NOW_S + 1, submit_s=RULES.looked_s - 1),)
        return answer

    monkeypatch.setattr(site, "run", overtaken)
    outcomes = dict(zip(range(40), place_all(launcher, [f"n{number}" for number in range(40)]), strict=True))
    assert isinstance(outcomes.pop(7), Refused)
    assert site.ended == ["1007"]
    assert all(isinstance(outcome, Placed) for outcome in outcomes.values())


def test_regression_a_pilot_that_could_not_be_withdrawn_was_left_holding_its_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site, away = Site(), True
    launcher = PilotLauncher(site, RULES)
    answers = iter([None, "job 7 is planned on n1 in 1 s"])
    monkeypatch.setattr(launcher, "_objection", lambda _: next(answers))
    ended = site.cancel

    def cancel(job_ids: list[str], signal: str | None = None) -> None:
        if away:
            raise CommandError("scancel failed: Unable to contact slurm controller")
        ended(job_ids, signal)

    monkeypatch.setattr(site, "cancel", cancel)
    outcome = launcher.place(request("n1"))
    assert outcome == Refused("withdrawn: job 7 is planned on n1 in 1 s", Leftover(request("n1"), "1001"))
    away = False
    assert isinstance(outcome, Refused)
    assert outcome.leftover
    launcher.clear(outcome.leftover)
    assert site.ended == ["1001"]


def test_regression_a_request_without_an_answer_was_looked_after_only_if_squeue_answered_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site, squeue_is_away = Site(), True

    def hang(*_: object, **__: object) -> CommandResult:
        raise NoAnswer("salloc gave no answer for 5 s: is slurmctld up?")

    def own_jobs(name: str, partition: str) -> tuple[Job, ...]:
        if squeue_is_away:
            raise SnapshotError("squeue gave no answer for 5 s: is slurmctld up?")
        return (
            queued(id="5", comment="lease n1.1", nodes=("n1",)),
            queued(id="6", comment="lease n2.1", nodes=("n2",)),
            queued(id="7", comment="lease n1.1", nodes=()),
        )

    monkeypatch.setattr(site, "run", hang)
    monkeypatch.setattr(site, "own_jobs", own_jobs)
    launcher = PilotLauncher(site, RULES)
    outcome = launcher.place(request("n1"))
    assert isinstance(outcome, Refused)
    assert outcome.leftover == Leftover(request("n1"))
    with pytest.raises(SnapshotError):
        launcher.clear(outcome.leftover)
    squeue_is_away = False
    launcher.clear(outcome.leftover)
    assert site.ended == ["5", "7"]


@pytest.mark.parametrize(
    ("said", "unheard"),
    [
        ("salloc: error: Unable to contact slurm controller (connect failure)", True),
        ("salloc: error: Job submit/allocate failed: Socket timed out on send/recv operation", True),
        ("salloc: error: Job submit/allocate failed: Requested node configuration is not available", False),
        ("salloc: error: Unable to allocate resources: Immediate execution impossible", False),
    ],
)
def test_a_refusal_is_told_from_an_answer_that_did_not_come(
    monkeypatch: pytest.MonkeyPatch, said: str, unheard: bool
) -> None:
    site = Site()
    monkeypatch.setattr(site, "run", lambda *_, **__: CommandResult(1, "", said))
    monkeypatch.setattr(site, "own_jobs", lambda *_: ())
    outcome = PilotLauncher(site, RULES).place(request("n1"))
    assert isinstance(outcome, Refused)
    assert (outcome.leftover is not None) is unheard


def test_regression_one_job_that_was_over_hid_that_another_could_not_be_ended(tmp_path: Path) -> None:
    over = "scancel: error: Kill job error on job id 5: Invalid job id specified"
    failed = "scancel: error: Kill job error on job id 6: Unable to contact slurm controller (connect failure)"
    for lines, fails in (([over], False), ([over, over], False), ([over, failed], True), ([], True)):
        shell_script(
            tmp_path / "scancel", "#!/bin/sh\n" + "".join(f"echo '{line}' >&2\n" for line in lines) + "exit 1\n"
        )
        client = SlurmClient(commands_dir=tmp_path)
        if fails:
            with pytest.raises(CommandError):
                client.cancel(["5", "6"])
        else:
            client.cancel(["5", "6"])
