"""`bft size profile --partition`: on a node of a real Slurm, and in Slurm's own words where that is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.sandbox import Sandbox
from tests.support.clusters import Clusters
from tests.support.messages import wording
from tests.support.programs import run_bft

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.torch]

ROOT = Path(__file__).parents[4]
SMALL = ("--config", "gpt:h=32,l=2,a=4,s=8,V=64", "--global-batch", "4", "--gpus", "1", "--rounds", "1")


@pytest.fixture(scope="module")
def sandbox(clusters: Clusters) -> Iterator[Sandbox]:
    with clusters.lend(nodes=2, tuned=True) as cluster:
        yield cluster


def profile(sandbox: Sandbox, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "SLURM_CONF": str(sandbox.conf), "XDG_CACHE_HOME": str(folder)}
    return run_bft("size", "profile", *SMALL, *words, env=env, cwd=ROOT)


def test_a_job_of_one_node_profiles_and_what_it_found_is_kept_here(sandbox: Sandbox, tmp_path: Path) -> None:
    ended = profile(sandbox, tmp_path, "--device", "cpu", "--partition", "batch", "--python", sys.executable)
    assert ended.returncode == 0, ended.stderr
    assert "1/1 operators 0 to 3" in ended.stderr
    assert "gpt on cpu" in ended.stdout
    again = profile(sandbox, tmp_path, "--device", "cpu", "--json", "--python", sys.executable)
    assert again.stderr == wording("cli.size_profile_work.all_cached", known="1 shard") + "\n"
    assert len(json.loads(again.stdout)["profiles"]) == 1


def test_what_slurm_refuses_is_one_line_in_its_own_words(sandbox: Sandbox, tmp_path: Path) -> None:
    ended = profile(sandbox, tmp_path, "--device", "cpu", "--partition", "nowhere")
    assert ended.returncode == 1
    assert "invalid partition" in ended.stderr.lower()
    assert ended.stderr.count("\n") == 1
    scontrol = ["scontrol", "update", "PartitionName=batch", "State=DRAIN"]
    env = {**os.environ, "SLURM_CONF": str(sandbox.conf)}
    subprocess.run(scontrol, env=env, check=True)
    try:
        ended = profile(sandbox, tmp_path, "--device", "cuda", "--partition", "batch")
    finally:
        subprocess.run([*scontrol[:-1], "State=UP"], env=env, check=True)
    assert ended.returncode == 1, ended.stdout
    assert ended.stderr.count("\n") == 1
