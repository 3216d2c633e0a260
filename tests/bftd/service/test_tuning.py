"""`bft tune` against the configuration: which hides which is said, and there is a way back."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from bftd.base.errors import LedgerError
from bftd.config.keys import Config, DecideConfig
from bftd.ledger.file import Ledger
from bftd.service.service import Service
from tests.bftd.ledger.test_file import Clock
from tests.support.messages import wording


def start(path: Path, **decide: object) -> Service:
    return Service(Config(decide=DecideConfig(**decide)), Ledger(path), lambda job_ids: None, Clock())  # type: ignore[arg-type]


def hidden(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.message for record in caplog.records if "hidden" in record.message]
    caplog.clear()
    return lines


def test_regression_a_start_and_a_reload_name_each_key_of_the_file_that_bft_tune_hides(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    service = start(tmp_path / "ledger", pj_max=3)
    service.tune({"pj_max": 7, "t_fwd_s": 120.0})
    assert hidden(caplog) == []
    service.configure(Config(decide=DecideConfig(pj_max=4, t_fwd_s=120.0)))
    told = wording("service.live.hidden_by_tuning", name="pj_max", value=7, value2=4)
    assert hidden(caplog) == [told]
    service.ledger.close()
    again = start(tmp_path / "ledger", pj_max=5, t_fwd_s=60.0)
    assert hidden(caplog) == [
        wording("service.live.hidden_by_tuning", name="t_fwd_s", value=120.0, value2=60.0),
        told.replace("and 4", "and 5"),
    ]
    assert again.overview("0")["tuned"] == {
        "t_fwd_s": {"value": 120.0, "file": 60.0}, "pj_max": {"value": 7, "file": 5},
    }  # fmt: skip
    again.ledger.close()


def test_a_reset_goes_back_to_the_file_now_and_for_every_later_start(tmp_path: Path) -> None:
    service = start(tmp_path / "ledger", pj_max=3)
    service.tune({"pj_max": 7, "t_fwd_s": 33.0, "objective": "priority"})
    service.reset(["pj_max"])
    decide = service.state.settings.decide
    assert (decide.pj_max, decide.t_fwd_s, decide.objective) == (3, 33.0, "priority")
    assert set(service.overview("0")["tuned"]) == {"t_fwd_s", "objective"}
    service.ledger.close()
    again = start(tmp_path / "ledger", pj_max=4)
    assert (again.state.settings.decide.pj_max, again.state.settings.decide.t_fwd_s) == (4, 33.0)
    again.reset(["t_fwd_s", "objective"])
    assert again.state.settings.decide == DecideConfig(pj_max=4)
    assert again.ledger.tuned() == {}
    again.ledger.close()


def test_what_cannot_be_written_is_not_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = start(tmp_path / "ledger")

    def full(_: object) -> None:
        raise LedgerError("the disk is full")

    monkeypatch.setattr(service.ledger, "set_tuned", full)
    with pytest.raises(LedgerError):
        service.tune({"pj_max": 7})
    assert service.state.settings.decide.pj_max == Config().decide.pj_max
    assert service.overview("0")["tuned"] == {}
    service.ledger.close()
