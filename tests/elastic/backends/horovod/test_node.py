"""What a Horovod worker finds in its environment: nothing secret, and what its user has set."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from elastic.backends.horovod import node as node_module
from elastic.backends.horovod import notification_address
from elastic.node.link import AgentLink
from tests.elastic.far_end import SECRET, accepted
from tests.support.waiting import STILL_S

pytestmark = [pytest.mark.slow, pytest.mark.horovod]

NODE = """
import json, socket, sys, threading
from elastic.backends.horovod.node import HorovodNode
from elastic.node.link import AgentLink
ours, theirs = socket.socketpair()
node = HorovodNode(AgentLink(theirs.detach()), sys.argv[1:2])
threading.Thread(target=node.run, daemon=True).start()
ours.sendall(sys.argv[2].encode() + b"\\n")
print(json.loads(ours.makefile().readline())["rc"])
"""

SCRIPT = """
import os, subprocess
from elastic.backends.horovod import notification_address as announcement
print("KEY KEPT" if announcement._own_key == "a key of this run" else "KEY LOST")
for name, value in sorted(os.environ.items()):
    print("OWN", name, value)
subprocess.run(["env"], check=True)
"""


def run(folder: Path, **environ: str) -> str:
    """What a worker says that is started with a key and a default, in a node process with `environ`."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    start = (
        '{"op": "start", "host": "n1.1.2", "local_rank": 0, "env": {"HOROVOD_RANK": "0", "BFT_RUN_KEY": '
        '"a key of this run"}, "defaults": {"HOROVOD_GLOO_TIMEOUT_SECONDS": "5", "HOROVOD_OTHER": "theirs"}}'
    )
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        server.settimeout(20)
        driver = pool.submit(accepted, server)
        link = {"BFT_DRIVER": f"127.0.0.1:{server.getsockname()[1]}", "BFT_SECRET": SECRET, "BFT_LEASE": "n1.1"}
        argv = [sys.executable, "-c", NODE, str(script), start]
        merged = {**os.environ, **link, "PYTHONUNBUFFERED": "1", **environ}
        said = subprocess.run(argv, env=merged, capture_output=True, text=True, check=False, timeout=5 * STILL_S)
        channel, hello = driver.result()
        channel.close()
    assert (hello["lease"], hello["incarnation"], hello["local_rank"]) == ("n1.1", 2, 0)
    assert said.stdout.endswith("\n0\n"), said.stderr
    return said.stdout


def test_neither_the_script_nor_what_it_starts_is_handed_the_key_that_signs_notifications(tmp_path: Path) -> None:
    said = run(tmp_path)
    assert "KEY KEPT" in said
    assert "HOROVOD_RANK=0" in said
    assert "a key of this run" not in said
    assert "BFT_RUN_KEY" not in said


def test_what_the_user_set_for_gloo_and_horovod_is_respected(tmp_path: Path) -> None:
    said = run(tmp_path, HOROVOD_GLOO_TIMEOUT_SECONDS="77")
    assert "OWN HOROVOD_GLOO_TIMEOUT_SECONDS 77\n" in said
    assert "OWN HOROVOD_OTHER theirs\n" in said


def test_the_rendezvous_is_where_this_node_reaches_the_driver(tmp_path: Path) -> None:
    assert "OWN HOROVOD_GLOO_RENDEZVOUS_ADDR 127.0.0.1\n" in run(tmp_path)


@pytest.mark.parametrize(
    ("driver", "host"), [("10.2.0.5:4711", "10.2.0.5"), ("[fd00::5]:4711", "fd00::5"), ("svc1:4711", "svc1")]
)
def test_regression_all_nodes_were_sent_to_one_address_of_a_driver_that_each_reaches_by_another(
    monkeypatch: pytest.MonkeyPatch, driver: str, host: str
) -> None:
    monkeypatch.setenv("BFT_DRIVER", driver)
    told = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "of another network", "HOROVOD_GLOO_RENDEZVOUS_PORT": "5"}
    environ = node_module.worker_environment(
        {"op": "start", "env": {**told, notification_address.KEY_NAME: "key"}, "defaults": {}}
    )
    assert (environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]) == (host, "5")


def test_a_worker_that_is_to_have_a_gpu_of_its_own_sees_that_one_and_so_does_what_it_starts(tmp_path: Path) -> None:
    said = run(tmp_path, CUDA_VISIBLE_DEVICES="MIG-4f35f54b,MIG-9b1c0a2d", BFT_WORKERS_PER_NODE="2")
    assert "OWN CUDA_VISIBLE_DEVICES MIG-4f35f54b\n" in said
    assert "\nCUDA_VISIBLE_DEVICES=MIG-4f35f54b\n" in said
    said = run(tmp_path, CUDA_VISIBLE_DEVICES="3,1", BFT_WORKERS_PER_NODE="2")
    assert "OWN CUDA_VISIBLE_DEVICES 3,1\n" in said


def test_a_worker_is_forked_only_when_those_that_were_killed_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then they hold the memory of its GPU."""
    did: list[str] = []
    ours, theirs = socket.socketpair()
    node = node_module.HorovodNode(AgentLink(theirs.detach()), ["train.py"])
    for name in ("wait_for_killed", "settle"):
        monkeypatch.setattr(node._workers.cleanup, name, lambda *_, what=name: did.append(what))
    monkeypatch.setattr(node_module, "worker_environment", lambda _: {})
    with monkeypatch.context() as patch:
        patch.setattr(node._workers, "start", lambda _: did.append("fork"))
        node._start({"host": "n1.1.0", "local_rank": 0})
    assert did == ["wait_for_killed", "settle", "fork"]
    ours.close()
