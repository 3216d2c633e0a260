"""The page of the paper's figures: what it computes itself, and the whole command on a small trace of its own."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import math
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bftd.simulation.trace
from benchmarks import markdown
from benchmarks.paper import __main__ as paper
from benchmarks.paper import figures, hpo, networks, replays
from bftd.simulation.drivers.driver import Charge
from bftd.simulation.drivers.networks import representative
from bftd.simulation.replay import Result
from bftd.simulation.replay.account import Account
from bftd.simulation.trace import Trace
from tests.support.messages import excerpt, says, wording

pytestmark = pytest.mark.slow


def trace_of(rows: Iterable[tuple[float, int, bool]], nodes: int, duration_s: float) -> Trace:
    """A trace from (time, node, whether it joins)."""
    ordered = sorted(rows)
    return Trace(
        nodes=tuple(map(str, range(nodes))),
        times_s=np.array([row[0] for row in ordered], dtype=np.float64),
        node=np.array([row[1] for row in ordered], dtype=np.int32),
        idle=np.array([row[2] for row in ordered], dtype=np.bool_),
        duration_s=duration_s,
    )


def idle_at(trace: Trace, time_s: float) -> set[int]:
    """The idle nodes at a time; no node joins twice or leaves without being there."""
    idle: set[int] = set()
    for at_s, node, joins in zip(trace.times_s, trace.node, trace.idle, strict=True):
        if at_s > time_s:
            break
        assert (int(node) in idle) != bool(joins)
        idle ^= {int(node)}
    return idle


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Four nodes, each of which changes at distinct whole seconds of a hundred."""
    rows = []
    for node in range(4):
        times = sorted(draw(st.sets(st.integers(0, 99), max_size=5)))
        rows += [(float(time), node, place % 2 == 0) for place, time in enumerate(times)]
    return trace_of(rows or [(0.0, 0, True)], 4, 100.0)


@settings(deadline=None)
@given(traces(), st.integers(1, 3), st.integers(0, 299))
def test_a_repeated_trace_is_at_every_time_what_the_trace_was_then(trace: Trace, times: int, second: int) -> None:
    time_s = second % (100 * times) + 0.5
    again = replays.repeated(trace, times)
    assert again.duration_s == 100.0 * times
    assert np.all(np.diff(again.times_s) >= 0)
    assert idle_at(again, time_s) == idle_at(trace, time_s % 100)


def test_the_log_error_of_a_column_is_the_root_mean_square_over_its_networks() -> None:
    printed = {"a": 1.0, "b": 2.0}
    assert networks.rms_log_error(printed, printed) == 0
    ours = {"a": math.exp(0.3), "b": 2 * math.exp(-0.1)}
    assert networks.rms_log_error(ours, printed) == pytest.approx(math.sqrt(0.05))
    assert networks.rms_log_error({"a": 1.0, "b": None}, printed) is None


def test_events_in_which_equal_shares_earn_nothing_have_no_ratio() -> None:
    milp, equal = np.array([1.0, 2.0, 10.0, 0.5, 7.0, 7.0]), np.array([1.0, 1.0, 2.0, 1.0, 0.0, -3.0])
    found = hpo.per_event(milp, equal)
    assert found == pytest.approx(
        {"worse": 1 / 4, "twice": 1 / 2, "five_times": 1 / 4, "mean": 2.125, "without": 1 / 3}
    )


def test_all_are_done_when_nobody_earns_any_more() -> None:
    account = Account()
    for hour, rate, pool, used in ((0, 5.0, 10, 4), (1, 0.0, 20, 0), (2, 5.0, 20, 4), (3, 0.0, 30, 0), (4, 0.0, 40, 0)):
        account.note(3600.0 * hour, rate, pool, used, used)
    result = cast(Result, SimpleNamespace(account=account, trainers_completed=2))
    assert replays.all_done(result, 2) == {"hours": 3.0, "node_hours": 50.0, "used_node_hours": 8.0}
    assert replays.all_done(result, 3) is None


