"""Traces from sacct: what each kind of record does to the nodes, and what is counted where a record does not tell."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from bftd.simulation.trace import Trace, TraceError
from bftd.simulation.trace.accounting.conversion import TracePeriod, trace, window
from bftd.simulation.trace.accounting.sacct import Accounts, node_names
from tests.support.messages import excerpt, fragment, pattern, wording

ASSETS = Path(__file__).parents[1] / "assets"
HEADER = "JobIDRaw|Partition|State|Start|End|NNodes|NodeList\n"
# of the tests that write unix seconds: 1000 s
PERIOD = TracePeriod(1000.0, 2000.0)


@pytest.fixture(autouse=True)
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A time zone that changes its clocks, whatever this machine has."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def jobs(*lines: str, ignored: tuple[str, ...] = ()) -> Accounts:
    accounts = Accounts()
    accounts.add_jobs(HEADER + "".join(f"{line}\n" for line in lines), "jobs.txt", ignored)
    return accounts


def idle(accounts: Accounts, nodes: tuple[str, ...] = ("n1",), period: TracePeriod = PERIOD) -> dict[str, list[float]]:
    """For each node the times at which it joins, leaves, joins, ..."""
    return turns(trace(accounts, nodes, period, 0.0))


def turns(made: Trace) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {node: [] for node in made.nodes}
    for change in made.changes():
        for node in (*change.joined, *change.left):
            found[node].append(change.time_s)
    return found


def minutes(made: Trace) -> dict[str, list[float]]:
    return {node: [time_s / 60 for time_s in times_s] for node, times_s in turns(made).items()}


def counted(accounts: Accounts) -> dict[str, int]:
    return {name: count for name, count in accounts.notes.items() if count}


def site(**files: str) -> Accounts:
    accounts = Accounts()
    accounts.add_jobs((ASSETS / "jobs.txt").read_text(), "jobs.txt", ("elastic",))
    if "events" in files:
        accounts.add_events((ASSETS / files["events"]).read_text(), "events.txt")
    if "reservations" in files:
        accounts.add_reservations((ASSETS / files["reservations"]).read_text(), "reservations.txt")
    return accounts


def test_a_site_with_every_kind_of_record() -> None:
    accounts = site()
    nodes = node_names((ASSETS / "nodes.txt").read_text(), "nodes.txt")
    made = trace(accounts, nodes, window(accounts, None, None), 10.0)
    # from the first end, 12:00, to the last start, 14:00, of Berlin's winter
    assert (made.start, made.duration_s) == ("2026-03-01T11:00:00+00:00", 7200.0)
    soon = pytest.approx(5 / 60)  # 5 s, less than --min-idle, but cut by the start of the trace
    assert minutes(made) == {
        "n1": [0, soon, 90, 105],
        "n2": [0, soon, 70, 100, 110],
        "n3": [0, 10, 40],  # the job of the ignored partition is no use
        "n4": [0, 60, 90],
    }
    notes = dict(made.notes)
    assert notes == {
        "jobs": 9,
        "steps_ignored": 3,
        "jobs_never_started": 3,
        "jobs_ignored": 1,
        "jobs_still_running": 2,
        "jobs_suspended": 1,
        "overlapping_jobs": 1,
    }


def test_faults_reservations_and_a_lost_controller_take_nodes_away() -> None:
    accounts = site(events="events.txt", reservations="reservations.txt")
    made = trace(accounts, ("n1", "n2", "n3", "n4"), window(accounts, None, None), 10.0)
    found = minutes(made)
    assert found["n2"] == [0, pytest.approx(5 / 60), 70, 75, 95, 100, 110]  # reserved from 75 to 95
    assert found["n3"] == [0, 10, 40, 80, 81, 110]  # no controller from 80 to 81, draining from 110 on
    assert found["n4"] == [0, 60, 115]  # down from 90 to 115
    assert (made.notes["node_events"], made.notes["reservations"], made.notes["gaps"]) == (2, 1, 1)
    assert made.notes["gap_s"] == 60


def test_reservations_are_read_as_scontrol_prints_them_too() -> None:
    accounts = jobs("1|batch|COMPLETED|900|1100|1|n1")
    accounts.add_reservations(
        "ReservationName=x StartTime=1200 EndTime=1300 Duration=00:10:00 Nodes=n1 NodeCnt=1 Flags=MAINT\n", "r"
    )
    assert idle(accounts) == {"n1": [100, 200, 300]}
    with pytest.raises(TraceError, match="r: scontrol shows"):
        accounts.add_reservations("ReservationName=x StartTime=1200\n", "r")


def test_jobs_that_share_a_node_keep_it_busy_until_the_last_has_gone() -> None:
    accounts = jobs("1|batch|COMPLETED|1000|1500|1|n1", "2|batch|COMPLETED|1100|1600|1|n1", "3|b|FAILED|1200|1300|1|n1")
    made = trace(accounts, ("n1",), PERIOD, 0.0)
    assert turns(made) == {"n1": [600]}
    assert made.notes["overlapping_jobs"] == 2


def test_each_run_of_a_requeued_job_counts() -> None:
    accounts = jobs(
        "1|batch|REQUEUED|1000|1100|1|n1", "1|batch|NODE_FAIL|1200|1300|1|n1", "1|b|RUNNING|1500|Unknown|1|n1"
    )
    assert idle(accounts) == {"n1": [100, 200, 300, 500]}
    assert counted(accounts) == {"jobs_still_running": 1}


def test_files_put_together_count_a_job_once_and_by_its_known_end() -> None:
    running, over = "1|batch|RUNNING|1000|Unknown|1|n1", "1|batch|COMPLETED|1000|1400|1|n1"
    for lines in ([running, over, over], [over, over, running]):
        accounts = jobs(lines[0], HEADER.strip(), *lines[1:])
        assert idle(accounts) == {"n1": [400]}
        assert counted(accounts) == {"rows_superseded": 1, "duplicates_dropped": 1}
    accounts = jobs(over, "1|batch|COMPLETED|1000|1700|1|n1")
    assert idle(accounts) == {"n1": [700]}, "of two known ends the later one"


@pytest.mark.parametrize(
    ("line", "expected", "note"),
    [
        ("1|batch|COMPLETED|1100|1200|1|n1", [0, 100, 200], None),
        ("1|batch|RUNNING|1100|Unknown|1|n1", [0, 100], "jobs_still_running"),
        ("1|batch|COMPLETED|1100|Unknown|1|n1", [0, 100], "ends_unknown"),
        ("1|batch|SUSPENDED|1100|1200|1|n1", [0, 100, 200], "jobs_suspended"),
        ("1|batch|COMPLETED|1200|1100|1|n1", [0], "ends_before_start"),
        ("1|batch|COMPLETED|1100|1200|1|None assigned", [0], "jobs_without_nodes"),
        ("1|batch|CANCELLED by 7|1100|1200|1|None assigned", [0], "jobs_never_started"),
        ("1|batch|PENDING|Unknown|Unknown|1|None assigned", [0], "jobs_never_started"),
        ("1|batch|CANCELLED|None|1200|1|None assigned", [0], "jobs_never_started"),
        ("1|batch|REVOKED|1100|1200|1|n1", [0], "jobs_never_started"),
        ("1.batch||COMPLETED|1100|1200|1|n1", [0], "steps_ignored"),
        ("1|batch|COMPLETED|1100|1200|2|n1", [0, 100, 200], "node_counts_differ"),
        ("1|batch|RESIZING|1100|1200|1|n1", [0, 100, 200], None),
        ("1|idle-only|COMPLETED|1100|1200|1|n1", [0], "jobs_ignored"),
    ],
)
def test_what_a_record_does_not_tell_is_counted(line: str, expected: list[float], note: str | None) -> None:
    accounts = jobs(line, "2|batch|COMPLETED|1100|1200|1|n2", ignored=("idle-only",))
    assert idle(accounts, ("n1", "n2"))["n1"] == expected
    assert set(counted(accounts)) - {"jobs_still_running"} == {note} - {None, "jobs_still_running"}
    if note is not None:
        assert accounts.notes[note] == 1


def test_what_the_trace_itself_counts() -> None:
    accounts = jobs("1|batch|COMPLETED|1100|1200|2|n[1,9]", "2|batch|COMPLETED|1205|1300|1|n1")
    made = trace(accounts, ("n1", "n2"), PERIOD, 10.0)
    assert turns(made) == {"n1": [0, 100, 300], "n2": [0]}
    assert dict(made.notes) == {
        "jobs": 2, "nodes_not_listed": 1, "short_idle_dropped": 1, "idle_throughout": 1
    }  # fmt: skip


def test_an_hour_without_a_start_or_end_of_any_job_is_told() -> None:
    accounts = jobs("1|batch|COMPLETED|1100|1200|1|n1", "2|batch|COMPLETED|4900|5000|1|n1")
    assert trace(accounts, ("n1",), TracePeriod(1000, 5000), 10.0).notes["longest_silence_s"] == 3700
    assert "longest_silence_s" not in trace(accounts, ("n1",), TracePeriod(1000, 4700), 10.0).notes


def test_the_period_is_what_one_call_of_sacct_surely_covers() -> None:
    lines = ["1|b|COMPLETED|100|1300|1|n1", "2|b|COMPLETED|1200|1700|1|n1", "3|b|RUNNING|1600|Unknown|1|n1"]
    assert window(jobs(*lines), None, None) == TracePeriod(1300, 1600)
    assert window(jobs(*lines), 1000.0, None) == TracePeriod(1000, 1600)
    assert window(jobs(*lines), None, 1800.0) == TracePeriod(1300, 1800)
    for accounts, start_s, end_s in ((jobs(), None, 5.0), (jobs(lines[0]), None, None), (jobs(*lines), 5.0, 5.0)):
        with pytest.raises(TraceError, match="--since and --until"):
            window(accounts, start_s, end_s)


def test_in_the_hour_that_a_change_of_clocks_repeats_a_job_counts_as_longer() -> None:
    accounts = jobs("1|batch|COMPLETED|2026-10-25T02:15:00|2026-10-25T02:30:00|1|n1")
    zero_s = datetime(2026, 10, 25, 0, 0, tzinfo=timezone.utc).timestamp()
    found = minutes(trace(accounts, ("n1",), TracePeriod(zero_s, zero_s + 7200), 0.0))
    assert found == {"n1": [0, 15, 90]}  # 02:15 summer time to 02:30 winter time
    assert accounts.dates.ambiguous == 2


def test_nodes_that_have_no_job_at_all_are_a_mistake() -> None:
    with pytest.raises(TraceError, match=pattern("whatif.accounting.only_strangers", strangers="n1")):
        trace(jobs("1|batch|COMPLETED|1100|1200|1|n1"), ("m1",), PERIOD, 0.0)
    with pytest.raises(TraceError, match=pattern("whatif.accounting.never_idle")):
        trace(jobs("1|batch|RUNNING|900|Unknown|1|n1"), ("n1",), PERIOD, 0.0)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "",
            wording("whatif.pipes.no_column", where="jobs.txt", lack="jobidraw", advice="")
            + wording("whatif.sacct.advice", JOB_FIELDS=""),
        ),
        (
            "JobID|State|Start|End\n",
            wording(
                "whatif.pipes.no_column",
                where="jobs.txt",
                lack="nodelist",
                advice=fragment(excerpt("whatif.sacct.advice")),
            ),
        ),
        (
            HEADER + "1|batch|COMPLETED|1100|1200|1\n",
            excerpt("whatif.pipes.fields_differ", where="jobs.txt", number=2, fields=6, columns=fragment("7")),
        ),
        (
            HEADER + "1|batch|COMPLETED|1100|1200|1|n1|x\n",
            excerpt("whatif.pipes.fields_differ", where="jobs.txt", number=2, fields=8, columns=fragment("7")),
        ),
        (
            HEADER + "1|batch|COMPLETED|yesterday|1200|1|n1\n",
            wording("whatif.pipes.not_a_time", where="jobs.txt, line 2", text="yesterday"),
        ),
        (
            HEADER + "1|batch|COMPLETED|2026-02-30T00:00:00|1200|1|n1\n",
            wording("whatif.pipes.not_a_time", where="line 2", text="2026-02-30T00:00:00"),
        ),
        (HEADER + "1|batch|COMPLETED|1100|1200|1|n[1-\n", excerpt("slurm_plugin.nodeset.not_a_node_set", text="n[1-")),
        (
            HEADER + "1|batch|COMPLETED|1100|1200|1|n 1\n",
            "jobs.txt, line 2: " + wording("whatif.names.not_a_name", name="n 1"),
        ),
        (
            HEADER + "|batch|COMPLETED|1100|1200|1|n1\n",
            excerpt("whatif.sacct.not_a_job_id", where="jobs.txt, line 2", job_id=""),
        ),
        (
            "Cluster|" + HEADER + "a|1|b|COMPLETED|1|2|1|n1\nb|2|b|COMPLETED|1|2|1|n1\n",
            wording("whatif.sacct.several_clusters", where="jobs.txt, line 3", both="a and b"),
        ),
    ],
)
def test_a_file_that_is_no_output_of_sacct_is_refused_with_its_line(text: str, complaint: str) -> None:
    with pytest.raises(TraceError) as caught:
        Accounts().add_jobs(text, "jobs.txt")
    assert complaint in str(caught.value)
    assert caught.value.exit_code == 2


@hypothesis_settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text("1290.-|[],nT:\nUNone "))
def test_no_content_of_a_file_is_more_than_refused(text: str) -> None:
    for content in (text, HEADER + "1|b|COMPLETED|" + text, HEADER + "1|b|COMPLETED|1100|1200|1|" + text):
        with contextlib.suppress(TraceError):
            jobs_of = Accounts()
            jobs_of.add_jobs(content, "jobs.txt")
            trace(jobs_of, ("n1",), PERIOD, 0.0)
        with contextlib.suppress(TraceError):
            node_names(text, "nodes.txt")


def test_tables_with_bars_at_the_end_or_in_a_name_are_read() -> None:
    accounts = Accounts()
    text = "JobID|JobName|State|Start|End|NodeList|\n7|a|b|COMPLETED|1100|1200|n1|\n"
    accounts.add_jobs(text, "jobs.txt")
    assert idle(accounts) == {"n1": [0, 100, 200]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n[1-2]\nn9\n", ("n1", "n2", "n9")),
        ("NODELIST\nn1\nn1\nn2\n", ("n1", "n2")),
        ("NodeName=n1 Arch=x86_64\n   CPUAlloc=0\n\nNodeName=n2 Arch=x86_64\n", ("n1", "n2")),
    ],
)
def test_node_lists_are_read_as_slurm_prints_them(text: str, expected: tuple[str, ...]) -> None:
    assert node_names(text, "nodes.txt") == expected


@pytest.mark.parametrize("text", ["", "PARTITION AVAIL\nbatch up\n", "n[1-\n", "n1\n<html>\n"])
def test_a_file_that_is_no_node_list_is_refused(text: str) -> None:
    with pytest.raises(TraceError, match=r"nodes\.txt|" + pattern("whatif.names.not_a_name")):
        node_names(text, "nodes.txt")


DAY_S = 86400
MONTH = TracePeriod(0.0, 28.0 * DAY_S)


def a_month(node: str, days: range, first_id: int, partition: str = "batch") -> list[str]:
    """A job of 22 hours a day on a node."""
    return [f"{first_id + day}|{partition}|COMPLETED|{day * DAY_S + 1}|{day * DAY_S + 79200}|1|{node}" for day in days]


def test_regression_a_node_that_was_installed_on_day_20_supplies_nothing_before() -> None:
    lines = [*a_month("n1", range(28), 0), *a_month("n3", range(20, 28), 100)]
    made = trace(jobs(*lines), ("n1", "n3"), MONTH, 10.0)
    assert turns(made)["n3"][0] == 20 * DAY_S + 79200, "idle only after its first job"
    assert made.notes["nodes_cut_at_first"] == 1
    busy_hours = [time_s for time_s in turns(made)["n1"] if time_s < DAY_S]
    assert busy_hours == [0, 1, 79200], "a node that had a job on the first day was there"


def test_a_pilot_or_an_event_shows_that_a_node_was_there() -> None:
    late = a_month("n1", range(20, 28), 0)
    accounts = jobs(*late, *a_month("n1", range(1), 100, "elastic"), ignored=("elastic",))
    assert idle(accounts, period=MONTH)["n1"][0] == 0
    accounts = jobs(*late)
    accounts.add_events(f"NodeName|TimeStart|TimeEnd|Reason\nn1|{DAY_S - 100}|{DAY_S}|disk\n", "events.txt")
    assert idle(accounts, period=MONTH)["n1"][:3] == [0, DAY_S - 100, DAY_S]


def test_regression_a_node_that_was_taken_away_does_not_vanish() -> None:
    lines = [*a_month("n1", range(28), 0), *a_month("n2", range(10), 100)]
    made = trace(jobs(*lines), ("n1",), MONTH, 10.0, every=True)
    assert made.nodes == ("n1", "n2")
    assert turns(made)["n2"][-2:] == [8 * DAY_S + 79200, 9 * DAY_S + 1], "idle to its last job and no longer"
    assert made.notes["nodes_cut_at_last"] == 1
    chosen = trace(jobs(*lines), ("n1",), MONTH, 10.0)
    assert (chosen.nodes, chosen.notes["nodes_not_listed"]) == (("n1",), 1)


def test_slurmdbd_s_record_of_the_cluster_s_nodes_counts_before_all_else() -> None:
    lines = [*a_month("n1", range(28), 0), *a_month("n2", range(10), 100), *a_month("n3", range(20, 28), 200)]
    accounts = jobs(*lines)
    first, last = 12 * DAY_S, 15 * DAY_S
    accounts.add_events(
        "Cluster|NodeName|TimeStart|TimeEnd|State|Reason|Cluster Nodes\n"
        f"c||1|{first}||Cluster Registered TRES|n[1-2]\nc||{first}|{last}||Cluster Registered TRES|n1\n"
        f"c||{last}|Unknown||Cluster Registered TRES|n[1,3]\n",
        "events.txt",
    )
    made = trace(accounts, ("n1", "n3"), TracePeriod(1.0, MONTH.end_s), 10.0, every=True)
    found = turns(made)
    assert found["n2"][-1] == first - 1, "idle after its last job until it was taken away"
    assert found["n3"][0] == last - 1, "idle from its installation to its first job"
    assert made.notes["nodes_cut_by_record"] == 2
    assert not {"nodes_cut_at_first", "nodes_cut_at_last", "nodes_not_listed"} & made.notes.keys()
