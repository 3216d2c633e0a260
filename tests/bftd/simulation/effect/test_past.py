"""The trace that is put together from the ledger is that of the pool as the daemon saw it."""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bftd.core.model.events import Finished, Registered
from bftd.ledger import pool_trace, reader
from bftd.ledger.reader import LedgerReader
from bftd.protocol.reports import ProgressReport
from bftd.service.service import Service
from bftd.simulation.effect.past import Past, past_of
from bftd.simulation.effect.training import trainers_of
from bftd.simulation.trace.model import Trace
from slurm_plugin.read.types import Job, Snapshot
from tests.bftd.builders import job, node, registration, reported
from tests.bftd.ledger.test_file import Clock, start

pytestmark = pytest.mark.slow

NAMES = tuple(f"n{number}" for number in range(1, 7))
Shown = list[tuple[float, frozenset[str]]]


class Site:
    """A daemon with simulated snapshots, and the pool as it was seen, by time."""

    def __init__(self, folder: Path) -> None:
        self.path, self.clock = folder / "ledger", Clock()
        self.clock.now = 1e6
        self.seen: Shown = []
        self.jobs: tuple[Job, ...] = ()
        self.service = self._started()

    def _started(self) -> Service:
        return start(self.path, self.clock)

    def see(self, idle: frozenset[str], after_s: float) -> None:
        """A snapshot some time later; two in a row, as a node must stay idle for a poll."""
        self.clock.now += after_s
        for _ in range(3):
            self.clock.now += 1.0
            nodes = {name: node(name, "IDLE" if name in idle else "ALLOCATED") for name in NAMES}
            self.service.observe(Snapshot(self.clock.now, nodes, self.jobs, ()))
            pool = self.service.state.pool
            inside = frozenset(name for name, each in pool.nodes.items() if each.in_pool) | pool.beyond
            self.seen.append((self.clock.now, inside))

    def restart(self, after_s: float) -> None:
        """The daemon stops, and starts some time later."""
        self.close()
        self.clock.now += after_s
        self.service = self._started()

    def close(self) -> None:
        """The daemon stops; no thread of it reads the ledger any more, whose folder is about to go."""
        self.service.ledger.close()
        self.service.history.settle()

    def told(self, since_s: float = 0.0) -> dict[str, Any]:
        """What the daemon answers, as it comes out of JSON."""
        answer = pool_trace.read(LedgerReader(self.path), self.service.state, since_s, self.clock.now)
        decoded: dict[str, Any] = json.loads(json.dumps(answer))
        return decoded


def pools(trace: Trace) -> Shown:
    """The pool from each change of a trace on."""
    inside: set[str] = set()
    shown = []
    for change in trace.changes():
        inside = (inside - set(change.left)) | set(change.joined)
        shown.append((change.time_s, frozenset(inside)))
    return shown


def at(shown: Shown, time_s: float) -> frozenset[str]:
    """The pool at a time."""
    known = [inside for from_s, inside in shown if from_s <= time_s + 2e-3]
    return known[-1] if known else frozenset()


IDLE = st.frozensets(st.sampled_from(NAMES))
AFTER_S = st.sampled_from([1.0, 40.0, 900.0, 4000.0])
STEPS = st.lists(
    st.tuples(st.sampled_from(["see", "see", "see", "tune", "restart"]), IDLE, AFTER_S), min_size=2, max_size=25
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, share=st.floats(0.0, 1.0))
def test_the_trace_from_the_ledger_is_the_pool_that_was_seen(steps: Any, share: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder))
        site.see(frozenset(NAMES[:3]), 1.0)
        for what, idle, after_s in steps:
            if what == "tune":
                site.service.tune({"max_nodes": len(idle)})
            if what == "restart":
                site.restart(after_s)
            site.see(idle, after_s)
        begin_s, end_s = site.seen[0][0], site.clock.now
        since_s = begin_s + share * (end_s - begin_s) * 0.99
        past = past_of(site.told(since_s), since_s)
        site.close()
    assert past is not None
    assert (past.start_s, past.repaired) == (since_s, 0)
    assert len(past.gaps) <= sum(what == "restart" for what, _, _ in steps)
    assert past.trace.duration_s == pytest.approx(past.at(end_s))
    shown = pools(past.trace)
    # what was seen at both ends of a gap is one moment of the trace
    seen_at = {round(past.at(time_s), 3): inside for time_s, inside in site.seen if since_s <= time_s < end_s}
    for time_s, inside in seen_at.items():
        assert at(shown, time_s) == inside
    if past.gaps:
        return
    seen = [(max(since_s, time_s), len(inside)) for time_s, inside in site.seen]
    expected = sum(count * max(0.0, to_s - from_s) for (from_s, count), (to_s, _) in itertools.pairwise(seen))
    signs = [1.0 if idle else -1.0 for idle in past.trace.idle]
    pool_s = sum(
        sign * (past.trace.duration_s - time_s) for sign, time_s in zip(signs, past.trace.times_s, strict=True)
    )
    assert pool_s == pytest.approx(expected, abs=1e-3)


