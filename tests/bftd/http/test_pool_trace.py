"""The pool's past over the API: for administrators, and nobody else."""

from __future__ import annotations

import pytest

from tests.bftd.http.test_api import TRAINER, Served, as_user, driver_job
from tests.support.messages import says, wording

pytestmark = pytest.mark.slow


async def test_administrators_read_the_pools_past_with_its_trainers(served: Served) -> None:
    await served.ask("POST", "/v1/trainers", TRAINER)
    served.see("n1", "n2")
    served.see("n1")
    code, told = await served.ask("GET", "/v1/pool-trace?since=0")
    assert (code, told["format"], told["partition_nodes"], told["left_out"]) == (200, 1, 1, 0)
    whole, joined, left = told["changes"]
    assert (whole["nodes"], whole["beyond"], whole["seen_s"]) == ("", "", None)
    assert (joined["joined"], left["left"]) == ("n1,n2", "n2")
    (trainer,) = told["trainers"]
    assert (trainer["id"], trainer["curve"], trainer["ended_s"]) == ("run-here-1", [], None)
    assert "ann" not in str(told)
    code, refused = await served.ask("GET", "/v1/pool-trace?since=yesterday")
    assert (code, bool(says(refused["error"], "http.asked.not_in_range", name="since", query="yesterday"))) == (
        400,
        True,
    )


async def test_nobody_else_reads_it(monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    as_user(monkeypatch, "bob")
    served.see("n1", jobs=(driver_job("7", "bob"),))
    code, refused = await served.ask("GET", "/v1/pool-trace?since=0")
    assert code == 403
    assert says(
        refused["error"], "http.asked.administrators_only", may=wording("http.trace_handlers.read_past"), user="bob"
    )
