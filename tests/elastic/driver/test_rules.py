"""The site's rules for when a pilot must not start: drivers get them from the daemon, as its configuration has them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from bftd.core.events import Registered
from bftd.keys import Config, PoolConfig, SlurmConfig
from bftd.protocol.lease import Leases
from bftd.protocol.registration import Registration
from bftd.protocol.sizes import Sizes
from bftd.service.ledger import Ledger
from bftd.service.live import Service
from elastic.backends import KINDS
from elastic.driver import daemon as daemons
from elastic.driver import pilots
from elastic.driver.daemon import DaemonLink
from elastic.driver.main import _registration
from elastic.driver.pilots import PilotStarter
from elastic.driver.trainer import Trainer
from slurm_plugin.guard import guard
from slurm_plugin.pilots import PilotRequest, Refused
from slurm_plugin.types import Job, Snapshot
from slurm_plugin.waiting import SiteRules
from tests.bftd.builders import job, node
from tests.elastic.fakes import settings_for, until
from tests.elastic.scripted_daemon import ScriptedDaemon


class Launcher:
    """Slurm's side: refuses every pilot, and notes by which rules it was asked for."""

    made: int
    asked: list[tuple[str, str, SiteRules, frozenset[str]]]
    waited_out: frozenset[str]

    def __init__(self, client: object, rules: SiteRules, mode: str) -> None:
        Launcher.made += 1
        self.rules = rules
        self.clock = time.time

    def agent_env(self, environ: object) -> dict[str, str]:
        return {}

    def place(self, request: PilotRequest, *_: object) -> Refused:
        Launcher.asked.append((request.node, request.comment, self.rules, self.waited_out))
        return Refused("the test says so")


@pytest.fixture(autouse=True)
def launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pilots, "PilotLauncher", Launcher)
    monkeypatch.setattr(daemons, "DAEMON_RETRY_S", 0.01)
    monkeypatch.setattr(daemons, "LONG_POLL_S", 0.2)
    Launcher.made, Launcher.asked = 0, []


def test_S1_a_pilot_is_asked_for_by_the_rules_of_the_list_that_grants_it_and_so_after_a_reload(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("d")

    async def scene(daemon: ScriptedDaemon) -> None:
        settings = settings_for(folder)
        starter = PilotStarter(settings, 1, "secret", print)
        trainer: Trainer
        link = DaemonLink(
            settings.socket_path,
            lambda: _registration(settings, trainer),
            lambda listed: trainer.on_leases(listed),
            lambda: None,
            print,
        )
        trainer = Trainer(
            settings, print, replace(KINDS["horovod"], driver="tests.elastic.fakes:FakeBackend"), starter, link
        )
        serving = asyncio.create_task(trainer.serve())
        await until("asked", lambda: Launcher.asked)
        daemon.plan_wait_s, daemon.min_window_s, daemon.waited_out = 5.0, 6.0, ("11", "12")
        daemon.grant("n2")
        await until("asked by the new rules", lambda: len(Launcher.asked) == 2)
        daemon.plan_wait_s, daemon.min_window_s, daemon.waited_out = 7.0, 8.0, ()
        daemon.identity = "a1b2c3d4"
        daemon.forget()
        await until("registered again", lambda: len(daemon.registrations) == 2)
        daemon.grant("n3")
        await until("asked by the rules of the second welcome", lambda: len(Launcher.asked) == 3)
        trainer.run.finish(0, "the test is over")
        await serving
        await trainer.stop()

    with ScriptedDaemon(folder / "s") as daemon:
        daemon.plan_wait_s, daemon.min_window_s = 3.0, 4.0
        daemon.grant("n1")
        asyncio.run(asyncio.wait_for(scene(daemon), 30))
    assert Launcher.asked == [
        ("n1", "bft 7 n1.1", SiteRules(3.0, 4.0), frozenset()),
        ("n2", "bft 7 n2.2", SiteRules(5.0, 6.0), frozenset({"11", "12"})),
        ("n3", "bft 7 n3.3 @a1b2c3d4", SiteRules(7.0, 8.0), frozenset()),
    ]
    assert Launcher.made == 1, "a new one would have forgotten since when jobs wait"


def test_S1_the_daemons_configuration_is_what_its_welcome_says(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "ledger")) as ledger:
        config = Config(pool=PoolConfig(plan_wait_s=3.0, min_window_s=4.0))
        served = Service(config, ledger, lambda job_ids: None, lambda: 1000.0)
        served.apply(Registered(1000.0, Registration("7", "test", "torchrun", Sizes(1, 4), "ada", "elastic")))
        listed = served.welcome("7").listed
        assert (listed.plan_wait_s, listed.min_window_s) == (3.0, 4.0)
        served.configure(Config(pool=PoolConfig(plan_wait_s=0.0, min_window_s=0.0)))
        listed = served.leases("7")
        assert (listed.plan_wait_s, listed.min_window_s) == (0.0, 0.0)

        waiting = [job("8", partition=("batch",), reason="Resources")]
        served.configure(Config(pool=PoolConfig(plan_wait_s=10.0)))
        for time_s, waited_out in ((1000.0, ()), (1009.0, ()), (1011.0, ("8",))):
            served.observe(Snapshot(time_s, {"n1": node("n1")}, tuple(waiting), ()))
            assert served.leases("7").waited_out == waited_out


