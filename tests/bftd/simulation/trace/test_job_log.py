"""Logs of jobs on disk: what is written reads back, SWF is read, and whatever cannot be true is one line or counted."""

from __future__ import annotations

import contextlib
import gzip
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from bftd.simulation.trace import TraceError, job_log
from bftd.simulation.trace.job_log import JobLog, LoggedJob
from bftd.simulation.trace.job_model import SETTINGS, assembled, order
from tests.support.messages import excerpt, says, wording

THETA = Path(__file__).parents[5] / "shared" / "data" / "logs" / "theta-2022-first-half.swf.gz"
JOB = LoggedJob(
    id="7", submit_s=100.0, eligible_s=110.0, start_s=200.0, end_s=300.5, limit_s=3600.0, nodes=2, partition="batch",
    user="u1", account="a1", qos="normal", state="COMPLETED", node_names="n[1,3]", required="n1",
)  # fmt: skip
"""A job about which all is known."""

_texts = st.text(st.characters(whitelist_categories=("L", "N", "P", "S"), whitelist_characters=' ",'), max_size=9)


@st.composite
def logged_jobs(draw: st.DrawFn) -> LoggedJob:
    submit_s, eligible_s, start_s, end_s = sorted(draw(st.floats(0, 2e9)) for _ in range(4))
    return LoggedJob(
        draw(st.sampled_from(["1", "2", "10", "10_3", "x"])),
        submit_s,
        *(draw(st.sampled_from([None, time_s])) for time_s in (eligible_s, start_s, end_s)),
        draw(st.none() | st.floats(0, 1e9)),
        draw(st.integers(1, 9)),
        *(draw(_texts) for _ in range(7)),
    )


@hypothesis_settings(deadline=None)
@given(
    st.lists(logged_jobs(), max_size=5),
    st.none() | st.integers(1, 9),
    st.lists(_texts, max_size=2),
    st.dictionaries(st.sampled_from(SETTINGS), st.from_regex(r"\w{0,9}", fullmatch=True)),
)
def test_what_is_written_reads_back_the_same(
    jobs: list[LoggedJob], size: int | None, notes: list[str], slurm: dict[str, str]
) -> None:
    log = JobLog(tuple(sorted(jobs, key=order)), 0.0, 2.5e9, size, tuple(notes), slurm)
    with tempfile.TemporaryDirectory() as folder:
        path, again = Path(folder) / "t.jobs.csv.gz", Path(folder) / "again"
        job_log.write(log, path)
        back = job_log.load(path)
        assert vars(back) == vars(log)
        job_log.write(back, again)
        assert again.read_bytes() == path.read_bytes()


def test_a_log_is_known_by_its_name() -> None:
    assert all(map(job_log.is_named, map(Path, ("t.jobs.csv.gz", "t.jobs.csv", "t.swf", "x/t.swf.gz"))))
    assert not any(map(job_log.is_named, map(Path, ("t.csv.gz", "jobs.csv", "t.json", "swf"))))


def test_the_log_lies_beside_its_trace() -> None:
    for name in ("week.csv", "week.csv.gz"):
        assert job_log.path_of(Path("x") / name) == Path("x/week.jobs.csv.gz")


def swf(tmp_path: Path, *lines: str, header: str = "; UnixStartTime: 1000\n; MaxNodes: 8\n; MaxProcs: 32\n") -> JobLog:
    path = tmp_path / "log"
    path.write_text(header + "".join(f"{line}\n" for line in lines))
    return job_log.load(path)


def test_processors_and_seconds_of_swf_become_nodes_and_dates(tmp_path: Path) -> None:
    log = swf(
        tmp_path,
        "  2 20 5 60 5 -1 -1 4 120 -1 1 3 4 -1 1 2 -1 -1",
        "1 10 30 0 -1 -1 -1 32 -1 -1 0 -1 -1 -1 -1 -1 -1 -1",
        "",
        "3 30 7 -1 4 -1 -1 4 60 -1 5 1 1 -1 1 1 -1 -1",
    )
    empty = replace(JOB, partition="", user="", account="", qos="", node_names="", required="")
    assert log.jobs == (
        replace(
            empty, id="1", submit_s=1010, eligible_s=1010, start_s=1040, end_s=1040, limit_s=None, nodes=8,
            state="FAILED",
        ),
        LoggedJob("2", 1020, 1020, 1025, 1085, 120, 2, "p2", "u3", "a4", "q1", "COMPLETED", "", ""),
        LoggedJob("3", 1030, 1030, None, 1037, 60, 1, "p1", "u1", "a1", "q1", "CANCELLED", "", ""),
    )  # fmt: skip
    assert (log.begin_s, log.end_s, log.size) == (1010, 1085, 8)
    assert says(log.notes, "whatif.job_model.no_run_time", jobs=1)


