"""A process that solves programs for this one: the messages, and a hard wall-clock limit on the parent's side.

Messages are pickles after their length, over pipes between the two processes. The child's side is `child`.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import pickle
import selectors
import signal
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from milp.errors import MilpError, UnsupportedError
from milp.problem import Problem
from milp.solver import Effort, SolverAnswer

# The engine is told to end a little before it is killed, so that its last message can still be read.
_SOFT_SHARE = 0.9
_READ_BYTES = 1 << 16

_PR_SET_PDEATHSIG = 1

HEADER = struct.Struct("!Q")

_lock = threading.Lock()
_idle: list[Worker] = []


# -- messages ---


@dataclass(frozen=True)
class SolveRequest:
    """A problem, the names of the model and the engine to solve it with, and the limits at which to stop."""

    problem: Problem
    model: str
    engine: str
    gap: float
    time_limit_s: float = math.inf


@dataclass(frozen=True)
class News:
    """A report on a request: a map if there is a better one, and the bound proven so far; the last one is `final`.

    `error` says why there is no result, `refused` whether the user can fix that. The reader sets `died`: no more will
    come. `distrusted` says that the engine reported something wrong: earlier bounds do not count.
    """

    assignment: dict[str, tuple[str, ...]] | None = None
    bound: float = math.inf
    final: bool = False
    error: str = ""
    refused: bool = False
    died: bool = False
    distrusted: bool = False


def write(stream: BinaryIO, message: object) -> None:
    """Send one message."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    stream.write(HEADER.pack(len(data)) + data)
    stream.flush()


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent, with that pid, ends, whatever this process is doing then."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


# -- the parent's side ---


def solve(problem: Problem, model: str, engine: str, effort: Effort) -> SolverAnswer:
    """Solve in a child process; after the time limit, or if it dies, return the best map and bound heard by then.

    The process is kept for the next request, since starting one takes longer than many solves. Raises `MilpError` when
    the child reports why it cannot solve this.
    """
    request = SolveRequest(problem, model, engine, effort.gap)
    used_before = _take()
    last = _ask(used_before or Worker(engine), request, effort)
    if used_before and last == News(died=True):  # it died since its last request, or the request killed it
        last = _ask(Worker(engine), request, effort)
    if last.error:
        raise (UnsupportedError if last.refused else MilpError)(f"solver {engine}: {last.error}")
    if last.died:
        return SolverAnswer(last.assignment, last.bound, "the solver died and had found no better plan", died=True)
    if not last.final:
        return SolverAnswer(last.assignment, last.bound, "no better plan was found in time, when the solver was ended")
    return SolverAnswer(last.assignment, last.bound, distrusted=last.distrusted)


def prepare(engine: str) -> None:
    """Start a process for a later request if there is none: starting takes longer than many decisions may."""
    worker = _take() or Worker(engine)
    with _lock:
        _idle.append(worker)


def _ask(worker: Worker, request: SolveRequest, effort: Effort) -> News:
    try:
        last = worker.ask(request, effort)
    except BaseException:
        worker.kill()
        raise
    if last.final:
        with _lock:
            _idle.append(worker)
    else:
        worker.kill()
        prepare(request.engine)
    return last


class Worker:
    """One child process, for one request at a time; it imports the package of `engine` at its start."""

    def __init__(self, engine: str) -> None:
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self.owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "milp.running.child", str(self.owner), engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: SolveRequest, effort: Effort) -> News:
        """Return the final news, or the best until then if the child dies or the time is over."""
        request = replace(request, time_limit_s=max(0.0, effort.left_s * _SOFT_SHARE))
        data = pickle.dumps(request, pickle.HIGHEST_PROTOCOL)
        outgoing = memoryview(HEADER.pack(len(data)) + data)
        incoming = bytearray()
        best = News()
        with selectors.DefaultSelector() as selector:
            selector.register(self._from, selectors.EVENT_READ)
            selector.register(self._to, selectors.EVENT_WRITE)
            while (left_s := effort.left_s) > 0:
                for key, _ in selector.select(None if left_s == math.inf else left_s):
                    if key.fd == self._to:
                        try:
                            outgoing = outgoing[os.write(self._to, outgoing) :]
                        except BrokenPipeError:
                            return replace(best, died=True)
                        if not outgoing:
                            selector.unregister(self._to)
                        continue
                    chunk = os.read(self._from, _READ_BYTES)
                    if not chunk:
                        return replace(best, died=True)
                    incoming += chunk
                    best = _latest(best, incoming)
                    if best.final:
                        return best
        return best

    def close(self) -> None:
        """Close the pipes to the child and wait for its end: it exits at the end of its input."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()
        self._process.wait()

    def kill(self) -> None:
        """Kill the child, whatever it is doing."""
        self._process.kill()
        self.close()


def _latest(best: News, incoming: bytearray) -> News:
    """Return the news after the whole messages at the front of `incoming`, which are removed from it."""
    while len(incoming) >= HEADER.size:
        end = HEADER.size + HEADER.unpack_from(incoming)[0]
        if len(incoming) < end:
            break
        news: News = pickle.loads(incoming[HEADER.size : end])
        del incoming[:end]
        best = replace(
            news,
            assignment=best.assignment if news.assignment is None else news.assignment,
            bound=news.bound if news.distrusted else min(best.bound, news.bound),
        )
    return best


def _take() -> Worker | None:
    """Return a child that waits for a request, if any; after a fork the parent's children are not ours."""
    with _lock:
        while _idle:
            worker = _idle.pop()
            if worker.owner == os.getpid():
                if worker.alive:
                    return worker
                worker.close()
    return None


@atexit.register
def _end_idle() -> None:
    while _idle:
        worker = _idle.pop()
        if worker.owner == os.getpid():
            worker.kill()  # it has nothing to lose, and may still be starting
