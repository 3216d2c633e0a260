"""`bft size comm` as a user meets it: imports, our own measurement, and what there is."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bftd.cli.size import comm
from sizing.cells.comm.protocol import Link
from sizing.cells.comm.table import PROGRAMS
from tests.sizing.cells.nccl_logs import NAMED, UNNAMED
from tests.support.messages import excerpt, fragment, pattern, says, wording
from tests.support.terminal import Run, Terminal
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs `bft size comm` with a configuration and a home of its own."""
    (tmp_path / "bftd.toml").write_text("")
    monkeypatch.setenv("BFTD_CONFIG", str(tmp_path / "bftd.toml"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    terminal = Terminal(monkeypatch, capsys, "size", "comm")
    terminal.err_lines_most = 2  # that it goes on, and what is wrong
    return terminal


def test_an_imported_log_is_kept_and_shown(run: Run, tmp_path: Path) -> None:
    (tmp_path / "gather.log").write_text(NAMED)
    code, said, _ = run("import", "gather.log", "--json")
    assert code == 0
    (table,) = json.loads(said)["tables"]
    assert (table["kind"], table["gpu_type"], table["per_node"], table["nodes"]) == (
        "all_gather",
        "a100-sxm-80gb",
        4,
        2,
    )
    assert [point["samples"] for point in table["points"]] == [1, 3, 1]
    assert json.loads(said)["saved"] == str(tmp_path / "home" / "bft" / "comm.json")
    shown = run("show")[1]
    assert "2 nodes of 4 a100-sxm-80gb each" in shown
    assert "12.9 GB/s" in shown
    assert json.loads(run("show", "--json")[1])["tables"] == [table]
    assert comm.found().time_s("all_gather", 1048576, Link("a100-sxm-80gb", 4, 2)).value == pytest.approx(120e-6)


def test_a_second_import_of_a_link_replaces_the_first_and_says_so(run: Run, tmp_path: Path) -> None:
    (tmp_path / "one.log").write_text(NAMED)
    (tmp_path / "two.log").write_text(NAMED.replace("1.3e+03  12.91", "1.0e+03  16.78"))
    run("import", "one.log")
    said = run("import", "two.log")[1]
    assert says(
        said,
        "cli.size_comm.replaced",
        kind="all_gather",
        link=wording("sizing.cells_comm.gpu_nodes", nodes=2, per_node=4, gpu_type="a100-sxm-80gb"),
    )
    assert "(one.log)" in said
    (table,) = json.loads(run("show", "--json")[1])["tables"]
    assert (table["source"], table["points"][-1]["value_s"]) == ("two.log", pytest.approx(1e-3))


def test_regression_an_output_that_was_cut_off_replaced_the_whole_table(run: Run, tmp_path: Path) -> None:
    (tmp_path / "one.log").write_text(NAMED)
    (tmp_path / "cut.log").write_text("".join(NAMED.splitlines(True)[:-5]))
    run("import", "one.log")
    (before,) = json.loads(run("show", "--json")[1])["tables"]
    said = run("import", "cut.log")[1]
    assert "note: cut.log, all_gather: " + wording("sizing.cells_nccl.cut") in said
    assert re.search(pattern("cli.size_comm.kept", source="one.log", nbytes="1 KiB", nbytes2="16 MiB"), said)
    assert "kept in" not in said
    assert json.loads(run("import", "--json", "cut.log")[1])["saved"] is None
    assert json.loads(run("show", "--json")[1])["tables"] == [before]
    run("import", "--force", "cut.log")
    (after,) = json.loads(run("show", "--json")[1])["tables"]
    assert (after["source"], len(after["points"])) == ("cut.log", len(before["points"]) - 1)
    assert not says(run("import", "one.log")[1], "sizing.cells_nccl.cut"), "a whole one replaces it unasked"
    assert json.loads(run("show", "--json")[1])["tables"] == [before]


def test_regression_of_two_outputs_at_once_the_one_that_was_cut_off_was_kept(run: Run, tmp_path: Path) -> None:
    (tmp_path / "one.log").write_text(NAMED)
    (tmp_path / "cut.log").write_text("".join(NAMED.splitlines(True)[:-5]))
    said = run("import", "one.log", "cut.log")[1]
    assert re.search(pattern("cli.size_comm.kept", source="one.log"), said)
    assert "kept in" in said
    (table,) = json.loads(run("show", "--json")[1])["tables"]
    assert table["source"] == "one.log"


def test_the_sites_tables_are_for_all_and_ones_own_come_first(run: Run, tmp_path: Path) -> None:
    (tmp_path / "all_reduce_perf.log").write_text(UNNAMED)
    (tmp_path / "gather.log").write_text(NAMED)
    run("import", "--site", "all_reduce_perf.log", "gather.log")
    assert (tmp_path / "comm.json").exists()
    (tmp_path / "mine_all_gather.log").write_text(NAMED)
    run("import", "mine_all_gather.log")
    tables = {table["kind"]: table["source"] for table in json.loads(run("show", "--json")[1])["tables"]}
    assert tables == {"all_reduce": "all_reduce_perf.log", "all_gather": "mine_all_gather.log"}


def test_a_log_without_its_devices_is_asked_for_them(run: Run, tmp_path: Path) -> None:
    (tmp_path / "gather.log").write_text("".join(line for line in NAMED.splitlines(True) if " Rank " not in line))
    assert says(run("import", "gather.log")[2], "cli.size_comm.gpus_not_listed")
    asked = run("import", "gather.log", "--gpu", "h100-sxm-80gb")[2]
    assert says(asked, "cli.size_comm.ranks_not_listed", name="gather.log")
    code, said, _ = run("import", "gather.log", "--gpu", "h100-sxm-80gb", "--link", "8x16", "--json")
    assert code == 0
    assert json.loads(said)["tables"][0]["nodes"] == 16


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["import"], "Missing argument"),
        (["import", "nothing.log"], "cannot read nothing.log: No such file or directory"),
        (["import", "gather.log", "--link", "8"], excerpt("cli.size_comm.link_malformed", link_text=8)),
        (["import", "gather.log", "--kind", "gather"], "--kind gather: all_reduce, all_gather"),
        (["import", "gather.log", "--gpu", "abacus"], excerpt("cli.size_comm.gpu_unknown", told=fragment("abacus"))),
        (["bench", "--ranks", "1"], "--ranks 1: 2 to 8 processes"),
        (["bench", "--rounds", "0"], "--rounds 0: 1 to 1000"),
        (["bench", "--max-bytes", "3"], "--max-bytes 3: 1024 to"),
        (["bench", "--timeout", "0"], "--timeout 0: seconds, more than 0"),
        (["bench", "--python", "/nowhere/python"], "/nowhere/python cannot be started"),
    ],
)
def test_a_mistake_ends_in_one_line_and_keeps_nothing(run: Run, tmp_path: Path, words: list[str], why: str) -> None:
    (tmp_path / "gather.log").write_text(NAMED)
    code, _, error = run(*words)
    assert code != 0
    assert why in error
    assert not (tmp_path / "home").exists()