def test_the_return_of_an_event_counts_events_that_rescale_and_no_other_charge() -> None:
    account = Account()
    account.note(0.0, 10.0, 4, 4, 4)
    for at_s, charge, samples in ((0.0, "rescale", 10.0), (10.0, "preempt", 50.0), (20.0, "rescale", 20.0)):
        account.take_off(at_s, cast(Charge, charge), samples)
    account.note(30.0, 0.0, 4, 4, 4)
    result = cast(Result, SimpleNamespace(account=account))
    changes_s = np.array([0.0, 10.0, 20.0, 30.0])
    assert replays._returns(result, changes_s) == pytest.approx([5.25, 6.5, 7.75])  # of (100 - 10) / 10 and 80 / 20
    assert replays._returns(result, np.array([10.0, 15.0])) == [0.0, 0.0, 0.0]


def test_every_case_is_told_apart_and_every_section_has_its_cases() -> None:
    cases = {case for part in paper.PARTS.values() for case in part.cases()}
    assert len({case.key for case in cases}) == len(cases)
    assert len({case.title for case in cases}) == len(cases)


@pytest.mark.parametrize("printed", [figures.TABLE_3, figures.TABLE_4])
def test_the_printed_tables_have_a_value_for_every_network_and_pj_max(printed: dict[str, tuple[float, ...]]) -> None:
    assert set(printed) == set(figures.KINDS)
    assert {len(values) for values in printed.values()} == {len(figures.PJ_MAX)}


def test_bars_go_from_the_low_to_the_high_end_and_stay_there_beyond() -> None:
    assert markdown.bars([-1, 0, 0.5, 1, 2], 0, 1) == "▁▁▅██"
    assert markdown.bars([1, 1], 1, 1) == "▁▁"


# -- the whole command ---


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data as small as the command takes: 1,024 nodes of which twelve are ever idle, for ten minutes."""
    path = tmp_path_factory.mktemp("summit")
    rows = [(0.0, node, True) for node in range(12)]
    rows += [(100.0 * step + 10 * node, node, step % 2 == 0) for node in range(2) for step in range(1, 5)]
    bftd.simulation.trace.write(trace_of(rows, 1024, 600.0), path / replays.TRACE)
    entries = [
        trainer.to_json() | {"name": f"J{place}-{kind}", "work_samples": 1e7}
        for place, (trainer, kind) in enumerate(zip(representative(), figures.KINDS.values(), strict=True))
    ]
    for name in replays.TRAINERS.values():
        (path / name).write_bytes(gzip.compress(json.dumps(entries).encode()))
    return path


@pytest.fixture(scope="module")
def ran(folder: Path) -> SimpleNamespace:
    """A quick run of everything: exit code, page and JSON."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = paper.main(["--quick", "--jobs", "2", "--data", str(folder), "--json"])
    found = json.loads(out.getvalue())
    return SimpleNamespace(code=code, page=paper.sections(found), found=found)


def test_a_quick_run_has_every_section(ran: SimpleNamespace) -> None:
    assert ran.code == 0
    titles = [line for line in ran.page.splitlines() if line.startswith("## ")]
    assert len(titles) == len(paper.PARTS) + 1
    assert says(ran.page, "benchmarks.paper.quick")


def test_the_json_holds_every_replay_and_hashes_of_its_inputs(ran: SimpleNamespace) -> None:
    cases = {case.key for part in paper.PARTS.values() for case in part.cases()}
    assert {json.dumps(row["case"], sort_keys=True) for row in ran.found["rows"]} == cases
    assert len({json.dumps(row["case"], sort_keys=True) for row in ran.found["rows"]}) == len(ran.found["rows"])
    weeks = [row for row in ran.found["rows"] if "costs" in row["extras"]]
    assert len(weeks) == len(hpo.figure10_cases())
    for row in weeks:
        for kind, total in (("rescale", "rescale_cost_samples"), ("preempt", "preempt_cost_samples")):
            assert sum(row["extras"]["costs"][kind]) == pytest.approx(row["result"][total], rel=1e-5)
    assert all(len(digest) == 64 for digest in ran.found["inputs"].values())


def test_one_part_prints_its_section_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert paper.main(["--only", "table1", "--data", str(folder)]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line.startswith("## ")] == [
        "## " + wording("benchmarks.paper_hpo.cannot_be_backfilled"),
        "## Inputs",
    ]
    assert "| eq-Nodes | 524 | 407 | " in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--data", "{empty}"], "lacks idle-week1.csv.gz"),
        (["--jobs", "0"], excerpt("whatif.options.too_few", name="--jobs")),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert paper.main([argument.format(empty=tmp_path) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
