"""Reading what nccl-tests prints, in every form that it has had, and refusing what cannot be relied on."""

from __future__ import annotations

import pytest

from sizing.base.errors import UsageError
from sizing.cells.comm import nccl
from tests.sizing.cells.nccl_logs import NAMED, OLD, UNNAMED, rank_lines
from tests.support.messages import excerpt, fragment, pattern, says

pytestmark = pytest.mark.slow

CUT = "\n".join(line.rpartition(" ")[0] if line.startswith(" ") else line for line in NAMED.splitlines())
ROW = "  120.00   8.74   7.65      0"


def test_times_are_those_out_of_place_and_sizes_that_come_up_again_are_kept() -> None:
    (run,) = nccl.parse(NAMED, "log")
    assert (run.kind, run.gpu, run.per_node, run.nodes) == ("all_gather", "NVIDIA A100-SXM4-80GB", 4, 2)
    assert {size: [round(each * 1e6, 3) for each in times] for size, times in run.samples.items()} == {
        1024: [20.0],
        1048576: [100.0, 120.0, 140.0],
        16777216: [1300.0],
    }
    assert run.notes == ()


def test_the_form_before_groups_and_roots_is_read() -> None:
    (run,) = nccl.parse(f"$ ./build/sendrecv_perf -b 1K -e 4M -f 4 -g 4\n{OLD}", "log")
    assert (run.kind, run.gpu, run.per_node, run.nodes) == ("send_recv", "Tesla V100-SXM2-32GB", 4, 1)
    assert run.samples[4194304] == [pytest.approx(400e-6)]


@pytest.mark.parametrize(
    ("text", "name", "kind"),
    [
        (f"$ srun all_reduce_perf_mpi -b 1K\n{UNNAMED}", "log", None),
        (UNNAMED, "all_reduce_perf.log", None),
        (UNNAMED, "log", "all_reduce"),
        (UNNAMED + "# Collective test concluded: all_reduce_perf\n", "log", None),
    ],
)
def test_the_collective_is_named_by_the_text_the_file_or_the_user(text: str, name: str, kind: str | None) -> None:
    assert nccl.parse(text, name, kind)[0].kind == "all_reduce"


def test_an_output_without_any_name_is_refused() -> None:
    with pytest.raises(UsageError, match=pattern("sizing.cells_nccl.kind_missing", where="line 1")):
        nccl.parse(UNNAMED, "log")


def test_a_name_counts_for_one_run_only() -> None:
    with pytest.raises(UsageError, match=pattern("sizing.cells_nccl.kind_missing")):
        nccl.parse(f"$ all_reduce_perf\n{UNNAMED}{UNNAMED}", "log")
    both = nccl.parse(f"$ all_reduce_perf\n{UNNAMED}$ broadcast_perf\n{UNNAMED}", "log")
    assert [run.kind for run in both] == ["all_reduce", "broadcast"]


@pytest.mark.parametrize("label", ["[1,0]<stdout>:", "0: ", "[1,0]<stdout>: "])
def test_what_launchers_put_before_each_line_is_left_out(label: str) -> None:
    labelled = "".join(f"{label}{line}\n" for line in NAMED.splitlines())
    assert nccl.parse(labelled, "log") == nccl.parse(NAMED, "log")


def test_lines_of_others_between_are_left_out() -> None:
    noisy = "NCCL version 2.28.7+cuda13.0\n" + NAMED.replace(
        "#\n# Using", "n1:12:34 [0] NCCL INFO Using network IB\n#\n# Using"
    )
    assert nccl.parse(noisy, "log") == nccl.parse(NAMED, "log")


def test_an_output_that_shows_stamps_of_time_or_times_of_each_iteration_is_read() -> None:
    stamped = NAMED.replace("#wrong\n", "#wrong           timestamp\n")
    rows = [f"{line} 2026-01-02 03:04:05" if line[:1] == " " else line for line in stamped.splitlines()]
    assert nccl.parse("\n".join(rows), "log") == nccl.parse(NAMED, "log")
    each = OLD.replace("error", "#wrong i_min i_max i_p99 i_cv%").replace("0e+00", "0 1 2 3 4")
    each = each.replace("3e+02", "N/A 1 2 3 4").replace("10.23    N/A", "10.23 N/A 1 2 3 4")
    assert nccl.parse(each, "sendrecv_perf.txt")[0].samples[1024] == [pytest.approx(30e-6)]


