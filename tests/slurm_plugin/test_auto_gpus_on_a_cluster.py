"""`sbatch --auto-gpus` on a real cluster, as a user without privileges: what is submitted, and who is told what."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftd.cli.admin.sandbox_site import SandboxSite
from tests.slurm_plugin.plugins import User, another_lua, is_newer_slurm, require_compiled
from tests.support.messages import says, wording
from tests.support.programs import shell_script
from tests.support.waiting import until

pytestmark = pytest.mark.cluster

PLAN = "partition=batch nodes=2 tasks=2 gres=gpu:a100_80gb:2 cpus=2 mem=100 why=61.0 of 80.0 GiB a GPU, traced"
TOLD = (
    "--auto-gpus chose --partition=batch --nodes=2 --ntasks-per-node=2 --gres=gpu:a100_80gb:2 --cpus-per-task=2 "
    "--mem=100M (61.0 of 80.0 GiB a GPU, traced)"
)
VALUE = "--auto-gpus=step.py:make,global-batch=8"


@pytest.fixture(scope="module")
def gpu_site() -> Iterator[SandboxSite]:
    require_compiled()
    with SandboxSite(nodes=4, plugins=True, tuned=True, gpus={"a100_80gb": 4, "v100": 2}) as site:
        plugstack = site.root / "plugstack.conf"
        line = plugstack.read_text().splitlines()[0]
        plugstack.write_text(f"{line.split(' bft=')[0]} bft={site.root}/bft timeout=20\n")
        yield site


@pytest.fixture(scope="module")
def gpu_user(gpu_site: SandboxSite) -> User:
    return User.make(gpu_site.root / "home", gpu_site.env())


@pytest.fixture
def user(gpu_site: SandboxSite, gpu_user: User) -> Iterator[User]:
    """Has a job script, and a bft that answers with one plan."""
    answers(gpu_site, f"echo '{PLAN}'")
    (gpu_user.home / "job.sh").write_text("#!/bin/sh\nsrun -l echo task | sort\nsbatch -H -p batch --wrap true\n")
    yield gpu_user
    gpu_user.run("scancel", "--me")


def answers(site: SandboxSite, script: str) -> None:
    """What stands in for bft."""
    shell_script(site.root / "bft", script)


def queued(user: User) -> list[str]:
    return user.run("squeue", "-h", "-o", "%i").stdout.split()


def job_of(user: User, done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert done.returncode == 0, done.stderr
    shown = user.run("scontrol", "show", "job", done.stdout.split()[-1]).stdout
    return dict(re.findall(r"^ *(\w+)=(.*?) *$", re.sub(r" (?=[\w/]+=)(?!.*\()", "\n", shown), re.MULTILINE))


def test_a_job_is_filled_in_runs_so_and_says_so_and_what_it_submits_is_not_filled_in(user: User) -> None:
    done = user.run("sbatch", "--wait", "-t1", "-o", "out", VALUE, "job.sh")
    job = job_of(user, done)
    assert f"sbatch: {TOLD}" in done.stderr
    lines = [line for line in (user.home / "out").read_text().splitlines() if "TMPDIR" not in line]
    assert lines[:5] == [f"bft: {TOLD}", "0: task", "1: task", "2: task", "3: task"]
    assert job["Comment"] == f"bft: {TOLD}"
    assert re.fullmatch("(gres.)?gpu:a100_80gb:2", job["TresPerNode"])
    assert job["NumNodes"] == "2"
    inner = user.run("scontrol", "show", "job", lines[-1].split()[-1]).stdout
    assert "gpu" not in inner
    assert "auto" not in inner


def test_regression_a_job_without_the_users_environment_said_nothing_of_its_gpus(user: User) -> None:
    # newer releases hold a job whose user has no login shell to ask for the environment
    bare = "NIL" if is_newer_slurm() else "NONE"
    done = user.run("sbatch", "--wait", "-t1", f"--export={bare}", "-o", "bare", VALUE, "--wrap", "/bin/true")
    assert done.returncode == 0, done.stderr
    assert f"bft: {TOLD}" in (user.home / "bare").read_text().splitlines()


def test_regression_a_job_with_one_task_a_node_found_no_plan_of_several_nodes(user: User) -> None:
    job = job_of(user, user.run("sbatch", "-H", VALUE, "--ntasks-per-node=1", "job.sh"))
    assert (job["NumTasks"], job["NumCPUs"]) == ("2", "8")


def test_the_scripts_own_line_counts_and_the_command_line_wins(user: User, gpu_site: SandboxSite) -> None:
    answers(gpu_site, f"echo '{PLAN.split(' why=')[0]} why='\"$4 by $(id -u)\"")
    (user.home / "inside.sh").write_text("#!/bin/sh\n#SBATCH --auto-gpus=a.py:f,global-batch=8\ntrue\n")
    inside = user.run("sbatch", "-H", "inside.sh")
    both = user.run("sbatch", "-H", "--auto-gpus=b.py:f,global-batch=8", "inside.sh")
    assert f"(a.py:f,global-batch=8 by {user.uid})" in inside.stderr
    assert f"(b.py:f,global-batch=8 by {user.uid})" in both.stderr


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (["--gres=gpu:a100_80gb:2"], "TresPerNode=(gres.)?gpu:a100_80gb:2"),
        (["--gpus=4"], "TresPerJob=gres.gpu:4"),
        (["--mem=50"], "MinMemoryNode=50M"),
        (["-c1"], "CPUs/Task=1"),
        (["-n2"], "NumTasks=2"),
        (["-p", "batch", "-N2", "--comment=mine"], "Comment=mine"),
    ],
)
def test_what_the_user_wrote_stays_as_it_is(user: User, written: list[str], kept: str) -> None:
    done = user.run("sbatch", "-H", VALUE, *written, "job.sh")
    assert done.returncode == 0, done.stderr
    shown = user.run("scontrol", "show", "job", done.stdout.split()[-1]).stdout
    assert re.search(kept, shown)
    assert "bft: --auto-gpus chose " in shown
    assert f"{written[0].split('=')[0]}=" not in done.stderr.split("chose ")[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-p", "elastic"], wording("slurm_plugin.bftd.for_elastic_jobs", partition="elastic")),
        (["-p", "batch,bft-driver"], wording("slurm_plugin.bftd.for_drivers", partition="bft-driver")),
        (["-N1"], "no plan agrees"),
        (["--gres=gpu:v100:2"], wording("slurm_plugin.bftd_gpus.no_plan_has", by="--gres")),
        (["--elastic=1-2"], wording("slurm_plugin.bftd.no_gpus_to_choose")),
    ],
)
def test_what_no_plan_agrees_with_is_refused(user: User, words: list[str], said: str) -> None:
    done = user.run("sbatch", "-H", VALUE, *words, "job.sh")
    assert done.returncode != 0
    assert said in done.stderr
    assert queued(user) == []


@pytest.mark.parametrize("command", ["salloc", "srun"])
def test_only_a_batch_job_can_have_it(user: User, command: str) -> None:
    done = user.run(command, VALUE, "true")
    assert done.returncode != 0
    assert says(done.stderr, "slurm_plugin.spank_bftd.auto_gpus_batch_only", command=command)


def test_the_option_is_in_the_help(user: User) -> None:
    words = " ".join(user.run("sbatch", "--help").stdout.split())
    usage = wording("slurm_plugin.spank_bftd.auto_gpus_usage")
    assert f"--auto-gpus=STEP.py:FUNCTION,global-batch=N {usage}" in words


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'bft: step.py: no such file' >&2; exit 2", "--auto-gpus: step.py: no such file"),
        ("echo", wording("slurm_plugin.auto_gpus.unreadable_answer")),
        ("echo x", wording("slurm_plugin.bftd_gpus.no_plan_came")),
    ],
)
def test_where_nothing_can_be_chosen_nothing_is_submitted(
    user: User, gpu_site: SandboxSite, script: str, said: str
) -> None:
    answers(gpu_site, script)
    done = user.run("sbatch", VALUE, "job.sh")
    assert done.returncode != 0
    assert said in done.stderr
    assert queued(user) == []


def test_an_interrupted_sbatch_submits_nothing_and_leaves_nothing(user: User, gpu_site: SandboxSite) -> None:
    answers(gpu_site, f"echo $$ >{user.home}/pid; sleep 60")
    (user.home / "pid").unlink(missing_ok=True)
    switch = {"user": user.uid, "group": user.uid, "extra_groups": []} if user.uid != 0 else {}
    words = ["sbatch", VALUE, "job.sh"]
    submitting = subprocess.Popen(words, cwd=user.home, env=user.env, stderr=subprocess.PIPE, **switch)  # type: ignore[call-overload]
    until("the program's start", lambda: (user.home / "pid").exists() and (user.home / "pid").read_text() != "")
    began = time.monotonic()
    submitting.send_signal(signal.SIGINT)
    submitting.communicate(timeout=300)
    assert submitting.returncode == -signal.SIGINT
    assert time.monotonic() - began < 30
    assert not Path(f"/proc/{(user.home / 'pid').read_text().strip()}").exists()
    assert queued(user) == []


STEP = """\
import torch
def make_step(batch_size):
    model = torch.nn.Linear(1024, 1024)
    def step():
        model(torch.randn(batch_size, 1024)).square().mean().backward()
    return step
