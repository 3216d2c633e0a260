"""The daemon and drivers in one simulated process: nothing in it is left to chance, and a broken rule is found."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from bftd.simulation.world import world
from bftd.simulation.world.machine.loop import Forbidden, SimulatedLoop, simulated
from bftd.simulation.world.machine.network import End
from bftd.simulation.world.machine.processes import Process
from bftd.simulation.world.machine.sockets import NetworkLoop
from bftd.simulation.world.world import WorldSettings
from elastic.driver.progress.reports import TrainerProgress

pytestmark = pytest.mark.slow

SMALL = WorldSettings(seed=5, hours=0.1, nodes=3, trainers=2, steps=60)


def test_a_world_runs_to_its_end_and_every_step_is_counted_once() -> None:
    result = world.run(SMALL)
    assert not result.violation
    assert sum("has finished with exit code 0" in line for line in result.log) == SMALL.trainers
    assert any("is preempted on" in line or "left" in line for line in result.log), "regular jobs take nodes"


def test_another_seed_gives_another_course() -> None:
    other = WorldSettings(seed=6, hours=SMALL.hours, nodes=SMALL.nodes, trainers=SMALL.trainers, steps=SMALL.steps)
    assert world.run(SMALL).digest != world.run(other).digest


def test_S10_a_driver_that_counts_steps_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = TrainerProgress.saved
    monkeypatch.setattr(TrainerProgress, "saved", lambda self, step, samples: saved(self, 2 * step, 2 * samples))
    assert world.run(SMALL).violation.startswith("S10")


@pytest.mark.parametrize(
    "escape",
    [
        lambda: socket.socket(),
        lambda: threading.Thread().start(),
        lambda: subprocess.run(["true"]),
        lambda: time.sleep(1),
    ],
)
def test_what_leaves_the_simulation_is_refused_at_once(escape: Callable[[], Any]) -> None:
    with simulated(SimulatedLoop(Random(1))), pytest.raises(Forbidden):
        escape()


@pytest.mark.parametrize(("timeout_s", "heard"), [(None, b"before meanwhile after"), (5.0, b"before ")])
def test_what_a_cut_has_held_back_comes_after_it_unless_the_connection_has_timed_out(
    timeout_s: float | None, heard: bytes
) -> None:
    loop, theirs = NetworkLoop(Random(1)), list[End]()

    async def talk(cut: frozenset[str]) -> None:
        end = await loop.network.connect(("b", 1))
        end.timeout_s = timeout_s
        end.send(b"before ")
        await asyncio.sleep(1.0)
        loop.network.cuts.add(cut)
        end.send(b"meanwhile ")
        await asyncio.sleep(10.0)
        assert theirs[0].arrived == b"before "
        loop.network.cuts.discard(cut)
        end.send(b"after")
        await asyncio.sleep(20.0)
        assert theirs[0].arrived == heard
        assert (end.error is None) == (timeout_s is None)

    async def main() -> None:
        Process("server", "b").run(loop.network.listen, ("b", 1), theirs.append)
        await Process("client", "a").start(talk, frozenset({"a", "b"}))

    with simulated(loop):
        loop.run_until_complete(main())
        loop.shut()
