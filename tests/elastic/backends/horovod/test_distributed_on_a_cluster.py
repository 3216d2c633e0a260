"""A Horovod trainer with `state=PATH` on a real cluster: nothing of its checkpoint passes the driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from bftd.protocol.reports import CrashReport, SuspendReport
from tests.elastic.cluster import TrainerJob

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.horovod]


def steps_of(home: Path) -> list[int]:
    """The steps of the checkpoint versions below a path."""
    return sorted(int(path.name.split("-")[1]) for path in home.glob("bft-*/step-*"))


def test_a_horovod_trainer_with_a_state_path_is_suspended_and_goes_on_elsewhere_without_losing_a_step(
    trainer: TrainerJob,
) -> None:
    path = trainer.folder / "lustre"
    path.mkdir(mode=0o700)
    trainer.count("horovod", "n1", "n2", spec=f"1-4,state={path}")
    trainer.wait("a version of its own accord", lambda: steps_of(path))
    trainer.daemon.revoke("n1", "n2")
    [suspended] = trainer.wait("suspended", lambda: trainer.daemon.of(SuspendReport))
    trainer.wait("all given back", lambda: trainer.state("n1") == trainer.state("n2") == "ended")
    assert suspended.step == trainer.rows[-1]["step"] == steps_of(path)[-1]
    trainer.daemon.grant("n3", "n4")
    trainer.trains_on(2)
    leader = trainer.rows[-1]["node"]
    other = {"n3": "n4", "n4": "n3"}[leader]
    trainer.daemon.revoke(leader)
    trainer.trains_on(1)
    reached = trainer.rows[-1]["step"]
    trainer.wait("a version of the new rank 0", lambda: steps_of(path)[-1] > reached)
    trainer.daemon.revoke(other)
    trainer.wait("suspended again", lambda: len(trainer.daemon.of(SuspendReport)) == 2)
    assert trainer.daemon.of(SuspendReport)[-1].step == trainer.rows[-1]["step"]
    trainer.daemon.grant("n2")
    trainer.trains_on(1)
    trainer.cancel()
    trainer.ended()
    rows = trainer.rows
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert [row["weight"] for row in rows] == [float(row["step"]) for row in rows]
    assert trainer.daemon.of(CrashReport) == []
    assert trainer.checkpoints() == []
    assert len(steps_of(path)) <= 4, "two are kept, beside one that is written and one that goes"
