"""Slurm's text output, recorded and made up, turned into objects."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_plugin.errors import SnapshotError
from slurm_plugin.read import parse
from slurm_plugin.read.types import Job
from tests.slurm_plugin.busy import BUSY_NODES

SEPARATOR = "\x1f5e9a17"
RELEASES = sorted((Path(__file__).parents[1] / "assets").iterdir())

NODE = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=4 CPUTot=4 CPULoad=0.08 "
    "AvailableFeatures=ib,fast ActiveFeatures=ib,fast Gres={gres} NodeAddr=a NodeHostName=h Port=1 Version=22.05.8 "
    "OS=Linux 6.1 #1 SMP @0  RealMemory=4000 AllocMem=0 FreeMem=23580 Sockets=4 Boards=1 State={state} "
    "ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=batch,elastic  BootTime=1795178581 "
    "SlurmdStartTime=1795178581 LastBusyTime=1795178581 CfgTRES=cpu=4,mem=4000M,billing=4 AllocTRES= CapWatts=n/a\n"
)


def node_line(name: str = "n1", state: str = "IDLE", gres: str = "(null)") -> str:
    return NODE.format(name=name, state=state, gres=gres)


def asked(**changes: str) -> str:
    """What squeue prints of a pending job's request."""
    fields = {
        "features": "(null)",
        "required": "",
        "excluded": "",
        "contiguous": "0",
        "sharing": "NO",
        "cpus": "8",
        "cpus_per_node": "1",
        "memory": "0",
        "gres": "N/A",
    } | changes
    return "\x1f".join(fields.values())


def job_record(**changes: str) -> str:
    fields = {
        "id": "12",
        "user": "alice",
        "partition": "batch",
        "state": "PENDING",
        "nodes": "",
        "sched": "(null)",
        "start": "N/A",
        "submit": "1795180625",
        "limit": "1:00:00",
        "reason": "Resources",
        "count": "2",
        "dependency": "(null)",
        "priority": "7",
        "reservation": "(null)",
        "account": "(null)",
        "asked": asked(),
        "name": "train",
        "comment": "(null)",
    } | changes
    return SEPARATOR.join(fields.values()) + SEPARATOR + "\n"


# What no release prints, by field.
UNREADABLE = {
    "id": "abc",
    "partition": "(null)",
    "submit": "N/A",
    "start": "soon",
    "limit": "1 hour",
    "count": "many",
    "priority": "",
    "nodes": "n[1-",
    "sched": "n[1-",
}
HEADER = SEPARATOR.join(["JOBID", *"ABCDEFGHIJKLMNOPQ"]) + SEPARATOR + "\n"


@pytest.fixture(params=RELEASES, ids=lambda folder: folder.name)
def release(request: pytest.FixtureRequest) -> Path:
    return request.param  # type: ignore[no-any-return]


def recorded(release: Path, name: str) -> str:
    return (release / name).read_text()


def test_recorded_nodes_are_read_with_their_states_flags_and_gpus(release: Path) -> None:
    nodes = parse.nodes(recorded(release, "nodes.txt"))
    assert {name: (node.state, set(node.flags)) for name, node in nodes.items()} == BUSY_NODES
    assert (nodes["n1"].gres, dict(nodes["n1"].gpus)) == ("gpu:a100:4", {"a100": 4})
    assert (nodes["svc1"].gres, dict(nodes["svc1"].gpus)) == ("", {})
    assert nodes["n1"].partitions == ("batch", "elastic")
    assert (nodes["svc1"].cpus, nodes["svc1"].memory_bytes) == (256, 4000 * 2**20)


def test_a_state_in_an_administrators_reason_is_not_taken_for_the_nodes_state(release: Path) -> None:
    node = parse.nodes(recorded(release, "nodes.txt"))["n5"]
    assert node.flags == {"DRAIN"}
    assert node.reason.startswith("bad disk State=IDLE [")


