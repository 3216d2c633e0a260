"""From the daemon's state to the site's command: in simulated time, and once with a real daemon."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bftd.base.errors import LedgerError
from bftd.config.keys import Config, NotifyConfig
from bftd.core.model.pause import Pause
from bftd.daemon.process import _command
from bftd.ledger.file import Ledger
from bftd.service.alerts import hook
from bftd.service.alerts.notifier import LOOK_EVERY_S, AlertNotifier
from bftd.service.service import Service
from slurm_plugin.read.types import Snapshot
from tests.bftd.builders import node
from tests.bftd.daemon.test_process import bft, running, write_config
from tests.bftd.ledger.test_file import Clock
from tests.bftd.service.alerts.test_hook import gone, script
from tests.support.messages import excerpt, fragment, says, wording
from tests.support.waiting import STILL_S, until

pytestmark = pytest.mark.slow

EVERY_S = 60.0


class Site:
    """A service with a clock that the test moves, and a command that writes down what it is told."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, Clock()
        self.command = script(folder, f"[ -e {folder}/broken ] && exit 7; cat >> {folder}/told")
        self.config = Config(notify=NotifyConfig(str(self.command), EVERY_S))
        self.start()

    def start(self) -> None:
        """A daemon begins, and sees the pool."""
        self.service = Service(self.config, Ledger(self.folder / "ledger"), lambda _: None, self.clock)
        self.notifier = AlertNotifier(self.service, lambda: "hpc")
        self.service.observe(Snapshot(self.clock.now, {"n1": node("n1")}, (), ()))

    def stop(self) -> None:
        self.notifier.stop()
        self.service.ledger.close()

    def look(self, after_s: float = LOOK_EVERY_S) -> list[dict[str, Any]]:
        """Look some time later, let the command end, and look again; returns all that it was ever told."""
        self.clock.now += after_s
        self.service.observe(Snapshot(self.clock.now, {"n1": node("n1")}, (), ()))
        self.notifier.look()
        if self.notifier._running is not None:
            self.notifier._running.result()
        self.notifier.look()
        told = self.folder / "told"
        return [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []

    def pause(self, user: str) -> None:
        self.service.pause([Pause("user", user, "root", self.clock.now, "x", False)])


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.stop()


def kinds(items: list[dict[str, Any]]) -> list[str]:
    return [item["name"] for item in items]


def test_alarms_are_told_as_they_begin_and_end_no_more_often_than_asked(site: Site) -> None:
    assert site.look() == []
    site.pause("ann")
    (first,) = site.look()
    assert list(first)[:5] == ["format", "host", "cluster", "partition", "time_s"]
    assert (first["cluster"], first["partition"], first["level"]) == ("hpc", "elastic", "WARNING")
    assert (kinds(first["begun"]), first["text"]) == (
        ["user ann"],
        "WARNING: begun: " + wording("core.sentences.paused", what="user ann", by="root", why="x"),
    )
    site.pause("bob")
    assert len(site.look()) == 1
    site.service.resume("root", ["user:ann"])
    assert len(site.look()) == 1
    (_, second) = site.look(EVERY_S)
    assert (kinds(second["begun"]), kinds(second["ended"]), second["still"]) == (["user bob"], ["user ann"], [])
    site.service.resume("root", ["user:bob"])
    last = site.look(EVERY_S)[-1]
    assert (last["level"], last["text"]) == (
        "OK",
        "OK: over: " + wording("core.sentences.paused", what="user bob", by="root", why="x"),
    )
    assert len(site.look(EVERY_S)) == 3


def test_a_command_that_fails_is_logged_once_and_told_again(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    (site.folder / "broken").touch()
    site.pause("ann")
    for _ in range(3):
        assert site.look(EVERY_S) == []
    complaints = [record.getMessage() for record in caplog.records if "[notify]" in record.getMessage()]
    assert complaints == [
        wording(
            "alarms.notifier.told_next_time",
            complaint=wording("alarms.hook.ended", name=site.command, how="exit code 7"),
        )
    ]
    (site.folder / "broken").unlink()
    caplog.set_level(logging.INFO)
    assert kinds(site.look(EVERY_S)[0]["begun"]) == ["user ann"]
    assert says(caplog.text, "alarms.notifier.told_again")


def test_a_restart_tells_nothing_twice_and_a_reload_takes_another_command(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.pause("ann")
    assert len(site.look()) == 1
    site.stop()
    site.start()
    assert len(site.look(EVERY_S)) == 1
    site.service.configure(replace(site.config, notify=NotifyConfig("/no/such", EVERY_S)))
    site.look(EVERY_S)
    assert says(
        caplog.text,
        "alarms.notifier.nobody_told",
        why=fragment(excerpt("alarms.hook.no_such_command", words=fragment("/no/such"))),
    )
    site.service.configure(replace(site.config, notify=NotifyConfig()))
    site.look(EVERY_S)
    site.service.resume("root", ["user:ann"])
    assert len(site.look(EVERY_S)) == 1
    site.service.configure(site.config)
    assert kinds(site.look(EVERY_S)[-1]["ended"]) == ["user ann"]


def test_a_ledger_that_cannot_be_written_is_told_too(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.look()

    def full(*_: object) -> None:
        raise LedgerError("the ledger cannot be written (disk full): free space")

    monkeypatch.setattr(site.service.ledger, "save", full)
    told = site.look()[-1]
    assert (told["level"], told["begun"][0]["kind"]) == ("CRITICAL", "ledger")


def test_a_daemon_tells_of_a_pause_and_leaves_nothing_behind(tmp_path: Path) -> None:
    command = script(
        tmp_path,
        f"echo $$ > {tmp_path}/pid; cat > {tmp_path}/told.new; mv {tmp_path}/told.new {tmp_path}/told; sleep 600",
    )
    with running(tmp_path, f'[notify]\ncommand = "{command}"\n') as daemon:
        env = {"BFTD_SOCKET": str(tmp_path / "socket")}
        assert bft("pause", "--user", "nobody", "--why", "x", env=env).returncode == 0
        until("it is told", (tmp_path / "told").exists)
        told = json.loads((tmp_path / "told").read_text())
        assert (told["begun"][0]["kind"], told["partition"]) == ("pause", "elastic")
        assert told["cluster"].endswith("scontrol")  # as the fake calls its cluster
        daemon.process.send_signal(signal.SIGTERM)
        _, errors = daemon.process.communicate(timeout=STILL_S)
        assert daemon.process.returncode == 0
        assert "Traceback" not in errors
        assert gone(int((tmp_path / "pid").read_text()))


def test_the_check_of_a_configuration_names_a_command_that_cannot_be_run(tmp_path: Path) -> None:
    path = write_config(tmp_path, '[notify]\ncommand = "/no/such --now"\n')
    checked = CliRunner().invoke(_command, ["--config", str(path), "--check-config"])
    assert str(checked.exception) == f"{path}: [notify] command: " + wording(
        "alarms.hook.no_such_command", words="/no/such"
    )
    write_config(tmp_path, '[notify]\ncommand = "sh -c true"\n')
    assert CliRunner().invoke(_command, ["--config", str(path), "--check-config"]).exit_code == 0


def test_a_fault_while_telling_is_told_again_and_ends_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(hook, "run", lambda *_: 1 / 0)
        site.pause("ann")
        site.clock.now += LOOK_EVERY_S
        site.notifier.look()
        assert site.notifier._running is not None
        assert isinstance(site.notifier._running.exception(), ZeroDivisionError)
        site.notifier.look()
    assert kinds(site.look(EVERY_S)[0]["begun"]) == ["user ann"]


def test_the_watch_for_alarms_goes_on_after_a_fault(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def look() -> None:
        looks.append(1)
        if len(looks) == 1:
            raise LedgerError("the ledger cannot be read")
        if len(looks) == 3:
            raise asyncio.CancelledError

    async def now(_: float) -> None:
        pass

    monkeypatch.setattr(site.notifier, "look", look)
    monkeypatch.setattr("bftd.service.alerts.notifier.asyncio.sleep", now)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(site.notifier.run())
    assert len(looks) == 3
