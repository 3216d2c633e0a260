"""The client against commands that misbehave: small scripts in place of Slurm's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_plugin.clients import client as clients
from slurm_plugin.clients.client import CommandResult, SlurmClient
from slurm_plugin.clients.ending import left
from slurm_plugin.errors import CommandError, SlurmMissing, SnapshotError, UnknownPartition
from slurm_plugin.read import parse
from slurm_plugin.read.types import Job
from tests.slurm_plugin.pending import QUEUED
from tests.slurm_plugin.read.test_parse import recorded
from tests.support.messages import excerpt, fragment, pattern, wording
from tests.support.programs import shell_script

ASSETS = Path(__file__).parents[1] / "assets" / "22.05"
SITE = Path(__file__).parents[1] / "site" / "assets" / "22.05" / "recommended"

# squeue's fields end in a separator that the client chooses anew for every call; the recorded one is replaced by it.
ANSWER_JOBS = """\
separator=$(printf '%s' "$1" | sed 's/^--format=%i//; s/%u.*//')
sed "s/.5e9a17/$separator/g" "$(dirname "$0")/jobs.txt"
"""
ANSWER_SHOW = f"""\
case "$2" in
nodes) cat {ASSETS}/nodes.txt;;
reservation) echo reservation >>"$(dirname "$0")/calls"; cat {ASSETS}/reservations.txt;;
partition) echo partition >>"$(dirname "$0")/calls"; cat {ASSETS}/partitions.txt;;
config) echo config >>"$(dirname "$0")/calls"; cat {SITE}/config.txt;;
esac
"""


class FakeSlurm:
    """A folder of scripts named like Slurm's commands; healthy ones print the recorded cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "jobs.txt").write_text(recorded(ASSETS, "jobs.txt"), newline="")
        self.script("squeue", ANSWER_JOBS)
        self.script("scontrol", ANSWER_SHOW)
        self.script("sdiag", f'echo sdiag >>"$(dirname "$0")/calls"; cat {SITE}/sdiag.txt')

    def script(self, command: str, body: str) -> None:
        path = self.folder / command
        path.unlink(missing_ok=True)
        shell_script(path, body)

    def client(self, timeout_s: float = 5.0) -> SlurmClient:
        return SlurmClient(timeout_s=timeout_s, commands_dir=self.folder)


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    return FakeSlurm(tmp_path)


def test_a_snapshot_holds_what_the_commands_print(slurm: FakeSlurm) -> None:
    snapshot = slurm.client().snapshot()
    assert len(snapshot.nodes) == 7
    assert len(snapshot.jobs) == 6
    assert [reservation.name for reservation in snapshot.reservations] == ["repair"]


def test_regression_a_job_that_came_while_the_queue_was_read_counted_as_seen(slurm: FakeSlurm) -> None:
    slurm.script("squeue", f'date +%s.%N >"$(dirname "$0")/read"\nsleep 0.05\n{ANSWER_JOBS}')
    snapshot = slurm.client().snapshot()
    read_s = float((slurm.folder / "read").read_text())
    assert snapshot.begun_s is not None
    assert snapshot.begun_s <= read_s < snapshot.time_s


def test_reservations_are_not_read_again_at_every_snapshot(slurm: FakeSlurm) -> None:
    client = slurm.client()
    for _ in range(3):
        assert client.snapshot().reservations
    assert (slurm.folder / "calls").read_text().count("reservation") == 1


REQUESTS = {"nodes": 2, "squeue": 2, "reservation": 1, "partition": 1, "config": 2, "sdiag": 1}
"""What one call of each command asks of slurmctld, as sdiag counts it."""


def test_S8_a_poll_costs_no_more_requests_than_with_nothing_but_reservations(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, asked = 1000.0, []
    client = slurm.client()
    answers: dict[str, CommandResult] = {}
    run = client.run

    def counted(command: str, *arguments: str, **options: Any) -> CommandResult:
        kind = arguments[1] if command == "scontrol" else command
        asked.append(kind)
        if kind == "squeue":  # for what it has no letters for: not answered here
            return CommandResult(1, "", "no")
        if kind not in answers:
            answers[kind] = run(command, *arguments, **options)
        return answers[kind]

    def queue() -> tuple[Job, ...]:
        asked.append("squeue")
        return (QUEUED,)

    monkeypatch.setattr(clients, "time", SimpleNamespace(monotonic=lambda: now_s, time=lambda: now_s))
    monkeypatch.setattr(client, "run", counted)
    monkeypatch.setattr(client, "_jobs", queue)
    polls = 900
    for _ in range(polls):
        snapshot = client.snapshot()
        now_s += 1.0
    assert set(asked) == set(REQUESTS)
    assert sum(REQUESTS[kind] for kind in asked) / polls <= 4.07
    assert snapshot.partitions["batch"].priority_tier == 10
    assert snapshot.scheduler.read


def test_S8_only_the_wait_for_slurm_counts_as_slurms_time(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    def after(passed_s: float, function: Any) -> Any:
        def late(*arguments: Any, **options: Any) -> Any:
            nonlocal now_s
            now_s += passed_s
            return function(*arguments, **options)

        return late

    client = slurm.client()
    monkeypatch.setattr(clients, "time", SimpleNamespace(monotonic=lambda: now_s, time=lambda: now_s))
    monkeypatch.setattr(client, "run", after(2.0, client.run))
    monkeypatch.setattr(parse, "nodes", after(100.0, parse.nodes))
    monkeypatch.setattr(parse, "jobs", after(100.0, parse.jobs))
    waits = []
    for _ in range(2):
        client.snapshot()
        waits.append(client.waited_s)
    assert waits == [6.0, 6.0]  # nodes, jobs, and one of what changes slowly

    monkeypatch.setattr(client, "run", after(2.0, lambda *_, **__: CommandResult(1, "", "slurmctld is away")))
    with pytest.raises(SnapshotError):
        client.snapshot()
    assert client.waited_s == 2.0


@pytest.mark.parametrize("command", ["squeue", "scontrol"])
@pytest.mark.parametrize(
    "body",
    [
        pytest.param("exit 0", id="nothing"),
        pytest.param("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", id="failure"),
        pytest.param(
            "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 0", id="quiet failure"
        ),
        pytest.param("exec sleep 30", id="silence"),
    ],
)
def test_S9_no_clean_answer_is_an_error_and_never_an_empty_cluster(slurm: FakeSlurm, command: str, body: str) -> None:
    slurm.script(command, body)
    with pytest.raises(SnapshotError) as caught:
        slurm.client(timeout_s=0.3).snapshot()
    assert "\n" not in str(caught.value)


def test_a_clean_looking_answer_with_an_error_beside_it_is_an_error(slurm: FakeSlurm) -> None:
    slurm.script("scontrol", ANSWER_SHOW + "echo 'slurm_load_node error: Zero Bytes were transmitted' >&2")
    with pytest.raises(SnapshotError):
        slurm.client().snapshot()


def test_fewer_nodes_than_before_are_believed_at_the_second_time_only(slurm: FakeSlurm) -> None:
    client = slurm.client()
    assert len(client.snapshot().nodes) == 7
    slurm.script("scontrol", ANSWER_SHOW.replace("cat " + str(ASSETS) + "/nodes", "head -6 " + str(ASSETS) + "/nodes"))
    with pytest.raises(SnapshotError, match="1 of 7 nodes"):
        client.snapshot()
    assert len(client.snapshot().nodes) == 6


def test_details_of_nodes_are_asked_for_only_once_jobs_share_gpus_that_nothing_else_tells_of(slurm: FakeSlurm) -> None:
    slurm.script("scontrol", f'echo "$*" >>"$(dirname "$0")/asked"\n{ANSWER_SHOW}')
    client = slurm.client()
    client.nodes(), client.nodes()
    mixed = f"sed 's/State=ALLOCATED/State=MIXED/' {ASSETS}/nodes.txt"
    slurm.script("scontrol", f'echo "$*" >>"$(dirname "$0")/asked"\n{mixed}')
    client.nodes(), client.nodes(), client.nodes()
    asked = (slurm.folder / "asked").read_text().splitlines()
    assert [" -d " in line for line in asked] == [False, False, False, True, True]


def test_a_missing_command_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(SlurmMissing, match=pattern("slurm_plugin.client.not_found", command="squeue")):
        SlurmClient(commands_dir=tmp_path).pending()


def test_an_unknown_partition_names_the_nearest_one(slurm: FakeSlurm) -> None:
    with pytest.raises(
        UnknownPartition,
        match=pattern(
            "slurm_plugin.client.no_partition",
            name="elstic",
            hint=fragment(excerpt("sizing.fields.hint", near=fragment("elastic"))),
        ),
    ) as caught:
        slurm.client().partition("elstic")
    assert caught.value.exit_code == 2
    with pytest.raises(UnknownPartition, match="there are batch, bft-driver, elastic"):
        slurm.client().partition("zzz")


def test_every_reading_is_of_this_cluster_alone_and_of_all_its_partitions(slurm: FakeSlurm) -> None:
    note = 'echo "$0 $*" >>"$(dirname "$0")/asked"\n'
    slurm.script("squeue", note + ANSWER_JOBS)
    slurm.script("scontrol", note + ANSWER_SHOW)
    client = slurm.client()
    client.snapshot(), client.pending(), client.own_jobs("x", "elastic"), client.job("1"), client.partitions()
    asked = (slurm.folder / "asked").read_text().splitlines()
    assert len(asked) == 7
    assert [line for line in asked if "--local" not in line or "--all" not in line] == []


def test_what_the_callers_environment_says_of_printing_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("SLURM_BITSTR_LEN", "SLURM_TIME_FORMAT", "SQUEUE_LOCAL", "SQUEUE_FEDERATION", "SLURM_CLUSTERS"):
        monkeypatch.setenv(key, "7")
    ours = {key: value for key, value in SlurmClient().environ().items() if key.startswith(("SLURM", "SQUEUE"))}
    assert ours == {"SLURM_BITSTR_LEN": "64", "SLURM_TIME_FORMAT": "%s"}


@pytest.mark.parametrize("command", ["sbatch", "salloc", "srun"])
def test_regression_a_jobs_own_commands_printed_dates_as_the_client_reads_them(slurm: FakeSlurm, command: str) -> None:
    slurm.script(command, "env")
    assert "SLURM_" not in slurm.client().run(command).out


def test_a_command_that_ignores_its_end_is_killed_and_reaped(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_TERM_GRACE_S", 0.05)
    slurm.script("squeue", 'trap "" TERM\necho $$ >"$(dirname "$0")/pid"\nwhile :; do sleep 0.1; done')
    with pytest.raises(SnapshotError, match="no answer"):
        slurm.client(timeout_s=0.3).snapshot()
    with pytest.raises(ProcessLookupError):
        os.kill(int((slurm.folder / "pid").read_text()), 0)
    assert left() == 0


def test_commands_that_hang_though_killed_are_left_and_not_joined_by_ever_more(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck: list[Stuck] = []

    def start(*arguments: Any, **options: Any) -> Stuck:
        stuck.append(Stuck())
        return stuck[-1]

    client = slurm.client(timeout_s=0.0)
    with monkeypatch.context() as patch:
        patch.setattr(clients.subprocess, "Popen", start)
        for _ in range(20):
            with pytest.raises(SnapshotError) as caught:
                client.snapshot()
    assert len(stuck) == 8
    assert str(caught.value) == wording("slurm_plugin.client.commands_hang", stuck=8)
    assert stuck[0].asked[:5] == ["communicate", "terminate", "wait", "kill", "wait"]
    for process in stuck:
        process.over = True
    assert slurm.client().snapshot().nodes
    assert left() == 0


class Stuck:
    """A process that the kernel does not let go of until it is `over`, whatever it is sent."""

    stdin = stdout = stderr = None

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.over = False

    def communicate(self, stdin: str, timeout: float) -> None:
        self.asked.append("communicate")
        raise subprocess.TimeoutExpired("squeue", timeout)

    def terminate(self) -> None:
        self.asked.append("terminate")

    def kill(self) -> None:
        self.asked.append("kill")

    def wait(self, timeout: float | None = None) -> None:
        self.asked.append("wait")
        assert timeout is not None, "waits for ever"
        raise subprocess.TimeoutExpired("squeue", timeout)

    def poll(self) -> int | None:
        self.asked.append("poll")
        return -9 if self.over else None


def test_cancelling_nothing_calls_nothing_and_options_are_no_job_ids(slurm: FakeSlurm) -> None:
    slurm.script("scancel", 'echo "$@" >>"$(dirname "$0")/cancelled"')
    slurm.client().cancel([])
    with pytest.raises(CommandError, match=pattern("slurm_plugin.client.not_a_job_id")):
        slurm.client().cancel(["1", "--user=root"])
    assert not (slurm.folder / "cancelled").exists()
    slurm.client().cancel(["1", "2_3"], signal="USR1")
    assert (slurm.folder / "cancelled").read_text() == "--signal=USR1 1 2_3\n"


def test_killing_a_job_kills_its_steps_before_the_job(slurm: FakeSlurm) -> None:
    slurm.script("scancel", 'echo "$@" >>"$(dirname "$0")/cancelled"')
    slurm.script("squeue", "printf '7.0\\n7.1\\n7.batch\\n7.extern\\n'")
    slurm.client().cancel(["7"], signal="KILL")
    assert (slurm.folder / "cancelled").read_text() == "--signal=KILL 7.0 7.1\n7\n"


def test_a_refused_job_ends_in_slurms_own_words(slurm: FakeSlurm) -> None:
    slurm.script("sbatch", "echo 'sbatch: error: invalid partition specified: x' >&2; exit 1")
    with pytest.raises(
        CommandError, match=pattern("slurm_plugin.client.sbatch_refused", complaint="invalid partition specified: x")
    ):
        slurm.client().submit(["-p", "x"], "#!/bin/sh\n")


def test_a_submitted_job_gets_the_given_environment_without_slurms_variables(slurm: FakeSlurm) -> None:
    slurm.script("sbatch", 'env >"$(dirname "$0")/env"; cat >"$(dirname "$0")/script"; echo "12;cluster"')
    job_id = slurm.client().submit(["-N1"], "#!/bin/sh\ntrue\n", {"PATH": "/bin", "SBATCH_HOLD": "1", "MINE": "yes"})
    assert job_id == "12"
    assert (slurm.folder / "script").read_text() == "#!/bin/sh\ntrue\n"
    environ = (slurm.folder / "env").read_text().splitlines()
    assert "MINE=yes" in environ
    assert "SBATCH_HOLD=1" not in environ