def test_recorded_jobs_are_read_with_their_plans(release: Path) -> None:
    jobs = {job.id: job for job in parse.jobs(recorded(release, "jobs.txt"), SEPARATOR)}
    assert set(jobs) == {"1", "2", "3", "4_[1-5%2]", "5", "6"}
    running, queued, array, held = jobs["1"], jobs["3"], jobs["4_[1-5%2]"], jobs["5"]
    assert (running.state, running.nodes, running.time_limit_s) == ("RUNNING", ("n1", "n2"), 180.0)
    assert queued.sched_nodes == ("n1", "n2", "n3", "n4")
    assert queued.start_s is not None
    assert queued.start_s > queued.submit_s
    assert (array.dependency, array.reason, array.start_s) == ("afterok:1(unfulfilled)", "Dependency", None)
    assert (held.partition, held.reason, held.priority) == (("batch", "elastic"), "JobHeldUser", 0)
    assert jobs["2"].time_limit_s == 26 * 3600 + 4 * 60
    assert (running.account, queued.account) == ("physics", "")


@pytest.mark.parametrize("release", ["26.05"])
def test_a_recorded_expedited_job_ends_on_its_nodes_and_then_waits_with_a_plan(release: str) -> None:
    folder = RELEASES[0].parent / release
    ending, waiting = (
        {job.id: job for job in parse.jobs(recorded(folder, f"expedited-{when}-jobs.txt"), SEPARATOR)}["2"]
        for when in ("ending", "waiting")
    )
    assert (ending.state, ending.expedited, ending.nodes) == ("COMPLETING", False, ("n1",))
    assert (waiting.state, waiting.expedited, waiting.nodes) == ("PENDING", True, ())
    assert waiting.sched_nodes == ("n2", "n3")
    nodes = parse.nodes(recorded(folder, "expedited-ending-nodes.txt"))
    assert [set(nodes[name].flags) for name in ("n1", "n2")] == [{"COMPLETING"}, set()]


def test_names_and_comments_with_separators_and_line_ends_do_not_break_the_queue(release: Path) -> None:
    job = next(job for job in parse.jobs(recorded(release, "jobs.txt"), SEPARATOR) if job.id == "1")
    assert (job.name, job.comment) == ("a | b\x1f c", "two\nlines = odd")


def test_an_empty_queue_is_told_by_its_header_and_no_answer_is_an_error(release: Path) -> None:
    assert parse.jobs(recorded(release, "jobs-none.txt"), SEPARATOR) == ()
    with pytest.raises(SnapshotError):
        parse.jobs("", SEPARATOR)


def test_recorded_reservations_and_partitions_are_read(release: Path) -> None:
    assert parse.reservations(recorded(release, "reservations-none.txt")) == ()
    (repair,) = parse.reservations(recorded(release, "reservations.txt"))
    assert (repair.name, repair.nodes, repair.end_s - repair.start_s) == ("repair", ("n1", "n3"), 3600.0)
    assert repair.flags == {"MAINT", "IGNORE_JOBS", "SPEC_NODES"}
    partitions = parse.partitions(recorded(release, "partitions.txt"))
    assert set(partitions) == {"batch", "elastic", "bft-driver"}
    assert partitions["elastic"].nodes == tuple(f"n{number}" for number in range(1, 7))
    assert (partitions["batch"].state, partitions["batch"].max_time_s) == ("UP", None)
    assert {name: (one.priority_tier, one.exclusive, one.max_nodes) for name, one in partitions.items()} == {
        "batch": (10, True, None),
        "elastic": (1, True, 1),
        "bft-driver": (10, False, None),
    }


def test_a_partition_without_a_tier_or_a_bound_is_one_all_the_same() -> None:
    plain = parse.partitions("PartitionName=p MaxTime=1:00 Nodes=n1 State=UP\n")["p"]
    assert (plain.priority_tier, plain.exclusive, plain.max_nodes) == (None, False, None)
    odd = "PartitionName=p MaxTime=1:00 Nodes=n1 State=UP PriorityTier=high MaxNodes=4 OverSubscribe=FORCE:2\n"
    assert (parse.partitions(odd)["p"].priority_tier, parse.partitions(odd)["p"].max_nodes) == (None, 4)


