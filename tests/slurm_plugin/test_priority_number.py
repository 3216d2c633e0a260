"""What somebody without privileges can do with the pilots' priority number: nothing that a pilot could not."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from bftd.cli.admin.sandbox_site import SandboxSite
from slurm_plugin.clients.client import SlurmClient
from tests.slurm_plugin.plugins import User, is_newer_slurm, slurms_release
from tests.support.waiting import until

pytestmark = pytest.mark.cluster

NUMBER = 4294967290
PILOT = ["salloc", "--immediate=1", "--no-shell", "-p", "elastic", "-N1", "-t5"]
KEPT = "partition elastic is for elastic jobs: sbatch --elastic=MIN-MAX SCRIPT, or choose another partition"
DRIVERS = "partition bft-driver is for the drivers of elastic jobs: sbatch --elastic=MIN-MAX SCRIPT"


@pytest.fixture(scope="module")
def licensed() -> Iterator[SandboxSite]:
    """A cluster with the Lua file, and one licence for all."""
    with SandboxSite(nodes=3, tuned=True, extra_conf="Licenses=matlab:1") as site:
        yield site


@pytest.fixture(scope="module")
def someone(licensed: SandboxSite) -> User:
    user = User.make(licensed.root / "home", licensed.env())
    if user.uid == os.getuid():
        pytest.skip("only root can act as another user")
    return user


@pytest.fixture
def user(someone: User, client: SlurmClient) -> Iterator[User]:
    """The user, with no job of anybody's left."""
    yield someone
    client.cancel([job.id for job in client.snapshot().jobs], signal="KILL")
    until("an empty cluster", lambda: not client.snapshot().jobs)


@pytest.fixture
def client(licensed: SandboxSite) -> SlurmClient:
    """The administrator's view."""
    client = licensed.cluster.client()
    idle = set(licensed.cluster.node_names)
    until("idle nodes", lambda: {n for n, state in licensed.cluster.status().items() if state == "IDLE"} >= idle)
    return client


def jobs(user: User) -> list[tuple[str, ...]]:
    """Partition, priority number, state, nodes, limit and licences of each job."""
    said = user.run("squeue", "-h", "-a", "-o", "%P|%Q|%T|%D|%l|%W").stdout
    return [tuple(line.split("|")) for line in said.splitlines()]


def assert_the_number_is_only_with_pilots(user: User) -> None:
    for partition, number, state, nodes, limit, licences in jobs(user):
        if int(number) >= NUMBER:
            assert (partition, state, nodes, licences) == ("elastic", "RUNNING", "1", "(null)")
            assert int(limit.split(":")[0]) <= 60
            assert limit.count(":") == 1 or limit == "1:00:00"


def granted(user: User, *options: str) -> str:
    """Places a pilot; its job's id."""
    done = user.run(*PILOT, *options)
    assert done.returncode == 0, done.stderr
    return done.stderr.split("Granted job allocation ")[1].split()[0]


NOT_A_PILOT: list[tuple[list[str], dict[str, str]]] = [
    (["sbatch", "-p", "elastic", "-N1", "-t5", "--wrap", "true"], {}),
    (["sbatch", "-p", "elastic", "-N1", "-t5", "-a", "1-3", "--wrap", "true"], {}),
    (["sbatch", "-p", "elastic", "-N1", "-t5", "--requeue", "--wrap", "true"], {}),
    (["sbatch", "-p", "elastic", "-N1", "-t5", "--hold", "--wrap", "true"], {}),
    (["sbatch", "-p", "elastic,batch", "-N1", "-t5", "--wrap", "true"], {}),
    (["sbatch", "-p", "batch,elastic", "-N1", "-t5", "--wrap", "true"], {}),
    (["sbatch", "-N1", "-t5", "--wrap", "true"], {"SBATCH_PARTITION": "elastic", "SBATCH_IMMEDIATE": "1"}),
    (["salloc", "-p", "elastic", "-N1", "-t5", "--no-shell"], {}),
    (["salloc", "-p", "elastic", "-N1", "-t5", "--no-shell", "--immediate=60"], {}),
    (["salloc", "--no-shell", "-N1", "-t5"], {"SALLOC_PARTITION": "elastic"}),
    (["srun", "-N1", "-t5", "true"], {"SLURM_PARTITION": "elastic"}),
    (["srun", "-p", "elastic", "-N1", "-t5", "true"], {}),
    ([*PILOT, "-N2"], {}),
    ([*PILOT, "-N1-2"], {}),
    ([*PILOT, "-t61"], {}),
    ([*PILOT, "-t0"], {}),
    ([*PILOT, "-tUNLIMITED"], {}),
    ([*PILOT, "-t600", "--time-min=1"], {}),
    ([*PILOT, "-p", "elastic,batch"], {}),
    ([*PILOT, "--hold"], {}),
    ([*PILOT, "--begin=now+60"], {}),
    ([*PILOT, "--dependency=singleton"], {}),
    ([*PILOT, "--dependency=expand:1"], {}),
    ([*PILOT, "-L", "matlab:1"], {}),
    ([*PILOT, "--bb=capacity=1G"], {}),
]


