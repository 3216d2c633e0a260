"""Traces on disk: what is written reads back, and whatever cannot be true is refused with its file and line."""

from __future__ import annotations

import contextlib
import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from bftd.simulation.trace import Trace, TraceError, read, write
from tests.bftd.simulation.trace.making import SUMMIT, needs_summit, periods, trace_of
from tests.support.messages import excerpt, fragment, pattern, wording
from tests.support.waiting import STILL_S

ROOT = Path(__file__).parents[4]
HEADER = "time_s,node,idle\n"


def put(folder: Path, content: str, name: str = "t.csv", **described: Any) -> Path:
    """A trace file, with a description where anything is described."""
    path = folder / name
    text = content.encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    if described:
        (folder / "t.json").write_text(json.dumps(described))
    return path


def same(one: Trace, other: Trace) -> bool:
    arrays = ("times_s", "node", "idle")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays) and all(
        getattr(one, name) == getattr(other, name)
        for name in ("nodes", "duration_s", "start", "poll_interval_s", "source", "notes")
    )


@hypothesis_settings(deadline=None)
@given(
    periods(),
    st.sampled_from(["t.csv", "t.csv.gz"]),
    st.sampled_from([{}, {"start": "2026-01-31T08:00:00+00:00", "poll_interval_s": 10.0, "source": "x"}]),
    st.dictionaries(st.sampled_from(["gaps", "jobs"]), st.integers(0, 9)),
)
def test_what_is_written_reads_back_the_same(
    idle: dict[str, list[tuple[float, float]]], name: str, fields: dict[str, Any], notes: dict[str, int]
) -> None:
    trace = trace_of(idle, 60.0, notes=notes, **fields)
    with tempfile.TemporaryDirectory() as folder:
        written = write(trace, Path(folder) / name)
        back = read(Path(folder) / name)
    assert same(back, trace)
    assert back.digest() == written.digest() != ""


@hypothesis_settings(deadline=None)
@given(st.permutations(["0", "1", "2", "10"]), st.sampled_from(["", "n", "cn-", "rack1.n"]))
def test_nodes_keep_their_order_and_names_however_they_are_described(order: list[str], stem: str) -> None:
    trace = trace_of({f"{stem}{name}": [(0.0, 5.0)] for name in order}, 9.0)
    with tempfile.TemporaryDirectory() as folder:
        write(trace, Path(folder) / "t.csv")
        assert same(read(Path(folder) / "t.csv"), trace)


def test_the_same_trace_is_the_same_file(tmp_path: Path) -> None:
    trace = trace_of({"n1": [(0, 5)]}, 9.0)
    one = write(trace, tmp_path / "one.csv.gz")
    other = write(trace, tmp_path / "other.csv.gz")
    assert (tmp_path / "one.csv.gz").read_bytes() == (tmp_path / "other.csv.gz").read_bytes()
    assert one.digest() == other.digest()
    assert write(trace, tmp_path / "plain.csv").digest() == trace.digest(), "of no file: that of its rows as .csv"


def test_without_a_description_nodes_and_duration_are_those_of_the_rows(tmp_path: Path) -> None:
    trace = read(put(tmp_path, HEADER + "0,10,1\n5,9,1\n20,10,0\n"))
    assert trace.nodes == ("9", "10")
    assert trace.duration_s == 20
    assert (trace.start, trace.poll_interval_s, dict(trace.notes)) == ("", None, {})


def test_a_count_of_nodes_names_them_from_0_and_the_system_is_the_source(tmp_path: Path) -> None:
    trace = read(put(tmp_path, HEADER + "0,2,1\n", nodes=4, duration_s=30, system="Summit", rows=1))
    assert (trace.nodes, trace.duration_s, trace.source) == (("0", "1", "2", "3"), 30.0, "Summit")
    assert trace.node.tolist() == [2]


