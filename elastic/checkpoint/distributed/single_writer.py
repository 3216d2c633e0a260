"""The single writer of a distributed checkpoint, for frameworks whose workers all hold the same state in memory.

Such a checkpoint looks like that of one rank and has the usual form. It names its kind, since a script of another
framework cannot use it. Random number generators are not part of it.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from elastic.checkpoint.distributed import files, tree
from elastic.checkpoint.distributed.groups import Groups
from elastic.checkpoint.distributed.saving import Save, pickled
from elastic.checkpoint.distributed.shards import SKELETON, CheckpointPlanner
from elastic.link.wire import Message
from elastic.worker.driver_link import DriverLink

_LOOK_S = 1.0
"""A thread that waits for the driver's answer checks this often whether the link still exists."""


class Publisher:
    """The single writer of a framework's checkpoints (`kind`), one at a time, which learns whether they count."""

    def __init__(self, session: DriverLink, kind: str) -> None:
        """Raises CheckpointError if a library is missing: now, with one line, and not at every checkpoint."""
        files.new_digest()
        self._kind = kind
        self._tell = session.tell
        self._news = threading.Condition()
        self._name = ""
        self._counts: bool | None = None
        session.on_message["published"] = partial(self._heard, counts=True)
        session.on_message["unpublished"] = partial(self._heard, counts=False)

    def publish(self, state: Any, step: int, samples: int, lost: Callable[[], bool]) -> bool:
        """Write `state` directly from memory, where nothing may change it; returns whether it counts in the end.

        Returns once the driver has said so, or the link to it is `lost`. Raises what pickling raises.
        """
        name = f"step-{step:012d}-{secrets.token_hex(8)}"
        with self._news:
            self._name, self._counts = name, None
        save = Save(Groups(0, 1), name, step, samples, lambda: None)
        tensors, skeleton = tree.flatten(state)
        about = {"skeleton": skeleton, "step": step, "samples": samples, "size": 1, "kind": self._kind}
        objects = {SKELETON: pickled(about)}
        save.planner = CheckpointPlanner(tensors, objects)
        save.planner.fill({**tensors, **objects})
        save.size_bytes = sum(tensor.nbytes for tensor in tensors.values())
        # A waiting driver must hear at once that there is something to wait for; otherwise it asks the next worker.
        self._tell({"op": "saving", "bytes": 0})
        save.run()
        self._tell({"op": "saving", "bytes": save.size_bytes})
        return not save.why and self._told(lost)

    def _told(self, lost: Callable[[], bool]) -> bool:
        with self._news:
            while self._counts is None and not lost():
                self._news.wait(_LOOK_S)
            return self._counts is True

    def _heard(self, message: Message, counts: bool) -> None:
        with self._news:
            if message.get("name") == self._name:
                self._counts = counts
                self._news.notify_all()
