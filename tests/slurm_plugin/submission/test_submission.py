"""Pilots on a real cluster: granted at once or not at all, and never in a regular job's way."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path

import pytest

from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.pilots.pending_reasons import Rules
from slurm_plugin.read.types import Job, Partition
from slurm_plugin.sandbox import Sandbox
from slurm_plugin.submission.submission import PilotLauncher, PilotRequest, Placed, Refused
from tests.slurm_plugin.pending import NOW_S, queued
from tests.support.messages import says, wording
from tests.support.programs import shell_script
from tests.support.waiting import until

RULES = Rules(min_window_s=20.0, looked_s=NOW_S - 2)
SLEEP = "#!/bin/sh\nexec sleep 300\n"
IGNORE_TERM = ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done"]


def pilot(node: str, limit_s: float = 600.0, gres: str = "") -> PilotRequest:
    return PilotRequest(node, "elastic", limit_s, "pilot", f"lease {node}.1", gres=gres)


def place(client: SlurmClient, node: str) -> str:
    # The daemon has just looked: what waits in the queue it has seen.
    outcome = PilotLauncher(client, Rules(min_window_s=20.0, looked_s=time.time() + 1)).place(pilot(node))
    assert isinstance(outcome, Placed), outcome
    return outcome.job_id


def regular(client: SlurmClient, *options: str) -> str:
    return client.submit(["--output=/dev/null", "--time=2", *options], SLEEP)


def job(client: SlurmClient, job_id: str) -> Job | None:
    return next((job for job in client.snapshot().jobs if job.id == job_id), None)


def standing(client: SlurmClient) -> list[str]:
    """The states of the pilots that wait or run; one that is just ending counts as gone."""
    return [job.state for job in client.own_jobs("pilot", "elastic") if job.state != "COMPLETING"]


def runs(client: SlurmClient, job_id: str) -> bool:
    found = job(client, job_id)
    return found is not None and found.state == "RUNNING"


def planned(client: SlurmClient, job_id: str) -> bool:
    found = job(client, job_id)
    return found is not None and found.start_s is not None and bool(found.sched_nodes)


@pytest.mark.parametrize(("limit_s", "minutes"), [(1, 1), (59.9, 1), (60, 1), (119.9, 1), (120, 2), (3600, 60)])
def test_a_time_limit_is_whole_minutes_within_the_window_and_at_least_one(limit_s: float, minutes: int) -> None:
    assert pilot("n1", limit_s).limit_min == minutes


def test_an_agents_step_carries_nothing_of_the_callers_own_job() -> None:
    launcher = PilotLauncher(SlurmClient(conf=Path("/etc/slurm.conf")), RULES)
    command = launcher.agent_command("7", ["agent", "--x"], gres="gpu:a100:4")
    assert command[:2] == ["srun", "--jobid=7"]
    assert {"--overlap", "--mem=0", "--input=none", "--kill-on-bad-exit=0", "--gres=gpu:a100:4"} <= set(command)
    assert command[-2:] == ["agent", "--x"]
    environ = launcher.agent_env({"SLURM_JOB_ID": "3", "SLURM_NTASKS": "4", "SBATCH_X": "1", "A": "b"})
    assert environ == {"A": "b", "SLURM_CONF": "/etc/slurm.conf"}


@pytest.mark.parametrize(
    ("state", "placed", "withdrawn"), [("CONFIGURING", True, 0), ("RUNNING", True, 0), ("SUSPENDED", False, 1)]
)
def test_regression_a_pilot_whose_prolog_ran_was_refused_and_left_behind(
    monkeypatch: pytest.MonkeyPatch, state: str, placed: bool, withdrawn: int
) -> None:
    client, cancelled = SlurmClient(), []
    monkeypatch.setattr(client, "pending", lambda: ())
    monkeypatch.setattr(client, "partitions", lambda: {})
    monkeypatch.setattr(client, "submit", lambda *_: "77")
    monkeypatch.setattr(client, "own_jobs", lambda *_: (queued(id="77", state=state, nodes=("n1",)),))
    monkeypatch.setattr(client, "cancel", lambda ids, signal: cancelled.append((*ids, signal)))
    outcome = PilotLauncher(client, RULES, "sbatch").place(pilot("n1"))
    assert isinstance(outcome, Placed) is placed
    assert cancelled == [("77", "KILL")] * withdrawn


def test_a_queue_that_cannot_be_read_refuses_the_pilot_before_slurm_is_asked(tmp_path: Path) -> None:
    for command, body in (("squeue", "exit 1"), ("salloc", f"touch {tmp_path}/asked")):
        shell_script(tmp_path / command, body)
    outcome = PilotLauncher(SlurmClient(commands_dir=tmp_path), RULES).place(pilot("n1"))
    assert isinstance(outcome, Refused)
    assert says(outcome.reason, "slurm_plugin.pilots.queue_unreadable")
    assert not (tmp_path / "asked").exists()


def test_rules_that_are_set_anew_count_from_the_next_look_on(monkeypatch: pytest.MonkeyPatch) -> None:
    client = SlurmClient()
    monkeypatch.setattr(client, "pending", lambda: (queued(reason="ReqNodeNotAvail, UnavailableNodes:n3"),))
    monkeypatch.setattr(client, "partitions", lambda: {"batch": Partition("batch", ("n1",), "UP", None)})
    launcher = PilotLauncher(client, RULES, clock=lambda: NOW_S)
    assert launcher._objection(pilot("n1")) is not None
    launcher.rules = Rules(min_window_s=20.0, looked_s=NOW_S)
    assert launcher._objection(pilot("n1")) is None


@pytest.mark.cluster
def test_a_snapshot_sees_the_plan_of_a_queued_job(client: SlurmClient) -> None:
    first = regular(client, "--nodes=3")
    until("the first job runs", lambda: runs(client, first))
    second = regular(client, "--nodes=4")
    until("the second job is planned", lambda: planned(client, second))
    until("the idle node is planned", lambda: "PLANNED" in client.snapshot().nodes["n4"].flags)
    queued = job(client, second)
    assert queued is not None
    assert set(queued.sched_nodes) == {"n1", "n2", "n3", "n4"}
    assert queued.start_s is not None
    assert queued.start_s - queued.submit_s > 60


@pytest.mark.cluster
def test_a_pilot_is_granted_with_a_standing_queue_and_the_queued_job_preempts_it(client: SlurmClient) -> None:
    blocker = regular(client, "--nodes=3")
    until("the blocker runs", lambda: runs(client, blocker))
    queued = regular(client, "--nodes=4")
    until("the queued job is planned", lambda: planned(client, queued))
    before = job(client, queued)
    pilot_id = place(client, "n4")
    assert runs(client, pilot_id)
    after = job(client, queued)
    assert before is not None
    assert after is not None
    assert (after.start_s, after.sched_nodes) == (before.start_s, before.sched_nodes)
    client.cancel([blocker], signal="KILL")
    until("the queued job starts on the pilot's node too", lambda: runs(client, queued))
    assert not runs(client, pilot_id)


@pytest.mark.cluster
def test_S1b_the_guard_keeps_a_pilot_off_while_a_regular_job_without_a_plan_is_news_to_the_daemon(
    client: SlurmClient,
) -> None:
    # With one of the four nodes drained, the scheduler cannot say when a job of four nodes will start.
    client.run("scontrol", "update", "nodename=n4", "state=drain", "reason=test")
    try:
        looked_s = time.time()
        regular(client, "--nodes=4")
        launcher = PilotLauncher(client, Rules(min_window_s=20.0, looked_s=looked_s))
        outcome = launcher.place(pilot("n1"))
        assert isinstance(outcome, Refused)
        assert says(outcome.reason, "slurm_plugin.guard.just_come")
        time.sleep(1.0 - time.time() % 1.0)  # a job of the same second may be younger than the look
        launcher.rules = Rules(min_window_s=20.0, looked_s=client.snapshot().begun_s or 0.0)
        assert isinstance(launcher.place(pilot("n1")), Placed)
    finally:
        client.run("scontrol", "update", "nodename=n4", "state=resume")


@pytest.mark.cluster
def test_S1b_no_pilot_comes_to_an_idle_node_on_which_a_job_counts_that_slurm_has_just_preempted_for(
    client: SlurmClient,
) -> None:
    launcher = PilotLauncher(client, RULES)
    environ = launcher.agent_env(os.environ)
    with contextlib.ExitStack() as agents:
        for node in ("n1", "n2"):  # both take a while to leave
            stubborn = launcher.agent_command(place(client, node), IGNORE_TERM)
            agent = agents.enter_context(subprocess.Popen(stubborn, env=environ, stdout=subprocess.PIPE, text=True))
            agents.callback(agent.kill)
            assert agent.stdout is not None
            assert agent.stdout.readline() == "up\n"
        launcher.rules = Rules(min_window_s=20.0, looked_s=time.time())
        waits = regular(client, "--nodes=3")
        until("Slurm preempts for the job", lambda: planned(client, waits))
        # the plan names one of the two idle nodes, and Slurm may take either
        assert [type(launcher.place(pilot(node))) for node in ("n3", "n4")] == [Refused, Refused]


@pytest.mark.cluster
def test_a_pilot_that_a_job_overtook_is_withdrawn(client: SlurmClient, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = PilotLauncher(client, RULES)
    answers = iter([None, "job 7 is planned on n1 in 1 s"])
    monkeypatch.setattr(launcher, "_objection", lambda _: next(answers))
    assert launcher.place(pilot("n1")) == Refused("withdrawn: job 7 is planned on n1 in 1 s")
    assert not standing(client)


@pytest.mark.cluster
def test_a_busy_drained_or_unknown_node_is_refused_at_once_and_nothing_pends(client: SlurmClient) -> None:
    place(client, "n1")
    client.run("scontrol", "update", "nodename=n2", "state=drain", "reason=test")
    try:
        outcomes = [PilotLauncher(client, RULES).place(pilot(node)) for node in ("n1", "n2", "n99")]
    finally:
        client.run("scontrol", "update", "nodename=n2", "state=resume")
    assert all(isinstance(outcome, Refused) for outcome in outcomes), outcomes
    assert standing(client) == ["RUNNING"]


@pytest.mark.cluster
def test_an_salloc_that_answers_too_late_leaves_no_allocation(
    sandbox: Sandbox, client: SlurmClient, tmp_path: Path
) -> None:
    for command in (sandbox.root / "bin").iterdir():
        (tmp_path / command.name).symlink_to(command)
    (tmp_path / "salloc").unlink()
    # The allocation is made, and then the command hangs so hard that it must be killed.
    slow = f'#!/bin/sh\n{sandbox.root}/bin/salloc "$@" && touch {tmp_path}/granted\ntrap "" TERM\nsleep 20\n'
    shell_script(tmp_path / "salloc", slow)
    late = SlurmClient(sandbox.conf, timeout_s=0.5, commands_dir=tmp_path)
    outcome = PilotLauncher(late, RULES).place(pilot("n1"))
    assert isinstance(outcome, Refused)
    assert "salloc gave no answer" in outcome.reason
    assert (tmp_path / "granted").exists()
    assert not standing(client)


@pytest.mark.cluster
def test_an_agent_gets_the_whole_node_and_a_withdrawn_one_is_gone_even_if_it_ignores_sigterm(
    client: SlurmClient,
) -> None:
    launcher = PilotLauncher(client, RULES)
    outcome = launcher.place(pilot("n1", gres="gpu:a100:4"))
    assert isinstance(outcome, Placed)
    # The caller is itself a job's process, as a driver is: none of this may reach srun.
    environ = launcher.agent_env({**os.environ, "SLURM_JOB_ID": "1", "SLURM_NTASKS": "3", "SLURM_NODELIST": "n2"})
    ask = ["sh", "-c", "echo $SLURMD_NODENAME $SLURM_CPUS_ON_NODE $CUDA_VISIBLE_DEVICES"]
    command = launcher.agent_command(outcome.job_id, ask, gres="gpu:a100:4")
    answer = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert (answer.stdout, answer.stderr) == ("n1 4 0,1,2,3\n", "")
    stubborn = launcher.agent_command(outcome.job_id, IGNORE_TERM)
    with subprocess.Popen(stubborn, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == "up\n"
        launcher.withdraw(outcome.job_id)
        assert agent.wait(timeout=300) != 0
    until("the node is idle again", lambda: client.snapshot().nodes["n1"].state == "IDLE")


@pytest.mark.cluster
def test_an_sbatch_pilot_runs_the_agent_with_its_environment_or_leaves_nothing(
    client: SlurmClient, tmp_path: Path
) -> None:
    launcher = PilotLauncher(client, RULES, mode="sbatch")
    argv = ["sh", "-c", f'echo "$LEASE" "$0" >{tmp_path}/agent; sleep 300', "it's one word"]
    environ = {**os.environ, "LEASE": "n1.1"}
    assert isinstance(launcher.place(pilot("n1"), argv, environ), Placed)
    until("the agent runs", lambda: (tmp_path / "agent").exists() and bool((tmp_path / "agent").read_text()))
    assert (tmp_path / "agent").read_text() == "n1.1 it's one word\n"
    assert launcher.place(pilot("n1"), argv, environ) == Refused(wording("slurm_plugin.pilots.not_at_once"))
    assert standing(client) == ["RUNNING"]


@pytest.mark.cluster
def test_only_one_node_allocations_of_the_elastic_partition_get_the_high_priority_number(client: SlurmClient) -> None:
    high = 4294967290
    for options, expected in (
        (["--partition=elastic", "--nodes=1"], True),
        (["--partition=elastic", "--nodes=2"], False),
        (["--partition=elastic,batch", "--nodes=1"], False),
        (["--partition=batch", "--nodes=1"], False),
    ):
        answer = client.run("salloc", "--immediate=1", "--no-shell", "--time=1", *options)
        if "--nodes=2" in options:
            assert answer.code != 0  # the partition's MaxNodes, which holds for administrators too
            continue
        assert answer.code == 0, answer
        (only,) = (job for job in client.snapshot().jobs if job.state == "RUNNING")
        assert (only.priority == high) is expected, options
        client.cancel([only.id])
    script = client.submit(["--partition=elastic", "--nodes=1", "--hold", "--output=/dev/null"], SLEEP)
    held = client.job(script)
    assert held is not None
    assert held.priority == 0


@pytest.mark.cluster
def test_a_job_that_is_over_can_be_cancelled_again_and_is_no_longer_found(client: SlurmClient) -> None:
    job_id = regular(client)
    client.cancel([job_id])
    until("the job is gone", lambda: not client.snapshot().jobs)
    client.cancel([job_id])
    client.cancel([job_id], signal="KILL")
    assert client.job("999999") is None