def test_line_ends_of_windows_and_a_missing_last_one_are_fine(tmp_path: Path) -> None:
    text = (HEADER + "0,n1,1\n5.5,n1,0").replace("\n", "\r\n")
    assert read(put(tmp_path, text)).times_s.tolist() == [0, 5.5]


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        pytest.param(
            "0,n1,1\n9,n2,1\n5,n1,0\n",
            excerpt("whatif.checks.unsorted", where="t.csv", row=4, now=5, then=9),
            id="unsorted",
        ),
        pytest.param(
            "0,n1,1\n5,n1,1\n", "t.csv, line 3: node n1 " + wording("whatif.checks.joins_twice"), id="joins twice"
        ),
        pytest.param(
            "0,n1,1\n5,n2,0\n", "t.csv, line 3: node n2 " + wording("whatif.checks.leaves_twice"), id="leaves first"
        ),
        pytest.param(
            "0,n1,1\n5,n1,0\n6,n1,0\n",
            "t.csv, line 4: node n1 " + wording("whatif.checks.leaves_twice"),
            id="leaves twice",
        ),
        pytest.param(
            "0,n1,1\n5,n1,0\n5,n1,1\n", "t.csv, line 4: node n1 " + wording("whatif.checks.two_rows"), id="at once"
        ),
        pytest.param("0,n1,1\nnan,n1,0\n", "t.csv, line 3: 'nan' " + wording("whatif.table.not_a_time"), id="NaN"),
        pytest.param(
            "0,n1,1\n1e999,n1,0\n",
            wording("whatif.checks.bad_time", where="t.csv", row=3, times_s="inf"),
            id="infinite",
        ),
        pytest.param("-5,n1,1\n", wording("whatif.checks.bad_time", where="t.csv", row=2, times_s=-5), id="negative"),
        pytest.param(
            "0,n1,1\n1_0,n1,0\n", "t.csv, line 3: '1_0' " + wording("whatif.table.not_a_time"), id="underscore"
        ),
        pytest.param(
            "0,n1,1\n1-0,n1,0\n", "t.csv, line 3: '1-0' " + wording("whatif.table.not_a_time"), id="no number"
        ),
        pytest.param(
            "0,n1,1\n,n1,0\n",
            wording("whatif.table.field", where="t.csv", row=3, name="time_s", what="missing"),
            id="no time",
        ),
        pytest.param(
            "0,n1,1\n5,,0\n",
            wording("whatif.table.field", where="t.csv", row=3, name="node", what="missing"),
            id="no node",
        ),
        pytest.param("0,n1,1\n5,n 1,0\n", "t.csv, line 3: 'n 1' " + wording("whatif.table.not_a_node"), id="odd name"),
        pytest.param(
            f"0,{'n' * 200},1\n",
            wording("whatif.table.field", where="t.csv", row=2, name="node", what="longer than 128"),
            id="long name",
        ),
        pytest.param(
            "0,n1,1\n5,n1,2\n", wording("whatif.table.idle_malformed", where="t.csv", row=3, word="'2'"), id="idle 2"
        ),
        pytest.param(
            "0,n1,1\n5,n1,\n", wording("whatif.table.idle_malformed", where="t.csv", row=3, word="''"), id="no idle"
        ),
        pytest.param(
            "0,n1,1\n5,n1,0,7\n",
            wording("whatif.table.row_malformed", where="t.csv", row=3, HEADER="time_s,node,idle", line="'5,n1,0,7'"),
            id="4 fields",
        ),
        pytest.param(
            "0,n1,1\n5,n1\n",
            wording("whatif.table.row_malformed", where="t.csv", row=3, HEADER="time_s,node,idle", line="'5,n1'"),
            id="2 fields",
        ),
        pytest.param(
            "0,n1,1\n5,n1\n6,n2,1,9\n",
            wording("whatif.table.row_malformed", where="t.csv", row=3, HEADER="time_s,node,idle", line="'5,n1'"),
            id="2 and 4 fields",
        ),
        pytest.param(
            "0,n1,1\n\n5,n1,0\n",
            wording("whatif.table.row_malformed", where="t.csv", row=3, HEADER="time_s,node,idle", line="''"),
            id="empty line",
        ),
        pytest.param("", excerpt("whatif.table.empty", where="t.csv"), id="empty"),
        pytest.param("0,n1,1\n\0\0\0\0", excerpt("whatif.table.zero_bytes", where="t.csv"), id="zero bytes"),
        pytest.param("0,n1,1\n", wording("whatif.files.no_duration", path="t.csv", name="t.json"), id="no duration"),
    ],
)
def test_a_row_that_cannot_be_true_is_named(tmp_path: Path, rows: str, complaint: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(put(tmp_path, HEADER + rows))
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("header", ["time,node,idle", "node,time_s,idle", "time_s;node;idle", "", "0,n1,1"])
def test_wrong_columns_are_named_with_the_right_ones(tmp_path: Path, header: str) -> None:
    with pytest.raises(TraceError, match=pattern("whatif.table.columns_differ", HEADER="time_s,node,idle")):
        read(put(tmp_path, header + "\n0,n1,1\n"))


@pytest.mark.parametrize(
    ("described", "complaint"),
    [
        ({"nodes": ["n1", "n3"]}, wording("whatif.files.unknown_node", path="t.csv", row=3, name="n2")),
        (
            {"nodes": "n[1-2]", "duration_s": 4},
            wording("whatif.checks.beyond_duration", where="t.csv", row=3, now=5, duration_s=4),
        ),
        ({"rows": 3}, excerpt("whatif.files.cut_short", times_s=2, rows=3)),
        ({"nodes": []}, "nodes must be"),
        ({"nodes": ["n1", "n1"]}, "nodes must be"),
        ({"nodes": "n[1-"}, "t.json: nodes: " + excerpt("slurm_plugin.nodeset.not_a_node_set", text="n[1-")),
        ({"nodes": True}, "nodes must be"),
        ({"duration_s": float("nan")}, excerpt("protocol.fields.wrong", where="t.json", name="duration_s")),
        ({"duration_s": "1 h"}, excerpt("protocol.fields.wrong", where="t.json", name="duration_s")),
        ({"start": 5}, excerpt("protocol.fields.wrong", where="t.json", name="start")),
        ({"notes": {"gaps": "many"}}, excerpt("protocol.fields.wrong", where="t.json: notes", name="gaps")),
        ({"notes": []}, wording("protocol.fields.not_an_object", where="t.json: notes")),
        ({"durations": 5}, "unknown field 'durations'"),
    ],
)
def test_a_description_that_cannot_be_true_is_refused(
    tmp_path: Path, described: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(TraceError) as caught:
        read(put(tmp_path, HEADER + "0,n1,1\n5,n2,1\n", **described))
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_description_that_is_no_json_object_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path, HEADER + "0,n1,1\n")
    for text in ("{", "[]", "\xff"):
        (tmp_path / "t.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(TraceError, match=r"t\.json"):
            read(path)


def test_a_gzip_file_that_is_cut_short_damaged_or_none_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path, HEADER + "".join(f"{second},n{second},1\n" for second in range(500)), "t.csv.gz")
    whole = path.read_bytes()
    for cut in (len(whole) - 1, len(whole) // 2, 12):
        path.write_bytes(whole[:cut])
        with pytest.raises(TraceError, match=pattern("whatif.files.gzip_cut")):
            read(path)
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :])
    with pytest.raises(TraceError, match=pattern("whatif.files.gzip_broken")):
        read(path)
    path.write_text(HEADER)
    with pytest.raises(TraceError, match=pattern("whatif.files.gzip_broken")):
        read(path)