def test_without_nodes_in_the_header_processors_are_nodes(tmp_path: Path) -> None:
    row = "1 10 0 60 5 -1 -1 4 120 -1 1 3 4 -1 1 2 -1 -1"
    for header, size in (("", None), ("; MaxProcs: 9 (of all)\n", 9), ("; MaxNodes: 6\n", 6)):
        log = swf(tmp_path, row, header=header)
        assert (log.size, log.jobs[0].nodes, log.jobs[0].submit_s) == (size, 5, 10)


def test_rows_of_swf_that_tell_of_no_run_are_counted(tmp_path: Path) -> None:
    log = swf(
        tmp_path,
        "1 10 0 60 4 -1 -1 4 120 -1 1 3 4 -1 1 2 -1 -1",
        "1 10 0 30 4 -1 -1 4 120 -1 2 3 4 -1 1 2 -1 -1",
        "1 10 30 30 4 -1 -1 4 120 -1 3 3 4 -1 1 2 -1 -1",
        "2 -1 0 60 4 -1 -1 4 120 -1 1 3 4 -1 1 2 -1 -1",
        "7 11 -1 -1 4 -1 -1 4 120 -1 5 3 4 -1 1 2 -1 -1",
        "3 12 -1 60 4 -1 -1 4 120 -1 1 3 4 -1 1 2 -1 -1",
        "4 13 0 -1 4 -1 -1 4 120 -1 1 3 4 -1 1 2 -1 -1",
        "5 14 0 60 -1 -1 -1 -1 120 -1 1 3 4 -1 1 2 -1 -1",
        "6 15 0 60 33 -1 -1 33 120 -1 1 3 4 -1 1 2 -1 -1",
    )
    assert [(job.id, job.end_s) for job in log.jobs] == [("1", 1070), ("4", None)]
    assert says(log.notes, "whatif.job_model.partial", jobs=2)
    assert says(log.notes, "whatif.job_model.no_start", jobs=2)
    once = (
        "whatif.job_model.no_submission",
        "whatif.job_model.ends_unknown",
        "whatif.job_model.no_nodes",
        "whatif.job_model.too_wide",
    )
    for key in once:
        assert says(log.notes, key, jobs=1)
    assert len(log.notes) == 2 + len(once)


@pytest.mark.skipif(not THETA.exists(), reason="the log of Theta is not there (../shared/data)")
def test_the_log_of_theta_is_read(tmp_path: Path) -> None:
    log = job_log.load(THETA)
    assert (len(log.jobs), log.size) == (12_624, 4_360)
    first = log.jobs[0]
    assert (first.submit_s, first.start_s, first.end_s) == (1641021254, 1641021254 + 52645, 1641021254 + 52645 + 10849)
    assert (first.limit_s, first.nodes) == (10800, 128)
    rows = [line.split() for line in gzip.decompress(THETA.read_bytes()).decode().splitlines() if line[0] != ";"]
    assert {job.id: (job.submit_s, (job.start_s or 0) - job.submit_s, job.nodes) for job in log.jobs} == {
        row[0]: (float(row[1]), float(row[2]), int(row[4])) for row in rows
    }
    job_log.write(log, tmp_path / "t.jobs.csv.gz")
    assert vars(job_log.load(tmp_path / "t.jobs.csv.gz")) == vars(log)


def put_together(*jobs: LoggedJob, begin_s: float = 0.0, end_s: float = 1000.0, size: int | None = None) -> JobLog:
    return assembled(jobs, begin_s, end_s, size, Counter())


