"""Children of sizing.child.launch forked from one process that has torch, and has exported once already."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_SERVER = """
import importlib, json, os, sys
sys.path.insert(0, sys.argv[1])
import torch
from sizing.tracer.graphs import graphs, models, stage_module
from sizing.tracer.runs import measure, profiles
torch.set_num_threads(1)
torch.export.export(torch.nn.Linear(2, 2), (torch.randn(1, 2),), strict=False)
sys.path.pop(0)
reply = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
for line in sys.stdin:
    entry, request, env = json.loads(line)
    child = os.fork()
    if child == 0:
        os.setsid()  # as a child has a session of its own: it may end that
        os.environ.update(env)
        importlib.import_module(entry).main(request, reply)
    if os.waitpid(child, 0)[1]:
        os.write(reply, bytes([10]))
"""


@contextmanager
def children() -> Iterator[Any]:
    """A stand-in for `launch.ended`; limits of time and memory do not hold."""
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(Path(__file__).parents[3])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ},
    )
    assert server.stdin is not None
    assert server.stdout is not None

    def ended(
        python: str, entry: str, request: Any, limits: Any, env: Any, heard: Callable[[bytes], None] | None = None
    ) -> tuple[bytes, int, str]:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps([entry, request, dict(env)]).encode() + b"\n")
        server.stdin.flush()
        while (line := server.stdout.readline().rstrip(b"\n")).startswith(b"+") and heard is not None:
            heard(line[1:])
        return line, 0, ""

    try:
        yield ended
    finally:
        server.stdin.close()
        server.stdout.close()
        server.wait()
