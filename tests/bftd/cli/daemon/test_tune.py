"""`bft tune` on a real daemon whose ledger has a past of some hours."""

from __future__ import annotations

import json
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from bftd.cli.main import bft as command
from bftd.config.keys import Config, DecideConfig
from bftd.core.model.events import Heard, Registered
from bftd.ledger.file import Ledger
from bftd.service.service import Service
from bftd.simulation.effect import comparison
from slurm_plugin.read.types import Snapshot
from tests.bftd.builders import job, node, registration
from tests.bftd.daemon.test_process import Running, bft, running
from tests.support.messages import excerpt, pattern, wording
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow

HOURS = 3.0
TRAINERS = ("run-a-1", "run-b-1", "run-c-1")
NAMES = tuple(f"n{number}" for number in range(1, 9))


def live_through(path: Path) -> None:
    """Some hours of a daemon with snapshots that are made up: a node comes or goes every two minutes."""
    draw, now_s = random.Random(1), [time.time() - HOURS * 3600.0]
    service = Service(Config(decide=DecideConfig(pj_max=1)), Ledger(path), lambda _: None, lambda: now_s[0])
    idle = set(NAMES[:6])
    for name in TRAINERS:
        curve = ((1, 10.0), (2, 20.0))
        service.apply(
            Registered(now_s[0], registration(name, nodes_max=2, curve=curve, up_cost_s=5.0, down_cost_s=2.0))
        )
    jobs = tuple(job(name, "RUNNING", partition=("service",)) for name in TRAINERS)
    while now_s[0] < time.time() - 60.0:
        idle ^= {draw.choice(NAMES)}
        for _ in range(2):
            now_s[0] += 60.0
            nodes = {name: node(name, "IDLE" if name in idle else "ALLOCATED") for name in NAMES}
            service.observe(Snapshot(now_s[0], nodes, jobs, ()))
            service.apply(*(Heard(now_s[0], name) for name in TRAINERS))
    service.ledger.close()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("tuned")
    live_through(root / "ledger")
    with running(root, "[decide]\npj_max = 1\n") as started:
        yield started
        started.process.send_signal(signal.SIGTERM)
        started.process.wait(STILL_S)


@pytest.fixture
def env(daemon: Running) -> dict[str, str]:
    return {"BFTD_SOCKET": str(daemon.root / "socket")}


def test_a_dry_run_tells_what_it_would_have_brought_and_changes_nothing(daemon: Running, env: dict[str, str]) -> None:
    told = bft("tune", "--pj-max", "3", "--over", "3h", "--dry-run", env=env)
    assert (told.returncode, told.stderr) == (0, "")
    line = told.stdout.splitlines()[0]
    found = re.fullmatch(
        r"--pj-max 3 would have recovered \+(\d+\.\d)% over the last (2\.9\d?|3) h \(\+\d.*; "
        r"U (\d+\.\d)% -> (\d+\.\d)%; 3 trainers, (\d+) changes of the pool; replayed in \d+ s\)",
        line,
    )
    assert found, line
    # one trainer on two nodes, or three on six of about four that there are
    assert 60.0 < float(found[1]) < 200.0
    assert 50 < int(found[5]) < 100
    assert daemon.client.status()["settings"]["pj_max"] == 1


def test_it_tells_the_effect_before_it_tunes_and_leaves_standard_output_as_it_was(
    daemon: Running, env: dict[str, str]
) -> None:
    quiet = bft("tune", "--pj-max", "3", env=env)
    assert (quiet.returncode, quiet.stderr) == (0, "")  # nobody looks: scripts do not wait for a replay
    back = bft("tune", "--reset", "pj-max", "--effect", "--over", "2h", env=env)
    assert re.match(
        pattern("whatif.comparison.gain", what="--reset pj_max", over="over the last 2 h ("), back.stderr
    ), back.stderr
    assert back.stdout == quiet.stdout.replace("pj_max=3", "pj_max=1")
    same = bft("tune", "--pj-max", "1", "--effect", env=env)
    assert (
        same.stderr
        == wording("whatif.comparison.unknown", what="--pj-max 1", why_not="") + wording("cli.tune.already_set") + "\n"
    )
    assert same.stdout == back.stdout
    assert bft("tune", "--reset", env=env).returncode == 0


def test_the_effect_is_an_object_with_json(daemon: Running, env: dict[str, str]) -> None:
    told = json.loads(bft("tune", "--max-nodes", "1", "--dry-run", "--json", "--over", "2", env=env).stdout)
    effect = told["effect"]
    assert (told["format"], effect["sure"], effect["why_not"]) == (1, True, None)
    assert effect["low"] <= effect["gain"] <= effect["high"] < 0.0
    assert effect["hours"] == pytest.approx(2.0, abs=0.05)
    done = json.loads(bft("tune", "--t-fwd", "90", "--json", "--effect", "--over", "2h", env=env).stdout)
    assert (done["t_fwd_s"], done["effect"]["trainers"]) == (90.0, 3)
    assert json.loads(bft("tune", "--reset", "--json", env=env).stdout)["effect"] is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--over", "20m"), excerpt("cli.tune.not_hours", value="20m")),
        (("--over", "90d"), excerpt("cli.tune.not_hours", value="90d")),
        (("--dry-run", "--no-effect"), wording("cli.tune.dry_run_without_effect")),
    ],
)
def test_what_makes_no_sense_is_said_in_a_line(words: tuple[str, ...], told: str, env: dict[str, str]) -> None:
    wrong = bft("tune", "--pj-max", "3", *words, env=env)
    assert wrong.returncode == 2
    assert told in wrong.stderr
    assert wrong.stderr.count("\n") == 1


def test_ctrl_c_while_the_effect_is_worked_out_changes_nothing_and_says_so(
    daemon: Running, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BFTD_SOCKET", env["BFTD_SOCKET"])
    monkeypatch.setattr(comparison, "compared", interrupted)
    ended = CliRunner().invoke(command, ["tune", "--pj-max", "7", "--effect"])
    assert ended.exit_code == 130
    assert ended.stderr == wording("cli.tune.interrupted") + "\n"
    assert json.loads(bft("status", "--json", env=env).stdout)["settings"]["pj_max"] == 1


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt
