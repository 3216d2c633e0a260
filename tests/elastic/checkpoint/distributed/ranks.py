"""Real workers of a group, each a process with gloo and a session whose driver is this test's: files take its part."""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.waiting import STILL_S

ROOT = Path(__file__).parents[4]
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "torch",
        "torch._dynamo",
        "torch.distributed.checkpoint.state_dict",
        "torch.distributed.fsdp",
        "elastic.checkpoint.distributed.saving",
    ]
)


class Channel:
    """What a worker sends: a line each in a file of its own."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "a")  # noqa: SIM115  (as long as the worker)

    def send(self, message: dict[str, Any], payload: bytes | None = None) -> None:
        self._file.write(json.dumps(message) + "\n")
        self._file.flush()


class Trainer:
    """A folder with the checkpoints of one trainer, and what its workers said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "shards"
        self.said: list[dict[str, Any]] = []
        self.output = ""

    def run(
        self,
        work: Callable[..., Any],
        size: int,
        *arguments: Any,
        fails: bool = False,
        versions: list[dict[str, Any]] | None = None,
        environ: dict[str, str] | None = None,
    ) -> list[Any]:
        """Runs `work(rank, size, folder, *arguments)` in `size` workers; what each returns, by rank."""
        meeting = self.folder / f"meeting-{time.monotonic_ns()}"
        queue = _CONTEXT.SimpleQueue()
        told = self.versions() if versions is None else versions
        extra = {"BFT_STATE_PATH": str(self.path), "BFT_STATE_BY_PATH": "1", **(environ or {})}
        workers = [
            _CONTEXT.Process(
                target=_worker,
                args=(work, rank, size, meeting, self.folder, told, extra, queue, arguments),
                daemon=True,
            )
            for rank in range(size)
        ]
        before = self._lines(size)
        ends_s = time.monotonic() + STILL_S
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(max(0.1, ends_s - time.monotonic()))
        hung = [worker for worker in workers if worker.is_alive()]
        for worker in hung:
            worker.kill()
            worker.join()
        results: dict[int, Any] = {}
        while not queue.empty():
            rank, value = queue.get()
            results[rank] = value
        self.output = "".join(self._log(rank).read_text() for rank in range(size) if self._log(rank).exists())
        self.said = [line for rank in range(size) for line in self._lines(size)[rank][len(before[rank]) :]]
        if fails:
            return [results.get(rank) for rank in range(size)]
        assert not hung, f"workers hang\n{self.output}"
        assert len(results) == size, self.output
        return [results[rank] for rank in range(size)]

    def versions(self) -> list[dict[str, Any]]:
        """What a driver makes of it: the versions that every rank has told, the newest first."""
        by_name: dict[str, list[dict[str, Any]]] = {}
        for path in self.folder.glob("said.*"):
            for line in path.read_text().splitlines():
                message = json.loads(line)
                if message["op"] == "shards":
                    by_name.setdefault(message["name"], []).append(message)
        found = []
        for name, parts in by_name.items():
            if {part["rank"] for part in parts} == set(range(parts[0]["size"])):
                told = {key: parts[0][key] for key in ("path", "step", "samples", "size")}
                rows = [row for part in parts for row in part["files"]]
                found.append({"name": name, **told, "files": rows})
        return sorted(found, key=lambda each: each["step"], reverse=True)

    def ops(self) -> list[str]:
        return [message["op"] for message in self.said]

    def _lines(self, size: int) -> list[list[dict[str, Any]]]:
        paths = [self.folder / f"said.{rank}" for rank in range(size)]
        return [[json.loads(line) for line in path.read_text().splitlines()] if path.exists() else [] for path in paths]

    def _log(self, rank: int) -> Path:
        return self.folder / f"log.{rank}"


def _worker(
    work: Callable[..., Any],
    rank: int,
    size: int,
    meeting: Path,
    folder: Path,
    versions: list[dict[str, Any]],
    environ: dict[str, str],
    queue: Any,
    arguments: tuple[Any, ...],
) -> None:
    log = os.open(folder / f"log.{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(environ, RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
    faulthandler.dump_traceback_later(0.75 * STILL_S)  # where it hangs, should it
    import torch
    import torch.distributed as dist

    from elastic.worker import driver_link as sessions
    from elastic.worker.driver_link import Download, DriverLink

    torch.set_num_threads(1)
    session = DriverLink(Channel(folder / f"said.{rank}"))  # type: ignore[arg-type]
    session.download_checkpoint = lambda: Download(versions=tuple(versions))  # type: ignore[method-assign]
    sessions.install(session)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    try:
        value = work(rank, size, folder, *arguments)
        dist.destroy_process_group()
        session.ended(0)
        queue.put((rank, value))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def in_background(seconds: float, work: Callable[[], None]) -> threading.Timer:
    """Calls `work` after so many seconds."""
    timer = threading.Timer(seconds, work)
    timer.daemon = True
    timer.start()
    return timer
