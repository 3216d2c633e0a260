"""Traces in processes that are forked from one which has torch already: for steps that do nothing to their process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sizing.child import tracing

_SERVER = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import torch, torch.distributed.tensor
from sizing.tracer import main, torch_internals as private
from sizing.tracer.device import fake_gpu as cuda, isolation as surroundings
from sizing.tracer.operators import stand_ins, work
from sizing.tracer.ranks import fake_ranks as spread
sys.path.pop(0)
reply = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
torch.set_num_threads(1)
for line in sys.stdin:
    request, env, folder = json.loads(line)
    child = os.fork()
    if child == 0:
        os.environ.clear()
        os.environ.update(env)
        os.chdir(folder)
        main.main(request, reply)
    if os.waitpid(child, 0)[1]:
        os.write(reply, bytes([10]))
"""


@contextmanager
def traces() -> Iterator[Any]:
    """A stand-in for `tracing._run`, which answers from forks of one process."""
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", _SERVER, str(root)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ})
    assert server.stdin is not None
    assert server.stdout is not None

    def run(python: str, request: dict[str, Any], timeout_s: float, memory_bytes: int) -> tuple[bytes, int, str]:
        env = {**os.environ, **tracing._environment(request)}
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps([request, env, os.getcwd()]).encode() + b"\n")
        server.stdin.flush()
        return server.stdout.readline().rstrip(b"\n"), 0, ""

    try:
        yield run
    finally:
        server.stdin.close()
        server.stdout.close()
        server.wait()
