"""Programs of the benchmarks that are spoken to in lines of JSON, over standard input and output."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

_ANSWER_S = 120.0
_END_S = 20.0


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had at once."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) * 1024


class Program:
    """`python -m module`: what it says is an answer, or with `event` in it one of `events`."""

    def __init__(self, module: str, log: Path) -> None:
        """`log` is where its standard error goes."""
        self.events: list[dict[str, Any]] = []
        self._module = module
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        self._log = log
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, **command: Any) -> None:
        """Sends one command."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """The next answer; a program that gives none ends the benchmark."""
        try:
            answer = self._answers.get(timeout=_ANSWER_S)
        except queue.Empty:
            answer = None
        if answer is None:
            raise SystemExit(f"{self._module} does not answer; its last words: {self._log.read_text()[-1000:]}")
        return answer

    def ask(self, **command: Any) -> dict[str, Any]:
        """Sends one command and returns its answer."""
        self.tell(**command)
        return self.answer()

    def end(self, **command: Any) -> None:
        """Sends a last command, if there is one, and waits for the end; kills what does not end."""
        assert self._process.stdin is not None
        try:
            if command:
                self.tell(**command)
            self._process.stdin.close()
        except OSError:
            pass
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if "event" in said:
                self.events.append(said)
            else:
                self._answers.put(said)
        self._answers.put(None)
