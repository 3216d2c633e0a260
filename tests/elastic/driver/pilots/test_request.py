"""What a trainer's pilots ask for of their nodes, and what becomes of it where it is too little."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from bftd.protocol.lease import Leases
from elastic.driver.pilots import launcher
from elastic.driver.pilots.launcher import Pilot, PilotStarter
from elastic.driver.pilots.request import OWN_BYTES, UNKNOWN_STATE_BYTES, NodePartRequest, ProfiledNeed, size_text
from elastic.options.node_share import NodeShare
from slurm_plugin.submission.shared_nodes import NodePart, Sharing
from slurm_plugin.submission.submission import PilotRequest, Refused
from tests.elastic.driver.pilots.test_manager import staged
from tests.elastic.fakes import settings_for
from tests.support.messages import says, wording

pytestmark = pytest.mark.slow

GIB = 2**30


class Site:
    """Says of some nodes why they are not shared."""

    def __init__(self, **against: str) -> None:
        self._against = against

    def against(self, node: str, partition: str, part: NodePart) -> str:
        return self._against.get(node, "")


def shares(value: str | None, lines: list[str] | None = None, site: Site | None = None) -> NodePartRequest:
    told = [] if lines is None else lines
    return NodePartRequest(NodeShare.parse(value), cast("Sharing", site or Site()), told.append)


def test_without_numbers_or_with_a_no_pilots_have_whole_nodes() -> None:
    for value in (None, "no", "profile"):
        assert shares(value).part("") is None
    known = shares("no")
    known.profiled(ProfiledNeed(2.0, GIB), "bft size cpu")
    assert known.part("gpu:a100:4") is None


def test_the_users_numbers_are_those_of_a_node_whatever_was_profiled() -> None:
    mine = shares("3:5G")
    mine.profiled(ProfiledNeed(2.0, GIB), "bft size cpu")
    assert mine.part("gpu:a100:4") == NodePart(3, 5 * GIB)


@pytest.mark.parametrize(
    ("gres", "each"), [("", 1), ("gpu:4", 4), ("gpu:a100:2", 2), ("gpu:a100:2,gpu:v100:1", 3), ("shard:8", 1)]
)
@pytest.mark.parametrize("value", [None, "profile"])
def test_a_profile_counts_for_each_gpu_and_memory_for_the_agent_and_the_copies_of_the_checkpoint_comes_with_it(
    value: str | None, gres: str, each: int
) -> None:
    known = shares(value)
    known.profiled(ProfiledNeed(1.5, GIB), "bft size cpu")
    cpus = -(-3 * each // 2)
    assert known.part(gres) == NodePart(cpus, each * GIB + OWN_BYTES + 2 * UNKNOWN_STATE_BYTES)
    known.state_bytes = lambda: 100
    assert known.part(gres) == NodePart(cpus, each * GIB + OWN_BYTES + 200)


def test_a_profile_counts_for_each_worker_where_there_are_more_than_gpus() -> None:
    several = NodePartRequest(NodeShare.parse(None), cast("Sharing", Site()), print, workers=3)
    several.profiled(ProfiledNeed(2, GIB), "bft size cpu")
    several.state_bytes = lambda: 0
    assert several.part("") == several.part("gpu:2") == NodePart(6, 3 * GIB + OWN_BYTES)
    assert several.part("gpu:4") == NodePart(8, 4 * GIB + OWN_BYTES)


def test_what_pilots_ask_for_is_told_once_until_it_changes() -> None:
    lines: list[str] = []
    mine = shares("4:16G", lines)
    part = NodePart(4, 16 * GIB)
    for against in ("", "", "it is small", "it is small", ""):
        mine.decided("n1", part, against)
    assert lines == [
        wording("elastic.shares.part_of_node", part="4 CPUs and 16 GiB", whose="share=4:16G"),
        wording(
            "elastic.shares.whole_nodes",
            part="4 CPUs and 16 GiB",
            whose="share=4:16G",
            node="n1",
            against="it is small",
        ),
        wording("elastic.shares.part_of_node", part="4 CPUs and 16 GiB", whose="share=4:16G"),
    ]


def test_regression_the_size_of_a_part_was_not_told_again_once_the_checkpoint_was_known() -> None:
    lines: list[str] = []
    mine = shares(None, lines)
    mine.profiled(ProfiledNeed(1, GIB), "bft size cpu")
    for state_bytes in (None, 0, 2**16):
        mine.state_bytes = lambda state_bytes=state_bytes: state_bytes  # type: ignore[misc]
        mine.decided("n1", cast("NodePart", mine.part("")), "")
    assert [line.partition(" of a node")[0] for line in lines] == [
        "pilots ask for 1 CPU and 5.5 GiB",
        "pilots ask for 1 CPU and 1.5 GiB",
    ]


def test_regression_nodes_of_two_sizes_were_told_of_at_every_pilot() -> None:
    lines: list[str] = []
    mine = shares("4:16G", lines)
    for _ in range(3):
        mine.decided("n1", NodePart(4, 16 * GIB), "")
        mine.decided("n2", NodePart(4, 16 * GIB), "it is small")
    assert len(lines) == 2


@pytest.mark.parametrize(
    ("gib", "text"), [(1.5, "1.5 GiB"), (999, "999 GiB"), (1536, "1536 GiB"), (2**20, "1048576 GiB")]
)
def test_regression_more_than_a_thousand_gib_were_told_with_an_exponent(gib: float, text: str) -> None:
    assert size_text(NodePart(2, int(gib * GIB))) == f"2 CPUs and {text}"


def test_after_a_want_of_memory_pilots_have_whole_nodes_and_that_is_told_once() -> None:
    lines: list[str] = []
    mine = shares("4:300M", lines)
    for name in ("n1", "n2"):
        mine.give_up(name, NodePart(4, 300 * 2**20))
    assert mine.part("") is None
    [line] = lines
    assert says(line, "elastic.shares.out_of_memory", node="n1", part="4 CPUs and 300 MiB")


async def test_regression_a_container_that_had_too_little_memory_was_taken_for_an_image_that_cannot_start() -> None:
    async with staged() as stage:
        pilot = await stage.placed("n1")
        for said in (["slurmstepd: error: Detected 1 oom_kill event in StepId=7.1."], ["no such image"]):
            stage.starter.steps["n1"] = said
            pilot.part, pilot.expiring = NodePart(1, GIB), False
            told = await stage.pilot_manager.run_step(pilot, ["srun", "sh"])
            assert (told, pilot.expiring) == (([], True) if "oom" in said[0] else (said, False))
        assert stage.starter.short == ["n1"]


class Launcher:
    """Slurm's side: refuses every pilot, and notes what it was asked for."""

    def __init__(self, *_: object) -> None:
        self.asked: list[NodePart | None] = []

    def agent_env(self, environ: object) -> dict[str, str]:
        return {}

    def place(self, request: PilotRequest, *_: object) -> Refused:
        self.asked.append(request.part)
        return Refused("the test says so")


