"""Each rule of the simulated world breaks where the product breaks it, and by its name."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest

from bftd.config.keys import Config, SlurmConfig
from bftd.core.model import draft
from bftd.core.model.draft import Draft
from bftd.core.planning import execution, planning
from bftd.ledger.file import Ledger
from bftd.pool import membership
from bftd.pool.backfill.model import Component
from bftd.protocol import comment
from bftd.protocol.reports import CrashReport
from bftd.service.canceller import Canceller
from bftd.simulation.slurm.model import JobRun, SimulatedJob
from bftd.simulation.world import site, world
from bftd.simulation.world.rules import bounds, ends
from bftd.simulation.world.rules.ends import Ended
from bftd.simulation.world.scripts import BATCH, ScriptFault, Training, content_of
from bftd.simulation.world.world import WorldSettings
from elastic.driver.daemon_link import DaemonLink
from elastic.driver.failures import blame
from elastic.driver.failures.policy import FailurePolicy
from elastic.driver.pilots.launcher import PilotStarter
from elastic.driver.pilots.manager import PilotManager
from elastic.store import files
from elastic.store.file_names import CheckpointFile

pytestmark = pytest.mark.slow

SMALL = WorldSettings(seed=5, hours=0.15, nodes=3, trainers=2, steps=60)
SEEDS = range(6, 9)
Change = Callable[[Any], Any]


def _struck(*kinds: str, hours: float = 0.3) -> WorldSettings:
    return replace(SMALL, hours=hours, faults=kinds, apart_s=60.0)


def _no_leases(load: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, now_s: replace(load(self, now_s), leases={})


def _one_number(grant: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self: Draft, *arguments: Any) -> Any:
        self.sequence = 0
        return grant(self, *arguments)

    return changed


def _one_node(grantable: Callable[..., Any]) -> Callable[..., Any]:
    def changed(*arguments: Any) -> Any:
        added, later = grantable(*arguments)
        return {id_: nodes[:1] for id_, nodes in added.items()}, later

    return changed


def _plan_of_one_node(solved: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: {id_: nodes[:1] for id_, nodes in solved(*arguments).items()}


def _blames_another(self: Any, pilot: Any, rc: int | None, text: str) -> None:
    for other in self._pilots():
        if other is not pilot:
            self._run.report(CrashReport(time.time(), other.node, rc, text))


def _alarmed(revoke: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *arguments, **more: self.change_lease(revoke(self, *arguments, **more), alarmed=True)


def _kept(report: Callable[..., Any]) -> Callable[..., Any]:
    def changed(self: Any, one: Any) -> None:
        vars(self).setdefault("kept", []).extend([one] * 100)
        report(self, one)

    return changed


def _none_kept(turn: Any, trainers: Any, *_: object) -> Any:
    return {trainer.id: () for trainer in trainers}


async def _nothing(*_: Any, **__: Any) -> None:
    pass


def _always(value: object) -> Change:
    return lambda _: lambda *_, **__: value


def _instead(function: object) -> Change:
    return lambda _: function


@dataclass(frozen=True)
class Break:
    """A fault of the product, and a world in which it shows."""

    changes: tuple[tuple[Any, str, Change], ...]
    settings: WorldSettings = SMALL


BREAKS = {
    "S1: the pilot of lease": Break(((draft, "whole_minutes", _always(7200.0)),)),
    "S1b": Break(
        (
            (membership, "_left_to", _instead(lambda planned, _: planned)),
            (membership, "counted_on", _always(frozenset())),
        ),
        replace(SMALL, hours=1.0),
    ),
    "S2: the pilot of lease": Break(
        ((PilotManager, "_revoke", _always(None)), (Draft, "cancel_pilot", _always(None))),
    ),
    "S3: a restarted daemon knows nothing": Break(((Ledger, "load", _no_leases),), _struck("daemon")),
    "S4: lease": Break(((Draft, "grant", _one_number),)),
    "S5: pilot": Break(((comment, "make", lambda make: lambda id_, lease, daemon="": make(id_, f"{lease}0", daemon)),)),
    "S6": Break(((planning, "_solved", _plan_of_one_node),)),
    "S7": Break(((comment, "make", lambda make: lambda _, lease, daemon="": make("9000001", lease, daemon)),)),
    "S8": Break(((Draft, "budget", _instead(property(lambda self: 10))),)),
    "S9": Break(((draft, "growth_allowed", _always(True)),), _struck("slurmctld", "driver")),
    "L1": Break(((draft, "is_silent", _always(True)),)),
    "L2": Break(((planning, "_kept", _instead(_none_kept)),), _struck("solver")),
    "L3: pilot": Break(
        ((PilotStarter, "cancel", _instead(_nothing)), (Canceller, "ask", _always(None))), _struck("agent")
    ),
    "L4": Break(((execution, "_grantable", _one_node),)),
    "success": Break(((blame, "TRIES", _instead(1)),), _struck("script")),
    "blame": Break(
        ((FailurePolicy, "_log_crash", _instead(_blames_another)),),
        replace(SMALL, hours=0.1, trainers=1, faults=("worker",), apart_s=20.0),
    ),
    "torn: a planned change": Break(((FailurePolicy, "save_checkpoint", _instead(_nothing)),)),
    "orphans": Break(((files, "remove", _always(None)),)),
    "memory": Break(((DaemonLink, "report", _kept),)),
    "alarms": Break(((Draft, "revoke", _alarmed),)),
}


@pytest.mark.parametrize("rule", BREAKS)
def test_a_fault_of_the_product_breaks_its_rule(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = BREAKS[rule]
    for owner, name, change in fault.changes:
        monkeypatch.setattr(owner, name, change(getattr(owner, name)))
    if rule == "S8":
        monkeypatch.setattr(site, "Config", lambda: Config(slurm=SlurmConfig(submit_rate_per_min=1)))
    courses = (world.run(replace(fault.settings, seed=seed)).violation for seed in SEEDS)
    assert next(filter(None, courses), "no rule breaks").startswith(rule)


# -- what scripts come to ---


def _ended(training: Training, outcome: tuple[int, str] | None, step: int = 0) -> Ended:
    return Ended("1", training, outcome, step, 0)


def test_success_of_a_group_that_has_not_trained_to_the_end_is_found() -> None:
    training = Training(10, 1.0, Random(1))
    group = training.group("secret", 1, world=2)
    group.ended_well(0)
    assert [*ends.outcomes([_ended(training, (0, "complete"), 10)])]
    group.ended_well(1)
    assert not [*ends.outcomes([_ended(training, (0, "complete"), 10)])]
    assert [*ends.outcomes([_ended(training, (0, "complete"), 9)])], "the driver counts a step too few"


def test_a_script_is_at_fault_only_after_three_failures() -> None:
    training = Training(10, 1.0, Random(1))
    training.fails("n1.1")
    training.fails("n1.1")
    assert [*ends.outcomes([_ended(training, (1, "the script failed"))])]
    training.fails("n2.2")
    assert not [*ends.outcomes([_ended(training, (1, "the script failed"))])]


def test_a_fault_of_a_script_strikes_one_rank_as_often_as_it_has_to() -> None:
    training = Training(10, 1.0, Random(1), faults=[ScriptFault(3, rank=5, way="error", times=1)])
    assert training.fault_of(rank=0, world=2, step=3) == ""
    assert training.fault_of(rank=1, world=2, step=3) == "error"
    assert training.fault_of(rank=1, world=2, step=3) == ""


def test_only_a_part_of_a_group_that_saves_is_found() -> None:
    training = Training(10, 1.0, Random(1))
    group = training.group("secret", 1, world=2)
    group.saves(3, True)
    assert not training.wrong
    group.saves(3, False)
    assert training.wrong[0].startswith("torn")


@pytest.mark.parametrize(("stored", "content"), [(3, 3), (4, 5)])
def test_a_checkpoint_that_is_acknowledged_and_not_stored_as_it_was_saved_is_found(
    tmp_path: Path, stored: int, content: int
) -> None:
    training = Training(10, 1.0, Random(1))
    training.resumes(tmp_path, -1)
    path = tmp_path / CheckpointFile(4, 4 * BATCH, len(content_of(4)), "a" * 64).name
    path.write_bytes(content_of(4))
    training.kept(4)
    assert not training.wrong
    path.rename(tmp_path / CheckpointFile(stored, stored * BATCH, len(content_of(4)), "a" * 64).name)
    next(tmp_path.iterdir()).write_bytes(content_of(content))
    training.kept(4)
    assert training.wrong[0].startswith("torn")


def test_a_checkpoint_that_was_kept_is_the_least_that_workers_begin_with() -> None:
    training = Training(10, 1.0, Random(1))
    training.saves(4)
    training.kept(4)
    training.loaded(b"")
    assert training.wrong[0].startswith("torn")


# -- what it costs others ---


def _run(number: int, wait_s: float) -> JobRun:
    job = SimulatedJob(number, 0.0, 10.0, 60.0, Component(1, 1))
    return JobRun(job, 1, wait_s, wait_s, wait_s + 10.0)


def test_regular_jobs_that_wait_longer_than_without_bftd_are_found() -> None:
    without = [_run(number, 10.0) for number in range(200)]
    assert not [*ends.delays([_run(number, 5.0 + number % 20) for number in range(200)], without)]
    assert not [*ends.delays([_run(0, 3000.0), *without[1:]], without)], "one job lost its place by chance"
    assert [*ends.delays([_run(number, 80.0) for number in range(200)], without)]
    assert [*ends.delays([_run(0, inf), *without[1:]], without)]


def test_files_that_grow_faster_than_a_ledger_does_are_found(tmp_path: Path) -> None:
    with (tmp_path / "ledger.sqlite").open("wb") as file:
        file.truncate(100_000_000)
    assert not [*bounds.files(tmp_path, hours=4.0, trainers=1)]
    assert [*bounds.files(tmp_path, hours=1.0, trainers=1)]


def test_items_are_counted_wherever_an_object_of_ours_keeps_them() -> None:
    link = DaemonLink("/run/x", Mock(), Mock(), Mock(), print)
    before = bounds.items_of(link)
    link._reports.extend([Mock()] * 100)
    assert bounds.items_of(link) == before + 100
