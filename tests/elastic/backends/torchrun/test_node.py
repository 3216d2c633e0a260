"""A node's side of torchrun with real torch: real workers form real groups."""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
import time
from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from elastic.backends.torchrun.tunnel import Tunnel
from elastic.node import cleanup, shared_memory
from tests.elastic.backends.torchrun.real import Group, grouped

pytestmark = [pytest.mark.slow, pytest.mark.torch]

SCRIPT = """\
import json, os, sys, time
import torch, torch.distributed as dist
import elastic

def note(**what):
    with open("rows", "a") as rows:
        rows.write(json.dumps({"node": os.environ["BFT_LEASE"][:2], "rank": int(os.environ["RANK"]), **what}) + "\\n")

def times(name):
    # How often this was reached on this node.
    with open(name + os.environ["BFT_LEASE"], "a+") as file:
        file.write("x")
        return file.tell()

"""

COUNT = """\
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
elastic.step(samples=1)
note(local=int(os.environ["LOCAL_RANK"]), world=dist.get_world_size(), total=total.item())
"""


@pytest.fixture
def group(tmp_path: Path) -> AbstractAsyncContextManager[Group]:
    return grouped(tmp_path, SCRIPT + COUNT)


async def test_nodes_with_different_numbers_of_gpus_form_one_world(group: Group) -> None:
    n1, n2 = group.node("n1", workers=2), group.node("n2", workers=1)
    await group.backend.set_members([n1, n2])
    await group.until("all are done", lambda: group.services.ended)
    assert group.services.ended == (0, "training is complete")
    found = sorted((row["rank"], row["node"], row["local"], row["world"], row["total"]) for row in group.rows())
    assert {(step["size"], step["nodes"]) for step in group.steps} == {(3, 2)}
    assert found == [(0, "n1", 0, 3, 6.0), (1, "n1", 1, 3, 6.0), (2, "n2", 0, 3, 6.0)]


def take_part(times: int) -> None:
    """After so many groups nothing is heard of this node's workers once it has been told its ranks."""
    opened, groups = Tunnel.open, itertools.count()

    def open_or_sleep(tunnel: Tunnel, generation: int, address: str, port: int) -> int:
        if next(groups) == times:
            time.sleep(3600)
        return opened(tunnel, generation, address, port)

    Tunnel.open = open_or_sleep  # type: ignore[method-assign]


async def test_nodes_lost_one_after_the_other_in_the_middle_of_a_rendezvous_leave_the_others_training(
    group: Group,
) -> None:
    n1 = group.node("n1")
    others = [group.node("n2", prepare=partial(take_part, 1)), group.node("n3", prepare=partial(take_part, 0))]
    while others:
        await group.backend.set_members([n1, *others])
        await group.until("the others' workers are waited for", lambda: n1.workers)
        group.nodes[others.pop().node].kill()
        await group.until("it is noticed", lambda: group.backend._broken)
    await group.backend.set_members([n1])
    await group.until("the survivor trains alone", lambda: group.services.ended)
    assert [(row["node"], row["world"]) for row in group.rows()] == [("n1", 1)]
    assert group.services.crashes == []


FROZEN = """\
import signal
dist.init_process_group("gloo")
note(began=True)
if os.environ["RANK"] == "0" and times("here") == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
dist.barrier()
"""


async def test_a_frozen_worker_that_its_agent_kills_is_a_crash_and_both_nodes_train_again(tmp_path: Path) -> None:
    async with grouped(tmp_path, SCRIPT + FROZEN) as group:
        members = [group.node("n1"), group.node("n2")]
        await group.backend.set_members(members)
        await group.until("one is frozen, one waits for it", lambda: len(group.rows()) == 2)
        os.kill(members[0].workers[0].hello["pid"], signal.SIGKILL)
        await group.until("told", lambda: group.services.crashes)
        # The other one hangs in the collective, or was taken along.
        assert group.services.crashes == [("n1", -signal.SIGKILL)]
        await group.backend.set_members(members)
        await group.until("all are done", lambda: group.services.ended)
        assert group.services.ended == (0, "training is complete")
        assert len(group.rows()) == 4


