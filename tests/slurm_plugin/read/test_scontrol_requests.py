"""What pending jobs ask for that only squeue's long format tells."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.errors import SnapshotError
from slurm_plugin.read import scontrol_requests
from slurm_plugin.read.scontrol_requests import ScontrolRequest
from slurm_plugin.read.types import JobRequest
from tests.slurm_plugin.pending import QUEUED

SEPARATOR = "\x1f77ab31"


def table(*rows: tuple[str, ...], exclusive: bool = False) -> str:
    header = ("JOBID", "TIME_MIN", "REQ_SWITCH", "TRES_ALLOC", *(["EXCLUSIVE"] if exclusive else []))
    return "".join(SEPARATOR.join(row) + SEPARATOR + "\n" for row in (header, *rows))


def test_a_shortest_limit_switches_and_memory_are_read_by_job() -> None:
    text = table(("12", "1:30:00", "2", "cpu=4,mem=4G,node=2,billing=4"), ("13", "0:00", "0", "cpu=1,node=1"))
    assert scontrol_requests.read(text, SEPARATOR) == {
        "12": ScontrolRequest(5400.0, 2, 4 * 2.0**30),
        "13": scontrol_requests.NONE,
    }


def test_all_tasks_of_an_array_wish_the_same_and_parts_of_a_job_each_their_own() -> None:
    found = scontrol_requests.read(table(("12_[3-5%2]", "5:00", "0", ""), ("14+1", "0:00", "1", "")), SEPARATOR)
    assert scontrol_requests.granted(replace(QUEUED, id="12_[4-5%2]"), found).request.least_s == 300.0
    assert scontrol_requests.granted(replace(QUEUED, id="14+1"), found).request.switches == 1
    assert scontrol_requests.granted(replace(QUEUED, id="14+0"), found).request.switches == 0


@pytest.mark.parametrize(
    ("total", "per_cpu"), [("mem=32G", True), ("mem=4G", False), ("mem=31.99G", True), ("", False)]
)
def test_memory_is_of_each_cpu_where_the_total_says_so(total: str, per_cpu: bool) -> None:
    job = replace(QUEUED, node_count=2, request=JobRequest(cpus=16, memory_bytes=2 * 2**30))
    found = scontrol_requests.read(table(("7", "0:00", "0", total)), SEPARATOR)
    assert scontrol_requests.granted(job, found).request.memory_per_cpu is per_cpu


def test_memory_that_both_would_explain_is_of_each_node() -> None:
    job = replace(QUEUED, node_count=2, request=JobRequest(cpus=2, memory_bytes=2 * 2**30))
    found = scontrol_requests.read(table(("7", "0:00", "0", "mem=4G")), SEPARATOR)
    assert scontrol_requests.granted(job, found) is job


@pytest.mark.parametrize("row", [("7", "INVALID", "no", "mem=much"), ("7", "9 hours", "-1", ""), ("7", "", "", "")])
def test_a_wish_that_cannot_be_read_is_none(row: tuple[str, str, str, str]) -> None:
    assert scontrol_requests.read(table(row), SEPARATOR) == {"7": scontrol_requests.NONE}


@pytest.mark.parametrize(("word", "exclusive"), [("NO", False), ("NODE", True), ("USER", True), ("TOPO", True)])
def test_a_release_that_tells_apart_who_shares_is_asked_for_it(word: str, exclusive: bool) -> None:
    assert not scontrol_requests.knows_exclusive("PartitionName=p ExclusiveUser=NO OverSubscribe=NO")
    assert scontrol_requests.knows_exclusive("PartitionName=p Exclusive=NODE OverSubscribe=NO")
    assert scontrol_requests.long_format(SEPARATOR, exclusive=True).endswith(f",Exclusive:0{SEPARATOR}")
    found = scontrol_requests.read(table(("7", "0:00", "0", "", word), exclusive=True), SEPARATOR)
    assert scontrol_requests.granted(QUEUED, found).request.exclusive is exclusive


def test_an_answer_of_another_form_is_an_error() -> None:
    for text in ("", "\n", table() + f"12{SEPARATOR}\n", "slurm_load_jobs error: Unable to contact slurm controller\n"):
        with pytest.raises(SnapshotError):
            scontrol_requests.read(text, SEPARATOR)


@given(st.data())
def test_an_answer_cut_anywhere_but_between_two_jobs_is_an_error(data: st.DataObject) -> None:
    rows = (("12", "5:00", "0", ""), ("13", "0:00", "1", "cpu=1"))
    ends = {len(table(*rows[:count])) for count in range(3)}
    whole = table(*rows)
    cut = data.draw(st.integers(0, len(whole) - 1).filter(lambda length: length not in ends))
    with pytest.raises(SnapshotError):
        scontrol_requests.read(whole[:cut], SEPARATOR)