"""
SIZES = "gpt:h=1024,l=24,a=16,s=1024,V=50257,global-batch=32"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (SIZES, r"dp \d+, [0-9.]+ of 78\.7 GiB a GPU, formula"),
        pytest.param("step.py:make_step,global-batch=2", "dp 1, .* GiB a GPU, traced", marks=pytest.mark.torch),
        ("step.py:make_step", None),
        (SIZES.replace("h=1024", "h=32768"), None),
    ],
)
def test_the_real_program_chooses_what_slurm_takes_or_says_why_it_cannot(
    gpu_site: SandboxSite, value: str, said: str | None
) -> None:
    gpu_site.write_config()
    plugstack = gpu_site.root / "plugstack.conf"
    before = plugstack.read_text()
    (gpu_site.work / "step.py").write_text(STEP)
    (gpu_site.work / "job.sh").write_text("#!/bin/sh\ntrue\n")
    try:
        plugstack.write_text(re.sub("bft=.*", f"bft={Path(sys.executable).parent / 'bft'}", before))
        words = ["sbatch", "-H", f"--auto-gpus={value}", "job.sh"]
        done = subprocess.run(
            words, cwd=gpu_site.work, env=gpu_site.env(), capture_output=True, text=True, timeout=300, check=False
        )
        shown = gpu_site.slurm("scontrol", "show", "job", "-o")
    finally:
        plugstack.write_text(before)
        gpu_site.slurm("scancel", "--me")
    if said is None:
        assert done.returncode != 0
        *_, why, end = done.stderr.splitlines()
        assert why.startswith("sbatch: error: --auto-gpus: ")
        assert end == "sbatch: error: Nothing was submitted"
    else:
        assert re.search(rf"--auto-gpus chose --partition=batch .*--gres=gpu:\w+:\d .*\({said}\)", done.stderr)
        assert re.search(r"JobId=\d+ .*TresPerNode=(gres.)?gpu:", shown)


def test_where_the_controller_does_not_know_the_option_the_job_fails_with_one_line(
    user: User, gpu_site: SandboxSite
) -> None:
    with another_lua(gpu_site, lambda text: text.replace("/bftd.lua", "/nothing.lua")):
        done = user.run("sbatch", "--wait", "-t1", "-o", "lost", VALUE, "job.sh")
    assert done.returncode == 1
    [line] = [line for line in (user.home / "lost").read_text().splitlines() if "TMPDIR" not in line]
    assert line == wording("slurm_plugin.spank_bftd.auto_gpus_unknown")
