"""Nodes and workers that go silent without an end, on a real cluster: nothing of them closes a connection or exits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psutil
import pytest

from bftd.protocol.reports import CrashReport, LeaseReport
from tests.elastic.cluster import TrainerJob
from tests.support.messages import wording

pytestmark = pytest.mark.cluster


@contextlib.contextmanager
def stopped(trainer: TrainerJob, node: str) -> Iterator[None]:
    """Stops all that runs on a node for the trainer, as if the node had lost its power; slurmd alone goes on."""
    found = []
    for process in trainer.processes():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("SLURMD_NODENAME") == node and "elastic.node" in " ".join(process.cmdline()):
                found += [process, *process.parents()]
    steps = {process for process in found if process.name().startswith("slurmstepd")}
    pilots = {process for process in found if "elastic.node" in " ".join(process.cmdline())}
    assert steps
    assert len(pilots) >= 3
    for process in (*steps, *pilots):
        process.suspend()
    try:
        yield
    finally:
        for process in (*pilots, *steps):
            with contextlib.suppress(psutil.Error):
                process.resume()


@pytest.mark.horovod
def test_a_node_that_is_stopped_whole_is_replaced_and_its_lease_ends_as_a_crash(trainer: TrainerJob) -> None:
    # n3 is warm, and waits: the trainer may use two.
    trainer.count("horovod", "n1", "n2", spec="1-2")
    trainer.daemon.grant("n3")
    trainer.wait("n3 is warm", lambda: trainer.state("n3") == "ready")
    # Rank 0's node: Horovod itself has things to ask of that one.
    lost = trainer.rows[-1]["node"]
    with stopped(trainer, lost):
        trainer.wait("n3 trains", lambda: trainer.state("n3") == "working")
        trainer.trains_on(2)
        # The driver noticed: Slurm takes 300 s and TCP 15 min, and a wait ends where nothing moves for far less.
        [crash] = trainer.daemon.of(CrashReport)
        assert (crash.node, crash.text) == (lost, wording("elastic.liveness.node_silent", node=lost, DRIVER_LOST_S=5))
        [ended] = trainer.wait("its lease is over", lambda: trainer.daemon.of(LeaseReport, state="ended"))
        assert ended.id.startswith(f"{lost}.")
        assert ended.reason == crash.text
    assert trainer.output.count(wording("elastic.pilot_manager.given_back_because", why=crash.text)) == 1


@pytest.mark.torch
def test_regression_a_torchrun_worker_that_was_stopped_hung_all_others_for_ever(trainer: TrainerJob) -> None:
    trainer.count("torchrun", "n1", "n2", spec="1-2,frozen=5")
    [frozen] = trainer.workers("n2")
    frozen.suspend()
    trainer.crashed(1)
    trainer.trains_on(2)
    [crash] = trainer.daemon.of(CrashReport)
    assert (crash.node, crash.rc) == ("n2", -9)
    assert trainer.output.count("it is stopped; it is ended") == 1
    assert not frozen.is_running()
    assert trainer.state("n1") == trainer.state("n2") == "working"