@pytest.mark.parametrize(("argv", "env"), NOT_A_PILOT, ids=lambda value: " ".join(value) or "-")
def test_what_is_no_pilot_is_refused_and_leaves_no_job(user: User, argv: list[str], env: dict[str, str]) -> None:
    done = user.run(*argv, env=env)
    assert done.returncode != 0
    assert KEPT in done.stderr
    assert jobs(user) == []


@pytest.mark.parametrize(
    "options",
    [
        [":", "-p", "batch", "-N1", "-t5"],
        [":", "-p", "elastic", "-N1", "-t5"],
        ["-w", "n1,n2"],
        ["--reservation=course"],
        ["--reboot"],
        ["--nice=-100"],
        ["-C", "flat"],
        ["--deadline=now+10minutes"],
    ],
    ids=" ".join,
)
def test_what_slurm_itself_refuses_leaves_no_job_either(user: User, options: list[str]) -> None:
    done = user.run(*PILOT, *options)
    assert "PENDING" not in {state for _, _, state, *_ in jobs(user)}
    if options == ["-w", "n1,n2"] and is_newer_slurm():  # they take one of the nodes
        assert done.returncode == 0
        assert_the_number_is_only_with_pilots(user)
        return
    # A deadline ends the allocation as soon as it is granted.
    until("no job", lambda: jobs(user) == [])


def test_a_heterogeneous_job_cannot_carry_a_part_of_itself_to_the_elastic_partition(user: User) -> None:
    done = user.run("salloc", "--no-shell", "-p", "batch", "-N1", "-t5", ":", "-p", "elastic", "-N1", "-t5")
    assert done.returncode != 0
    assert jobs(user) == []


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--nice=100"],
        ["--priority=4294967293"],
        ["--exclusive"],
        ["--no-kill"],
        ["-O", "-n100"],
        ["--time-min=1"],
        ["--delay-boot=60"],
        ["--switches=1@60"],
        ["--spread-job"],
        ["--use-min-nodes"],
        ["--account=other"],
        ["--qos=high"],
        ["--comment=bft 7 n1.1"],
        ["-w", "n2"],
    ],
    ids=lambda options: " ".join(options) or "-",
)
def test_a_pilot_of_his_own_is_what_a_pilot_is_and_no_more(user: User, options: list[str]) -> None:
    if options == ["-O", "-n100"] and is_newer_slurm():  # they refuse more tasks than a node has CPUs
        assert user.run(*PILOT, *options).returncode != 0
        assert jobs(user) == []
        return
    granted(user, *options)
    assert [job[:4] for job in jobs(user)] == [("elastic", str(NUMBER), "RUNNING", "1")]
    assert_the_number_is_only_with_pilots(user)


def test_a_busy_cluster_refuses_a_pilot_and_nothing_pends(user: User) -> None:
    wide = user.run("sbatch", "--parsable", "-N3", "-t5", "-o", "/dev/null", "--wrap", "sleep 100").stdout.strip()
    until("the regular job runs", lambda: [job[2] for job in jobs(user)] == ["RUNNING"])
    for options in ([], ["-w", "n1"], ["--exclusive"]):
        assert user.run(*PILOT, *options).returncode != 0
        assert len(jobs(user)) == 1
    user.run("scancel", wide)


UPDATES = (
    "TimeLimit=300", "TimeLimit=+60", "TimeLimit=1", "EndTime=now+5hours", "Partition=batch", "Partition=elastic,batch",
    "Partition=bft-driver", "NumNodes=2", "NumNodes=1-3", "ReqNodeList=n2", "Priority=4294967294", "Nice=-10",
    "QOS=high", "Account=other", "Features=flat", "Licenses=matlab:1", "Dependency=expand:1", "StartTime=now+60",
    "Requeue=1", "Reservation=course", "Deadline=now+1hour", "OverSubscribe=YES", "Contiguous=1", "BurstBuffer=x",
    "AdminComment=x",
)  # fmt: skip
VERBS = ("requeue", "requeuehold", "hold", "uhold", "release", "suspend", "resume", "top")