@pytest.mark.parametrize("free", ["Comment", "Extra", "Reason"])
@pytest.mark.parametrize(
    "text", ["see Nodes=n9 first", "EndTime=soon", "a\nReservationName=gone", "\tState=DOWN Flags="]
)
def test_regression_words_of_a_free_text_were_taken_for_fields(free: str, text: str) -> None:
    reservation = "ReservationName=r StartTime=10 EndTime=20 Nodes=n1 Flags=MAINT State=INACTIVE"
    (plain,) = parse.reservations(f"{reservation}\n")
    assert parse.reservations(f"{reservation} {free}={text}\n") == (plain,)
    partition = "PartitionName=p MaxTime=1:00 Nodes=n1 State=UP"
    assert parse.partitions(f"{partition} {free}={text}\n") == parse.partitions(f"{partition}\n")
    node = parse.nodes(node_line().rstrip("\n") + f" {free}={text}\n" + node_line("n2"))
    assert replace(node["n1"], reason="") == parse.nodes(node_line())["n1"]
    assert list(node) == ["n1", "n2"]


def test_a_field_that_only_a_free_text_has_is_missing() -> None:
    for text in ("Nodes=n1 Flags=MAINT", "n1 Nodes=n1 Flags=MAINT"):
        with pytest.raises(SnapshotError, match=r"without (Flags|Nodes)"):
            parse.reservations(f"ReservationName=r StartTime=10 EndTime=20 Comment={text}\n")
    with pytest.raises(SnapshotError, match="without State"):
        parse.nodes(node_line().replace(" State=IDLE", "").rstrip("\n") + " Reason=was State=IDLE\n")


def test_recorded_free_texts_that_look_like_fields_override_nothing(release: Path) -> None:
    nodes = parse.nodes(recorded(release, "nodes-text.txt"))
    assert (nodes["n1"].state, nodes["n1"].cpus) == ("ALLOCATED", 4)
    (repair,) = parse.reservations(recorded(release, "reservations-text.txt"))
    assert (repair.nodes, repair.end_s - repair.start_s) == (("n1",), 3600.0)


@pytest.mark.parametrize(
    ("text", "state", "flags"),
    [
        ("IDLE", "IDLE", set()),
        ("IDLE+PLANNED", "IDLE", {"PLANNED"}),
        ("MIXED+PLANNED", "MIXED", {"PLANNED"}),
        ("IDLE-", "IDLE", {"PLANNED"}),
        ("IDLE+DRAIN", "IDLE", {"DRAIN"}),
        ("IDLE*", "IDLE", {"NOT_RESPONDING"}),
        ("IDLE*+DRAIN", "IDLE", {"NOT_RESPONDING", "DRAIN"}),
        ("DOWN+NOT_RESPONDING", "DOWN", {"NOT_RESPONDING"}),
        ("idle~", "IDLE", {"POWERED_DOWN"}),
        ("IDLE#", "IDLE", {"POWERING_UP"}),
        ("IDLE+CLOUD+POWERED_DOWN", "IDLE", {"CLOUD", "POWERED_DOWN"}),
        ("IDLE+RESERVED", "IDLE", {"RESERVED"}),
        ("ALLOCATED+COMPLETING", "ALLOCATED", {"COMPLETING"}),
        ("IDLE$", "IDLE", {"MAINTENANCE"}),
        ("IDLE@", "IDLE", {"REBOOT_REQUESTED"}),
        ("IDLE+EXTERNAL", "IDLE", {"EXTERNAL"}),
        ("IDLE+BLOCKED+PLANNED", "IDLE", {"BLOCKED", "PLANNED"}),
    ],
)
def test_suffixes_and_words_of_a_node_state_become_the_same_flags(text: str, state: str, flags: set[str]) -> None:
    node = parse.nodes(node_line(state=text))["n1"]
    assert (node.state, set(node.flags)) == (state, flags)


@pytest.mark.parametrize(
    ("gres", "request_text", "gpus"),
    [
        ("gpu:a100:4(S:0,1)", "gpu:a100:4", {"a100": 4}),
        ("gpu:2", "gpu:2", {"": 2}),
        ("gpu:a100:2(S:0),gpu:v100:1,shard:8,craynetwork:4", "gpu:a100:2,gpu:v100:1", {"a100": 2, "v100": 1}),
        ("(null)", "", {}),
    ],
)
def test_gpus_are_counted_by_type_and_can_be_asked_for(gres: str, request_text: str, gpus: dict[str, int]) -> None:
    node = parse.nodes(node_line(gres=gres))["n1"]
    assert (node.gres, dict(node.gpus)) == (request_text, gpus)


