"""How the jobs of trainers end on a real site: as their scripts do."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from bftd.cli.admin.sandbox_site import SandboxSite
from elastic.driver.failures.blame import RESTARTS_MOST, TRIES
from tests.e2e.trainers import pilots, until
from tests.support.messages import wording

pytestmark = [pytest.mark.cluster, pytest.mark.torch, pytest.mark.usefixtures("empty_cluster")]


def test_a_trainer_in_the_foreground_ends_with_its_scripts_exit_code_and_leaves_no_pilot(site: SandboxSite) -> None:
    script = site.work / "short.py"
    script.write_text(
        "import os, sys, elastic\n"
        "elastic.step(samples=1)\n"
        # one write: two workers print at once
        'print(f\'workers {os.environ["LOCAL_WORLD_SIZE"]} {os.environ["CUDA_VISIBLE_DEVICES"]}\')\n'
        "sys.exit(0 if elastic.load() is None else 9)\n"
    )
    done = site.bft("run", "--nodes=1-1", str(script), timeout_s=600.0)
    assert done.returncode == 0, done.stdout + done.stderr
    # One worker a GPU, and every worker sees the node's GPUs as under plain torchrun.
    assert done.stdout.count("workers 2 0,1") == 2
    assert script.exists()
    until("the pilot's end", lambda: not pilots(site), site)


def test_regression_an_output_that_was_full_or_that_nobody_read_ended_training(site: SandboxSite) -> None:
    script = site.work / "talks.py"
    script.write_text(
        f"#!{sys.executable}\n"
        "import sys, time, elastic\n"
        "assert elastic.load() is None\n"
        "for step in range(20):\n"
        "    elastic.step(samples=1)\n"
        "    print('x' * 10_000, step)\n"
        "    time.sleep(0.05)\n"
        "open(sys.argv[1], 'w').close()\n"
    )
    words = ["--elastic=1-1,workers=1,backend=torchrun", "--parsable", "-Jfull", "--output=/dev/full"]
    done = site.bft("sbatch", *words, str(script), "sent-to-a-full-disk")
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    shell = 'set -o pipefail; bft run --nodes=1-1,workers=1 "$0" read-by-nobody | head -1'
    argv = ["bash", "-c", shell, str(script)]
    said = subprocess.run(argv, cwd=site.work, env=site.env(), capture_output=True, text=True, check=False, timeout=300)
    assert (said.returncode, said.stdout.count("\n")) == (0, 1)
    assert said.stderr == wording("elastic.output.nobody_reads") + "\n"
    assert (site.work / "read-by-nobody").exists()
    until("the end of both", lambda: not site.slurm("squeue", "-h", "-o", "%i"), site)
    assert (site.work / "sent-to-a-full-disk").exists()
    assert "ExitCode=0:0" in site.slurm("scontrol", "show", "job", job)


def test_a_script_that_always_dies_ends_its_job_with_its_own_exit_code_and_error(site: SandboxSite) -> None:
    script = site.work / "broken.py"
    script.write_text(f"#!{sys.executable}\nimport sys\nprint('about to fail')\nsys.exit(41)\n")
    done = site.bft("run", "--nodes=1-2,workers=1", str(script), timeout_s=600.0)
    assert done.returncode == 41, done.stdout + done.stderr
    # Three, if both nodes come at once; where one of them comes late the other is suspected first.
    failed = re.search(r"the script failed (\d+) times", done.stdout)
    assert failed is not None, done.stdout
    assert TRIES <= int(failed[1]) <= RESTARTS_MOST
    assert "Traceback" not in done.stdout + done.stderr


def test_sbatch_waits_for_a_job_and_ends_with_its_exit_code(site: SandboxSite) -> None:
    script = site.work / "failing.py"
    # Code 2 is the refusal of its arguments, which ends it at once: Slurm's sbatch asks ever more rarely.
    script.write_text(f"#!{sys.executable}\n#SBATCH --wait\nimport sys\nsys.exit(2)\n")
    done = site.bft("sbatch", "--elastic=1-1,workers=1", "--output=failing.log", str(script), timeout_s=600.0)
    assert done.returncode == 2, done.stdout + done.stderr
    submitted = re.fullmatch(r"Submitted batch job (\d+)\n", done.stdout)
    assert submitted is not None
    assert "ExitCode=2:0" in site.slurm("scontrol", "show", "job", submitted[1])