class Told(PilotStarter):
    """A starter whose launcher and client the test looks at."""

    @property
    def clock(self) -> Callable[[], float]:
        return self._launcher.clock

    @property
    def timeout_s(self) -> float:
        return self._client.timeout_s


def test_regression_a_drivers_commands_ended_after_a_time_of_their_own_and_not_the_sites(tmp_path: Path) -> None:
    starter = Told(settings_for(tmp_path), 1, "secret", print)
    starter.go_by(Leases(1, 30.0, 20.0, (), timeout_s=40.0))
    assert starter.timeout_s == 40.0
    starter.go_by(Leases(2, 30.0, 20.0, ()))
    assert starter.timeout_s == 40.0, "an older daemon says nothing of it"


def test_regression_the_guard_held_slurms_plans_against_a_clock_that_was_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steady_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: steady_s)
    starter = Told(settings_for(tmp_path), 1, "secret", print)
    # This host's clock is a minute ahead. To the site a job is planned in 10 s, so the node is not lent.
    monkeypatch.setattr(time, "time", lambda: 1060.0)
    planned = [job("8", partition=("batch",), sched_nodes=("n1",), start_s=1010.0)]
    starter.go_by(Leases(1, 30.0, 20.0, (), now_s=1000.0))
    assert objection(planned, starter.clock()) is not None
    # And one that is behind: the plan that it takes for 70 s away is 10 s away.
    monkeypatch.setattr(time, "time", lambda: 940.0)
    assert objection(planned, time.time()) is None, "by its own clock the node would be lent"
    assert objection(planned, starter.clock()) is not None
    # Between two lists the time goes on by a clock that nobody sets.
    steady_s += 5.0
    monkeypatch.setattr(time, "time", lambda: 99999.0)
    assert starter.clock() == 1005.0
    starter.go_by(Leases(2, 30.0, 20.0, ()))
    assert starter.clock() == 99999.0, "an older daemon does not tell its time"


def objection(pending: list[Job], now_s: float) -> str | None:
    rules = SiteRules(30.0, 20.0)
    return guard(pending, "n1", now_s, rules, node_partitions={"batch"}, pilot_partition="elastic", since={})


def test_the_daemon_tells_its_clock_and_the_time_out_of_the_site_with_each_list(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "ledger")) as ledger:
        now_s = 1000.0
        config = Config(slurm=SlurmConfig(timeout_s=12.0))
        served = Service(config, ledger, lambda job_ids: None, lambda: now_s)
        served.apply(Registered(1000.0, Registration("7", "test", "torchrun", Sizes(1, 4), "ada", "elastic")))
        listed = served.welcome("7").listed
        assert (listed.timeout_s, listed.now_s) == (12.0, 1000.0)
        now_s = 1007.0
        listed = Leases.from_json(served.leases("7").to_json())
        assert (listed.timeout_s, listed.now_s) == (12.0, 1007.0)
