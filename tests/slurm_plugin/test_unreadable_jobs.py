"""Jobs that squeue shows cut short, or as no release does: what waits never costs the sight of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.errors import SnapshotError
from slurm_plugin.pilots.pending_reasons import lacks_plan, may_use, waits_for_nodes, whole
from slurm_plugin.read import parse
from slurm_plugin.read.types import Job
from tests.slurm_plugin.pending import NOW_S
from tests.slurm_plugin.read.test_parse import HEADER, RELEASES, SEPARATOR, UNREADABLE, job_record, recorded
from tests.support.messages import fragment, pattern

OTHER = job_record(id="13")
TASKS = ",".join(map(str, [1, 2, 4, 8, 16, 32, 64, *range(100, 901, 100)]))


def read(*records: str) -> tuple[Job, ...]:
    return parse.jobs(HEADER + "".join(records), SEPARATOR)


def only(record: str) -> Job:
    """The job of a record, which changes nothing of another one's."""
    job, other = read(record, OTHER)
    assert (other,) == read(OTHER)
    return job


@pytest.mark.parametrize("name", ["queue.txt", "queue-cut.txt"])
@pytest.mark.parametrize("release", RELEASES, ids=lambda folder: folder.name)
def test_regression_one_irregular_array_that_waited_voided_every_snapshot(release: Path, name: str) -> None:
    jobs = parse.jobs(recorded(release, name), SEPARATOR)
    assert sorted((whole(job), job.state) for job in jobs) == sorted(
        [("2", "RUNNING"), ("3", "RUNNING"), *((id_, "PENDING") for id_ in ("1", "2", "6", "8", "9", "10", "11"))]
    )
    assert not any(job.unreadable for job in jobs)
    waiting = {whole(job): waits_for_nodes(job) for job in jobs if job.state == "PENDING"}
    assert waiting == {"1": False, "2": True, "6": True, "8": True, "9": True, "10": True, "11": True}


@pytest.mark.parametrize("release", RELEASES, ids=lambda folder: folder.name)
def test_the_client_has_the_tasks_of_an_array_shortened_and_never_cut(release: Path) -> None:
    ids = [job.id for job in parse.jobs(recorded(release, "queue.txt"), SEPARATOR)]
    assert all(id_.endswith("]") for id_ in ids if "[" in id_)
    assert "1_[1-2,4,8,16,32,64,100,200,300,400,500,600,700,800,900-901,903...%3]" in ids
    assert max(map(len, ids)) < 80


@given(st.integers(1, 2**32 - 1), st.integers(0, 80))
def test_the_id_of_an_array_is_read_wherever_its_tasks_are_cut(number: int, length: int) -> None:
    prefix = f"{number}_["
    job = only(job_record(id=(prefix + TASKS + "%7]")[: len(prefix) + length]))
    assert not job.unreadable
    assert whole(job) == str(number)


@pytest.mark.parametrize(("field", "text"), UNREADABLE.items())
def test_a_pending_job_that_cannot_be_read_waits_without_a_plan_on_its_partitions(field: str, text: str) -> None:
    fields = {"partition": "batch,gpu", "sched": "n1", "start": "1795180700", "reason": "JobHeldUser"} | {field: text}
    job = only(job_record(**fields))
    assert job.unreadable
    assert lacks_plan(job, NOW_S, 20.0)
    assert (job.id, job.sched_nodes, job.start_s) == ("?abc" if field == "id" else "12", (), None)
    if field == "partition":
        assert may_use(job, {"any"})
    else:
        assert job.partition == ("batch", "gpu")
        assert not may_use(job, {"any"})


@given(st.sampled_from([*UNREADABLE, "user", "reason", "dependency", "reservation", "account"]), st.text(max_size=400))
def test_nothing_that_stands_in_a_pending_jobs_row_costs_the_sight_of_the_rest(field: str, text: str) -> None:
    job = only(job_record(**{field: text}))
    assert job.state == "PENDING"
    assert all(letter.isprintable() for letter in job.unreadable)
    assert len(job.unreadable) < 200


@given(st.sampled_from(sorted(UNREADABLE)), st.text(max_size=40), st.sampled_from(["RUNNING", "SUSPENDED", "NEW"]))
def test_a_job_that_may_be_on_nodes_and_cannot_be_read_voids_the_answer_and_stands_in_the_message(
    field: str, junk: str, state: str
) -> None:
    record = job_record(**{"id": "12", "state": state, "user": f"bob{junk}", field: UNREADABLE[field]})
    with pytest.raises(
        SnapshotError, match=pattern("slurm_plugin.parse.unreadable_job", row=fragment("bob"))
    ) as caught:
        read(OTHER, record)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300