def test_a_list_of_devices_that_is_not_there_leaves_the_link_open() -> None:
    bare = "".join(line for line in NAMED.splitlines(keepends=True) if " Rank " not in line)
    (run,) = nccl.parse(bare, "log")
    assert (run.gpu, run.per_node, run.nodes) == (None, None, None)


def test_groups_that_ran_at_once_are_groups_of_their_own_size() -> None:
    lines = rank_lines(["a", "b"], 2).splitlines(keepends=True)
    split = "".join(line.replace("Group  0", "Group  1") if "on          b" in line else line for line in lines)
    (run,) = nccl.parse(UNNAMED.replace(rank_lines(["n1"], 2), split), "log", "all_reduce")
    assert (run.per_node, run.nodes) == (2, 1)


def test_bandwidths_that_belong_to_another_collective_are_noted() -> None:
    (run,) = nccl.parse(UNNAMED, "log", "all_gather")
    assert says(
        run.notes[0], "sizing.cells_nccl.mismatch", ratios=1, kind="all_gather", ranks=2, expected=fragment("0.5")
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", excerpt("sizing.cells_nccl.no_table")),
        ("bytes time\n1024 3\n", excerpt("sizing.cells_nccl.no_table")),
        (NAMED.replace(ROW, ROW[:-1] + "7"), "line 21: 7 values came out"),
        (
            NAMED.replace(ROW, ROW.replace("8.74", "")),
            excerpt("sizing.cells_nccl.columns_differ", where="line 21", words=12),
        ),
        (CUT, "line 18: time is '-1'"),
        (CUT.replace(" -1 ", "  7 "), excerpt("sizing.cells_nccl.wrong_values", where="line 19", wrong=0.04)),
        (
            NAMED.replace("120.00   8.74", " 12.00   8.74"),
            excerpt("sizing.cells_nccl.columns_missing", where="line 21", nbytes=1048576, time_s=12, algbw=8.74),
        ),
        (
            NAMED.replace(ROW, ROW.replace("120.00", "fast")),
            excerpt("sizing.cells_nccl.not_a_number", where="line 21", column="time", said="fast"),
        ),
        (NAMED.replace(ROW, ROW.replace("120.00", "-120.0")), "line 21: time is '-120.0'"),
        (
            NAMED.replace(ROW, ROW.replace("120.00", "0.00")),
            excerpt("sizing.cells_nccl.bad_time", where="line 21", time_s=0),
        ),
        (NAMED.replace("    time ", " cputime "), excerpt("sizing.cells_nccl.cpu_times")),
        (NAMED.replace("time   algbw", "when   algbw"), excerpt("sizing.cells_nccl.unknown_form")),
        (NAMED.replace("values : 0 OK", "values : 12 FAILED"), excerpt("sizing.cells_nccl.wrong_values", wrong=12)),
        (NAMED.replace("gpu-2 device  3", "gpu-1 device  3"), excerpt("sizing.cells_nccl.nodes_differ")),
        (NAMED.replace("Rank  7", "Rank  6"), excerpt("sizing.cells_nccl.rank_twice", key=6)),
        (NAMED.replace("Rank  7", "Rank  9"), excerpt("sizing.cells_nccl.ranks_gap")),
        (
            NAMED.replace("[0000:8d:00] NVIDIA A100-SXM4-80GB", "[0000:8d:00] NVIDIA H200", 1),
            excerpt("sizing.cells_nccl.types_differ"),
        ),
        (UNNAMED.replace(rank_lines(["n1"], 2), rank_lines(["n1"], 1)), excerpt("sizing.cells_nccl.one_gpu")),
    ],
)
def test_what_cannot_be_relied_on_is_refused_with_its_line(text: str, why: str) -> None:
    with pytest.raises(UsageError) as error:
        nccl.parse(text, "all_gather.log")
    assert why in str(error.value)
