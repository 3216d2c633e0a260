"""Which GPUs workers have, on nodes of every make; the variables are those that Slurm sets, as gres.conf(5) says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.node import devices
from tests.support.messages import says
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow

MIG_OLD = "MIG-GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f/7/0"
MIG = "MIG-4f35f54b-9c1f-5ea7-8c2d-0c1e3e1a6f01"
UUID = "GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f"
VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")

visible = st.sampled_from(VISIBLE)
gpu = st.one_of(st.integers(0, 15).map(str), st.uuids().map(lambda one: f"GPU-{one}"), st.uuids().map("MIG-{}".format))
odd = st.sampled_from(["", "-1", "NoDevFiles", "none", "all", "void", "0x1", "gpu0", "1.2.3", "²", "0-3", "0;1"])


@pytest.fixture
def on_amd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kfd").touch()
    monkeypatch.setattr(devices, "_AMD_DRIVER", tmp_path / "kfd")
    monkeypatch.setattr(devices, "_NVIDIA_DRIVER", tmp_path / "nvidiactl")


@pytest.fixture(autouse=True)
def on_nvidia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_AMD_DRIVER", tmp_path / "no kfd")


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("0,1,2", ("0", "1", "2")),
        (" 3 , 1 ", ("3", "1")),
        (UUID, (UUID,)),
        (f"{MIG_OLD},{MIG}", (MIG_OLD, MIG)),
        ("0.0,0.1,1", ("0.0", "0.1", "1")),
        ("2,-1,3", ("2",)),
        ("0,1,", ("0", "1")),
        ("0,0", ()),
        *((value, ()) for value in ("", "-1", "NoDevFiles", "none", "all", ",0", "²", "٣")),
    ],
)
def test_a_list_is_read_up_to_what_is_no_gpu_as_drivers_do(value: str, found: tuple[str, ...]) -> None:
    assert devices.names(value) == found


@given(st.lists(gpu, max_size=16, unique=True), odd, st.lists(gpu, max_size=3))
def test_what_comes_after_an_odd_name_is_not_there(before: list[str], name: str, after: list[str]) -> None:
    assert devices.names(",".join([*before, name, *after])) == tuple(before)


@pytest.mark.parametrize(
    ("environ", "number"),
    [
        ({}, 0),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles", "ROCR_VISIBLE_DEVICES": "0,1"}, 2),
        ({"CUDA_VISIBLE_DEVICES": f"{MIG_OLD},{MIG}"}, 2),
        # gres.conf without flags: all alike
        (dict.fromkeys((*VISIBLE[:2], VISIBLE[3], "GPU_DEVICE_ORDINAL"), "2,3"), 2),
        # no_gpu_env, opencl_env
        ({"SLURM_GPUS_ON_NODE": "4", "SLURM_STEP_GPUS": "0-3"}, 4),
        ({"SLURM_STEP_GPUS": "0-1,6", "SLURM_JOB_GPUS": "0-7"}, 3),
        ({"SLURM_JOB_GPUS": "0,1"}, 2),
        ({"GPU_DEVICE_ORDINAL": "0,1"}, 2),
        ({"SLURM_STEP_GPUS": "gpu:2", "SLURM_JOB_GPUS": "3-1"}, 0),
        ({"SLURM_STEP_GPUS": "0-99999999999"}, 100_000_000_000),
        # a user who hides them has the last word
        ({"CUDA_VISIBLE_DEVICES": "", "SLURM_GPUS_ON_NODE": "4", "SLURM_STEP_GPUS": "0-3"}, 0),
    ],
)
def test_gpus_are_counted_wherever_the_site_has_slurm_tell_them(environ: dict[str, str], number: int) -> None:
    assert devices.count(environ) == number


def test_regression_a_node_without_nvidias_device_files_had_one_worker_for_all_of_amds(on_amd: None) -> None:
    assert devices.count({"CUDA_VISIBLE_DEVICES": "NoDevFiles", "ROCR_VISIBLE_DEVICES": "0,1,2,3"}) == 4


def test_of_variables_that_filter_one_after_the_other_the_last_one_counts(on_amd: None) -> None:
    assert devices.count({"ROCR_VISIBLE_DEVICES": "4,5,6,7", "HIP_VISIBLE_DEVICES": "1"}) == 1


def test_cuda_counts_as_slurm_does_unless_the_user_wants_it_otherwise() -> None:
    assert devices.of_node({"CUDA_VISIBLE_DEVICES": "2,3"}) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert devices.of_node({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}) == {}


def test_on_amd_no_gpu_is_filtered_away_a_second_time(on_amd: None) -> None:
    slurms = {"CUDA_VISIBLE_DEVICES": "2,3", "ROCR_VISIBLE_DEVICES": "2,3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert devices.of_node(slurms) == {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert devices.of_node({**slurms, "HIP_VISIBLE_DEVICES": "1"})["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert "HIP_VISIBLE_DEVICES" not in devices.of_node({**slurms, "HIP_VISIBLE_DEVICES": "1"})


def test_on_nvidia_what_slurm_also_sets_for_amd_changes_nothing() -> None:
    assert (
        devices.of_node({"CUDA_VISIBLE_DEVICES": "2,3", "ROCR_VISIBLE_DEVICES": "2,3", "CUDA_DEVICE_ORDER": "x"}) == {}
    )


def dealt(environ: dict[str, str], workers: int) -> list[dict[str, str]]:
    numbered = [{**environ, "BFT_LOCAL_RANK": str(one), "BFT_WORKERS_PER_NODE": str(workers)} for one in range(workers)]
    return [devices.of_worker(one) for one in numbered]


@given(visible, st.lists(st.integers(0, 15).map(str), min_size=1, max_size=8, unique=True), st.integers(1, 8))
def test_every_worker_sees_all_gpus_where_there_are_enough_and_else_one_round_robin(
    name: str, gpus: list[str], workers: int
) -> None:
    environ = {name: ",".join(gpus)}
    if workers <= len(gpus):
        assert dealt(environ, workers) == [{}] * workers
    else:
        assert dealt(environ, workers) == [{name: gpus[rank % len(gpus)]} for rank in range(workers)]


def test_a_process_can_use_one_mig_part_so_each_worker_has_its_own() -> None:
    assert dealt({"CUDA_VISIBLE_DEVICES": f"{MIG},{MIG_OLD}"}, 2) == [
        {"CUDA_VISIBLE_DEVICES": MIG},
        {"CUDA_VISIBLE_DEVICES": MIG_OLD},
    ]
    assert dealt({"CUDA_VISIBLE_DEVICES": MIG}, 1) == [{}]


def test_on_amd_only_the_last_filter_is_narrowed(on_amd: None) -> None:
    environ = {"ROCR_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert dealt(environ, 3) == [{"CUDA_VISIBLE_DEVICES": one} for one in ("0", "1", "0")]


def test_workers_without_gpus_are_told_of_none() -> None:
    for environ in (
        {},
        {"CUDA_VISIBLE_DEVICES": ""},
        {"CUDA_VISIBLE_DEVICES": "NoDevFiles"},
        {"SLURM_GPUS_ON_NODE": "2"},
    ):
        assert dealt(environ, 4) == [{}] * 4


# A build of torch for CUDA notes in its own library that a process asked for GPUs, and tells it to the forks alone.
POISONED = """
import os, sys, types
asked_by = []
torch = sys.modules["torch"] = types.ModuleType("torch")
torch.cuda = types.SimpleNamespace(_is_in_bad_fork=lambda: bool(asked_by) and os.getpid() not in asked_by)
from elastic.node import devices
print(devices.unusable() == "")
asked_by.append(os.getpid())
print(devices.unusable())
"""


def test_a_node_process_that_asked_for_gpus_says_that_its_workers_can_use_none() -> None:
    said = subprocess.run([sys.executable, "-c", POISONED], capture_output=True, text=True, check=True, timeout=STILL_S)
    fine, why = said.stdout.splitlines()
    assert fine == "True"
    assert says(why, "elastic.devices.torch_too_early")


WATCHED = """
import sys, traceback
import torch
asked = []
for kind in (torch.cuda, torch.xpu):
    for name in ("is_available", "device_count", "init", "_lazy_init", "current_device", "get_device_properties"):
        if hasattr(kind, name):
            def asks(*args, _name=name, **kwargs):
                asked.append((_name, traceback.extract_stack()[-2].filename))
            setattr(kind, name, asks)
from elastic.backends import KINDS, load
load(KINDS[sys.argv[1]].preload)()
from elastic.node import devices
print(asked, repr(devices.unusable()))
"""


@pytest.mark.torch
@pytest.mark.parametrize("backend", ["torchrun", pytest.param("horovod", marks=pytest.mark.horovod)])
def test_nothing_that_a_node_process_imports_asks_for_gpus(backend: str) -> None:
    argv = [sys.executable, "-c", WATCHED, backend]
    said = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120, env={**os.environ})
    assert said.stdout == "[] ''\n"
