"""Which of a node's workers is told as the one that failed, where the others end by it or are killed for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from elastic.backends.torchrun.node import TorchrunNode
from elastic.worker.driver_link import new_page

pytestmark = pytest.mark.slow


class Workers:
    """Those of a node: each look sees the exit codes of those that have ended, None for the others."""

    def __init__(self, looks: list[list[int | None]]) -> None:
        self._looks = looks
        self.pids = [1000 + rank for rank in range(len(looks[0]))]
        self.cleanup = self

    def wait(self, most_s: float = 1.0) -> None:
        pass

    def look(self, pids: list[int]) -> dict[int, int]:
        codes = self._looks.pop(0)
        return {pid: rc for pid, rc in zip(pids, codes, strict=True) if rc is not None}


class Link:
    """Hears what the driver is told; has orders for the node."""

    def __init__(self, orders: list[str]) -> None:
        self.told: list[dict[str, Any]] = []
        self._orders = orders

    def send(self, message: dict[str, Any]) -> None:
        self.told.append(message)

    def poll(self, timeout_s: float | None = 0.0) -> dict[str, Any] | None:
        return {"op": self._orders.pop(0)} if self._orders else None


def watched(monkeypatch: pytest.MonkeyPatch, *looks: list[int | None], orders: tuple[str, ...] = ()) -> Any:
    """Watch a group of which this is seen, look by look; tells whether it ended well, and what the driver is told."""
    monkeypatch.setenv("BFT_WORKERS_PER_NODE", str(len(looks[0])))
    link = Link(list(orders))
    node = TorchrunNode(link, ["train.py"])  # type: ignore[arg-type]
    workers: Any = Workers(list(looks))
    node._workers = workers
    node._group = [SimpleNamespace(pid=pid, page=new_page()) for pid in workers.pids]  # type: ignore[misc]
    well = node._watch()
    return well, [(message["local_rank"], message["rc"], message.get("ended")) for message in link.told]


def test_regression_a_worker_that_was_killed_was_told_as_its_peer_that_failed_for_want_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert watched(monkeypatch, [1, -9]) == (False, [(1, -9, None)])
    assert watched(monkeypatch, [-6, -11, 1]) == (False, [(1, -11, None)])


def test_of_workers_that_fail_together_the_first_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched(monkeypatch, [3, 4]) == (False, [(0, 3, None)])


def test_regression_a_worker_that_took_its_group_down_was_killed_before_it_could_say_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert watched(monkeypatch, [None, 1], [5, 1]) == (False, [(0, 5, None)])
    # One that hangs instead does not hold the others up.
    monkeypatch.setattr("elastic.backends.torchrun.node._LAST_WORDS_S", 0.0)
    assert watched(monkeypatch, [None, 1], [-9, 1]) == (False, [(1, 1, None)])


def test_a_worker_that_had_ended_with_0_is_told_with_the_one_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched(monkeypatch, [0, None], [0, None], [0, 3]) == (False, [(1, 3, 0)])


def test_a_group_has_ended_well_once_all_workers_have(monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched(monkeypatch, [0, None], [0, 0]) == (True, [])


def test_workers_that_are_to_be_stopped_may_end_in_any_way(monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched(monkeypatch, [None, 1], orders=("regroup",)) == (False, [])
    assert watched(monkeypatch, [0, 0], orders=("regroup",)) == (True, [])