def test_jobs_come_by_submission_and_then_by_number() -> None:
    jobs = [replace(JOB, id=id_, submit_s=at_s) for id_, at_s in (("10", 50.0), ("9", 50.0), ("8", 60.0), ("11", 40.0))]
    assert [job.id for job in put_together(*jobs).jobs] == ["11", "9", "10", "8"]


def test_a_run_comes_once_and_each_run_of_a_job_that_was_requeued() -> None:
    waits, runs = replace(JOB, start_s=None, end_s=None), replace(JOB, end_s=None)
    longer, again = (
        replace(JOB, end_s=400.0),
        replace(JOB, submit_s=310.0, eligible_s=310.0, start_s=320.0, end_s=330.0),
    )
    log = put_together(again, waits, runs, JOB, JOB, longer, waits)
    assert log.jobs == (longer, again)
    assert says(log.notes, "whatif.job_model.rows_superseded", rows=4)
    assert says(log.notes, "whatif.job_model.duplicates_dropped", rows=1)
    cancelled = replace(waits, end_s=150.0)
    assert put_together(cancelled, waits).jobs == (cancelled,)


def test_a_log_of_one_job_and_one_of_none_are_logs(tmp_path: Path) -> None:
    for jobs in ((JOB,), ()):
        log = put_together(*jobs)
        assert (log.jobs, log.notes) == (jobs, ())
        job_log.write(log, tmp_path / "t.jobs.csv.gz")
        assert vars(job_log.load(tmp_path / "t.jobs.csv.gz")) == vars(log)


def test_jobs_outside_the_period_and_jobs_that_the_machine_has_no_nodes_for_are_left_out() -> None:
    early, late, wide = replace(JOB, end_s=249.0), replace(JOB, submit_s=1001.0), replace(JOB, id="8", nodes=9)
    log = put_together(early, late, wide, JOB, begin_s=250.0, size=8)
    assert log.jobs == (JOB,)
    assert says(log.notes, "whatif.job_model.outside", jobs=2)
    assert says(log.notes, "whatif.job_model.too_wide", jobs=1)


def test_a_long_time_without_a_start_or_an_end_is_told() -> None:
    jobs = [
        replace(JOB, id=str(k), submit_s=at_s, eligible_s=at_s, start_s=at_s, end_s=at_s + 60)
        for k, at_s in enumerate([100.0 * k for k in range(500)] + [90_000.0 + 100 * k for k in range(500)])
    ]
    log = put_together(*jobs, end_s=140_000.0)
    assert says(log.notes, "whatif.job_model.gaps", gaps=1)
    assert says(log.notes, "whatif.job_model.gap_s", gap_s=f"{90_000 - 49_960:,}")
    assert put_together(*jobs[:500], end_s=50_000.0).notes == ()
    seldom = [replace(job, submit_s=at_s, eligible_s=at_s, start_s=at_s, end_s=at_s + 60)
              for job, at_s in zip(jobs[:50], range(0, 360_000, 7200), strict=True)]  # fmt: skip
    assert put_together(*seldom, end_s=360_000.0).notes == (), "no more than usual"


HEAD = '#bft-jobs {"version": 1, "jobs": 1, "begin_s": 0, "end_s": 1000, "size": null, "notes": []}\n'
COLUMNS = "id,submit_s,eligible_s,start_s,end_s,limit_s,nodes,partition,user,account,qos,state,node_names,required\n"
ROW = '7,100,110,200,300.5,3600,2,batch,u1,a1,normal,COMPLETED,"n[1,3]",n1\n'
WHOLE = gzip.compress((HEAD + COLUMNS + ROW * 1).encode(), mtime=0)
NO_LOG = excerpt("whatif.job_log.no_log")
SWF_ROW = "1 10 0 60 5 -1 -1 4 120 -1 1 3 4 -1 1 2 -1 -1\n"


def cannot_be(line: int) -> str:
    return excerpt("whatif.job_log.bad_row", where="t", line=line)