def test_what_passed_while_the_daemon_did_not_run_is_cut_out(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.see(frozenset({"n1", "n2"}), 1.0)
    begin_s = site.seen[0][0]
    site.see(frozenset({"n1"}), 1000.0)
    last_s = site.service.state.pool.time_s
    site.restart(5000.0)
    site.see(frozenset({"n1", "n3"}), 1.0)
    back_s = site.clock.now - 2.0
    site.see(frozenset({"n1", "n3"}), 600.0)
    past = past_of(site.told(), 0.0)
    assert past is not None
    ((gone_s, again_s),) = past.gaps
    assert (again_s, last_s - gone_s) == (back_s, pytest.approx(0.0, abs=3.0))
    assert past.trace.duration_s == pytest.approx(site.clock.now - begin_s - (back_s - gone_s))
    assert past.at(back_s) == past.at(gone_s)
    assert pools(past.trace)[-1][1] == {"n1", "n3"}
    site.service.ledger.close()


def test_a_clock_that_was_set_moves_what_was_before_it() -> None:
    told = {
        "time_s": 10_000.0,
        "changes": [
            {"at_s": 100.0, "nodes": "n[1-2]", "beyond": "", "seen_s": None},
            {"at_s": 200.0, "left": "n2"},
            {"at_s": 7400.0, "by_s": 7000.0},
            {"at_s": 7600.0, "joined": "n2"},
        ],
    }
    past = past_of(told, 0.0)
    assert past is not None
    assert (past.start_s, past.trace.duration_s, past.gaps) == (7100.0, 2900.0, ())
    assert [time_s for time_s, _ in pools(past.trace)] == [0.0, 100.0, 500.0]


def test_nothing_is_told_of_a_pool_that_is_not_known() -> None:
    assert past_of({"time_s": 10.0, "changes": []}, 0.0) is None
    assert past_of({"time_s": 10.0, "changes": [{"at_s": 1.0, "joined": "n1"}]}, 0.0) is None


def test_a_change_that_is_missing_is_mended_by_the_next_whole_pool_and_counted() -> None:
    told = {
        "time_s": 8000.0,
        "changes": [
            {"at_s": 100.0, "nodes": "n1", "beyond": "", "seen_s": None},
            {"at_s": 3600.0, "nodes": "n[1-2]", "beyond": "n3"},
        ],
    }
    past = past_of(told, 0.0)
    assert past is not None
    assert past.repaired == 1
    assert pools(past.trace) == [(0.0, {"n1"}), (3500.0, {"n1", "n2", "n3"})]


def test_trainers_come_with_what_they_did_in_that_time(tmp_path: Path) -> None:
    site = Site(tmp_path)
    fast = registration("1", nodes_max=4, curve=((1, 10.0), (4, 40.0)), up_cost_s=3.0, down_cost_s=1.0)
    site.service.apply(Registered(site.clock.now, fast))
    site.service.apply(Registered(site.clock.now, registration("2", nodes_max=2)))
    site.jobs = (job("1", "RUNNING", partition=("service",)), job("2", "RUNNING", partition=("service",)))
    site.see(frozenset(), 10.0)
    for samples in (500.0, 2500.0):
        progress = ProgressReport(
            site.clock.now, step=int(samples), samples=samples, samples_per_s=10.0, nodes=1, loss=None
        )
        site.service.apply(reported(site.clock.now, "1", progress))
        site.see(frozenset(), 3000.0)
    site.service.apply(Finished(site.clock.now, "1", 0, ""))
    since_s = site.clock.now - 4000.0
    site.see(frozenset(), 100.0)
    told = site.told(since_s)
    ended = next(item for item in told["trainers"] if item["id"] == "1")
    assert (ended["began_samples"], ended["samples"], told["left_out"]) == (500.0, 2500.0, 0)
    past = past_of(told, since_s)
    assert isinstance(past, Past)
    made = {each.name.split("-")[0]: each for each in trainers_of(told["trainers"], past, "efficiency")}
    assert made["1"].work_samples == pytest.approx(2000.0 / 10.0)
    assert (made["1"].up_cost_s, made["1"].down_cost_s, made["1"].submit_s) == (3.0, 1.0, 0.0)
    assert made["1"].rates[4] == pytest.approx(4.0)
    assert made["2"].work_samples > 4000.0 * 2
    site.service.ledger.close()


def test_a_past_that_does_not_fit_into_an_answer_begins_where_all_of_it_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path)
    for number in range(30):
        site.see(frozenset(NAMES[: 1 + number % 5]), 900.0)
    monkeypatch.setattr(reader, "ANSWER_BYTES_MOST", 1000)
    told = site.told()
    past = past_of(told, 0.0)
    assert past is not None
    assert "nodes" in told["changes"][0]
    assert site.seen[0][0] + 5000.0 < past.start_s < site.clock.now - 5000.0
    shown = pools(past.trace)
    for time_s, inside in site.seen:
        if past.start_s <= time_s < site.clock.now:
            assert at(shown, past.at(time_s)) == inside
    assert past.repaired == 0
    site.service.ledger.close()
