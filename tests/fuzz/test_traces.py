"""Files of traces and of logs of jobs with faults in them: they are read, or refused in a line that names the file."""

from __future__ import annotations

import gzip
import json
import tempfile
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bftd.simulation.trace import files, job_log, names, read, sidecar, swf, write
from bftd.simulation.trace.accounting.conversion import trace, window
from bftd.simulation.trace.accounting.sacct import Accounts, node_names
from bftd.simulation.trace.errors import TraceError
from bftd.simulation.trace.job_log import JobLog
from bftd.simulation.trace.recording import gzip_members
from bftd.simulation.trace.recording.file import RecordingFile
from tests.bftd.simulation.trace.making import trace_of
from tests.bftd.simulation.trace.test_job_log import JOB
from tests.fuzz.mutations import WORDS, contents, documents, few, refused, texts
from tests.support.messages import pattern

pytestmark = pytest.mark.slow

ASSETS = Path(__file__).parents[1] / "bftd/simulation/trace/assets"
JOBS, EVENTS, NODES, RESERVED = (
    (ASSETS / f"{name}.txt").read_text() for name in ("jobs", "events", "nodes", "reservations")
)
SACCT = (
    "JobIDRaw|Partition|State|Submit|Eligible|Start|End|TimelimitRaw|NNodes|NodeList|QOS|Account|User|SubmitLine\n"
    "7|batch|COMPLETED|2026-03-01T11:00:00|2026-03-01T11:00:00|2026-03-01T11:30:00|2026-03-01T12:00:00|60|4|n[1-4]|"
    "normal|phys|ann|sbatch -w n[1-4] a.sh\n"
    "8|batch|CANCELLED by 7|1772363000|Unknown|None|1772366600|UNLIMITED|4K|None assigned|normal|phys|bob|sbatch x|y\n"
    "9|batch|RUNNING|1772363000|1772363000|1772363100|Unknown|1-00:00:00|1|n2|normal|phys|bob|srun\nof two lines\n"
)
SCONTROL = "ReservationName=r StartTime=1772363000 EndTime=1772366600 Duration=1 Nodes=n[1-2] Flags=MAINT\n"
ROWS = "time_s,node,idle\n0,n1,1\n0,n2,1\n5.5,n1,0\n7,n1,1\n8.25,n2,0\n"
SWF = (
    "; UnixStartTime: 1000\n; MaxNodes: 4\n; MaxProcs: 16\n"
    "1 0 5 100 4 -1 -1 4 200 -1 1 3 2 -1 1 1 -1 -1\n2 10 -1 -1 4 -1 -1 4 200 -1 5 3 2 -1 1 1 -1 -1\n"
    "3 20 1.5 1e2 16 -1 -1 16 -1 -1 0 3 2 -1 1 1 -1 -1\n"
)


@contextmanager
def a_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def made() -> tuple[bytes, bytes, dict[str, object]]:
    """A trace as it is written, compressed and not, and its description."""
    with a_folder() as folder:
        described = trace_of({"n1": [(0.0, 5.5), (7.0, 9.0)], "n2": [(0.0, 8.25)]}, 9.0, notes={"gaps": 1})
        write(described, folder / "t.csv.gz")
        write(described, folder / "t.csv")
        beside = json.loads((folder / "t.json").read_text())
        return (folder / "t.csv").read_bytes(), (folder / "t.csv.gz").read_bytes(), beside


def logged() -> tuple[bytes, str]:
    """A log of jobs as it is written, and its text."""
    with a_folder() as folder:
        jobs = tuple(replace(JOB, id=str(7 + at)) for at in range(3))
        job_log.write(JobLog(jobs, 50.0, 9000.0, 4, ("a note",), {"SLURM_VERSION": "24.11"}), folder / "t.jobs.csv.gz")
        raw = (folder / "t.jobs.csv.gz").read_bytes()
        return raw, gzip.decompress(raw).decode()


PLAIN, PACKED, BESIDE = made()
LOG_PACKED, LOG = logged()


@given(contents([PLAIN, PACKED, ROWS.encode()]), st.sampled_from(["t.csv", "t.csv.gz"]), st.booleans())
def test_a_trace_with_faults_is_read_or_refused(raw: bytes, name: str, described: bool) -> None:
    with a_folder() as folder, refused(TraceError):
        (folder / name).write_bytes(raw)
        if described:
            (folder / "t.json").write_text(json.dumps(BESIDE))
        list(read(folder / name).changes())


@given(texts([PLAIN.decode(), ROWS]))
def test_rows_with_faults_are_read_or_refused(text: str) -> None:
    with a_folder() as folder, refused(TraceError):
        (folder / "t.csv").write_text(text, errors="surrogatepass")
        list(read(folder / "t.csv").changes())


