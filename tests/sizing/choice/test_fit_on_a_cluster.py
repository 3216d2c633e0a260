"""The lines of a plan are lines that a real Slurm takes, and it says when they could start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftd.base.errors import BftError
from bftd.cli.size.shared import allocation
from sizing.step_time import checking
from slurm_plugin.pilots.start_estimate import asked
from slurm_plugin.sandbox import Sandbox
from tests.support.clusters import Clusters
from tests.support.messages import pattern
from tests.support.programs import run_bft

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[3]
GPT = "gpt:h=1024,l=24,a=16,s=1024,V=50257,b=2,precision=bf16"


@pytest.fixture(scope="module")
def sandbox(clusters: Clusters) -> Iterator[Sandbox]:
    with clusters.lend(nodes=4, gpus={"a100": 4, "v100": 2}, tuned=True) as cluster:
        yield cluster


def fit(sandbox: Sandbox, *words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "SLURM_CONF": str(sandbox.conf)}
    return run_bft("size", "fit", "--config", GPT, "--global-batch", "32", *words, env=env, cwd=cwd)


def test_slurm_takes_the_lines_of_every_plan_and_says_when_the_best_could_start(sandbox: Sandbox) -> None:
    ended = fit(sandbox, "--json")
    assert ended.returncode == 0, ended.stderr
    plans = json.loads(ended.stdout)["plans"]
    assert {plan["gpu_type"].partition("-")[0] for plan in plans} == {"a100", "v100"}
    assert all(plan["start"].startswith("to start at 20") for plan in plans[:3])
    assert {plan["partition"] for plan in plans} == {"batch"}, "bftd's own partitions are no place for a regular job"
    seen = {(plan["gpu_type"], plan["gpus"], plan["nodes"]): plan for plan in plans}
    assert len(seen) >= 4
    client = sandbox.client()
    for plan in seen.values():
        said = asked(client, plan["sbatch"])
        assert said.taken, (plan["sbatch"], said.words)
        assert "in partition batch" in said.words


def test_slurm_says_what_it_refuses_in_its_own_words(sandbox: Sandbox) -> None:
    said = asked(sandbox.client(), ["#SBATCH --partition=batch", "#SBATCH --gres=gpu:a100:9"])
    assert not said.taken
    assert "Requested node configuration is not available" in said.words


def test_a_copy_of_a_script_is_submitted_as_it_is_and_gets_its_gpus(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH --output=/dev/null\nsleep 30\n")
    ended = fit(sandbox, "--into", "job.sh", "--yes", "--gpu", "v100", "--top", "1", "--max-gpus", "1", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    client = sandbox.client()
    text = (tmp_path / "job.gpus.sh").read_text()
    assert "  # " in text, "sbatch has to read past the reasons"
    job_id = client.submit([], text)
    shown = client.run("scontrol", "show", "job", job_id).out
    client.cancel([job_id])
    assert "gres/gpu:v100=1" in shown or "gres:gpu:v100:1" in shown
    assert "NumNodes=1" in shown


def test_steps_are_run_on_one_gpu_of_a_partition(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sandbox's GPUs are files, which torch does not see: what the step on the node says is the command's line."""
    monkeypatch.setenv("SLURM_CONF", str(sandbox.conf))
    words = [sys.executable, "60", json.dumps(dict.fromkeys(checking.BATCHES, 2**30))]
    with pytest.raises(BftError, match=pattern("sizing.steps.no_gpu")):
        allocation.answered("batch", ["--gres=gpu:a100:1", "--time=5"], ("size.check", "on_node"), words)
