"""What a pilot's workers have, on nodes that are not this one."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil
import pytest

from elastic.node import machine
from elastic.node.machine import interface_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("environ", "workers"),
    [
        ({}, 1),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2"}, 3),
        ({"CUDA_VISIBLE_DEVICES": "GPU-6a3,MIG-77b"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "", "SLURM_GPUS_ON_NODE": "4"}, 1),
        ({"ROCR_VISIBLE_DEVICES": "0,1,2,3"}, 4),
        ({"CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "0,1"}, 2),
        ({"HIP_VISIBLE_DEVICES": "0,1"}, 2),
        ({"ZE_AFFINITY_MASK": "0.0,0.1"}, 2),
        ({"SLURM_GPUS_ON_NODE": "4"}, 4),
        ({"SLURM_GPUS_ON_NODE": "0"}, 1),
        ({"SLURM_GPUS_ON_NODE": "(null)"}, 1),
    ],
)
def test_each_gpu_of_whatever_make_gets_a_worker(environ: dict[str, str], workers: int) -> None:
    assert machine.workers_per_node(environ) == workers


@pytest.mark.parametrize(
    ("cpus", "siblings", "workers", "threads"),
    [
        (64, 1, 1, 64),
        (64, 1, 8, 8),
        (128, 2, 4, 16),
        (2, 1, 4, 1),
        (10, 1, 4, 2),
    ],
)
def test_a_cpu_node_with_one_worker_does_not_compute_with_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpus: int, siblings: int, workers: int, threads: int
) -> None:
    cores = cpus // siblings
    for cpu in range(cpus):
        (tmp_path / f"{cpu}").write_text(",".join(str(cpu % cores + cores * other) for other in range(siblings)))
    monkeypatch.setattr(machine, "_SIBLINGS", f"{tmp_path}/{{}}")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cpus)))
    assert machine.threads_per_worker(workers) == threads


def test_only_the_cores_of_the_pilot_count_also_where_nobody_tells_which_are_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_SIBLINGS", f"{tmp_path}/{{}}")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 5, 6})
    assert machine.threads_per_worker(1) == 3


def test_an_interface_is_set_where_the_user_set_none_and_for_nccl_it_is_no_prefix() -> None:
    names = ["HOROVOD_GLOO_IFACE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"]
    settings = machine.interface_settings(names, "eth1", {"GLOO_SOCKET_IFNAME": "ib0"})
    assert settings == {"HOROVOD_GLOO_IFACE": "eth1", "NCCL_SOCKET_IFNAME": "=eth1"}
    assert machine.interface_settings(names, None, {}) == {}


class Writer:
    """A connection with a local address."""

    def __init__(self, address: str) -> None:
        self._address = address

    def get_extra_info(self, _: str) -> tuple[str, int]:
        return (self._address, 1)


def test_the_interface_is_the_one_that_holds_the_connections_address() -> None:
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            if address.family == socket.AF_INET:
                expected = "lo" if address.address.startswith("127.") else name
                assert interface_of(Writer(address.address)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1"])
def test_a_loopback_address_of_no_interface_of_its_own_is_the_loopbacks(address: str) -> None:
    assert interface_of(Writer(address)) == "lo"  # type: ignore[arg-type]


def test_regression_an_address_that_no_interface_holds_was_taken_for_the_loopback() -> None:
    assert interface_of(Writer("203.0.113.9")) is None  # type: ignore[arg-type]
    assert interface_of(None) is None
