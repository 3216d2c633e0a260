"""The parent's side of a solving process: a hard wall limit, and the best that was known when it struck."""

from __future__ import annotations

import atexit
import math
import os
import pickle
import selectors
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from milp.errors import MilpError, UnsupportedError
from milp.solver import Outcome
from milp.solvers.programs.messages import HEADER, Answer, Request

# The engine is told to end a little before it is killed, so that its last word can still be read.
_SOFT_SHARE = 0.9
_READ_BYTES = 1 << 16

_lock = threading.Lock()
_idle: list[Worker] = []


def solve(request: Request) -> Outcome:
    """Solve in a child process; past the time limit, or when it dies, the best map and bound heard of until then.

    The process is kept for the next request, since starting one takes longer than many solves. Raises `MilpError`
    when the child says why it cannot solve this.
    """
    limit_s = request.limits.time_limit_s
    deadline_s = math.inf if limit_s is None else time.monotonic() + limit_s
    used_before = _take()
    answer = _ask(used_before or Worker(), request, deadline_s)
    if used_before and answer == Answer(died=True):  # since its last request, or the request killed it
        answer = _ask(Worker(), request, deadline_s)
    if answer.error:
        raise (UnsupportedError if answer.refused else MilpError)(f"solver {request.engine}: {answer.error}")
    if answer.died:
        return Outcome(answer.assignment, answer.bound, "the solver died and had found no better plan")
    return Outcome(answer.assignment, answer.bound)


def _ask(worker: Worker, request: Request, deadline_s: float) -> Answer:
    try:
        answer = worker.ask(request, deadline_s)
    except BaseException:
        worker.kill()
        raise
    if answer.final:
        with _lock:
            _idle.append(worker)
    else:
        worker.kill()
    return answer


class Worker:
    """One child process, for one request at a time."""

    def __init__(self) -> None:
        root = str(Path(__file__).resolve().parents[3])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self.owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "milp.solvers.programs.child", str(self.owner)],
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

    def ask(self, request: Request, deadline_s: float) -> Answer:
        """The final answer, or, when the child is dead or `deadline_s` (monotonic) has come, the best until then."""
        left_s = deadline_s - time.monotonic()
        if left_s < math.inf:
            soft = replace(request.limits, time_limit_s=max(0.0, left_s * _SOFT_SHARE))
            request = replace(request, limits=soft)
        data = pickle.dumps(request, pickle.HIGHEST_PROTOCOL)
        outgoing = memoryview(HEADER.pack(len(data)) + data)
        incoming = bytearray()
        best = Answer()
        with selectors.DefaultSelector() as selector:
            selector.register(self._from, selectors.EVENT_READ)
            selector.register(self._to, selectors.EVENT_WRITE)
            while (left_s := deadline_s - time.monotonic()) > 0:
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
        """End an idle child: it leaves at the end of its input."""
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()
        self._process.wait()

    def kill(self) -> None:
        """End the child whatever it does."""
        self._process.kill()
        self.close()


def _latest(best: Answer, incoming: bytearray) -> Answer:
    """What is known after the whole messages at the front of `incoming`, which are taken off it."""
    while len(incoming) >= HEADER.size:
        end = HEADER.size + HEADER.unpack_from(incoming)[0]
        if len(incoming) < end:
            break
        news: Answer = pickle.loads(incoming[HEADER.size : end])
        del incoming[:end]
        best = replace(
            news,
            assignment=best.assignment if news.assignment is None else news.assignment,
            bound=min(best.bound, news.bound),
        )
    return best


def _take() -> Worker | None:
    """A child that waits for a request, if there is one; after a fork those of the parent are not ours."""
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
            worker.close()
