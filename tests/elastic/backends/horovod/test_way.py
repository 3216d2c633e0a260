"""A worker looks for Horovod's rendezvous where its own node finds the driver."""

from __future__ import annotations

import multiprocessing
from types import SimpleNamespace
from typing import Any

import pytest

from elastic.backends.horovod.node import HorovodNode


@pytest.mark.parametrize(
    ("driver", "host"), [("10.2.0.5:4711", "10.2.0.5"), ("[fd00::5]:4711", "fd00::5"), ("svc1:4711", "svc1")]
)
def test_regression_all_nodes_were_sent_to_one_address_of_a_driver_that_each_reaches_by_another(
    monkeypatch: pytest.MonkeyPatch, driver: str, host: str
) -> None:
    started: list[dict[str, str]] = []

    def process(target: object, args: tuple[Any, ...]) -> SimpleNamespace:
        started.append(args[2])
        return SimpleNamespace(start=lambda: None)

    monkeypatch.setattr(multiprocessing, "get_context", lambda _: SimpleNamespace(Process=process))
    monkeypatch.setenv("BFT_DRIVER", driver)
    node = HorovodNode(None, ["train.py"])  # type: ignore[arg-type]
    told = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "of another network", "HOROVOD_GLOO_RENDEZVOUS_PORT": "5"}
    node._start({"op": "start", "host": "n1.1.0", "local_rank": 0, "env": told})
    [environ] = started
    assert (environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]) == (host, "5")
