"""Workers' reports on distributed checkpoints: gathers their parts and publishes complete versions in the background.

A worker that pauses says so once its own part is written. Its pause is over when all parts are written and published.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Literal
from weakref import WeakKeyDictionary, WeakSet

from elastic.driver.progress.resize_times import number
from elastic.link.peer import Peer
from elastic.link.wire import Message
from elastic.store.completeness import Completeness, Over, RankReport
from elastic.store.versions import CheckpointVersions

OPS = frozenset({"shards", "unwritten", "corrupt"})
"""The messages of a worker about a distributed checkpoint."""

_Part = Literal["open", "published", "failed"]


class DistributedCheckpoints:
    """One trainer's distributed checkpoints.

    `note` gets the outcome of a worker's pause. `changed` is called when the newest checkpoint changes. `saved` gets
    the seconds that the slowest rank took to write a published checkpoint, and its bytes.
    """

    def __init__(
        self,
        versions: CheckpointVersions,
        note: Callable[[Peer, str], None],
        changed: Callable[[], None],
        saved: Callable[[float, int], None] = lambda took_s, size_bytes: None,
    ) -> None:
        self._versions = versions
        self._note = note
        self._changed = changed
        self._saved = saved
        self._took_s: dict[str, float] = {}
        self._gathering = Completeness()
        self._parts: WeakKeyDictionary[Peer, tuple[object, _Part]] = WeakKeyDictionary()
        """For each worker, the name of the last checkpoint it reported on, and the outcome of that checkpoint."""

        self._paused: WeakSet[Peer] = WeakSet()
        self._tasks: set[asyncio.Task[None]] = set()

    def received(self, worker: Peer, message: Message) -> None:
        """Takes a message of OPS from a present worker; work on a disk is done in the background."""
        op = message["op"]
        if op == "corrupt":
            self._spawn(self._corrupt(message.get("name"), str(message.get("text", "a shard is wrong"))[:500]))
            return
        name = message.get("name")
        self._parts[worker] = (name, "open")
        try:
            if op == "shards":
                told = RankReport.parse(message, str(self._versions.home.path))
                over = self._gathering.heard(worker, told)
                if (took_s := number(message.get("took_s"))) is not None:
                    self._took_s[told.version.name] = max(took_s, self._took_s.get(told.version.name, 0.0))
            else:
                over = self._gathering.unwritten(worker, name)
                self._parts[worker] = (name, "failed")
                text = str(message.get("text", "no reason is told"))[:500]
                self._versions.failed(f"a checkpoint could not be written in {self._versions.home.path}: {text}")
        except ValueError as error:
            self._versions.failed(f"a distributed checkpoint does not count: {error}")
            self._end([worker], name, "failed")
            return
        if over is not None:
            self._over(over)

    def paused(self, worker: Peer) -> bool:
        """Takes a worker's message that it has paused, and returns whether it paused for a distributed checkpoint.

        If so, the outcome is noted once that has one.
        """
        if worker not in self._parts:
            return False
        self._paused.add(worker)
        name, part = self._parts[worker]
        if part != "open":
            self._end([worker], name, part)
        return True

    def gone(self, worker: Peer, present: Callable[[], Collection[Peer]]) -> None:
        """Notes that a worker has gone; `present` returns those that are left."""
        self._paused.discard(worker)
        if self._gathering.names:
            for over in self._gathering.gone(present()):
                self._over(over)

    @property
    def writing(self) -> bool:
        """Whether a checkpoint version is reported in part but not complete, or complete but not published."""
        return bool(self._gathering.names or self._tasks)

    async def settle(self, within_s: float) -> None:
        """Waits until complete checkpoints are published, for `within_s` at most."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=within_s)

    def _over(self, over: Over) -> None:
        workers = [worker for worker in over.told if isinstance(worker, Peer)]
        took_s = self._took_s.pop(over.name, None)
        if over.why:
            self._versions.failed(f"a distributed checkpoint does not count: {over.why}")
        if over.complete is None:
            self._end(workers, over.name, "failed")
            self._spawn(self._versions.drop(over.name))
            return
        self._spawn(self._publish(over, workers, took_s))
        for older in self._gathering.superseded(over.complete.step):
            self._over(older)

    async def _publish(self, over: Over, workers: Collection[Peer], took_s: float | None) -> None:
        assert over.complete is not None
        dropped = await self._versions.publish(over.complete, lambda: self._gathering.names)
        if dropped is None:
            self._end(workers, over.name, "failed")
            await self._versions.drop(over.name)
            return
        if took_s is not None:
            self._saved(took_s, over.complete.size_bytes)
        self._changed()
        for worker in workers:
            worker.send({"op": "published", "name": over.name})
            for name in dropped:
                worker.send({"op": "forgotten", "name": name})
        self._end(workers, over.name, "published")

    async def _corrupt(self, name: object, text: str) -> None:
        if await self._versions.set_aside(name, text):
            self._changed()

    def _end(self, workers: Collection[Peer], name: object, part: _Part) -> None:
        """Closes a checkpoint version for its workers: stores its outcome and ends the pauses that they made for it."""
        for worker in workers:
            if self._parts[worker][0] != name:
                continue  # it has already reported on the next one
            self._parts[worker] = (name, part)
            if part == "failed":
                worker.send({"op": "unpublished", "name": name})
            if worker in self._paused:
                self._paused.discard(worker)
                # A worker without a checkpoint is not waited for.
                self._note(worker, "paused" if part == "published" else "nothing_saved")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
