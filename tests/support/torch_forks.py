"""Processes forked from ones that have torch already, whose start takes seconds: for code that does nothing to its own.

They stand in for children of sizing.child.launch, whose limits of time and memory do not hold then, and for
scripts of Python.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sizing.child import launch, tracing

_ROOT = Path(__file__).parents[2]
GPU_STAND_IN = _ROOT / "tests" / "support" / "gpu_stand_in"
"""The folder that lets a Python have a GPU, by the environment variables that it names."""

Forks = Callable[..., tuple[bytes, int, str]]

_SERVER = """
import importlib, json, os, runpy, select, signal, socket, sys
root, stand_in, prepared, path, session = sys.argv[1:]
sys.path.insert(0, root)
exec(prepared)
import torch
torch.set_num_threads(1)
sys.path.pop(0)
listening = socket.socket(socket.AF_UNIX)
listening.bind(path)
listening.listen(64)
if os.fork():
    os._exit(0)  # all is ready; the server is no child of a test's process, which may count those
for descriptor in range(2):
    os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
ended = os.pidfd_open(int(session))
while True:
    if ended in select.select([listening, ended], [], [])[0]:
        os._exit(0)
    connection = listening.accept()[0]
    if os.fork() == 0:
        break
    connection.close()
listening.close()
os.close(ended)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
entry, request, env, folder = json.loads(connection.makefile("rb").readline())
reply = connection.detach()
if child := os.fork():
    status = os.waitpid(child, 0)[1]
    if status or entry == "-c":
        os.write(reply, b"%d\\n" % os.waitstatus_to_exitcode(status) if entry == "-c" else b"\\n")
    os._exit(0)
os.setsid()  # as a child has a session of its own: it may end that
os.environ.clear()
os.environ.update(env)
os.chdir(folder)
if entry != "-c":
    runpy.run_path(stand_in)
    importlib.import_module(entry).main(request, reply)
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


def _children(prepared: str, temporary: pytest.TempPathFactory) -> Forks:
    """A stand-in for `launch.ended`, whose children are forks of a process that has run `prepared`.

    All processes of a test run share it, and it ends with the run.
    """
    folder, session = temporary.getbasetemp(), os.getpid()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder, session = folder.parent, os.getppid()
    path = folder / f"forks-{hashlib.sha256(prepared.encode()).hexdigest()[:8]}"
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            words = (str(_ROOT), str(GPU_STAND_IN / "sitecustomize.py"), prepared, str(path), str(session))
            subprocess.run([sys.executable, "-c", _SERVER, *words], check=True)

    def ended(
        python: str, entry: str, request: Any, limits: Any, env: Any, heard: Callable[[bytes], None] | None = None
    ) -> tuple[bytes, int, str]:
        with socket.socket(socket.AF_UNIX) as asked:
            asked.connect(str(path))
            asked.sendall(json.dumps([entry, request, {**os.environ, **env}, os.getcwd()]).encode() + b"\n")
            answers = asked.makefile("rb")
            while (line := answers.readline().rstrip(b"\n")).startswith(b"+") and heard is not None:
                heard(line[1:])
            return line, 0, ""

    return ended


@pytest.fixture(scope="session")
def tracing_process(tmp_path_factory: pytest.TempPathFactory) -> Forks:
    return _children(_TRACES, tmp_path_factory)


@pytest.fixture(scope="session")
def exporting_process(tmp_path_factory: pytest.TempPathFactory) -> Forks:
    return _children(_EXPORTS, tmp_path_factory)


@pytest.fixture(scope="session")
def horovod_process(tmp_path_factory: pytest.TempPathFactory) -> Forks:
    return _children(_HOROVOD, tmp_path_factory)


class Scripts:
    """Runs scripts as `python -c` does, with words for sys.argv and changes of the environment."""

    def __init__(self, ended: Forks, folder: Path) -> None:
        self._ended, self._files = ended, (folder / "stdout", folder / "stderr")

    def __call__(self, script: str, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        for file in self._files:
            file.write_text("")
        code, _, _ = self._ended("", "-c", [script, ["-c", *words], list(map(str, self._files))], None, environ)
        return subprocess.CompletedProcess(script, int(code), *(file.read_text() for file in self._files))


@pytest.fixture
def horovod_scripts(horovod_process: Forks, tmp_path: Path) -> Scripts:
    return Scripts(horovod_process, tmp_path)


@pytest.fixture(scope="session")
def forked_traces(tracing_process: Forks) -> Forks:
    """A stand-in for `tracing._run`."""

    def run(python: str, request: dict[str, Any], timeout_s: float, memory_bytes: int) -> tuple[bytes, int, str]:
        return tracing_process(python, tracing._ENTRY, request, None, tracing._environment(request))

    return run


@pytest.fixture
def forked(forked_traces: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `tracing.trace` fork from a process that has torch."""
    monkeypatch.setattr(tracing, "_run", forked_traces)


@pytest.fixture
def exporting(exporting_process: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let children of `sizing.child.launch` be forks of a process that has torch and has exported once."""
    monkeypatch.setattr(launch, "ended", exporting_process)
