"""A worker looks for Horovod's rendezvous where its own node finds the driver."""

from __future__ import annotations

import pytest

from elastic.backends.horovod import notification_address
from elastic.backends.horovod.node import worker_environment

pytestmark = [pytest.mark.slow, pytest.mark.horovod]


@pytest.mark.parametrize(
    ("driver", "host"), [("10.2.0.5:4711", "10.2.0.5"), ("[fd00::5]:4711", "fd00::5"), ("svc1:4711", "svc1")]
)
def test_regression_all_nodes_were_sent_to_one_address_of_a_driver_that_each_reaches_by_another(
    monkeypatch: pytest.MonkeyPatch, driver: str, host: str
) -> None:
    monkeypatch.setenv("BFT_DRIVER", driver)
    told = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "of another network", "HOROVOD_GLOO_RENDEZVOUS_PORT": "5"}
    environ = worker_environment({"op": "start", "env": {**told, notification_address.KEY_NAME: "key"}, "defaults": {}})
    assert (environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]) == (host, "5")
