"""What a driver makes of a profile of its script: the real command, in a process of its own."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from elastic.driver.pilots.request import NodePartRequest
from elastic.driver.progress import cpu_profile
from elastic.options.node_share import NodeShare
from sizing.cpu import needs
from sizing.cpu.needs import StoredNeed
from slurm_plugin.submission.shared_nodes import Sharing
from tests.elastic.fakes import settings_for
from tests.support.messages import says, wording
from tests.support.programs import shell_script
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow

NEED = StoredNeed(3, 5 * 2**30, 1, "gpu1", time.time() - 3 * 86400)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script that was profiled with --fast."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cpu_profile, "PROFILE_S", STILL_S)
    path = tmp_path / "train.py"
    path.write_text("import elastic\n")
    assert needs.keep(("python", "train.py", "--fast"), tmp_path, NEED) == ""
    return path


def asked(script: Path, spec: str, *arguments: str) -> tuple[NodePartRequest, list[str]]:
    """What pilots ask for after a look for a profile, and what the user is told."""
    lines: list[str] = []
    settings = settings_for(script.parent, spec)

    async def body() -> NodePartRequest:
        shares = NodePartRequest(settings.spec.share, cast("Sharing", None), lines.append)
        shares.state_bytes = lambda: 0
        looking = asyncio.create_task(cpu_profile.look(replace(settings, argv=(str(script), *arguments)), shares))
        await asyncio.sleep(0)
        await shares.known()
        await looking
        return shares

    return asyncio.run(asyncio.wait_for(body(), STILL_S)), lines


def test_a_profile_of_the_same_script_and_arguments_is_gone_by_without_being_asked_for(script: Path) -> None:
    shares, lines = asked(script, "1-4", "--fast")
    part = shares.part("gpu:2")
    assert part is not None
    assert part.cpus == 6
    assert lines == []
    shares.decided("n1", part, "")
    assert lines == [
        wording(
            "elastic.shares.part_of_node",
            part="6 CPUs and 10.5 GiB",
            whose=wording("elastic.profiled.found", text="gpu1", old_s="3 days ago"),
        )
    ]


def test_one_with_other_arguments_only_where_the_user_says_so(script: Path) -> None:
    shares, lines = asked(script, "1-4", "--slow")
    assert shares.part("") is None
    assert lines == [
        wording(
            "elastic.profiled.other_arguments", whose=wording("elastic.profiled.found", text="gpu1", old_s="3 days ago")
        )
    ]
    assert asked(script, "1-4,share=profile", "--slow")[0].part("") is not None


def test_without_a_profile_only_who_asked_for_one_hears_of_it(script: Path) -> None:
    script.write_text("import elastic  # changed\n")
    assert asked(script, "1-4", "--fast")[1] == []
    shares, [line] = asked(script, "1-4,share=profile", "--fast")
    assert shares.part("") is None
    assert says(line, "elastic.profiled.whole_nodes")
    assert says(line, "cli.size_need.not_profiled")


def test_regression_the_drivers_own_copy_was_named_as_what_to_profile(script: Path) -> None:
    copy = script.parent / "state" / script.name
    copy.parent.mkdir()
    copy.write_text("import elastic  # changed\n")
    lines: list[str] = []
    settings = settings_for(script.parent, "1-4,share=profile")
    shares = NodePartRequest(settings.spec.share, cast("Sharing", None), lines.append)
    asyncio.run(cpu_profile.look(replace(settings, argv=(str(copy),)), shares))
    [line] = lines
    assert str(copy) not in line
    assert says(line, "cli.size_need.not_profiled", script2=script)


@pytest.mark.parametrize("share", ["no", "2:4G"])
def test_nothing_is_looked_for_where_the_user_has_said_what_to_ask_for(
    script: Path, share: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_profile, "_need", lambda _: 1 / 0)
    shares, lines = asked(script, f"1-4,share={share}", "--fast")
    assert (shares.wanted, lines) == (share != "no", [])


def test_a_child_that_says_nonsense_or_nothing_costs_the_trainer_nothing(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bft = shell_script(script.parent / "bft", "echo '{\"cpus\": -1}'")
    monkeypatch.setattr(cpu_profile.sys, "executable", str(script.parent / "python"))
    shares, [line] = asked(script, "1-4,share=profile", "--fast")
    assert shares.part("") is None
    assert says(line, "elastic.profiled.whole_nodes")
    bft.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(cpu_profile, "PROFILE_S", 0.2)
    assert asked(script, "1-4,share=profile", "--fast")[1] == [
        wording("elastic.profiled.whole_nodes", text=wording("elastic.profiled.no_answer"))
    ]
    bft.unlink()
    assert "No such file" in asked(script, "1-4,share=profile", "--fast")[1][0]
    assert NodeShare.parse("profile").asked
