"""What the daemon's log says of earmarks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bftd.core.model.domain import Earmark, EarmarkOver, PoolView
from bftd.pool.earmarks import EarmarkMemory
from bftd.service.earmark_log import EarmarkLog
from tests.support.messages import wording

NOTHING = EarmarkMemory()
NO_PILOT = wording("service.earmark_log.no_pilot")
EARMARK = Earmark("4711", ("n3", "n4"), 1000.0, leaving=("n3",))


def view(time_s: float, *earmarks: Earmark, over: tuple[EarmarkOver, ...] = ()) -> PoolView:
    return PoolView(time_s=time_s, earmarks={earmark.job: earmark for earmark in earmarks}, earmarks_over=over)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("INFO", "bftd")
    return caplog


def test_an_earmark_is_told_when_it_is_made_and_when_it_is_over(said: pytest.LogCaptureFixture) -> None:
    log = EarmarkLog()
    log.tell(NOTHING, view(1000.0, EARMARK))
    log.tell(NOTHING, view(1001.0, replace(EARMARK, nodes=("n3", "n5"))))
    assert said.messages == [wording("service.earmark_log.begun", job=4711, nodes="n[3-4]", leaving="pilots leave n3")]
    log.tell(NOTHING, view(1002.5, over=(EarmarkOver(EARMARK, "started"),)))
    log.tell(NOTHING, view(1003.0))
    assert said.messages[1:] == [wording("service.earmark_log.over", job=4711, kept_s=2.5, ENDS="it has started")]


@pytest.mark.parametrize(
    ("earmark", "says"),
    [
        (
            Earmark("7", ("n1",), 1000.0),
            wording("service.earmark_log.begun", job=7, nodes="n1", leaving=NO_PILOT),
        ),
        (
            Earmark("7", ("n1",), 1000.0, ("n1",), 1012.2),
            wording("service.earmark_log.begun", job=7, nodes="n1", leaving="pilots leave n1 within 12 s"),
        ),
    ],
)
def test_an_earmark_says_which_pilots_leave_and_when(
    earmark: Earmark, says: str, said: pytest.LogCaptureFixture
) -> None:
    EarmarkLog().tell(NOTHING, view(1000.0, earmark))
    assert said.messages == [says]


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("gone", "it is gone"),
        ("no longer fits", wording("service.earmark_log.no_longer_fits")),
        ("backed off", wording("service.earmark_log.backed_off")),
    ],
)
def test_a_wasted_earmark_says_why(end: str, words: str, said: pytest.LogCaptureFixture) -> None:
    EarmarkLog().tell(NOTHING, view(1065.0, over=(EarmarkOver(EARMARK, end),)))  # type: ignore[arg-type]
    assert said.messages == [wording("service.earmark_log.over", job=4711, kept_s=65.0, ENDS=words)]


def test_the_next_earmark_of_an_array_is_told_as_one_of_its_own(said: pytest.LogCaptureFixture) -> None:
    log = EarmarkLog()
    log.tell(NOTHING, view(1000.0, EARMARK))
    log.tell(NOTHING, view(1005.0, Earmark("4711", ("n4",), 1005.0), over=(EarmarkOver(EARMARK, "started"),)))
    assert said.messages[1:] == [
        wording("service.earmark_log.over", job=4711, kept_s=5.0, ENDS="it has started"),
        wording("service.earmark_log.begun", job=4711, nodes="n4", leaving=NO_PILOT),
    ]


def test_a_queue_that_is_too_long_is_told_once(said: pytest.LogCaptureFixture) -> None:
    log = EarmarkLog()
    for length in (50_000, 49_999, 400, 50_001):
        log.tell(EarmarkMemory(cut=f"500 of {length:,} jobs" if length > 500 else ""), view(1000.0))
    assert said.messages == [wording("service.earmark_log.not_all_looked_at", cut="500 of 50,000 jobs")]


def broken(text: str) -> EarmarkMemory:
    """A memory of a poll in which something broke, always at the same place."""
    try:
        raise KeyError(text)
    except KeyError as error:
        return EarmarkMemory(fault=error)


def test_a_fault_is_told_once_with_its_traceback_and_another_one_too(said: pytest.LogCaptureFixture) -> None:
    log = EarmarkLog()
    for node in ("n1", "n2", "n1"):
        log.tell(broken(node), view(1000.0))
    (record,) = said.records
    assert record.levelname == "ERROR"
    assert record.exc_info is not None
    assert "KeyError: 'n1'" in said.text
    log.tell(EarmarkMemory(fault=ValueError("elsewhere")), view(1000.0))
    assert len(said.records) == 2


def test_it_is_told_once_that_nodes_are_earmarked_for_few_and_once_that_it_is_for_all_again(
    said: pytest.LogCaptureFixture,
) -> None:
    log = EarmarkLog()
    for wary in ("", "for few: 90%", "for few: 91%", "", ""):
        log.tell(NOTHING, replace(view(1000.0), wary=wary))
    assert said.messages == ["for few: 90%", wording("service.earmark_log.all_again")]
