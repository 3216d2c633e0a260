"""The site's rules for when a pilot must not start: drivers get them from the daemon, as its configuration has them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from bftd.config.keys import Config, PoolConfig, SlurmConfig
from bftd.core.model.events import Registered
from bftd.ledger.file import Ledger
from bftd.protocol.lease import Leases
from bftd.protocol.registration import Registration
from bftd.protocol.sizes import Sizes
from bftd.service.service import Service
from elastic.backends import KINDS
from elastic.driver import daemon_link as daemons
from elastic.driver.daemon_link import DaemonLink
from elastic.driver.main import registration_of
from elastic.driver.pilots import launcher as pilots
from elastic.driver.pilots.launcher import PilotStarter
from elastic.driver.trainer import TrainerDriver
from slurm_plugin.pilots.guard import guard
from slurm_plugin.pilots.pending_reasons import Rules
from slurm_plugin.read.types import Job, Scheduler, Snapshot
from slurm_plugin.submission.submission import PilotRequest, Refused
from tests.bftd.builders import job, node
from tests.elastic.fakes import settings_for, until
from tests.elastic.scripted_daemon import ScriptedDaemon
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow


class Launcher:
    """Slurm's side: refuses every pilot, and notes by which rules it was asked for."""

    made: int
    asked: list[tuple[str, str, Rules]]

    def __init__(self, client: object, rules: Rules, mode: str) -> None:
        Launcher.made += 1
        self.rules = rules
        self.clock = time.time

    def agent_env(self, environ: object) -> dict[str, str]:
        return {}

    def place(self, request: PilotRequest, *_: object) -> Refused:
        Launcher.asked.append((request.node, request.comment, self.rules))
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
        trainer: TrainerDriver
        link = DaemonLink(
            settings.socket_path,
            lambda: registration_of(settings, trainer),
            lambda listed: trainer.on_leases(listed),
            lambda: None,
            print,
        )
        trainer = TrainerDriver(
            settings, print, replace(KINDS["horovod"], driver="tests.elastic.fakes:FakeBackend"), starter, link
        )
        serving = asyncio.create_task(trainer.serve())
        await until("asked", lambda: Launcher.asked)
        daemon.min_window_s, daemon.looked_s = 6.0, 1002.5
        daemon.grant("n2")
        await until("asked by the new rules", lambda: len(Launcher.asked) == 2)
        daemon.min_window_s, daemon.looked_s = 8.0, 1003.5
        daemon.identity = "a1b2c3d4"
        daemon.forget()
        await until("registered again", lambda: len(daemon.registrations) == 2)
        daemon.grant("n3")
        await until("asked by the rules of the second welcome", lambda: len(Launcher.asked) == 3)
        trainer.run.finish(0, "the test is over")
        await serving
        await trainer.stop()

    with ScriptedDaemon(folder / "s") as daemon:
        daemon.min_window_s, daemon.looked_s = 4.0, 1001.5
        daemon.grant("n1")
        asyncio.run(asyncio.wait_for(scene(daemon), STILL_S))
    assert Launcher.asked == [
        ("n1", "bft 7 n1.1", Rules(4.0, 1001.5)),
        ("n2", "bft 7 n2.2", Rules(6.0, 1002.5)),
        ("n3", "bft 7 n3.3 @a1b2c3d4", Rules(8.0, 1003.5)),
    ]
    assert Launcher.made == 1, "a new one would have forgotten since when jobs wait that do not say so"


def test_S1_the_daemons_configuration_is_what_its_welcome_says(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "ledger")) as ledger:
        config = Config(pool=PoolConfig(min_window_s=4.0))
        served = Service(config, ledger, lambda job_ids: None, lambda: 1000.0)
        served.apply(Registered(1000.0, Registration("7", "test", "torchrun", Sizes(1, 4), "ada", "elastic")))
        assert served.welcome("7").listed.min_window_s == 4.0
        served.configure(Config(pool=PoolConfig(min_window_s=0.0)))
        assert served.leases("7").min_window_s == 0.0


def test_S1b_a_list_says_when_the_last_look_began_that_its_leases_were_granted_on(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "ledger")) as ledger:
        now_s = 1000.0
        served = Service(Config(), ledger, lambda job_ids: None, lambda: now_s)
        served.apply(Registered(1000.0, Registration("7", "test", "torchrun", Sizes(1, 4), "ada", "elastic")))
        assert served.welcome("7").listed.looked_s == 0.0, "it has not looked yet"
        for began_s in (1000.2, 1001.2, 1002.2):
            now_s = began_s + 0.5
            served.observe(Snapshot(now_s, {"n1": node("n1")}, (), (), begun_s=began_s))
            assert Leases.from_json(served.leases("7").to_json()).looked_s == began_s
        assert [lease.node for lease in served.leases("7").leases] == ["n1"]
        now_s = 1009.0
        assert served.leases("7").looked_s == 1002.2, "later is when it was told, not when it looked"