async def test_a_pilot_asks_for_its_part_where_its_node_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "PilotLauncher", Launcher)
    lines: list[str] = []
    starter = PilotStarter(settings_for(tmp_path, "1-2,share=2:1G"), 1, "secret", lines.append)
    starter.go_by(Leases(1, 20.0, ()))
    starter.shares._sharing = cast("Sharing", Site(n2="it is small"))
    made = [Pilot(f"{node}.1", node, 60.0, "") for node in ("n1", "n2")]
    for pilot in made:
        assert await starter.place(pilot) == "the test says so"
    assert [pilot.part for pilot in made] == [NodePart(2, GIB), None]
    assert cast("Launcher", starter._launcher).asked == [NodePart(2, GIB), None]
    await starter.close()
    assert len(lines) == 2


async def test_all_parts_are_given_back_once_one_was_too_small_and_whole_nodes_are_not() -> None:
    async with staged() as stage:
        small, other, whole = [await stage.placed(node) for node in ("n1", "n2", "n3")]
        small.part = other.part = NodePart(1, GIB)
        stage.pilot_manager.short_of_memory(whole)
        assert not any(pilot.expiring for pilot in stage.pilot_manager.all)
        stage.pilot_manager.short_of_memory(small)
        assert [pilot.expiring for pilot in (small, other, whole)] == [True, True, False]
        assert stage.starter.short == ["n3", "n1"]