def test_without_tables_the_ways_to_them_are_shown(run: Run) -> None:
    assert says(run("show")[1], "cli.size_comm.no_tables")


def test_a_damaged_file_is_not_written_over(run: Run, tmp_path: Path) -> None:
    kept = tmp_path / "home" / "bft" / "comm.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("{")
    (tmp_path / "gather.log").write_text(NAMED)
    code, _, error = run("import", "gather.log")
    assert (code, kept.read_text()) == (2, "{")
    assert str(kept) in error


@pytest.mark.torch
@pytest.mark.slow
def test_collectives_between_real_processes_are_measured_and_kept(run: Run, tmp_path: Path) -> None:
    code, said, _ = run("bench", "--ranks", "2", "--rounds", "3", "--max-bytes", "4096", "--json")
    assert code == 0
    answer = json.loads(said)
    assert {table["kind"] for table in answer["tables"]} == PROGRAMS.keys()
    for table in answer["tables"]:
        assert (table["gpu_type"], table["per_node"], table["nodes"]) == ("cpu", 2, 1)
        assert [point["bytes"] for point in table["points"]] == [1024, 4096]
        assert {point["samples"] for point in table["points"]} == {3}
    assert comm.found().time_s("all_reduce", 4096, Link("cpu", 2, 1)).origin == "measured"
    assert list(tmp_path.glob("**/tmp*")) == []


@pytest.mark.torch
@pytest.mark.slow
def test_tensors_that_ranks_cannot_share_evenly_are_made_so(run: Run) -> None:
    said = json.loads(run("bench", "--ranks", "3", "--rounds", "1", "--max-bytes", "1024", "--no-save", "--json")[1])
    assert {point["bytes"] for table in said["tables"] for point in table["points"]} == {1020}
    assert said["saved"] is None


def _ours(mark: str) -> list[int]:
    """Processes of a bench that this test started, by the environment that they have from it."""
    found = []
    for entry_ in Path("/proc").glob("[0-9]*"):
        try:
            if (
                mark.encode() in (entry_ / "environ").read_bytes()
                and b"gloo_bench" in (entry_ / "cmdline").read_bytes()
            ):
                found.append(int(entry_.name))
        except OSError:
            continue
    return found


@pytest.mark.torch
@pytest.mark.slow
def test_a_bench_that_takes_too_long_leaves_no_process_behind(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = f"BENCH_TEST={os.getpid()}-late"
    monkeypatch.setenv(*mark.split("="))
    code, _, error = run("bench", "--ranks", "4", "--rounds", "1000", "--timeout", "4", "--no-save")
    assert code == 1
    assert says(error, "sizing.cells_bench.gloo", ranks=4, refused="no end after 4 s")
    assert _ours(mark) == []


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_bench_whose_command_ends_leaves_no_process_behind(how: signal.Signals, tmp_path: Path) -> None:
    mark = f"BENCH_TEST={os.getpid()}-{how.name}"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # no shim, whose own processes would be counted
    env = {**os.environ, "PATH": path, "XDG_CONFIG_HOME": str(tmp_path), **dict([mark.split("=")])}
    words = [sys.executable, "-m", "bftd.cli.main", "size", "comm", "bench", "--ranks", "3", "--rounds", "1000"]
    command = subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ends = time.monotonic() + STILL_S
    try:
        while len(_ours(mark)) < 3 and time.monotonic() < ends:
            time.sleep(0.05)
        assert len(_ours(mark)) == 3
        command.send_signal(how)
        command.wait(STILL_S)
    finally:
        command.kill()
        command.wait()
    while _ours(mark) and time.monotonic() < ends:
        time.sleep(0.05)
    assert _ours(mark) == []
