"""An unmodified script on a real cluster: its printed steps are its progress, and a resize has its price."""

from __future__ import annotations

import pytest

from bftd.protocol.reports import NoteReport, ProgressReport, ResizeReport
from tests.elastic.cluster import TrainerJob

pytestmark = [pytest.mark.cluster, pytest.mark.torch]


def test_a_script_that_knows_nothing_of_bftd_has_a_speed_and_goes_on_from_its_own_checkpoint(
    trainer: TrainerJob,
) -> None:
    progress = r'step (?P<step>[\d,]+) of .*"?: loss (?P<loss>\S+)'
    trainer.submit("unmodified.py", backend="torchrun", progress=progress)
    trainer.daemon.grant("n1")
    trainer.wait("its speed is known", lambda: speed(trainer, nodes=1))
    assert trainer.state("n1") == "working"
    trainer.daemon.grant("n2")
    [resize] = trainer.wait("the resize is told", lambda: trainer.daemon.of(ResizeReport))
    assert (resize.from_nodes, resize.to_nodes, resize.kind) == (1, 2, "up")
    assert 0 <= resize.steps_lost <= 40
    assert resize.stall_s > 0
    trainer.wait("its speed on two nodes is known", lambda: speed(trainer, nodes=2))
    last = trainer.daemon.of(ProgressReport)[-1]
    assert (last.world_size, last.steps_lost) == (2, resize.steps_lost)
    assert last.loss == pytest.approx(100 / last.step, abs=1.0)
    trainer.wait("n2 works", lambda: trainer.state("n2") == "working")
    assert trainer.daemon.of(NoteReport) == []


def speed(trainer: TrainerJob, nodes: int) -> float:
    """The last speed that was told on so many nodes."""
    told = [report.samples_per_s for report in trainer.daemon.of(ProgressReport) if report.nodes == nodes]
    return told[-1] if told else 0.0
