"""Processes forked from ones that have torch already, whose start takes seconds: for code that does nothing to its own.

They stand in for children of sizing.model.child.launch, whose limits of time and memory do not hold then, and for
scripts of Python.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sizing.model.child import launch, tracing

_ROOT = Path(__file__).parents[2]
GPU_STAND_IN = _ROOT / "tests" / "support" / "gpu_stand_in"
"""The folder that lets a Python have a GPU, by the environment variables that it names."""

_SERVER = """
import importlib, json, os, runpy, sys
root, stand_in, prepared = sys.argv[1:]
sys.path.insert(0, root)
exec(prepared)
import torch
torch.set_num_threads(1)
sys.path.pop(0)
reply = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
for line in sys.stdin:
    entry, request, env, folder = json.loads(line)
    child = os.fork()
    if child == 0:
        os.setsid()  # as a child has a session of its own: it may end that
        os.environ.clear()
        os.environ.update(env)
        os.chdir(folder)
        if entry == "-c":
            break
        runpy.run_path(stand_in)
        importlib.import_module(entry).main(request, reply)
    status = os.waitpid(child, 0)[1]
    if status or entry == "-c":
        os.write(reply, b"%d\\n" % os.waitstatus_to_exitcode(status) if entry == "-c" else b"\\n")
else:
    sys.exit()
text, sys.argv, files = request
for descriptor, name in enumerate((os.devnull, *files)):
    os.dup2(os.open(name, os.O_RDWR), descriptor)
exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})
"""
_TRACES = """
import torch.distributed.tensor
from sizing.tracer import main, torch_internals
from sizing.tracer.device import fake_gpu, isolation
from sizing.tracer.operators import stand_ins, work
from sizing.tracer.ranks import fake_ranks
from sizing.tracer.runs import steps
"""
_HOROVOD = """
import torch._dynamo  # as the first optimizer does
import elastic.horovod
import horovod.torch
"""
_EXPORTS = """
import torch
from sizing.tracer.graphs import graphs, models, stage_module
from sizing.tracer.runs import measure, profiles
torch.export.export(torch.nn.Linear(2, 2), (torch.randn(1, 2),), strict=False)
"""


@contextmanager
def _children(prepared: str) -> Iterator[Any]:
    """A stand-in for `launch.ended`, whose children are forks of a process that has run `prepared`."""
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(_ROOT), str(GPU_STAND_IN / "sitecustomize.py"), prepared],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if name != "GPU_STAND_IN"},
    )
    assert server.stdin is not None
    assert server.stdout is not None
    asked, answers = server.stdin, server.stdout

    def ended(
        python: str, entry: str, request: Any, limits: Any, env: Any, heard: Callable[[bytes], None] | None = None
    ) -> tuple[bytes, int, str]:
        asked.write(json.dumps([entry, request, {**os.environ, **env}, os.getcwd()]).encode() + b"\n")
        asked.flush()
        while (line := answers.readline().rstrip(b"\n")).startswith(b"+") and heard is not None:
            heard(line[1:])
        return line, 0, ""

    try:
        yield ended
    finally:
        asked.close()
        answers.close()
        server.wait()


@pytest.fixture(scope="session")
def tracing_process() -> Iterator[Any]:
    with _children(_TRACES) as ended:
        yield ended


@pytest.fixture(scope="session")
def exporting_process() -> Iterator[Any]:
    with _children(_EXPORTS) as ended:
        yield ended


@pytest.fixture(scope="session")
def horovod_process() -> Iterator[Any]:
    with _children(_HOROVOD) as ended:
        yield ended


class Scripts:
    """Runs scripts of Horovod as `python -c`."""

    def __init__(self, ended: Any, folder: Path) -> None:
        self._ended, self._files = ended, (folder / "stdout", folder / "stderr")

    def __call__(self, script: str, *words: str) -> subprocess.CompletedProcess[str]:
        for file in self._files:
            file.write_text("")
        code, _, _ = self._ended("", "-c", [script, ["-c", *words], list(map(str, self._files))], None, {})
        return subprocess.CompletedProcess(script, int(code), *(file.read_text() for file in self._files))


@pytest.fixture
def horovod_scripts(horovod_process: Any, tmp_path: Path) -> Scripts:
    return Scripts(horovod_process, tmp_path)


@pytest.fixture
def forked(tracing_process: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `tracing.trace` fork from a process that has torch."""

    def run(python: str, request: dict[str, Any], timeout_s: float, memory_bytes: int) -> tuple[bytes, int, str]:
        ended: tuple[bytes, int, str] = tracing_process(
            python, tracing._ENTRY, request, None, tracing._environment(request)
        )
        return ended

    monkeypatch.setattr(tracing, "_run", run)


@pytest.fixture
def exporting(exporting_process: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let children of `sizing.model.child.launch` be forks of a process that has torch and has exported once."""
    monkeypatch.setattr(launch, "ended", exporting_process)
