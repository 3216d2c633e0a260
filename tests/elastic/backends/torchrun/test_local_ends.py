"""Which of a node's workers is told as the one that failed, where the others end by it or are killed for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.torch]


class Upkeep:
    """What is seen at each look."""

    def __init__(self, looks: list[list[int]]) -> None:
        self._looks = looks

    def look(self, workers: list[int]) -> list[int]:
        return self._looks.pop(0)

    def kill(self, doomed: list[int], workers: list[int]) -> None:
        pass


class Rendezvous:
    """Hears what the driver is told."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.ended: list[int | None] = []

    def num_nodes_waiting(self) -> int:
        return 0

    def send(self, message: dict[str, Any]) -> None:
        self.told.append(message["rc"])
        self.ended.append(message.get("ended"))


class Workers:
    """Those that torch has started."""

    def __init__(self, number: int) -> None:
        self._number = number
        # As torch keeps them: none of these has ended with 0 for all that torch knows.
        self._pc = SimpleNamespace(processes=[SimpleNamespace(pid=1, exitcode=None)])

    def pids(self) -> dict[int, int]:
        return {local_rank: 1_000 + local_rank for local_rank in range(self._number)}


def told(monkeypatch: pytest.MonkeyPatch, *looks: list[int], workers: int = 0) -> list[int]:
    return rendezvous_of(monkeypatch, *looks, workers=workers).told


def rendezvous_of(monkeypatch: pytest.MonkeyPatch, *looks: list[int], workers: int = 0) -> Rendezvous:
    """The ends that are told when this is seen of the workers, by local rank, and torch sees it at the last look."""
    from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    from elastic.backends.torchrun.node import _ElasticAgent

    agent: Any = object.__new__(_ElasticAgent)
    rendezvous = Rendezvous()
    agent._failed, agent._ended, agent._seen_s, agent._killed = [], None, 0.0, False
    agent._upkeep, agent._pages, agent._pcontext = Upkeep(list(looks)), [], Workers(workers)
    agent._rendezvous_of_driver = rendezvous
    look = 0

    def monitor(*_: object) -> RunResult:
        return RunResult(WorkerState.FAILED if look == len(looks) else WorkerState.HEALTHY)

    monkeypatch.setattr(LocalElasticAgent, "_monitor_workers", monitor)
    for look in range(1, len(looks) + 1):  # noqa: B007
        agent._monitor_workers(None)
    return rendezvous


def test_regression_a_worker_that_failed_was_told_as_killed_where_one_before_it_was_killed_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch may see the ends a look later, and by then all have ended."""
    assert told(monkeypatch, [0], [0, 3], [-9, 0, 3]) == [3]


def test_regression_a_worker_that_was_killed_was_told_as_its_peer_that_failed_for_want_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert told(monkeypatch, [1, -9]) == [-9]
    assert told(monkeypatch, [-6, -11, 1]) == [-11]


def test_of_workers_that_fail_together_the_first_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, [3, 4]) == [3]


def test_regression_a_worker_that_took_its_group_down_was_killed_before_it_could_say_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert told(monkeypatch, [1], [5, 1], workers=2) == [5]
    # One that hangs instead does not hold the others up.
    monkeypatch.setattr("elastic.backends.torchrun.node._LAST_WORDS_S", 0.0)
    assert told(monkeypatch, [1], [-9, 1], workers=2) == [1]


def test_a_worker_that_had_ended_with_0_is_told_with_the_one_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rendezvous_of(monkeypatch, [1]).ended == [None]
    monkeypatch.setattr("elastic.backends.torchrun.node._ended_well", lambda worker: True)
    assert rendezvous_of(monkeypatch, [0, 1]).ended == [0]