FAILS_AT_THE_END = """\
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
if os.environ["RANK"] == "0":
    while not os.path.exists("others are done"):
        time.sleep(0.01)
    if times("evaluations") == 1:
        sys.exit(3)
note(well=True)
"""


async def test_a_node_that_was_done_begins_anew_with_the_one_that_failed_at_the_end(tmp_path: Path) -> None:
    async with grouped(tmp_path, SCRIPT + FAILS_AT_THE_END) as group:
        members = [group.node("n1"), group.node("n2", workers=2)]
        await group.backend.set_members(members)
        await group.until("n2 is done", lambda: group.nodes["n2"].said[-1]["op"] == "done")
        (tmp_path / "others are done").touch()
        await group.until("told", lambda: group.services.crashes)
        assert (group.services.crashes, group.services.ended) == ([("n1", 3)], None)
        await group.backend.set_members(members)
        await group.until("all are done", lambda: group.services.ended)
        assert group.services.ended == (0, "training is complete")
        assert sorted(row["rank"] for row in group.rows()) == [0, 1, 1, 2, 2]


def fail_once() -> None:
    """The first workers cannot be started."""
    opened = Tunnel.open

    def fails(*_: object) -> int:
        Tunnel.open = opened  # type: ignore[method-assign]
        raise BlockingIOError("no more processes")

    Tunnel.open = fails  # type: ignore[assignment,method-assign]


async def test_a_node_that_cannot_start_its_workers_says_so_and_comes_to_the_next_rendezvous(group: Group) -> None:
    members = [group.node("n1", prepare=fail_once), group.node("n2")]
    await group.backend.set_members(members)
    await group.until("told", lambda: group.services.crashes)
    assert group.services.crashes == [("n1", 1)]
    await group.backend.set_members(members)
    await group.until("all are done", lambda: group.services.ended)
    assert {row["world"] for row in group.rows()} == {2}


async def test_a_tunnel_that_was_killed_is_dug_again_for_the_next_group(group: Group) -> None:
    n1 = group.node("n1")
    (await group.until("it is there", lambda: group.nodes["n1"].tunnel)).kill()
    await group.backend.set_members([n1])
    await group.until("it is done", lambda: group.services.ended)
    assert group.services.ended == (0, "training is complete")


HOLDS_SHARED_MEMORY = """\
import mmap
while not os.path.exists("looked"):
    time.sleep(0.01)
with open("shm/segment", "w+b") as file:
    file.truncate(4096)
    held = mmap.mmap(file.fileno(), 0)
note(held=True)
time.sleep(3600)
"""


def look_once() -> None:
    """Who has which shared memory is looked at once by itself, and then not before a long time."""
    shared_memory.SHM = f"{os.getcwd()}/shm"
    os.mkdir(shared_memory.SHM)
    tempfile.tempdir = os.getcwd()
    cleanup.SAMPLE_S = 3600.0
    sample = cleanup.NodeCleanup.sample

    def sample_and_say(self: cleanup.NodeCleanup, workers: Collection[int]) -> None:
        sample(self, workers)
        Path("looked").touch()

    cleanup.NodeCleanup.sample = sample_and_say  # type: ignore[method-assign]


async def test_regression_a_node_that_slurm_took_did_not_look_a_last_time_whose_the_shared_memory_is(
    tmp_path: Path,
) -> None:
    async with grouped(tmp_path, SCRIPT + HOLDS_SHARED_MEMORY) as group:
        n1 = group.node("n1", prepare=look_once)
        await group.backend.set_members([n1])
        await group.until("the worker has it", group.rows)
        n1.send({"op": "leaving"})
        record = tmp_path / shared_memory.RECORD
        await group.until("the agent can remove it", lambda: record.exists() and "segment" in record.read_text())