def test_what_jobs_have_of_a_node_is_read_with_its_weight() -> None:
    line = node_line(gres="gpu:a100:4").replace("CPUAlloc=0", "CPUAlloc=3").replace("AllocMem=0", "AllocMem=2000")
    line = line.replace("Weight=1", "Weight=40").replace(" AllocTRES=", " AllocTRES=cpu=3,mem=2000M,gres/gpu=2")
    node = parse.nodes(line)["n1"]
    assert (node.weight, node.cpus_used, node.memory_used_bytes) == (40, 3, 2000 * 2**20)
    assert dict(node.gpus_used) == {"a100": 2}
    unused = parse.nodes(node_line())["n1"]
    assert (unused.weight, unused.cpus_used, unused.memory_used_bytes, unused.gpus_used) == (1, 0, 0, {})


def test_regression_memory_that_slurm_keeps_for_itself_was_taken_for_the_jobs() -> None:
    line = node_line().replace("Boards=1", "Boards=1 MemSpecLimit=1500")
    assert parse.nodes(line)["n1"].memory_bytes == 2500 * 2**20


@pytest.mark.parametrize("name", ["nodes-shared.txt", "nodes-details.txt"])
def test_recorded_nodes_are_read_with_what_jobs_have_of_them(release: Path, name: str) -> None:
    nodes = parse.nodes(recorded(release, name))
    assert {node: (found.cpus_used, found.weight) for node, found in nodes.items()} == {
        "n1": (0, 5),
        "n2": (4, 1),
        **{f"n{number}": (0, 1) for number in range(3, 7)},
        "svc1": (3, 1),
    }
    in_use = {node: found.gpus_used for node, found in nodes.items() if found.gpus_used}
    assert in_use == ({"n2": {"a100": 4}} if name == "nodes-details.txt" else {})


@pytest.mark.parametrize(
    ("gres", "used"),
    [
        ("gpu:a100:3(IDX:0-1,3),gpu:v100:0(IDX:N/A)", {"a100": 3}),
        ("gpu:(null):2(IDX:0-1)", {"": 2}),
        ("gpu:0", {}),
        ("gpu:a100:1(IDX:0),shard:a100:2(0/4,2/4)", {"a100": 1}),
    ],
)
def test_details_tell_the_gpus_in_use_where_the_tres_do_not(gres: str, used: dict[str, int]) -> None:
    line = node_line(gres="gpu:a100:4").replace(" NodeAddr", f" GresDrain=N/A GresUsed={gres} NodeAddr")
    assert parse.nodes(line)["n1"].gpus_used == used


@pytest.mark.parametrize(
    ("tres", "gpus", "used"),
    [
        ("cpu=4,gres/gpu=3,gres/gpu:a100=2,gres/gpu:v100=1", {"a100": 4, "v100": 4}, {"a100": 2, "v100": 1}),
        ("cpu=4,gres/gpu=3", {"a100": 4}, {"a100": 3}),
        ("cpu=4,gres/gpu=3", {"a100": 4, "v100": 4}, {"": 3}),
        ("cpu=4,gres/gpumem=3,mem=4G", {"a100": 4}, {}),
        ("", {"a100": 4}, {}),
    ],
)
def test_gpus_in_use_are_counted_by_type_as_far_as_the_cluster_tells(
    tres: str, gpus: dict[str, int], used: dict[str, int]
) -> None:
    assert parse.gpus_used(tres, gpus) == used


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [("30:00", 1800.0), ("1:00:00", 3600.0), ("2-00:00:01", 172801.0), ("UNLIMITED", None), ("NOT_SET", None)],
)
def test_time_limits_are_seconds_or_none(limit: str, seconds: float | None) -> None:
    (job,) = parse.jobs(HEADER + job_record(limit=limit), SEPARATOR)
    assert job.time_limit_s == seconds