@given(documents([BESIDE, {"nodes": ["n1", "n2"], "duration_s": 9, "system": "Summit", "rows": 6}, {"nodes": 3}]))
@example('{"nodes": 3, "notes": {"a\\nb": "many"}}')
@example(f'{{"nodes": "1-{"9" * 5000}"}}')
def test_a_description_with_faults_is_read_or_refused(text: str) -> None:
    with a_folder() as folder, refused(TraceError):
        (folder / "t.csv").write_bytes(PLAIN)
        (folder / "t.json").write_text(text, errors="surrogatepass")
        read(folder / "t.csv")


@given(contents([PACKED, PACKED + gzip.compress(b"9,n1,0\n"), PACKED * 3]))
def test_a_recording_that_was_torn_is_gone_on_with_or_refused(raw: bytes) -> None:
    with a_folder() as folder, refused(TraceError):
        (folder / "t.csv.gz").write_bytes(raw)
        (folder / "t.json").write_text(json.dumps({**BESIDE, "rows": None, "source": "recorded from Slurm"}))
        RecordingFile(folder / "t.csv.gz").close()


@given(contents([b"".join(gzip.compress(b"%d,n1,1\n" % at) for at in range(9))]))
def test_the_whole_members_of_a_torn_file_are_found(raw: bytes) -> None:
    with refused():
        text, end = gzip_members.whole(raw)
        assert 0 <= end <= len(raw)
        assert text == (gzip.decompress(raw[:end]) if end else b"")


@given(texts([LOG, SWF]) | contents([LOG_PACKED, LOG.encode(), SWF.encode()]))
@example("1 " * 18)
@example(LOG.replace(",4,", ",1e5,", 1))
def test_a_log_of_jobs_with_faults_is_read_or_refused(told: str | bytes) -> None:
    raw = told if isinstance(told, bytes) else told.encode(errors="surrogatepass")
    with a_folder() as folder, refused(TraceError):
        (folder / "t.jobs.csv").write_bytes(raw)
        again = job_log.load(folder / "t.jobs.csv")
        job_log.write(again, folder / "u.jobs.csv.gz")
        assert job_log.load(folder / "u.jobs.csv.gz").jobs == again.jobs
    with refused(TraceError):
        swf.read(enumerate(raw.decode(errors="replace").splitlines()), "t.swf")


@given(texts([JOBS, SACCT]), texts([EVENTS]), texts([RESERVED, SCONTROL]), texts([NODES, "n[1-4]\n", "n1\nn2\n"]))
def test_accounting_with_faults_becomes_a_trace_or_is_refused(
    jobs: str, events: str, reserved: str, listed: str
) -> None:
    with refused(TraceError):
        accounts, nodes = Accounts(), ("n1", "n2", "n3", "n4")
        with refused(TraceError):
            nodes = tuple(node_names(listed, "nodes.txt"))[:1000]
        with refused(TraceError):
            accounts.add_events(events, "events.txt")
        with refused(TraceError):
            accounts.add_reservations(reserved, "reservations.txt")
        accounts.add_jobs(jobs, "jobs.txt")
        period = window(accounts, None, None)
        trace(accounts, nodes, period, 1.0, every=True)
        accounts.logged.log(period.start_s, period.end_s, nodes, every=True)


@given(st.sampled_from(WORDS) | texts(["0-1023,2000", "n[1-4],m7", "1-3"], 2))
@example(f"1-{'9' * 5000}")
@example(",".join(["1-9999999"] * 50))
def test_names_with_faults_are_listed_or_refused(text: str) -> None:
    with refused(TraceError):
        assert len(names.listed(text)) <= 10_000_000


@few(20)
@given(st.sampled_from(["t.csv.gz", "t.jobs.csv.gz"]), st.sampled_from([b"\0", b"\n", b"0,n1,1\n", b"a" * 999]))
def test_a_small_file_that_unpacks_without_an_end_is_refused_with_little_memory(name: str, piece: bytes) -> None:
    packer = zlib.compressobj(9, wbits=31)
    head = ROWS.encode() if name == "t.csv.gz" else LOG.encode()
    raw = (
        packer.compress(head)
        + b"".join(packer.compress(piece * ((1 << 20) // len(piece))) for _ in range(4))
        + packer.flush()
    )
    with a_folder() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(gzip_members, "MOST_BYTES", 1 << 20)
        (folder / name).write_bytes(raw)
        (folder / "t.json").write_text(json.dumps(BESIDE))
        tracemalloc.start()
        try:
            with pytest.raises(TraceError):
                read(folder / name) if name == "t.csv.gz" else job_log.load(folder / name)
            assert tracemalloc.get_traced_memory()[1] < 1 << 27
        finally:
            tracemalloc.stop()


def test_regression_a_gzip_file_of_a_megabyte_was_unpacked_to_gigabytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gzip_members, "MOST_BYTES", 1 << 20)
    for members in (1, 5):
        (tmp_path / "t.csv.gz").write_bytes(gzip.compress(bytes((1 << 21) // members)) * members)
        with pytest.raises(TraceError, match=pattern("whatif.files.unpacks_too_large")):
            files.load(tmp_path / "t.csv.gz")
    assert sidecar.path_of(tmp_path / "t.csv.gz") == tmp_path / "t.json"
