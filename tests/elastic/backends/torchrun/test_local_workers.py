"""Several workers on a node, under torch's own agent: one that fails is told at once, and takes the others with it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow

# A node with two workers and no driver; what they do is put in.
NODE = """
import json, os, sys, time
from torch.distributed import HashStore
from torch.distributed.elastic.multiprocessing.api import PContext
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo
from elastic.backends.torchrun.node import DriverRendezvous, _ElasticAgent
from elastic.backends.torchrun.tunnel import Tunnel
from elastic.link.child_process import adopt_orphans, outlast_notice
from elastic.node.cleanup import NodeCleanup
from elastic.worker.driver_link import new_page
adopt_orphans()
PContext.close.__defaults__ = (None, 1000)  # torch's own patience of 30 s, longer than a test lasts

class Alone(DriverRendezvous):
    def next_rendezvous(self):
        return RendezvousInfo(HashStore(), 0, 1, RendezvousStoreInfo("127.0.0.1", 1))
    def num_nodes_waiting(self):
        return 0

class Link:
    def send(self, message):
        print(json.dumps(message), flush=True)
        os._exit(0)

def entry():
%s

rendezvous = Alone(Link(), Tunnel())
rendezvous.world = 2
spec = WorkerSpec(role="default", local_world_size=2, rdzv_handler=rendezvous, entrypoint=entry, max_restarts=9,
                  monitor_interval=0.05)
result = _ElasticAgent(spec, rendezvous, [new_page(), new_page()], NodeCleanup()).run()
print(json.dumps({"op": "ended", "failed": result.is_failed()}))
"""

# The first fails, the second hangs as in a collective and outlasts SIGTERM.
FAILS = """
    outlast_notice()
    if os.fork() == 0:
        time.sleep(1000)
    if os.environ["LOCAL_RANK"] == "0":
        os._exit(3)
    time.sleep(1000)
"""

ENDS = """
    time.sleep(float(os.environ["LOCAL_RANK"]) / 5)
    os._exit(0)
"""


@pytest.mark.torch
def test_a_worker_that_fails_is_told_with_its_own_code_and_not_after_torch_waited_for_the_others() -> None:
    """torch asks the others to end, which they do not hear, and gives them time; and it waits for forks of the dead."""
    said = subprocess.run(
        [sys.executable, "-c", NODE % FAILS], capture_output=True, text=True, timeout=5 * STILL_S, check=False
    )
    assert said.returncode == 0, said.stderr
    message = json.loads(said.stdout)
    assert (message["op"], message["rc"]) == ("exit", 3)


@pytest.mark.torch
def test_regression_a_script_that_ended_by_os_exit_0_was_waited_for_without_end() -> None:
    said = subprocess.run(
        [sys.executable, "-c", NODE % ENDS], capture_output=True, text=True, timeout=5 * STILL_S, check=False
    )
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout) == {"op": "ended", "failed": False}
