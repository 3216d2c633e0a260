"""Two gloo groups for saving and loading: on the training's group, a save in the background would deadlock with it.

One is for the thread that trains (votes about a save, the exchange before a load), the other for the thread that
writes. Each group is used by one thread, in the same order on all workers.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from elastic.base.timing import HINT_S, WRITERS_S
from elastic.checkpoint.distributed.ending import watch


@dataclass(frozen=True)
class Groups:
    """This worker's `rank` of `size`, and the groups; None if there is one worker or no process group."""

    rank: int
    size: int
    main: Any = None
    writing: Any = None

    def vote(self, values: Sequence[int]) -> list[list[int]]:
        """Return the values (signed 64-bit) of every worker, by rank; called by the thread that trains."""
        if self.main is None:
            return [list(values)]
        mine = torch.tensor(list(values), dtype=torch.int64, device="cpu")  # a script may have set another default
        rows = [torch.empty_like(mine) for _ in range(self.size)]
        with _hinted():
            dist.all_gather(rows, mine, group=self.main)
        return [[int(value) for value in row] for row in rows]

    def gathered(self, value: Any) -> list[Any]:
        """Return the value of every worker, by rank; called by the thread that trains."""
        return self._gathered(value, self.main)

    def gathered_writing(self, value: Any) -> list[Any]:
        """Return the value of every worker, by rank; called by the thread that writes."""
        return self._gathered(value, self.writing)

    def meet_writing(self) -> None:
        """Wait until the thread that writes has come here on every worker."""
        if self.writing is not None:
            dist.barrier(group=self.writing)

    def _gathered(self, value: Any, group: Any) -> list[Any]:
        if group is None:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=group)
        return found


_groups: Groups | None = None
_world: Any = None


def current() -> Groups:
    """Return this process's groups; all workers make them together, at their first save or load."""
    global _groups, _world
    if not (dist.is_available() and dist.is_initialized()):
        return Groups(int(os.environ.get("RANK", "0")), 1)
    if _groups is None or _world is not dist.group.WORLD:
        rank, size = dist.get_rank(), dist.get_world_size()
        _world = dist.group.WORLD
        if size == 1:
            _groups = Groups(rank, size)
        else:
            timeout = timedelta(seconds=WRITERS_S)
            with _hinted():
                main, writing = (dist.new_group(backend="gloo", timeout=timeout) for _ in range(2))
            _groups = Groups(rank, size, main, writing)
            watch()
    return _groups


@contextlib.contextmanager
def _hinted() -> Iterator[None]:
    """Print a hint if the others do not come: a script that saves on rank 0 only would wait here forever."""
    text = "bft: this worker waits for the others in elastic.save or elastic.load: call them on every rank\n"
    hint = threading.Timer(HINT_S, os.write, (2, text.encode()))
    hint.daemon = True
    hint.start()
    try:
        yield
    finally:
        hint.cancel()
