"""Several real workers on a node: one that fails is told at once, and takes the others with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.elastic.far_end import SECRET
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow

# A node with two workers, whose driver is reached by none of them: what they do comes before they look for it.
NODE = """
import json, os, socket, sys, threading, time
from elastic.backends.torchrun import node as module
from elastic.backends.torchrun.tunnel import Tunnel
from elastic.link.child_process import adopt_orphans, outlast_notice
from elastic.node import workers
from elastic.node.link import AgentLink
adopt_orphans()
Tunnel.open = lambda *_: 1
Tunnel.start = lambda _: None

def work(argv, environ, page):
    os.environ.update(environ)
%s

workers.run_worker = work
ours, theirs = socket.socketpair()
heard = ours.makefile()
ours.sendall(b'{"op": "join"}\\n')
ours.sendall(json.dumps({"op": "rendezvous", "generation": 3, "rank": 1, "nodes": 2, "first_rank": 4, "world": 6,
                         "port": 1}).encode() + b"\\n")

def hear():
    for number, line in enumerate(heard):
        op = json.loads(line)["op"]
        if number and op == "join":  # all that belongs to the workers is gone by now
            os._exit(0)
        print(line, end="", flush=True)
        if op == "done":
            os._exit(0)

threading.Thread(target=hear, daemon=True).start()
module.TorchrunNode(AgentLink(theirs.detach()), ["train.py"]).run()
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

TELLS = """
    with open(sys.argv[1] + os.environ["LOCAL_RANK"], "w") as file:
        json.dump(dict(os.environ), file)
    os._exit(0)
"""


def told(work: str, *arguments: str) -> list[dict[str, Any]]:
    """Run a node whose workers do this; returns what the driver is told."""
    environ = {"BFT_WORKERS_PER_NODE": "2", "BFT_DRIVER": "127.0.0.1:1", "BFT_SECRET": SECRET, "BFT_LEASE": "n1.1"}
    argv = [sys.executable, "-c", NODE % work, *arguments]
    said = subprocess.run(
        argv, env={"PATH": "/bin", **environ}, capture_output=True, text=True, timeout=5 * STILL_S, check=False
    )
    assert said.returncode == 0, said.stderr
    return [json.loads(line) for line in said.stdout.splitlines()]


def test_a_worker_that_fails_is_told_with_its_own_code_and_the_others_are_not_waited_for() -> None:
    joins, ends = told(FAILS)
    assert joins == {"op": "join", "generation": -1}
    assert (ends["op"], ends["local_rank"], ends["rc"]) == ("exit", 0, 3)


def test_regression_a_script_that_ended_by_os_exit_0_was_waited_for_without_end() -> None:
    assert told(ENDS)[-1] == {"op": "done", "step": -1}


def test_a_worker_has_the_variables_that_torchrun_sets(tmp_path: Path) -> None:
    told(TELLS, f"{tmp_path}/")
    first, second = (json.loads((tmp_path / name).read_text()) for name in ("0", "1"))
    wanted = {
        "RANK": "4",
        "LOCAL_RANK": "0",
        "GROUP_RANK": "1",
        "ROLE_RANK": "4",
        "WORLD_SIZE": "6",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_WORLD_SIZE": "6",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
        "TORCHELASTIC_RESTART_COUNT": "3",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "BFT_GENERATION": "3",
    }
    assert {name: first[name] for name in wanted} == wanted
    assert {name for name in wanted if first[name] != second[name]} == {"RANK", "LOCAL_RANK", "ROLE_RANK"}
