"""`bft logs`, `bft cancel`, `bft resize` and `bft weight` against a daemon over fake Slurm commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic.options.job_script import Header, rewrite
from tests.bftd.daemon.test_process import running
from tests.support import waiting
from tests.support.messages import excerpt, says
from tests.support.terminal import Terminal

pytestmark = pytest.mark.slow

TRAINER = {"id": "run-here-12", "name": "train-a", "backend": "horovod", "nodes_min": 1, "nodes_max": 2, "user": "ann"}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Any]:
    with running(tmp_path) as daemon:
        log = tmp_path / "train a.out"
        log.write_bytes(b"step 1\nstep 2 \xff\n")
        daemon.client.request("POST", "/v1/trainers", TRAINER | {"log": str(log), "resizable": True})
        waiting.until("the first snapshot", lambda: daemon.client.status()["nodes"])
        yield daemon


def shown(daemon: Any) -> dict[str, Any]:
    [trainer] = daemon.client.trainers()["trainers"]
    return trainer


def test_resize_and_weight_change_what_a_trainer_asks_for(daemon: Any, bft: Terminal) -> None:
    told = bft("resize", "train-a", "1-16")
    assert (told.code, told.err) == (0, "")
    assert (shown(daemon)["nodes_min"], shown(daemon)["nodes_max"]) == (1, 16)
    assert json.loads(bft("resize", "run-here-12", "2", "--json").out)["sizes"] is None
    assert (shown(daemon)["nodes_min"], shown(daemon)["nodes_max"]) == (2, 2)
    answer = json.loads(bft("weight", "train-a", "2.5", "--json").out)
    assert (answer["weight"], answer["objective"], answer["nodes_max"]) == (2.5, "efficiency", 2)
    assert excerpt("cli.manage.weights_do_not_count", aims="efficiency") in bft("weight", "train-a", "3").out


def test_a_range_that_is_none_is_refused(daemon: Any, bft: Terminal) -> None:
    for nodes in ("0", "0-4", "4-1", "-3", "many", "1-", "1-9999999999", ""):
        told = bft("resize", "train-a", "--", nodes)
        assert told.code == 2, nodes
        assert says(told.err, "cli.manage.no_range", nodes=nodes)
        assert shown(daemon)["nodes_max"] == 2, nodes


def test_more_nodes_than_are_harvested_at_least_are_refused(daemon: Any, bft: Terminal) -> None:
    told = bft("resize", "train-a", "100-200")
    assert told.code == 2
    assert says(told.err, "http.control_handlers.too_few_harvested", low=100)
    assert bft("weight", "train-a", "0").code == 2
    assert bft("weight", "train-a", "nan").code == 2


def test_an_unknown_trainer_is_one_line_that_says_where_to_look(daemon: Any, bft: Terminal) -> None:
    for command in (["logs", "77"], ["cancel", "77"], ["resize", "77", "1-2"], ["weight", "77", "2"]):
        told = bft(*command)
        assert (told.code, told.err.count("\n")) == (1, 1)
        assert "scontrol show job 77" in told.err


def test_the_log_is_printed_as_it_is_and_followed_until_the_trainer_ends(daemon: Any, tmp_path: Path) -> None:
    log = tmp_path / "train a.out"
    printed = subprocess.run(
        [sys.executable, "-m", "bftd.cli.main", "logs", "train-a"],
        env={**os.environ, "BFTD_SOCKET": str(tmp_path / "socket")}, capture_output=True, check=True,
    ).stdout  # fmt: skip
    assert printed == log.read_bytes()
    following = subprocess.Popen(
        [sys.executable, "-m", "bftd.cli.main", "logs", "-f", "train-a"],
        env={**os.environ, "BFTD_SOCKET": str(tmp_path / "socket")}, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert following.stdout is not None
    assert following.stdout.readline() == b"step 1\n"
    with log.open("ab") as file:
        file.write(b"step 3\n")
    assert [following.stdout.readline() for _ in range(2)] == [b"step 2 \xff\n", b"step 3\n"]
    daemon.client.request("POST", "/v1/trainers/run-here-12/finish", {"epoch": 1, "exit_code": 0, "reason": "done"})
    with log.open("ab") as file:
        file.write(b"the end\n")
    killer = threading.Timer(waiting.STILL_S, following.kill)
    killer.start()
    assert following.stdout.read() == b"the end\n"
    assert following.wait() == 0
    killer.cancel()
    again = subprocess.run(
        [sys.executable, "-m", "bftd.cli.main", "logs", "run-here-12"],
        env={**os.environ, "BFTD_SOCKET": str(tmp_path / "socket")}, capture_output=True, check=True,
    ).stdout  # fmt: skip
    assert again.endswith(b"the end\n")


def test_a_log_that_is_gone_or_was_never_a_file_is_one_line(daemon: Any, bft: Terminal, tmp_path: Path) -> None:
    (tmp_path / "train a.out").unlink()
    told = bft("logs", "train-a")
    assert told.code == 1
    assert says(told.err, "cli.manage.not_on_this_host", path=str(tmp_path / "train a.out"))
    daemon.client.request("POST", "/v1/trainers", TRAINER | {"id": "run-here-13", "name": "other"})
    told = bft("logs", "other")
    assert told.code == 1
    assert says(told.err, "cli.manage.no_log_known")


def test_cancel_refuses_what_it_cannot_end(daemon: Any, bft: Terminal) -> None:
    told = bft("cancel", "train-a")
    assert told.code == 1
    assert says(told.err, "cli.manage.in_a_terminal", who="trainer run-here-12 (train-a)")
    daemon.client.request("POST", "/v1/trainers/run-here-12/finish", {"epoch": 1, "exit_code": 0, "reason": "done"})
    told = bft("cancel", "train-a")
    assert told.code == 1
    assert says(told.err, "cli.manage.has_ended", who="trainer run-here-12 (train-a)")


def test_a_driver_that_cannot_begin_is_listed_with_the_cause_and_its_log(
    daemon: Any, bft: Terminal, tmp_path: Path
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "elastic.py").touch()
    script = tmp_path / "script"
    header = Header("1-2", "", str(tmp_path / "socket"), str(tmp_path / "train.py"), sys.executable)
    script.write_text(rewrite("#!/usr/bin/env python3\n", "/usr/bin/bft-driver", header))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    with (tmp_path / "out").open("w") as out:
        ended = subprocess.run(
            [sys.executable, "-c", "from bftd.cli.jobs.driver import main; main()", str(script)],
            env={**environ, "PYTHONPATH": str(tmp_path / "own"), "SLURM_JOB_NAME": "mine"},
            stdout=out, stderr=out, check=False,
        )  # fmt: skip
    assert ended.returncode == 2
    assert (tmp_path / "out").read_text().count("\n") == 1
    [trainer] = [each for each in daemon.client.trainers(True)["trainers"] if each["name"] == "mine"]
    assert (trainer["state"], trainer["exit_code"], trainer["log"]) == ("finished", 2, str(tmp_path / "out"))
    assert str(tmp_path / "own" / "elastic.py") in trainer["reason"]
    assert bft("logs", "mine").code == 0
