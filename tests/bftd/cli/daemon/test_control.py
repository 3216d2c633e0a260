"""`bft pause`, `bft unpause` and `bft status --check` against a daemon over fake Slurm commands."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bftd.api_client import ApiClient
from bftd.base.errors import UsageError
from bftd.cli.main import bft as command
from tests.bftd.daemon.test_process import running
from tests.support import waiting
from tests.support.messages import excerpt, fragment, pattern, says, wording
from tests.support.terminal import Terminal
from tests.support.waiting import STILL_S

TRAINER = {"id": "run-here-12", "name": "train-a", "backend": "horovod", "nodes_min": 1, "nodes_max": 2, "user": "ann"}


def until(client: ApiClient, reached: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Wait for a status."""

    def found() -> dict[str, Any] | None:
        return status if reached(status := client.status()) else None

    return waiting.until("a status", found, shown=client.status)


def lent(status: dict[str, Any]) -> int:
    return int(sum(trainer["requested"] for trainer in status["trainers"]))


@pytest.mark.slow
def test_pause_and_resume_act_at_once_survive_a_crash_and_work_while_slurm_hangs(tmp_path: Path, bft: Terminal) -> None:
    with running(tmp_path) as daemon:
        daemon.client.request("POST", "/v1/trainers", TRAINER)
        until(daemon.client, lambda status: lent(status) == 2)
        hang = tmp_path / "bin" / "scontrol"
        hang.write_text("#!/bin/sh\nexec sleep 600\n")
        until(daemon.client, lambda status: status["snapshot_age_s"] > 2.0)
        answer = daemon.client.request("POST", "/v1/pause", {"why": "power test", "release": True})
        assert answer["asked_back"] == 2
        assert lent(daemon.client.status()) == 0
        explained = bft("explain", "run-here-12").out
        assert "train-a gives back n[1-2] (none is left): everything is paused by root: power test" in explained

        trainer = bft("trainers", "run-here-12").out
        assert "gives back n[1-2] (none is left): everything is paused by root: power test" in trainer
        node = bft("explain", "n1").out
        assert node.startswith(
            "n1 (IDLE, cpu4-1000M) "
            + wording(
                "cli.explain.not_in_pool",
                why=fragment(
                    excerpt(
                        "core.sentences.paused",
                        what=wording("core.admin_limits.idle_but", halt="everything"),
                        by=fragment("root"),
                    )
                ),
            )
        )
        assert says(node, "cli.explain.asked_back", whom="run-here-12 (train-a) of ann")
        assert "run-here-12  train-a" in node
        assert says(node, "core.sentences.starts", count="2 nodes", nodes="n[1-2]")

        paused = bft("pause", "--nodes", "n[1-2]", "--why", "new disks")
        assert (paused.code, paused.out) == (
            0,
            wording("http.control_handlers.paused", pauses="nodes n[1-2]") + "\n",
        )
        shown = bft("status").out
        assert says(shown, "core.sentences.paused", what="everything", by="root", why="power test (since 20")
        assert says(shown, "core.sentences.several_paused", what="nodes n[1-2]", by="root", why="new disks (since 20")
        check = bft("status", "--check")
        assert (check.code, check.err) == (1, "")
        assert check.out.startswith("BFTD WARNING: everything is paused by root: power test; nodes n[1-2] are paused")
        assert json.loads(bft("status", "--check", "--json").out)["code"] == 1
        daemon.process.kill()
        _, log = daemon.process.communicate(timeout=STILL_S)
        assert says(log, "core.sentences.paused_and_asked_back", by="root", what="everything", why="power test")

    (tmp_path / "notify").unlink()
    with running(tmp_path) as daemon:
        daemon.client.request("POST", "/v1/trainers", TRAINER)
        lifted = bft("unpause")
        held = wording("core.sentences.several_paused", what="nodes n[1-2]", by="root", why="new disks")
        assert (lifted.code, lifted.out) == (
            0,
            wording("http.control_handlers.lent_again", what="everything")
            + "\n"
            + wording("cli.control.still_in_force", text=held)
            + "\n",
        )
        assert bft("unpause", "--nodes", "n2").code == 0
        status = until(daemon.client, lambda status: lent(status) == 1)
        assert [node["name"] for node in status["nodes"] if node["trainer"] and node["lease_state"] != "revoked"] == [
            "n2"
        ]
        again = bft("unpause")
        assert (again.code, again.err) == (
            1,
            "bft: " + wording("http.control_handlers.not_paused", what="everything", values="node n1") + "\n",
        )
        assert bft("unpause", "--all").code == 0
        until(daemon.client, lambda status: lent(status) == 2)
        assert bft("status", "--check").out.startswith("BFTD OK: all is well | nodes=2 ")
        unknown = bft("pause", "--nodes", "n[2-4]", "--why", "x")
        assert (unknown.code, unknown.err) == (
            2,
            "bft: " + wording("http.control_handlers.not_harvested", named="nodes n[3-4]") + "\n",
        )
        nothing = bft("unpause", "--user", "ann")
        assert (nothing.code, nothing.err) == (
            1,
            "bft: " + wording("http.control_handlers.nothing_paused") + "\n",
        )
        kinds = [event["kind"] for event in daemon.client.events()]
        assert (kinds.count("paused"), kinds.count("resumed")) == (2, 3)
        daemon.process.send_signal(signal.SIGTERM)
        _, log = daemon.process.communicate(timeout=STILL_S)
        assert says(
            log,
            "cli.control.still_in_force",
            text=wording("core.sentences.paused", what="everything", by="root", why="power test"),
        )


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["pause"], 2, "Missing option '--why'"),
        (["pause", "--why", " "], 2, "--why is empty"),
        (
            ["pause", "--why", "x", "--user", "a", "--nodes", "n1"],
            2,
            excerpt("cli.control.exclude_each_other", name="--nodes and --user"),
        ),
        (["pause", "--why", "x", "--user", ""], 2, "--user is empty"),
        (
            ["pause", "--why", "x", "--nodes", "n[1-"],
            2,
            "--nodes: " + excerpt("slurm_plugin.nodeset.not_a_node_set", text="n[1-"),
        ),
        (["pause", "--why", "x"], 1, excerpt("http.client.no_daemon")),
        (["unpause", "--all", "--user", "a"], 2, wording("cli.control.all_excludes")),
        (["status", "--check", "--watch"], 2, "exclude each other"),
    ],
)
def test_what_an_administrator_does_wrong_is_told_in_one_line(
    bft: Terminal, arguments: list[str], code: int, told: str
) -> None:
    run = bft(*arguments)
    assert (run.code, run.out, run.err.count("\n")) == (code, "", 1)
    assert told in run.err


def test_a_daemon_that_does_not_answer_fails_the_check_on_standard_output(bft: Terminal) -> None:
    check = bft("status", "--check")
    assert (check.code, check.err) == (2, "")
    assert re.match("BFTD CRITICAL: " + pattern("http.client.no_daemon"), check.out)


def test_regression_a_range_wider_than_any_cluster_was_written_out_for_minutes() -> None:
    run = CliRunner().invoke(command, ["pause", "--nodes", "n[1-100000000]", "--why", "x"])
    assert isinstance(run.exception, UsageError)
    assert (
        str(run.exception)
        == "--nodes: " + wording("slurm_plugin.nodeset.too_wide", text="n[1-100000000]") + "; write n[1-4,7]"
    )
