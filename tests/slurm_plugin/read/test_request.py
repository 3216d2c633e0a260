"""What a pending job asks for, from the one field of squeue's row that tells it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.read import parse, request, scontrol_requests
from slurm_plugin.read.types import NO_REQUEST, Job, JobRequest
from tests.slurm_plugin.read.test_parse import HEADER, RELEASES, SEPARATOR, asked, job_record, recorded


def job(**changes: str) -> Job:
    (found,) = parse.jobs(HEADER + job_record(**changes), SEPARATOR)
    return found


def test_a_job_that_asks_for_nothing_but_nodes_has_the_plainest_request() -> None:
    assert request.read(asked(cpus="0", cpus_per_node="0")) == NO_REQUEST


def test_all_that_squeue_has_letters_for_is_in_the_request() -> None:
    text = asked(
        features="ib&(fast|new)",
        required="n[1-2]",
        excluded="n[4,7]",
        contiguous="1",
        sharing="OK",
        cpus="48",
        cpus_per_node="12",
        memory="4G",
        gres="gres:gpu:a100:2,gres:shard:4",
    )
    assert job(asked=text).request == JobRequest(
        features="ib&(fast|new)",
        required=("n1", "n2"),
        excluded=("n4", "n7"),
        contiguous=True,
        exclusive=False,
        cpus=48,
        cpus_per_node=12,
        memory_bytes=4 * 2**30,
        gres="gpu:a100:2,shard:4",
    )


@pytest.mark.parametrize(
    ("text", "megabytes"), [("0", 0), ("4000M", 4000), ("4G", 4096), ("1.50T", 1572864), ("16000", 16000)]
)
def test_memory_is_read_in_every_unit_and_in_megabytes_without_one(text: str, megabytes: int) -> None:
    assert request.read(asked(memory=text)).memory_bytes == megabytes * 2**20


@pytest.mark.parametrize(("text", "count"), [("0", 0), ("12", 12), ("1K", 1024), ("2.5K", 2560)])
def test_counts_are_read_shortened_or_not(text: str, count: int) -> None:
    assert request.read(asked(cpus_per_node=text)).cpus_per_node == count


@pytest.mark.parametrize(
    ("word", "exclusive"), [("OK", False), ("YES", False), ("NO", True), ("USER", True), ("MCS", True), ("TOPO", True)]
)
def test_only_a_job_that_lets_others_beside_it_is_not_exclusive(word: str, exclusive: bool) -> None:
    assert request.read(asked(sharing=word)).exclusive is exclusive


@pytest.mark.parametrize(
    ("text", "asked_for"), [("gres:gpu:2", "gpu:2"), ("gres/gpu:a100:2,gres/nic:1", "gpu:a100:2,nic:1")]
)
def test_gres_are_spelled_as_a_job_asks_for_them_in_every_release(text: str, asked_for: str) -> None:
    assert request.gres_asked(text) == asked_for


@given(st.text(max_size=300))
def test_a_request_that_cannot_be_read_is_unknown_and_the_job_waits_all_the_same(text: str) -> None:
    found = job(asked=text)
    assert (found.id, found.state, found.unreadable) == ("12", "PENDING", "")


@pytest.mark.parametrize(
    "text", ["", "\x1f" * 8 + "x\x1f", asked(required="n[1-"), asked(memory="much"), asked(cpus="")[:9]]
)
def test_nonsense_is_an_unknown_request(text: str) -> None:
    assert request.read(text) == NO_REQUEST


@pytest.mark.parametrize("field", ["cpus", "cpus_per_node", "memory"])
@pytest.mark.parametrize("digits", [30, 400, 5000])
def test_regression_a_number_that_nothing_can_hold_broke_the_whole_answer(field: str, digits: int) -> None:
    assert request.read(asked(**{field: "9" * digits})) == NO_REQUEST


def test_what_a_user_writes_into_a_request_reaches_no_other_job() -> None:
    first, second = parse.jobs(HEADER + job_record(asked=asked(features="a\x1fb\nc")) + job_record(id="13"), SEPARATOR)
    assert (first.request, first.name) == (NO_REQUEST, "train")
    assert second.request == request.read(asked())


def test_of_a_job_that_runs_is_known_what_it_asked_for_too() -> None:
    assert job(state="RUNNING", asked=asked(features="ib")).request.features == "ib"


@pytest.mark.parametrize("release", RELEASES, ids=lambda folder: folder.name)
def test_recorded_requests_are_read_as_the_jobs_made_them(release: Path) -> None:
    jobs = parse.jobs(recorded(release, "requests.txt"), SEPARATOR)
    wanted = scontrol_requests.read(recorded(release, "wishes.txt"), SEPARATOR)
    found = {one.id: scontrol_requests.granted(one, wanted).request for one in jobs if one.state == "PENDING"}
    plain = JobRequest(exclusive=True, cpus=1, cpus_per_node=1)
    assert found == {
        "3": replace(plain, cpus=2),
        "4": replace(plain, cpus=2, features="ib&fast"),
        "5": replace(plain, cpus=2, features="[fast|old]"),
        "6": replace(plain, cpus=3, required=("n1", "n2"), excluded=("n4", "n6"), contiguous=True),
        "7": replace(plain, cpus=12),
        "8": JobRequest(exclusive=False, cpus=12, cpus_per_node=4, memory_bytes=100 * 2**20, memory_per_cpu=True),
        "9": JobRequest(exclusive=False, cpus=1, cpus_per_node=8, memory_bytes=2 * 2**30),
        "10": plain,
        "11": replace(plain, exclusive=False),
        "12": plain,
        "13": replace(plain, gres="gpu:a100:2"),
        "14": replace(plain, least_s=5400.0),
        "15": replace(plain, cpus=2, switches=1),
        "16+0": plain,
        "16+1": replace(plain, cpus=2, features="old"),
        "18_[1-5]": replace(plain, least_s=60.0),
        "19": replace(plain, memory_bytes=1536 * 2**20),
    }
    runs = {one.id: one.request for one in jobs if one.state == "RUNNING"}
    assert {id: (each.cpus, each.memory_bytes, each.gres) for id, each in runs.items()} == {
        "1": (3, 100 * 2**20, ""),
        "2": (4, 0, "gpu:a100:3"),
    }


def test_jobs_that_ask_for_the_same_are_read_once() -> None:
    request.read.cache_clear()
    parse.jobs(HEADER + "".join(job_record(id=str(number), user=f"u{number}") for number in range(50, 100)), SEPARATOR)
    assert request.read.cache_info().misses == 1
