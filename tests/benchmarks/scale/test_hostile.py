"""The benchmark of hostile users runs from end to end on a small state."""

from __future__ import annotations

import json
import os
import sys

import pytest

from benchmarks.scale import hostile
from benchmarks.scale.users import WAYS

pytestmark = pytest.mark.slow

ROOT_ONLY = "each user has a uid of its own"


@pytest.mark.skipif(os.geteuid() != 0, reason=ROOT_ONLY)
def test_hostile_users_are_held_off_while_one_trains(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--seconds", "2", "--trainers", "20", "--leases", "100", "--json"]
    monkeypatch.setattr(sys, "argv", ["hostile", *words])
    hostile.main()
    found = json.loads(capsys.readouterr().out)
    assert set(found["hostile"]) == set(WAYS) - {"training"}
    assert found["training"]["flooded"]["served"] == 1.0
    assert found["daemon"]["loop_lag_ms"]["count"] > 10
    assert found["daemon"]["peak_bytes"] > 10**7
    assert found["ledger_bytes_a_day_extrapolated"]["notes"] > 0
    refused = {status for told in found["hostile"].values() for status in told}
    assert "404" in refused