def test_a_file_that_is_not_there_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=pattern("cli.unreadable", path=fragment("none.csv"), strerror="No such file")):
        read(tmp_path / "none.csv")
    with pytest.raises(TraceError, match=pattern("whatif.sidecar.not_a_trace")):
        read(tmp_path / "trace.txt")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(TraceError, match="cannot read"):
        read(tmp_path / "folder.csv")


def test_what_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    good = trace_of({"n1": [(0, 5)]}, 9.0)
    for bad, complaint in (
        (trace_of({"n1": []}, 9.0), pattern("whatif.files.never_idle")),
        (trace_of({"n,1": [(0, 5)]}, 9.0), "not a node name"),
        (trace_of({"n1": [(0, 3), (3, 5)]}, 9.0), pattern("whatif.checks.two_rows")),
    ):
        with pytest.raises(TraceError, match=complaint):
            write(bad, tmp_path / "t.csv")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(TraceError, match="cannot write"):
        write(good, tmp_path / "no such folder" / "t.csv")


@hypothesis_settings(deadline=None)
@given(st.one_of(st.text("01,\n.e-nx\r\0 "), st.binary()), st.sampled_from([HEADER.encode(), b""]))
def test_no_content_of_a_file_is_more_than_refused(content: str | bytes, header: bytes) -> None:
    raw = content.encode() if isinstance(content, str) else content
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        path.write_bytes(header + raw)
        with contextlib.suppress(TraceError):
            trace = read(path)
            assert len(list(trace.changes())) == len(np.unique(trace.times_s))


@needs_summit
def test_the_week_of_summit_is_read_with_little_memory() -> None:
    """In a process of its own, by its own peak: ru_maxrss starts with that of the process that it came from."""
    code = (
        "import sys; from bftd.simulation.trace import read; t = read(sys.argv[1]); "
        "peak = next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')); "
        "print(len(t.times_s), len(t.nodes), t.duration_s, peak)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code, str(SUMMIT)], cwd=ROOT, capture_output=True, text=True, check=True, timeout=STILL_S
    )
    rows, nodes, duration_s, peak_kib = shown.stdout.split()
    assert (rows, nodes, duration_s) == ("446412", "4734", "604800.0")
    assert int(peak_kib) <= 200 * 1024
