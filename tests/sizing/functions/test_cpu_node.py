"""The node of a profile, from its environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sizing.base.errors import UsageError
from sizing.functions import cpu_node
from slurm_plugin.clients.client import SlurmClient


def no_slurm() -> SlurmClient:
    raise AssertionError("Slurm is not asked")


def test_gpus_are_those_of_the_allocation_or_of_the_environment_and_else_have_to_be_said(tmp_path: Path) -> None:
    assert cpu_node.gpus_used(no_slurm, {"SLURM_JOB_ID": "1", "SLURM_GPUS_ON_NODE": "4"}, tmp_path) == 4
    assert cpu_node.gpus_used(no_slurm, {"CUDA_VISIBLE_DEVICES": "0,3"}, tmp_path) == 2
    assert cpu_node.gpus_used(no_slurm, {"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == 0
    assert cpu_node.gpus_used(no_slurm, {}, tmp_path / "none") == 0
    (tmp_path / "0000:3b:00.0").mkdir()
    with pytest.raises(UsageError, match="1 GPU: say by --gpus"):
        cpu_node.gpus_used(no_slurm, {}, tmp_path)


@pytest.mark.parametrize(
    ("said", "gpus"),
    [
        ("JobId=1 NumNodes=1 NumCPUs=2 TresPerNode=gres:gpu:2", 2),
        ("JobId=1 NumNodes=2 TresPerNode=gres/gpu:a100:4", 4),
        ("JobId=1 NumNodes=2-2 TresPerJob=gres:gpu:8", 4),
        ("JobId=1 NumNodes=1 NumTasks=4 TresPerTask=cpu=2,gres/gpu:1", 4),
        ("JobId=1 NumNodes=1 NumCPUs=2 TresPerNode=(null)", 0),
        ("slurm_load_jobs error: Invalid job id specified", 0),
    ],
)
def test_gpus_of_an_allocation_are_those_that_it_asked_for_on_each_node(said: str, gpus: int) -> None:
    assert cpu_node.gpus_asked(said) == gpus


def test_this_machine_is_the_node_where_there_is_no_slurm(tmp_path: Path) -> None:
    node = cpu_node.here(no_slurm, {}, tmp_path / "none")
    assert node is not None
    assert node.cpus == os.cpu_count()
    assert node.memory_bytes > 2**28
    assert node.share is None