def test_iso_times_of_releases_that_ignore_the_time_format_are_read_in_the_local_zone() -> None:
    local = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(1795180625))
    (job,) = parse.jobs(HEADER + job_record(start=local), SEPARATOR)
    assert job.start_s == 1795180625.0


def test_a_line_end_in_an_administrators_reason_belongs_to_the_node_before_it() -> None:
    text = node_line().rstrip("\n") + " Reason=fan\nNext line [root@1]\n" + node_line("n2")
    nodes = parse.nodes(text)
    assert set(nodes) == {"n1", "n2"}
    assert nodes["n1"].reason == "fan Next line [root@1]"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("\n", id="blank"),
        pytest.param(node_line() + node_line("n2")[:200], id="last line cut"),
        pytest.param(node_line() + node_line("n2")[:200] + "\n", id="last line short"),
        pytest.param(node_line().replace(" State=IDLE", ""), id="no state"),
        pytest.param(node_line().replace("CPUTot=4", "CPUTot=four"), id="no number"),
        pytest.param(node_line(state="?"), id="no word"),
        pytest.param("slurm_load_node error: Unable to contact slurm controller\n", id="error text"),
        pytest.param(node_line() + "garbage\n", id="garbage after"),
    ],
)
def test_corrupt_node_output_is_an_error_and_never_fewer_nodes(text: str) -> None:
    with pytest.raises(SnapshotError):
        parse.nodes(text)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("slurm_load_jobs error: Unable to contact slurm controller\n", id="error text"),
        pytest.param(job_record(), id="no header"),
        pytest.param(HEADER + job_record(state=""), id="no state"),
        *(
            pytest.param(HEADER + job_record(state="RUNNING", **{field: text}), id=f"no {field}")
            for field, text in UNREADABLE.items()
        ),
    ],
)
def test_corrupt_job_output_is_an_error_and_never_fewer_jobs(text: str) -> None:
    with pytest.raises(SnapshotError):
        parse.jobs(text, SEPARATOR)


@given(st.data())
def test_a_queue_cut_anywhere_but_between_two_jobs_is_an_error(data: st.DataObject) -> None:
    whole = HEADER + job_record(id="1") + job_record(id="2", comment="two\nlines")
    ends = {len(HEADER), len(HEADER + job_record(id="1")), len(whole)}
    cut = data.draw(st.integers(1, len(whole) - 1).filter(lambda length: length not in ends))
    with pytest.raises(SnapshotError):
        parse.jobs(whole[:cut], SEPARATOR)


@given(st.text(), st.text())
def test_no_name_or_comment_changes_any_other_field(name: str, comment: str) -> None:
    text = HEADER + job_record(name=name, comment=f"c{comment}") + job_record(id="13")
    first, second = parse.jobs(text, SEPARATOR)
    assert (first.name, first.comment, first.state) == (name, f"c{comment}", "PENDING")
    assert second == expected_second()


def test_an_expedited_job_waits_before_all_others_and_one_that_is_being_started_has_its_nodes() -> None:
    text = HEADER + job_record(state="EXPEDITING") + job_record(id="13", state="EXPEDITING", nodes="n[1-2]")
    waiting, starting = parse.jobs(text, SEPARATOR)
    assert (waiting.state, waiting.expedited, waiting.nodes) == ("PENDING", True, ())
    assert (starting.state, starting.expedited, starting.nodes) == ("EXPEDITING", False, ("n1", "n2"))
    (unread,) = parse.jobs(HEADER + job_record(state="EXPEDITING", start="soon"), SEPARATOR)
    assert (unread.state, bool(unread.unreadable)) == ("PENDING", True)


def expected_second() -> Job:
    return parse.jobs(HEADER + job_record(id="13"), SEPARATOR)[0]


def test_five_thousand_nodes_and_jobs_keep_their_count_and_order() -> None:
    nodes = parse.nodes("".join(node_line(f"n{number}") for number in range(5000)))
    jobs = parse.jobs(HEADER + "".join(job_record(id=str(number)) for number in range(5000)), SEPARATOR)
    assert list(nodes) == [f"n{number}" for number in range(5000)]
    assert [job.id for job in jobs] == [str(number) for number in range(5000)]