def test_S1b_a_list_says_until_when_the_daemon_looks_again_before_the_next_backfill_cycle(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "ledger")) as ledger:
        now_s = 1000.0
        served = Service(Config(), ledger, lambda job_ids: None, lambda: now_s)
        served.apply(Registered(1000.0, Registration("7", "test", "torchrun", Sizes(1, 4), "ada", "elastic")))
        assert served.leases("7").calm_s == 0.0, "it has not looked yet"
        for cycled_s, calm_s in ((None, 0.0), (990.0, 1020.0 - 2.0 - 2 * Config().slurm.poll_s), (1e6, 0.0)):
            now_s += 1.0
            scheduler = Scheduler(cycled_s=cycled_s)
            served.observe(Snapshot(now_s, {"n1": node("n1")}, (), (), scheduler=scheduler))
            assert Leases.from_json(served.leases("7").to_json()).calm_s == calm_s


def test_S1b_a_controller_whose_clock_is_behind_dates_what_comes_now_before_the_look(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "ledger")) as ledger:
        served = Service(Config(), ledger, lambda job_ids: None, lambda: 1000.5)
        served.apply(Registered(1000.0, Registration("7", "test", "torchrun", Sizes(1, 4), "ada", "elastic")))
        scheduler = Scheduler(behind_s=2.5)
        served.observe(Snapshot(1000.5, {"n1": node("n1")}, (), (), scheduler=scheduler, begun_s=1000.2))
        assert served.leases("7").looked_s == pytest.approx(997.7)


def test_S1b_a_clock_that_was_set_makes_nothing_that_came_before_it_seen(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "ledger")) as ledger:
        now_s, elapsed_s = 5000.0, 50.0
        served = Service(Config(), ledger, lambda job_ids: None, lambda: now_s, lambda: elapsed_s)
        served.apply(Registered(5000.0, Registration("7", "test", "torchrun", Sizes(1, 4), "ada", "elastic")))
        served.observe(Snapshot(5000.0, {"n1": node("n1")}, (), (), begun_s=4999.9))
        assert served.leases("7").looked_s == 4999.9
        now_s -= 3600.0
        assert served.leases("7").looked_s == 0.0, "it has not looked yet by this clock"


def test_a_driver_of_before_understands_the_list_and_waits_for_three_seconds_for_each_job(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "ledger")) as ledger:
        served = Service(Config(), ledger, lambda job_ids: None, lambda: 1000.0)
        served.apply(Registered(1000.0, Registration("7", "test", "torchrun", Sizes(1, 4), "ada", "elastic")))
        for told in (served.welcome("7").to_json(), served.leases("7").to_json()):
            # what it reads beside the leases, and cannot do without
            assert (told["plan_wait_s"], told["min_window_s"]) == (3.0, 20.0)
            assert "waited_out" not in told, "without it, it goes by what it has seen itself"


@pytest.mark.parametrize(("now_s", "looked_s"), [(5000.0, 4990.0), (None, 990.0)])
def test_a_daemon_of_before_is_taken_to_have_looked_as_long_ago_as_it_may_have(
    monkeypatch: pytest.MonkeyPatch, now_s: float | None, looked_s: float
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    assert PoolConfig().stale_after_s == 10.0
    told = {"version": 1, "plan_wait_s": 30.0, "min_window_s": 20.0, "leases": [], "waited_out": ["8"], "now_s": now_s}
    assert pilots.looked_of(Leases.from_json(told)) == looked_s
    assert pilots.looked_of(Leases.from_json({**told, "looked_s": 4999.0})) == 4999.0


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
    starter.go_by(Leases(1, 20.0, (), timeout_s=40.0))
    assert starter.timeout_s == 40.0
    starter.go_by(Leases(2, 20.0, ()))
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
    starter.go_by(Leases(1, 20.0, (), now_s=1000.0))
    assert objection(planned, starter.clock()) is not None
    # And one that is behind: the plan that it takes for 70 s away is 10 s away.
    monkeypatch.setattr(time, "time", lambda: 940.0)
    assert objection(planned, time.time()) is None, "by its own clock the node would be lent"
    assert objection(planned, starter.clock()) is not None
    # Between two lists the time goes on by a clock that nobody sets.
    steady_s += 5.0
    monkeypatch.setattr(time, "time", lambda: 99999.0)
    assert starter.clock() == 1005.0
    starter.go_by(Leases(2, 20.0, ()))
    assert starter.clock() == 99999.0, "an older daemon does not tell its time"


def objection(pending: list[Job], now_s: float) -> str | None:
    rules = Rules(20.0, 0.0)
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