def test_no_change_makes_of_a_pilot_something_that_waits_grows_or_runs_elsewhere(user: User) -> None:
    job_id = granted(user)
    for update in UPDATES:
        user.run("scontrol", "update", f"JobId={job_id}", update)
        assert_the_number_is_only_with_pilots(user)
        [(partition, _, state, nodes, limit, licences)] = jobs(user)
        assert (partition, state, nodes, licences) == ("elastic", "RUNNING", "1", "(null)"), update
        assert limit in ("5:00", "1:00"), update
    for verb in VERBS:
        user.run("scontrol", verb, job_id)
        assert_the_number_is_only_with_pilots(user)
        [(partition, _, state, *_)] = jobs(user)
        # since 26.05 users may suspend a job of theirs: its node is idle to Slurm then, and bftd does not lend it
        stopped = verb == "suspend" and slurms_release() >= (26, 5)
        assert (partition, state) == ("elastic", "SUSPENDED" if stopped else "RUNNING"), verb


def test_no_change_gives_a_waiting_job_the_number(user: User) -> None:
    done = user.run("sbatch", "--parsable", "-N1", "-t5", "--hold", "--wrap", "true")
    job_id = done.stdout.strip()
    for update in UPDATES:
        user.run("scontrol", "update", f"JobId={job_id}", update)
        [(partition, number, *_)] = jobs(user)
        assert partition == "batch", update
        assert int(number) < NUMBER, update
    for verb in ("hold", "uhold", "top"):
        user.run("scontrol", verb, job_id)
        assert_the_number_is_only_with_pilots(user)


def test_what_a_pilot_submits_inherits_nothing_of_it(user: User) -> None:
    job_id = granted(user, "-w", "n1")
    inside = ["srun", f"--jobid={job_id}"]
    done = user.run(*inside, "sbatch", "-t5", "-o", "/dev/null", "--hold", "--wrap", "true")
    assert done.returncode == 0, done.stderr
    assert sorted(job[:3] for job in jobs(user))[0][0] == "batch"
    done = user.run(*inside, "sbatch", "-p", "elastic", "-N1", "-t5", "--wrap", "true")
    assert KEPT in done.stderr
    assert user.run("srun", f"--jobid={job_id}", "-N2", "true").returncode != 0
    assert user.run("srun", f"--jobid={job_id}", "-w", "n3", "true").returncode != 0
    assert_the_number_is_only_with_pilots(user)


def test_a_pilot_takes_no_licence_that_a_queued_job_waits_for(user: User, client: SlurmClient) -> None:
    user.run("sbatch", "-N3", "-t5", "-o", "/dev/null", "--wrap", "sleep 100")
    user.run("sbatch", "-N3", "-t5", "-L", "matlab:1", "-o", "/dev/null", "--wrap", "sleep 100")
    assert KEPT in user.run(*PILOT, "-L", "matlab:1").stderr
    assert "Used=0" in user.run("scontrol", "show", "licenses").stdout


def run_regular(licensed: SandboxSite, node: str) -> subprocess.CompletedProcess[str]:
    argv = ["srun", "-p", "batch", "-N1", "-w", node, "-t1", "true"]
    return subprocess.run(argv, env=licensed.env(), capture_output=True, text=True, timeout=300, check=False)


def test_a_regular_job_gets_its_node_also_from_a_pilot_that_ignores_every_signal(
    licensed: SandboxSite, user: User
) -> None:
    job_id = granted(user, "-w", "n1")
    ready = user.home / "ready"
    deaf = f"trap '' TERM CONT INT HUP; touch {ready}; while :; do sleep 1; done"
    step = subprocess.Popen(
        ["srun", f"--jobid={job_id}", "sh", "-c", deaf],
        env=user.env, cwd=user.home, user=user.uid, group=user.uid, extra_groups=[],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until("the deaf step runs", ready.exists)
        done = run_regular(licensed, "n1")
        assert done.returncode == 0, done.stderr
    finally:
        step.kill()
        step.wait()


def test_one_pilot_after_another_never_keeps_the_node_from_a_regular_job(licensed: SandboxSite, user: User) -> None:
    for _ in range(3):
        job_id = granted(user, "-w", "n1")
        done = run_regular(licensed, "n1")
        assert done.returncode == 0, done.stderr
        until("the pilot is gone", lambda job_id=job_id: user.run("squeue", "-h", "-j", job_id).stdout == "")
        until("n1 is idle", lambda: licensed.cluster.status()["n1"] == "IDLE")


@pytest.mark.parametrize(
    "argv",
    [
        ["sbatch", "-p", "bft-driver", "-t5", "--wrap", "true"],
        ["sbatch", "-p", "batch,bft-driver", "-t5", "--wrap", "true"],
        ["salloc", "-p", "bft-driver", "-t5", "--no-shell", "--immediate=1"],
        ["srun", "-p", "bft-driver", "-t5", "true"],
    ],
    ids=" ".join,
)
def test_the_driver_partition_takes_no_other_job(user: User, argv: list[str]) -> None:
    assert DRIVERS in user.run(*argv).stderr
    assert jobs(user) == []
