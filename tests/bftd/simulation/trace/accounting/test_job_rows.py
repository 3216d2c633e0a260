"""The jobs of sacct's rows: what each kind of row is in a log of jobs, and what is counted where none tells."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from bftd.simulation.trace import TraceError
from bftd.simulation.trace.accounting import sacct
from bftd.simulation.trace.accounting.job_rows import JobRows
from bftd.simulation.trace.job_log import JobLog, LoggedJob
from tests.support.messages import excerpt, says, wording

HEADER = sacct.JOB_FIELDS.replace(",", "|")
NODES = tuple(f"n{number}" for number in range(1, 10))
JOB = LoggedJob(
    "1", 1000.0, 1010.0, 1100.0, 1200.0, 3600.0, 2, "batch", "u1", "a1", "normal", "COMPLETED", "n[1-2]", ""
)


@pytest.fixture(autouse=True)
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A time zone that changes its clocks, whatever this machine has."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def row(**fields: str) -> str:
    """The row of JOB, with other fields by the names of the columns in lower case."""
    usual = {
        "jobidraw": "1", "partition": "batch", "state": "COMPLETED", "submit": "1000", "eligible": "1010",
        "start": "1100", "end": "1200", "timelimitraw": "60", "nnodes": "2", "nodelist": "n[1-2]", "qos": "normal",
        "account": "chem", "user": "curie", "submitline": "sbatch job.sh",
    }  # fmt: skip
    return "|".join((usual | fields)[column] for column in HEADER.lower().split("|"))


def read(*rows: str, names: bool = False, header: str = HEADER, ignored: tuple[str, ...] = ()) -> JobRows:
    accounts = sacct.Accounts(logged=JobRows(names))
    accounts.add_jobs("\n".join((header, *rows)), "jobs.txt", ignored)
    return accounts.logged


def log_of(*rows: str, names: bool = False, ignored: tuple[str, ...] = (), every: bool = True) -> JobLog:
    return read(*rows, names=names, ignored=ignored).log(0.0, 4e9, NODES, every=every)


def changed(**fields: object) -> LoggedJob:
    return LoggedJob(**{name: fields.get(name, getattr(JOB, name)) for name in LoggedJob.__slots__})  # type: ignore[arg-type]


NEVER = {"start_s": None, "node_names": ""}
UNPLACED = {"nodelist": "None assigned"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"state": "RUNNING", "end": "Unknown"}, {"state": "RUNNING", "end_s": None}),
        ({"state": "CANCELLED by 7"}, {"state": "CANCELLED"}),
        (
            {"state": "PENDING", "start": "Unknown", "end": "Unknown", **UNPLACED},
            {"state": "PENDING", "end_s": None, **NEVER},
        ),
        ({"state": "PENDING", "end": "Unknown", **UNPLACED}, {"state": "PENDING", "end_s": None, **NEVER}),
        ({"state": "CANCELLED by 7", "start": "None", **UNPLACED}, {"state": "CANCELLED", **NEVER}),
        ({"state": "CANCELLED by 7", "start": "1200", **UNPLACED}, {"state": "CANCELLED", **NEVER}),
        (
            {"state": "CANCELLED", "eligible": "1300", "start": "Unknown", **UNPLACED},
            {"state": "CANCELLED", "eligible_s": None, **NEVER},
        ),
        ({"state": "FAILED", "start": "1200", **UNPLACED}, {"state": "FAILED", **NEVER}),
        ({"eligible": "Unknown"}, {"eligible_s": 1000.0}),
        ({"eligible": "900"}, {"eligible_s": 1000.0}),
        ({"nodelist": "m[1-2]"}, {"node_names": "m[1-2]"}),
        ({"partition": "a\x1b[1m"}, {"partition": "a [1m"}),
        ({"timelimitraw": "UNLIMITED"}, {"limit_s": None}),
        ({"timelimitraw": "Partition_Limit"}, {"limit_s": None}),
        ({"timelimitraw": "0"}, {"limit_s": None}),
        ({"end": "1100"}, {"end_s": 1100.0}),
        ({"nnodes": "9"}, {}),
        ({"qos": "", "account": "", "user": ""}, {"qos": "", "account": "", "user": ""}),
        ({"submitline": "sbatch -N2 -w n1 job.sh"}, {"required": "n1"}),
        ({"submitline": "sbatch --nodelist=n[1-2] job.sh -w n3"}, {"required": "n[1-2]"}),
        ({"submitline": "srun --nodelist n2 true"}, {"required": "n2"}),
        ({"submitline": "srun -wn2 true"}, {"required": "n2"}),
        ({"submitline": "sbatch job.sh -w 7"}, {}),
        ({"submitline": "sbatch -w n[1- job.sh"}, {}),
        ({"submitline": "sbatch -w ./hosts job.sh"}, {}),
        ({"submitline": "sbatch --wrap srun -w n1 true"}, {}),
        ({"submitline": "sbatch --wrap a | b"}, {}),
        ({"submitline": "sbatch --wrap a\n5 x\n\necho 7|8"}, {}),
    ],
)
def test_what_a_row_of_sacct_is_in_the_log(fields: dict[str, str], expected: dict[str, object]) -> None:
    assert log_of(row(**fields)).jobs == (changed(**expected),)


def test_nodes_are_counted_as_sacct_writes_them_where_no_list_names_them() -> None:
    rows = [
        row(jobidraw=str(number), state="CANCELLED", start="None", nnodes=nnodes, **UNPLACED)
        for number, nnodes in enumerate(("9", "4K", "0", "", "9" * 30))
    ]
    logged = read(*rows)
    log = logged.log(0.0, 4e9, [f"n{number}" for number in range(5000)], every=True)
    assert [job.nodes for job in log.jobs] == [9, 4096]
    assert says(log.notes, "whatif.job_model.no_nodes", jobs=3)


def test_a_limit_may_be_written_as_a_time() -> None:
    logged = read(row(timelimitraw="1-00:00:30"), header=HEADER.replace("TimelimitRaw", "Timelimit"))
    assert [job.limit_s for job in logged.log(0.0, 4e9, NODES, every=True).jobs] == [86430.0]


def test_users_and_accounts_are_numbered_unless_their_names_are_asked_for() -> None:
    rows = [row(jobidraw=str(k), user=user, account=account) for k, (user, account) in enumerate(
        [("curie", "chem"), ("bohr", "phys"), ("curie", "phys"), ("", "")]
    )]  # fmt: skip
    assert [(job.user, job.account) for job in log_of(*rows).jobs] == [
        ("u1", "a1"), ("u2", "a2"), ("u1", "a2"), ("", "")
    ]  # fmt: skip
    named = log_of(*rows, names=True).jobs
    assert [(job.user, job.account) for job in named[:2]] == [("curie", "chem"), ("bohr", "phys")]


def test_each_run_of_a_job_is_kept_and_pilots_and_steps_are_not() -> None:
    log = log_of(
        row(state="PREEMPTED"),
        row(submit="1201", eligible="1320", start="1400", end="1500"),
        row(submit="1201", eligible="1320", start="1400", end="1500"),
        row(submit="1201", eligible="1320", start="1400", end="Unknown", state="RUNNING"),
        row(jobidraw="1.batch"),
        row(jobidraw="2", partition="elastic"),
        row(jobidraw="3", state="REVOKED"),
        ignored=("elastic",),
    )
    assert [(job.id, job.state, job.start_s, job.end_s) for job in log.jobs] == [
        ("1", "PREEMPTED", 1100, 1200), ("1", "COMPLETED", 1400, 1500)
    ]  # fmt: skip
    assert says(log.notes, "whatif.job_model.duplicates_dropped", rows=1)
    assert says(log.notes, "whatif.job_model.rows_superseded", rows=1)


def test_rows_that_cannot_be_jobs_are_counted() -> None:
    log = log_of(
        row(),
        row(jobidraw="2", submit="Unknown"),
        row(jobidraw="3", end="1099"),
        row(jobidraw="4", nodelist="None assigned"),
        row(jobidraw="5", submit="1150", eligible="1150"),
        row(jobidraw="6", nodelist="m[1-2]"),
        row(jobidraw="7", state="CANCELLED", start="Unknown", end="Unknown", **UNPLACED),
        every=False,
    )
    assert [(job.id, job.submit_s, job.eligible_s) for job in log.jobs] == [
        ("1", 1000, 1010), ("4", 1000, 1010), ("5", 1100, 1100)
    ]  # fmt: skip
    once = (
        "whatif.job_model.no_submission",
        "whatif.job_model.no_start",
        "whatif.job_model.ends_before_start",
        "whatif.job_model.node_list_unknown",
        "whatif.job_model.started_before_submission",
        "whatif.job_model.elsewhere",
    )
    for key in once:
        assert says(log.notes, key, jobs=1)


def test_nodes_that_a_job_required_are_known_nodes_even_if_it_never_ran() -> None:
    rows = [
        row(jobidraw=str(k), state="CANCELLED", start="None", submitline=f"sbatch job.sh -w {nodes}", **UNPLACED)
        for k, nodes in enumerate(["n[1-2]", "n[8-10]", "arn"])
    ]
    assert [job.required for job in log_of(*rows).jobs] == ["n[1-2]", "", ""]


def test_in_the_hour_that_a_change_of_clocks_repeats_times_come_one_after_the_other() -> None:
    dates = {
        name: f"2026-10-25T02:{minute}:00"
        for name, minute in {"submit": 50, "eligible": 50, "start": 10, "end": 20}.items()
    }
    log = log_of(row(**dates))
    zero_s = datetime(2026, 10, 25, 0, 0, tzinfo=timezone.utc).timestamp()
    (job,) = log.jobs
    found = [
        (at_s - zero_s) / 60 for at_s in (job.submit_s, job.eligible_s, job.start_s, job.end_s) if at_s is not None
    ]
    assert found == [50, 50, 70, 80], "submitted in summer time, started in winter time"
    assert says(log.notes, "whatif.job_model.ambiguous_times", times=4)


def test_without_the_columns_of_a_log_there_is_a_trace_and_no_log() -> None:
    old = "JobIDRaw|Partition|State|Start|End|NNodes|NodeList"
    logged = read("1|batch|COMPLETED|1100|1200|1|n1", header=old)
    assert logged.lacks == wording(
        "whatif.job_rows.columns", missing="Submit, Eligible, TimelimitRaw, QOS, Account, User"
    )
    assert not read(row()).lacks
    assert not read(row().rpartition("|")[0], header=HEADER.removesuffix("|SubmitLine")).lacks


def test_more_jobs_than_a_log_can_have_are_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bftd.simulation.trace.accounting.job_rows.MOST_JOBS", 2)
    rows = [row(jobidraw=str(number)) for number in range(3)]
    assert not read(*rows[:2]).lacks
    assert says(read(*rows).lacks, "whatif.job_rows.too_many", most=2)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (row(timelimitraw="9" * 12), "jobs.txt, line 2: "),
        (row(submit="yesterday"), wording("whatif.pipes.not_a_time", where="jobs.txt, line 2", text="yesterday")),
        (row(submit="nan"), wording("whatif.pipes.not_a_time", where="jobs.txt, line 2", text="nan")),
        (row(end="999999999999"), wording("whatif.pipes.not_a_time", where="jobs.txt, line 2", text="999999999999")),
        (row()[:40], excerpt("whatif.pipes.fields_differ", where="jobs.txt", number=2, fields=8)),
    ],
)
def test_a_row_that_cannot_be_read_is_refused_with_its_line(line: str, complaint: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(line)
    assert complaint in str(caught.value)


@hypothesis_settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text("0129.-|[],nTK:\nUNe w"), st.integers(0, len(row())))
def test_no_content_of_a_file_is_more_than_refused_or_counted(text: str, at: int) -> None:
    for line in (row()[:at] + text, row()[:at] + text + row()[at:], row()[:at] + text + row()[at + len(text) :]):
        with contextlib.suppress(TraceError):
            log = log_of(line, row())
            for job in log.jobs:
                times_s = [at_s for at_s in (job.submit_s, job.eligible_s, job.start_s, job.end_s) if at_s is not None]
                assert times_s == sorted(times_s)
                assert 0 < job.nodes <= len(NODES)
