"""Earmarks in the ledger and in the status: what was made, what came of it, and who may know for whom."""

from __future__ import annotations

import asyncio
import io
import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bftd.base import old_names
from bftd.base.folding import Folds, folded
from bftd.config.keys import Config
from bftd.core.model.domain import Earmark, EarmarkOver, PoolNode, PoolView
from bftd.core.model.earmark_usage import EarmarkUsage
from bftd.core.model.events import PoolObserved
from bftd.http.auth.caller import Caller
from bftd.http.auth.privacy import Privacy
from bftd.http.overview import FOLDED, Overviews
from bftd.ledger.file import Ledger
from bftd.service import status
from bftd.service.service import Service
from bftd.service.status import overview
from bftd.ui.status import render
from tests.bftd.builders import Core, registration
from tests.support.messages import says, wording

ANYBODY, ADMIN = Caller("bob", False, 7), Caller("root", True, 0)


class Kept:
    """A service that sees earmarks a second apart."""

    def __init__(self, path: Path) -> None:
        self.now = 1000.0
        self.service = Service(Config(), Ledger(path / "ledger"), lambda job_ids: None, lambda: self.now)

    def see(self, *earmarks: Earmark, over: tuple[EarmarkOver, ...] = ()) -> None:
        self.now += 1.0
        nodes = {name: PoolNode(name, "IDLE", False, "", wanted=True) for earmark in earmarks for name in earmark.nodes}
        view = PoolView(
            1, self.now, None, nodes, earmarks={earmark.job: earmark for earmark in earmarks}, earmarks_over=over
        )
        self.service.apply(PoolObserved(self.now, view))

    def restarted(self) -> None:
        path = self.service.ledger.path
        self.service.ledger.close()
        self.service = Service(Config(), Ledger(path), lambda job_ids: None, lambda: self.now)

    @property
    def events(self) -> list[tuple[str, Any]]:
        found = self.service.ledger.events(0, 1000)
        return [(item["kind"], item["data"]) for item in found if item["kind"].startswith("earmark")]


