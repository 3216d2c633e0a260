"""When the daemon starts and when it does not, what it waits for, and how it ends while Slurm hangs."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from bftd.base.errors import AnotherDaemon, UsageError
from bftd.base.health import judged
from bftd.config.keys import Config, SlurmConfig
from bftd.core.model.events import Registered
from bftd.daemon.process import _command, next_delay_s
from bftd.daemon.systemd import watchdog_s
from bftd.ledger.file import Ledger
from bftd.service.canceller import Canceller
from bftd.service.metrics.gauges import families
from bftd.service.other_daemons import IDENTITY, claim, identities, take_over
from bftd.service.service import Service
from slurm_plugin.clients.client import CommandResult, SlurmClient
from slurm_plugin.errors import CommandError
from slurm_plugin.read.types import Job, Snapshot
from slurm_plugin.site.preemption import UNREAD, Preemption
from tests.bftd.builders import job, node, registration
from tests.bftd.daemon.test_process import ROOT, environment, running, write_config
from tests.slurm_plugin.site.test_plugstack import shared_object
from tests.support.messages import pattern, says, wording
from tests.support.waiting import STILL_S, until

pytestmark = pytest.mark.slow

# Hangs, or says that nobody answers, for as long as a file of that name is there.
FAULTS = """#!/bin/sh
here=$(dirname "$0")
while [ -e "$here/hang" ]; do sleep 0.2; done
[ -e "$here/down" ] && { echo "slurm_load error: Unable to contact slurm controller" >&2; exit 1; }
"""


def commands(root: Path) -> dict[str, str]:
    """An environment with the fake commands as they are."""
    return os.environ | {"PATH": f"{root / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def faulty(root: Path) -> Path:
    """Let the fake Slurm have faults; returns the folder of the files that bring them on."""
    environment(root)
    for name in ("scontrol", "squeue"):
        command = root / "bin" / name
        command.write_text(FAULTS + command.read_text().removeprefix("#!/bin/sh\n"))
    return root / "bin"


def started(root: Path, *arguments: str, more: str = "", env: dict[str, str] | None = None):  # type: ignore[no-untyped-def]
    """A daemon that is expected to end by itself."""
    path = write_config(root, more)
    command = [sys.executable, "-m", "bftd.daemon.process", "--config", str(path), *arguments]
    return subprocess.run(command, env=env or environment(root), capture_output=True, text=True, timeout=STILL_S)


def test_regression_a_regular_partition_named_by_mistake_lost_all_its_jobs(tmp_path: Path) -> None:
    run = started(tmp_path, more='[slurm]\npartition = "batch"\n')  # with operator rights or without
    assert run.returncode == 2
    assert run.stderr == ("bftd: " + wording("slurm_plugin.preemptible.default_partition", name="batch") + "\n")


@pytest.mark.slow
def test_beside_a_running_daemon_no_second_one_starts_on_its_partition_and_a_dry_run_does(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        config = tmp_path / "second.toml"
        config.write_text(f'[api]\nsocket = "{tmp_path}/other"\n[ledger]\npath = "{tmp_path}/second"\n')
        env = commands(tmp_path)
        command = [sys.executable, "-m", "bftd.daemon.process", "--config"]
        second = subprocess.run([*command, str(config)], env=env, capture_output=True, text=True, timeout=STILL_S)
        assert second.returncode == AnotherDaemon.exit_code
        assert second.stderr == (
            "bftd: " + wording("service.other_daemons.in_use", holder=daemon.process.pid, partition="elastic") + "\n"
        )
        dry = [*command, str(tmp_path / "bftd.toml"), "--dry-run"]
        told = subprocess.run(dry, env=env, capture_output=True, text=True, timeout=STILL_S)
        assert (told.returncode, told.stderr) == (0, "")
        assert told.stdout.splitlines() == [
            wording("service.dry_run.would_cancel", would=0, running=0, where="elastic", most=3),
            wording("service.dry_run.operator_off"),
        ]


def test_S9_a_controller_that_is_down_is_waited_for_and_nothing_is_granted_before_it_answers(tmp_path: Path) -> None:
    faults = faulty(tmp_path)
    (faults / "down").touch()
    with running(tmp_path, env=commands(tmp_path)) as daemon:
        assert daemon.client.status()["hold"] is None
        assert daemon.client.status()["snapshot_age_s"] is None
        (faults / "down").unlink()
        # what one look still found down the next one reads
        until(
            "a snapshot",
            lambda: (seen := daemon.client.status())["snapshot_age_s"] is not None and seen["hold"] is None,
        )


@pytest.mark.slow
def test_regression_a_hanging_controller_got_the_daemon_killed_and_held_up_its_stop(tmp_path: Path) -> None:
    faults = faulty(tmp_path)
    env = commands(tmp_path) | {"WATCHDOG_USEC": "900000"}
    with running(tmp_path, "[slurm]\ntimeout_s = 60\n", env) as daemon:
        until("a snapshot", lambda: daemon.client.status()["snapshot_age_s"] is not None)
        (faults / "hang").touch()
        until("an old snapshot", lambda: daemon.client.status()["snapshot_age_s"] > 2.0)
        daemon.forget()
        for _ in range(3):
            daemon.told("WATCHDOG=1")
        daemon.process.send_signal(signal.SIGTERM)
        code = daemon.process.wait(30)  # less than a command may take, and the controller hangs
        (faults / "hang").unlink()
        assert code == 0


# What goes with it, without a process.


class Asked(SlurmClient):
    """A client whose answers a test sets; None is no answer."""

    def __init__(self) -> None:
        super().__init__()
        self.partition_line: str | None = None
        self.kind = "preempt/partition_prio"
        self.asked = 0
        self.folder = Path("/none")

    def run(self, command: str, *arguments: str, **_: object) -> CommandResult:  # type: ignore[override]
        self.asked += 1
        if self.partition_line is None:
            raise CommandError("scontrol gave no answer for 5 s: is slurmctld up?")
        if arguments[1] == "partition":
            return CommandResult(0, self.partition_line, "")
        lines = [
            wording("slurm_plugin.settings.first_line") + " now",
            f"PreemptType = {self.kind}",
            "ClusterName = c",
            f"SLURM_CONF = {self.folder}/slurm.conf",
            f"PluginDir = {self.folder}",
        ]
        return CommandResult(0, "\n".join([*lines, "SLURM_VERSION = 22.05.8", "UnkillableStepTimeout = 60", ""]), "")


GOOD = "PartitionName=elastic Nodes=n1 State=UP MaxTime=60 Default=NO PriorityTier=1 PreemptMode=CANCEL\n"
BAD = GOOD.replace("CANCEL", "OFF")


def test_a_partition_is_looked_at_every_minute_and_sooner_while_something_is_wrong_with_it() -> None:
    now_s, client = [0.0], Asked()
    preemption = Preemption(client, ("elastic",), lambda: now_s[0])
    with pytest.raises(CommandError):
        preemption.check()
    assert (preemption.objection, preemption.known) == (UNREAD, False)
    client.partition_line = GOOD
    preemption.check()
    assert (preemption.objection, preemption.cluster) == ("", "c  ")
    client.partition_line = BAD
    now_s[0] = 59.0
    preemption.check()
    assert preemption.objection == ""
    now_s[0] = 60.0
    preemption.check()
    assert says(preemption.objection, "slurm_plugin.preemptible.not_preemptible", mode="OFF")
    client.partition_line = None
    now_s[0] = 70.0
    with pytest.raises(CommandError):
        preemption.check()
    assert "now OFF" in preemption.objection, "no answer is no permission"
    client.partition_line = GOOD
    preemption.check()
    assert preemption.objection == ""


def test_the_plug_in_of_the_host_is_looked_at_as_often(tmp_path: Path) -> None:
    now_s, client = [0.0], Asked()
    client.partition_line, client.folder = GOOD, tmp_path
    (tmp_path / "plugstack.conf").write_text("optional spank_bftd.so\n")
    (tmp_path / "sched_builtin.so").write_bytes(shared_object(0x170200))
    preemption = Preemption(client, ("elastic",), lambda: now_s[0])
    for release, told in ((0x160508, "22.05"), (0x170204, "")):
        (tmp_path / "spank_bftd.so").write_bytes(shared_object(release))
        preemption.check()
        fault = {"plugin": tmp_path / "spank_bftd.so", "found": told, "here": "23.02"}
        assert preemption.plugin_fault == (wording("slurm_plugin.plugstack.stale", **fault) if told else "")
        now_s[0] += 61.0


def test_a_partition_that_is_reconfigured_stops_growth_with_a_sentence(tmp_path: Path) -> None:
    clock = [1000.0]
    service = Service(Config(), Ledger(tmp_path / "ledger"), lambda job_ids: None, lambda: clock[0])

    def poll() -> None:
        clock[0] += 1.0
        service.observe(Snapshot(clock[0], {"n1": node("n1")}, (), ()))

    service.objection = UNREAD
    service.apply(Registered(clock[0], registration("1")))
    for _ in range(5):
        poll()
    assert not service.core.leases
    assert service.overview("1")["hold"] == UNREAD
    service.objection = ""
    poll()
    assert len(service.core.leases) == 1


def test_regression_operator_mode_on_a_regular_partition_cancels_nothing_even_if_it_is_let(tmp_path: Path) -> None:
    clock, killed = [1.7e9], []
    config = Config(slurm=SlurmConfig(partition="batch", operator=True))
    service = Service(config, Ledger(tmp_path / "ledger"), killed.extend, lambda: clock[0])
    nodes = {f"n{number}": node(f"n{number}", "ALLOCATED") for number in range(100)}
    jobs = [
        job(str(number), "RUNNING", nodes=(f"n{2 * number}", f"n{2 * number + 1}"), submit_s=1.0, node_count=2)
        for number in range(50)
    ]
    # and those of a pilot's very shape, which start one after another
    for second in range(150):
        clock[0] += 1.0
        jobs[second % 50] = job(str(1000 + second), "RUNNING", nodes=(f"n{second % 50}",), submit_s=clock[0])
        service.observe(Snapshot(clock[0], nodes, tuple(jobs), ()))
    assert len(set(killed)) <= 5, "a tenth of the jobs within an hour"
    assert service.overview("1")["alarms"]


def test_a_plug_in_that_slurm_does_not_load_is_an_alarm_in_status_check_and_metrics(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    service = Service(Config(), ledger, lambda job_ids: None, lambda: 1000.0)
    service.observe(Snapshot(1000.0, {"n1": node("n1")}, (), ()))
    assert not service.overview("1")["alarms"]
    assert judged(service.overview("1")).level == "OK"
    service.plugin_fault = "/p/spank_bftd.so is for Slurm 22.05"
    told = wording("service.steered.plugin", plugin_fault=service.plugin_fault)
    assert service.overview("1")["alarms"] == [{"kind": "plugin", "node": None, "text": told}]
    assert [(each.level, each.key, each.text) for each in judged(service.overview("1")).problems] == [
        ("CRITICAL", "plugin", told)
    ]
    (alarms,) = (metric for metric in families(service.figures(), "1", 0.0) if metric.name == "bftd_alarms")
    assert {sample.labels["kind"] for sample in alarms.samples if sample.value} == {"plugin"}
    ledger.close()


def test_a_ledger_that_moves_keeps_its_identity_and_another_has_another(tmp_path: Path) -> None:
    words = []
    for path in ("one", "one", "two"):
        ledger = Ledger(tmp_path / path)
        service = Service(Config(), ledger, lambda job_ids: None, lambda: 1000.0)
        words.append(service.identities)
        service.apply(Registered(1000.0, registration("1")))
        assert service.leases("1").daemon == words[-1][0]
        assert ledger.kept(IDENTITY) == {"words": list(words[-1])}
        ledger.close()
    assert words[0] == words[1] != words[2]


def test_pilots_of_a_daemon_that_is_gone_are_taken_over_and_a_word_that_one_user_may_have_forged_is_not(
    tmp_path: Path,
) -> None:
    def pilot(id_: str, user: str, word: str, partition: str = "elastic") -> Job:
        return job(id_, "RUNNING", partition=(partition,), user=user, comment=f"bft 1 n1.{id_} @{word}")

    def taken(*jobs: Job) -> str:
        return take_over(ledger, Snapshot(1000.0, {}, jobs, ()), ("elastic",), {"root"})

    ledger = Ledger(tmp_path / "ledger")
    mine = identities(ledger)
    none = wording("service.other_daemons.nobody", partitions="elastic")
    assert taken(pilot("1", "eve", mine[0]), pilot("2", "eve", "beef", "other")) == none
    forged = wording("service.other_daemons.left_alone", word="beef", jobs="jobs 1, 2 of eve")
    with pytest.raises(UsageError) as refused:
        taken(pilot("1", "eve", "beef"), pilot("2", "eve", "beef"))
    assert str(refused.value) == forged
    assert identities(ledger) == mine
    told = taken(
        pilot("1", "eve", "beef"), pilot("2", "eve", "beef"), pilot("3", "ann", "old"), pilot("4", "bob", "old")
    )
    old = wording("service.other_daemons.taken_over", word="old", jobs="jobs 3, 4 of ann, bob")
    assert told.splitlines() == [forged, old]
    assert identities(ledger) == (*mine, "old")
    assert taken(pilot("5", "root", "roots")).startswith("pilots of roots (job 5 of root)")
    ledger.close()


async def test_who_is_no_daemon_cannot_keep_one_from_starting() -> None:
    cluster = f"here {os.getpid()}"
    first = await claim(cluster, "elastic", {os.geteuid()})
    assert first is not None
    with pytest.raises(
        AnotherDaemon, match=pattern("service.other_daemons.in_use", holder=os.getpid(), partition="elastic")
    ):
        await claim(cluster, "elastic", {os.geteuid()})
    other = await claim(cluster, "elastic2", {os.geteuid()})
    assert other is not None
    if os.geteuid():  # what a stranger holds: as root nobody here is one
        assert await claim(cluster, "elastic", {12345}) is None
    first.close()
    other.close()
    again = await claim(cluster, "elastic", {os.geteuid()})
    assert again is not None
    again.close()


def test_regression_cancels_of_a_hanging_controller_piled_up_and_held_up_the_stop() -> None:
    hangs, asked, ended = threading.Event(), [], []

    def cancel(job_ids: list[str]) -> None:
        asked.append(job_ids)
        hangs.wait(2 * STILL_S)
        ended.append(job_ids)

    canceller = Canceller(cancel)
    for _ in range(1000):
        canceller.ask(["1", "2"])
    until("the controller is asked", lambda: asked)
    hangs.set()
    until("all is asked for", lambda: not canceller._asked)
    assert asked == [["1", "2"]], "a job waited twice"
    hangs.clear()
    asked.clear()
    ended.clear()
    canceller.ask(["1", "2"])
    until("the controller is asked", lambda: asked)
    canceller.ask(["2", "3"])
    canceller.stop(0.2)
    assert not ended, "it was waited for"
    hangs.set()
    assert asked == [["1", "2"]], "what waited was not dropped"


def test_what_slurm_refuses_to_cancel_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    def cancel(job_ids: list[str]) -> None:
        raise CommandError("scancel failed: Access denied")

    canceller = Canceller(cancel)
    with caplog.at_level(logging.WARNING, "bftd"):
        for _ in range(3):
            canceller.ask(["1"])
            until("all is asked for", lambda: not canceller._asked)
    canceller.stop(1.0)
    assert [record.getMessage() for record in caplog.records] == [
        wording("slurm_plugin.client.scancel_failed", complaint="Access denied")
    ]


def test_the_watchdogs_time_is_what_systemd_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, expected_s in (("90000000", 90.0), ("0", float("inf")), ("soon", float("inf")), ("", float("inf"))):
        monkeypatch.setenv("WATCHDOG_USEC", text)
        assert watchdog_s() == expected_s


def test_regression_keys_that_contradict_each_other_passed_the_check(tmp_path: Path) -> None:
    path = tmp_path / "bftd.toml"
    path.write_text("[slurm]\npoll_s = 15\ntimeout_s = 60\n")
    run = CliRunner().invoke(_command, ["--config", str(path), "--check-config"])
    assert says(str(run.exception), "bftd.config.stale_after_too_short", poll_s=15)
    assert next_delay_s(1.0, 60.0, 5) == 30.0
