"""`GET /metrics`: who asks, in which form, and what is counted of requests."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from bftd.http.handlers import metrics
from bftd.service.service import UNWRITTEN
from tests.bftd.http import test_web
from tests.bftd.http.test_api import TRAINER, Served, as_user

pytestmark = pytest.mark.slow

# What Prometheus 2.42 sends.
ACCEPT = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,*/*;q=0.1"


async def scraped(served: Served, accept: str = "") -> tuple[str, str]:
    """The text of a scrape and its type."""
    async with served._session.get("http://daemon/metrics", headers={"Accept": accept}) as answer:
        assert answer.status == 200
        return await answer.text(), answer.headers["Content-Type"]


async def test_metrics_come_in_the_form_that_is_asked_for(served: Served) -> None:
    text, content_type = await scraped(served)
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    plain = {family.name for family in prometheus(text)}
    text, content_type = await scraped(served, ACCEPT)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert text.endswith("# EOF\n")
    assert {family.name for family in openmetrics(text)} == plain


async def test_anybody_may_read_them_and_finds_nobody_in_them(monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    as_user(monkeypatch, "ann")
    served.service.private = True
    served.see("n1", "n2")
    await served.ask("POST", "/v1/trainers", TRAINER)
    text, _ = await scraped(served)
    assert 'bftd_trainers{state="waiting"} 1.0' in text
    assert not [word for word in ("run-here-1", "train-a", "ann", "n1") if word in text.split()]


async def test_requests_are_counted_by_their_route_however_they_were_made_up(served: Served) -> None:
    for path in ("/v1/trainers/1/explain", "/v1/trainers/2/explain", "/made/up", "/made/up/more"):
        assert (await served.ask("GET", path))[0] == 404
    await served.ask("POST", "/v1/tune", {"no_such_key": 1})
    text, _ = await scraped(served)
    counted = [line for line in text.splitlines() if line.startswith("bftd_api_requests_total{")]
    assert sorted(counted) == [
        'bftd_api_requests_total{code="4xx",method="GET",route="/v1/trainers/{id}/explain"} 2.0',
        'bftd_api_requests_total{code="4xx",method="POST",route="/v1/tune"} 1.0',
        'bftd_api_requests_total{code="4xx",method="other",route="other"} 2.0',
    ]


async def test_who_asks_often_gets_the_same_again(monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    monkeypatch.setattr(metrics, "KEPT_S", 3600.0)
    before, _ = await scraped(served)
    served.service._unwritten = UNWRITTEN
    assert (await scraped(served))[0] == before
    monkeypatch.setattr(metrics, "KEPT_S", 0.0)
    assert "bftd_ledger_writable 0.0" in (await scraped(served))[0]


async def test_they_are_on_the_address_of_the_web_page_and_requests_there_are_counted_too(tmp_path: Path) -> None:
    async with test_web.looked(tmp_path) as served:
        status, text, answer = await served.get("/metrics", Accept=ACCEPT)
        assert (status, text.endswith("# EOF\n")) == (200, True)
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        assert (await served.get("/metrics", Host="evil.example"))[0] == 401
        status, text = await served.by_socket("/metrics")
        assert status == 200
        assert 'bftd_api_requests_total{code="2xx",method="GET",route="/metrics"} 1.0' in text
        assert 'bftd_api_requests_total{code="4xx",method="GET",route="/metrics"} 1.0' in text