def test_earmarks_are_in_the_ledger_and_their_counts_survive_a_restart(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    earmark = Earmark("4711", ("n1", "n2"), 1001.0, ("n2",), 1030.0)
    kept.see(earmark)
    kept.see(earmark)
    kept.restarted()
    kept.see(earmark)
    kept.see(earmark)
    kept.see(over=(EarmarkOver(earmark, "started"),))
    made = ("earmark", {"job": "4711", "nodes": "n[1-2]", "leaving": "n2", "due_s": 1030.0})
    end = {"job": "4711", "end": "started", "duration_s": 4.0, "kept_node_seconds": 6.0}
    # the daemon that was started had made none, and makes it anew
    assert kept.events == [made, made, ("earmark_over", end)]
    assert kept.service.state.earmark_usage == EarmarkUsage(2, 1, 0, 6.0, 0.0)
    kept.restarted()
    assert kept.service.state.earmark_usage == EarmarkUsage(2, 1, 0, 6.0, 0.0)
    kept.service.ledger.close()


def test_a_ledger_that_knows_no_earmarks_is_read(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.see(Earmark("4711", ("n1",), 1001.0))
    with sqlite3.connect(tmp_path / "ledger") as db:
        forgotten = db.execute("DELETE FROM meta WHERE key = 'earmark_usage'").rowcount
    assert forgotten == 1
    db.close()
    kept.restarted()
    assert kept.service.state.earmark_usage == EarmarkUsage()
    kept.service.ledger.close()


def test_the_counts_of_a_ledger_of_bftd_0_1_go_on(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.see(Earmark("4711", ("n1",), 1001.0))
    old = {"made": 5, "started": 3, "in_vain": 2, "kept_node_seconds": 90.0, "vain_node_seconds": 30.0, "open": {}}
    with sqlite3.connect(tmp_path / "ledger") as db:
        db.execute("UPDATE meta SET key = 'room_usage', value = ? WHERE key = 'earmark_usage'", (json.dumps(old),))
    db.close()
    kept.restarted()
    assert kept.service.state.earmark_usage == EarmarkUsage(5, 3, 2, 90.0, 30.0)
    kept.see(Earmark("4712", ("n1",), 1003.0))
    kept.restarted()
    assert kept.service.state.earmark_usage.made == 6, "the new name counts where both are there"
    kept.service.ledger.close()


@pytest.mark.parametrize("nodes", ["", FOLDED])
def test_a_status_has_its_fields_under_their_old_names_too(tmp_path: Path, nodes: str) -> None:
    kept = Kept(tmp_path)
    kept.see(Earmark("4711", ("n1", "n2"), 1001.0))
    kept.see(over=(EarmarkOver(Earmark("4711", ("n1", "n2"), 1001.0), "gone"),))
    kept.see(Earmark("4712", ("n1", "n2"), 1003.0))
    overviews = Overviews()
    seen = json.loads(asyncio.run(overviews.answer(kept.service, ADMIN, nodes)))
    overviews.close()
    assert seen["rooms"] == seen["earmarks"] != []
    assert seen["rooms_wary"] == seen["earmarks_wary"] == ""
    usage = seen["earmark_usage"]
    assert (usage["made"], usage["wasted"]) == (2, 1)
    assert (seen["room_usage"]["in_vain"], seen["room_usage"]["vain_node_seconds"]) == (1, usage["wasted_node_seconds"])
    kept.service.ledger.close()


def test_a_node_has_its_earmark_under_the_old_name_too() -> None:
    earmark = {"job": "7", "since_s": 1000.0, "due_s": None}
    assert old_names.node({"name": "n1", "earmark": earmark})["room"] == earmark
    assert old_names.node({"name": "n1", "room": earmark})["earmark"] == earmark, "of an older daemon"


def test_what_an_earmark_of_a_whole_machine_takes_in_the_ledger_is_bounded(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    names = tuple(f"node{number:04d}" for number in range(5000))
    before = kept.service.ledger.written_bytes
    kept.see(Earmark("4711", names, 1001.0, names))
    assert len(str(kept.events)) < 500
    assert kept.service.ledger.written_bytes - before < 2000
    kept.service.ledger.close()


def seen_by(caller: Caller, private: bool) -> dict[str, Any]:
    """The status of a daemon that keeps n3 and n4 for a job, as one caller sees it."""
    core = Core()
    core.arrive(registration("1", nodes_max=4, user="ann"))
    core.pool("n1", "n2", "n3", "n4")
    core.place_all()
    core.pool("n1", "n2", earmarks=[Earmark("4711", ("n3", "n4"), core.time_s + 1.0, ("n3", "n4"))])
    decisions = [{"at_s": core.time_s, "trainer": "1", "text": text} for text in core.sentences()]
    shown = overview(core.state, core.time_s, "1.0", "live", decisions, [])
    return Privacy(caller, core.state, private).overview(shown)


def test_where_jobs_are_private_nobody_but_an_administrator_learns_for_which_a_node_is_kept() -> None:
    assert "4711" in str(seen_by(ANYBODY, False))
    assert "4711" in str(seen_by(ADMIN, True))
    for user in ("ann", "bob"):
        seen = seen_by(replace(ANYBODY, user=user), True)
        assert "4711" not in str(seen)
        assert [(earmark["job"], earmark["nodes"]) for earmark in seen["earmarks"]] == [("", ["n3", "n4"])]
        texts = " ".join(item["text"] for item in seen["decisions"])
        told = wording("core.sentences.to_a_job", to="a job").replace(",", "")  # the comma goes with the number
        assert (f"left n[3-4]{told}" in texts) == (user == "ann"), texts


def test_a_driver_is_told_how_long_its_pilot_may_take_until_it_is_to_leave_at_once() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=2))
    core.pool("n1", "n2")
    core.place_all()
    core.pool("n1", earmarks=[Earmark("4711", ("n2",), core.time_s + 1.0, ("n2",), core.time_s + 31.0)])

    def told(later_s: float) -> list[float | None]:
        listed = status.leases(core.state, core.state.trainers["1"], Config(), core.time_s + later_s)
        return [item.leave_in_s for item in listed.leases]

    (by_s,) = (item.leave_by_s for item in core.leases("1", live=False) if item.leave_by_s is not None)
    assert told(10.0) == [None, by_s - core.time_s - 10.0]
    assert told(1000.0) == [None, 0.0]
    core.pool("n1", earmarks=core.state.pool.earmarks.values(), after_s=30.0)
    assert told(0.0) == [None, None]


def drawn(status: dict[str, Any]) -> str:
    out = io.StringIO()
    Console(file=out, width=200, color_system=None).print(render(status))
    return out.getvalue()


@pytest.mark.parametrize("fold", [False, True])
def test_the_status_counts_earmarks_in_a_line_where_there_are_any(fold: bool) -> None:
    core = Core()
    core.pool("n1", "n2", "n3")
    assert "earmark" not in drawn(overview(core.state, core.time_s, "1.0", "live", [], []))
    earmark = Earmark("4711", ("n1", "n2"), core.time_s + 1.0)
    core.pool("n3", earmarks=[earmark])
    core.pool("n3", earmarks=[earmark], after_s=2.0)
    shown = overview(core.state, core.time_s, "1.0", "live", [], [])
    text = drawn(folded(shown, Folds()) if fold else shown)
    assert "is left to " + wording("pool.judgement.job_that_can_start", job=4711) in text
    assert wording("bftd.view.earmarks", made=1, used=0) + wording("bftd.view.earmarks_now", jobs="1 job") in text
    core.pool("n1", "n2", "n3", over=[EarmarkOver(earmark, "no longer fits")], after_s=1.0)
    text = drawn(overview(core.state, core.time_s, "1.0", "live", [], []))
    wasted = wording("bftd.view.earmarks_wasted", wasted=1, share="100%", node_hours="0.00")
    assert wording("bftd.view.earmarks", made=1, used=0) + wasted in text
    assert not says(text, "bftd.view.earmarks_now")
