"""Communication tables: what they say at, between and beside the measured sizes, and how they are kept."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.base.errors import NoTable, UsageError
from sizing.cells.comm import table as comm
from sizing.cells.comm.protocol import Link
from sizing.cells.comm.table import CommTables, Table, TimedSize
from sizing.profiles import comm_tables
from tests.support.messages import excerpt, fragment, says, wording

pytestmark = pytest.mark.slow

FOUR = Link("a100-sxm-80gb", 4, 1)
TWO_NODES = Link("a100-sxm-80gb", 8, 2)


def table(*points: tuple[int, float], kind: str = "all_reduce", link: Link = FOUR, day: str = "2026-01-01") -> Table:
    return comm.table(kind, link, {nbytes: [seconds] for nbytes, seconds in points}, "log", day)


def test_a_measured_size_is_its_median_with_its_spread() -> None:
    tables = CommTables([comm.table("all_reduce", FOUR, {1024: [3.0, 1.0, 2.0, 9.0, 2.5]}, "log", "")])
    said = tables.time_s("all_reduce", 1024, FOUR)
    assert (said.value, said.low, said.high, said.origin) == (2.5, 1.0, 9.0, "measured")


def test_between_two_sizes_the_logarithms_of_both_lie_on_a_line() -> None:
    tables = CommTables([table((1024, 1.0), (4096, 4.0))])
    said = tables.time_s("all_reduce", 2048, FOUR)
    assert said.value == pytest.approx(2.0)
    assert said.origin == "interpolated"


def test_below_the_smallest_size_there_is_its_latency_and_no_less_than_its_share() -> None:
    said = CommTables([table((1024, 1.0), (4096, 4.0))]).time_s("all_reduce", 256, FOUR)
    assert (said.value, said.low, said.high, said.origin) == (1.0, 0.25, 1.0, "interpolated")


def test_above_the_largest_size_nothing_is_said_unless_that_is_allowed() -> None:
    points = table((1024, 1.0), (4096, 4.0), (8192, 6.0))
    with pytest.raises(NoTable) as error:
        CommTables([points]).time_s("all_reduce", 2**34, FOUR)
    assert says(str(error.value), "sizing.cells_comm.not_measured", sizes="8 KiB", nbytes=fragment("16 GiB"))
    assert "-e 17179869184" in str(error.value)
    assert "--extrapolate" in str(error.value)
    said = CommTables([points], extrapolate=True).time_s("all_reduce", 16384, FOUR)
    assert said.origin == "assumed"
    assert said.value == pytest.approx(6.0 + 2.0 / 4096 * 8192)
    assert said.low < said.value < said.high


@pytest.mark.parametrize(
    ("kind", "link", "words"),
    [
        ("all_reduce", TWO_NODES, ["2 nodes of 8 a100-sxm-80gb each", "srun --nodes=2", "all_reduce_perf", "import"]),
        ("send_recv", FOUR, ["4 a100-sxm-80gb of one node", "--ntasks-per-node=4", "sendrecv_perf"]),
        (
            "all_to_all",
            Link("cpu", 2, 1),
            [
                wording("sizing.cells_comm.cpu_processes", per_node=2),
                wording("sizing.cells_comm.bench_command", per_node=2),
            ],
        ),
        (
            "all_reduce",
            Link("cpu", 2, 2),
            [
                wording("sizing.cells_comm.gpu_nodes", nodes=2, per_node=2, gpu_type="cpu"),
                excerpt("sizing.cells_comm.cpu_way", RANKS=fragment("2"), RANKS2=8),
            ],
        ),
        (
            "all_reduce",
            Link("cpu", 16, 1),
            [wording("sizing.cells_comm.cpu_processes", per_node=16), excerpt("sizing.cells_comm.cpu_way")],
        ),
    ],
)
def test_a_link_that_was_not_measured_is_refused_with_the_command_that_measures_it(
    kind: str, link: Link, words: list[str]
) -> None:
    tables = CommTables([table((1024, 1.0), link=Link("a100-sxm-80gb", 8, 1))])
    with pytest.raises(NoTable) as error:
        tables.time_s(kind, 1024, link)
    assert [word for word in words if word not in str(error.value)] == []
    assert "\n" not in str(error.value)


def test_a_group_of_one_rank_has_nobody_to_speak_to() -> None:
    said = CommTables().time_s("all_reduce", 1e9, Link("a100-sxm-80gb", 1, 1))
    assert (said.value, said.origin) == (0.0, "formula")


def test_of_two_tables_of_a_link_the_newer_counts_and_the_older_is_told() -> None:
    old, new = table((1024, 1.0)), table((1024, 2.0), (2048, 3.0), day="2026-02-02")
    tables = CommTables([old, table((1024, 7.0), kind="broadcast")])
    assert tables.add([new]) == (old,)
    assert tables.time_s("all_reduce", 1024, FOUR).value == 2.0
    assert tables.time_s("broadcast", 1024, FOUR).value == 7.0
    assert tables.add([table((1024, 1.0), link=TWO_NODES)]) == ()


times = st.floats(1e-6, 10.0)
tables_of_points = st.dictionaries(st.integers(1, 2**40), st.lists(times, min_size=1, max_size=4), min_size=1)


@given(tables_of_points, st.floats(0, 2**41))
def test_whatever_was_measured_an_estimate_lies_within_its_bounds(samples: dict[int, list[float]], at: float) -> None:
    tables = CommTables([comm.table("all_gather", FOUR, samples, "", "")], extrapolate=True)
    said = tables.time_s("all_gather", at, FOUR)  # an Estimate refuses a value outside its bounds
    assert math.isfinite(said.value)
    assert said.value > 0
    if min(samples) < at < max(samples):
        around = [each.value_s for each in tables.tables[0].points]
        assert min(around) * 0.999 <= said.value <= max(around) * 1.001


@given(st.lists(times, min_size=2, max_size=6), st.floats(1, 2**30), st.floats(1, 2**30))
def test_where_larger_tensors_took_longer_every_larger_one_does(seconds: list[float], one: float, other: float) -> None:
    rising = {4**at: [each] for at, each in enumerate(sorted(seconds))}
    tables = CommTables([comm.table("all_reduce", FOUR, rising, "", "")], extrapolate=True)
    small, large = sorted((one, other))
    assert tables.time_s("all_reduce", small, FOUR).value <= tables.time_s("all_reduce", large, FOUR).value * 1.0001


@given(tables_of_points)
def test_tables_come_back_from_their_file_as_they_were(samples: dict[int, list[float]]) -> None:
    there = comm.table("all_gather", TWO_NODES, samples, "a log", "2026-01-01")
    assert comm.parse(json.dumps(comm.to_json([there])), "comm.json") == (there,)


def test_a_file_is_written_whole_and_read_by_those_who_have_none(tmp_path: Path) -> None:
    path = tmp_path / "config" / "bft" / "comm.json"
    assert comm_tables.read(path) == ()
    comm_tables.save(path, [table((1024, 1.0))])
    assert comm_tables.read(path) == (table((1024, 1.0)),)
    assert [each.name for each in path.parent.iterdir()] == ["comm.json"]


def test_those_who_add_tables_at_once_lose_none(tmp_path: Path) -> None:
    path = tmp_path / "comm.json"

    def add(nodes: int) -> None:
        for kind in comm.PROGRAMS:
            new = [table((1024, 1.0), kind=kind, link=Link("a100-sxm-80gb", 8, nodes))]
            assert comm_tables.add(path, new) == comm_tables.Added()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(1, 9)))
    assert len(comm_tables.read(path)) == 8 * len(comm.PROGRAMS)


def test_the_users_own_tables_count_before_the_sites(tmp_path: Path) -> None:
    site, own = tmp_path / "site.json", tmp_path / "own.json"
    comm_tables.save(site, [table((1024, 1.0)), table((1024, 5.0), kind="broadcast")])
    comm_tables.save(own, [table((1024, 2.0))])
    tables = comm_tables.load(site, own)
    assert tables.time_s("all_reduce", 1024, FOUR).value == 2.0
    assert tables.time_s("broadcast", 1024, FOUR).value == 5.0


def _file(**changes: Any) -> str:
    said = comm.to_json([table((1024, 1.0), (2048, 2.0))])
    said["tables"][0] |= changes
    return json.dumps(said)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ('{"version": 2}', excerpt("sizing.cells_comm.other_version")),
        (_file(kind="gather"), "one of all_reduce"),
        (_file(nodes=0), "nodes is 0"),
        (_file(points=[]), excerpt("sizing.cells_comm.unordered")),
        (
            _file(points=[{"bytes": 8, "value_s": 1.0}, {"bytes": 8, "value_s": 1.0}]),
            excerpt("sizing.cells_comm.unordered"),
        ),
        (_file(points=[{"bytes": 8, "value_s": 0}]), "seconds above 0"),
        (_file(points=[{"bytes": 8, "value_s": 2, "high_s": 1}]), "between low_s and high_s"),
        (_file(pionts=[]), wording("sizing.fields.hint", near="points")),
    ],
)
def test_a_file_that_is_damaged_is_refused_with_the_place(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "comm.json"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        comm_tables.load(path)
    assert why in str(error.value)
    assert str(path) in str(error.value)
    assert says(str(error.value), "sizing.cells_comm_file.mend")


def test_a_point_by_hand_needs_no_spread() -> None:
    (there,) = comm.parse(_file(points=[{"bytes": 8, "value_s": 0.5}]), "f")
    assert there.points == (TimedSize(8, 0.5, 0.5, 0.5, 1),)