def test_a_file_that_is_not_packed_is_read_too(tmp_path: Path) -> None:
    for content in (WHOLE, (HEAD + COLUMNS + ROW).encode(), (HEAD + COLUMNS + ROW).replace("\n", "\r\n").encode()):
        (tmp_path / "t").write_bytes(content)
        assert job_log.load(tmp_path / "t").jobs == (JOB,)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", NO_LOG),
        ("\n\n", NO_LOG),
        ("JobIDRaw|State\n1|COMPLETED\n", NO_LOG),
        ("time_s,node,idle\n0,n1,1\n", NO_LOG),
        (b"\xff\xfe\0\0garbage", NO_LOG),
        (b"\x1f\x8b" + b"\xff" * 20, wording("whatif.files.gzip_broken", path="t", error="")),
        (WHOLE[:-9], wording("whatif.files.gzip_cut", path="t")),
        (WHOLE[:40], wording("whatif.files.gzip_cut", path="t")),
        (WHOLE[:-8] + b"\0" * 8, wording("whatif.files.gzip_broken", path="t", error="")),
        ("#bft-jobs [1]\n", "t, line 1"),
        ("#bft-jobs {\n", "t, line 1"),
        (HEAD.replace('"version": 1', '"version": 2'), excerpt("whatif.job_log.other_version", path="t", version=2)),
        (HEAD.replace('"jobs": 1', '"jobs": 10000001'), excerpt("whatif.job_log.too_many", path="t")),
        (HEAD, excerpt("whatif.job_log.columns", path="t")),
        (HEAD + COLUMNS, wording("whatif.job_log.cut_short", path="t", jobs=0, count=1)),
        (HEAD.replace('"end_s": 1000', '"end_s": NaN') + COLUMNS + ROW, "t, line 1"),
        (HEAD + COLUMNS + ROW + ROW, wording("whatif.job_log.cut_short", path="t", jobs=2, count=1)),
        (
            HEAD.replace('"jobs": 1', '"jobs": 2') + COLUMNS + ROW + ROW.replace("7,", "6,", 1),
            wording("whatif.job_log.unsorted"),
        ),
        *(
            (HEAD + COLUMNS + ROW.replace(*change, 1), cannot_be(3))
            for change in (
                ("7,100,110,200,300.5", "7,nan,110,200,300.5"),
                (",200,", ",inf,"),
                (",300.5,", ",1e300,"),
                (",300.5,", ",199,"),
                (",110,", ",99,"),
                (",3600,", ",nan,"),
                (",3600,", ",-1,"),
                (",2,batch", ",0,batch"),
                (",2,batch", ",99999999999999999999,batch"),
                (",2,batch", ",1.5,batch"),
                ("batch", "ba\x1b[31mtch"),
                ("7,", ",", ),
                ("7,", "7" * 5000 + ",", ),
                (",n1", ""),
            )
        ),
        (HEAD + COLUMNS + ROW.replace('"n[1,3]"', '"n[1,3]"x'), "t, line 3"),
        (HEAD + COLUMNS + "x" * 1_000_001, wording("whatif.job_log.too_long", path="t", line=3)),
        (SWF_ROW + "1 2 3\n", "t, line 2"),
        *(
            (SWF_ROW + SWF_ROW.replace("60", word), "t, line 2")
            for word in ("nan", "inf", "1e99", "0x1", "1_0", "9" * 40)
        ),
        ("; MaxNodes: 8\n", excerpt("whatif.swf.no_job", where="t")),
    ],
)  # fmt: skip
def test_a_file_that_is_no_log_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | bytes, complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t").write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(TraceError) as caught:
        job_log.load("t")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_file_that_cannot_be_read_or_written_is_told(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(TraceError, match="cannot read"):
            job_log.load(path)
    with pytest.raises(TraceError, match="cannot write"):
        job_log.write(put_together(JOB), tmp_path / "none" / "t.jobs.csv.gz")


@hypothesis_settings(deadline=None)
@given(st.binary(max_size=30), st.integers(0, len(HEAD + COLUMNS + ROW)), st.booleans(), st.sampled_from([0, 1]))
def test_no_content_of_a_file_is_more_than_refused(junk: bytes, at: int, packed: bool, base: int) -> None:
    whole = ((HEAD + COLUMNS + ROW) if base else ("; MaxProcs: 9\n" + SWF_ROW * 3)).encode()
    content = whole[:at] + junk + whole[at + len(junk) :]
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(TraceError):
        path = Path(folder) / "t"
        path.write_bytes(gzip.compress(content) if packed else content)
        job_log.load(path)
