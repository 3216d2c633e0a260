"""Scripts with the mistakes that scripts have: each is told in a line and is no success, or comes out right."""

from __future__ import annotations

import pytest

from bftd.protocol.reports import CrashReport
from tests.elastic.cluster import TrainerJob
from tests.support.messages import says

pytestmark = [pytest.mark.cluster, pytest.mark.torch]


def test_a_script_that_does_not_count_its_steps_is_refused_at_the_first(trainer: TrainerJob) -> None:
    trainer.submit("careless.py", "counts_nothing", backend="torchrun")
    trainer.daemon.grant("n1", "n2")
    state, code = trainer.ended()
    assert (state, code) != ("COMPLETED", 0)
    assert says(trainer.output, "elastic.sampling.not_counted", calls=0, number=0)


def test_a_rank_0_that_ends_early_is_no_success_and_no_nodes_fault(trainer: TrainerJob) -> None:
    trainer.submit("careless.py", "ends_early", backend="torchrun")
    trainer.daemon.grant("n1", "n2")
    assert trainer.ended()[0] == "FAILED"
    assert says(trainer.output, "elastic.policy.all_have_to_end")
    assert "training is complete" not in trainer.output
    assert not trainer.daemon.of(CrashReport)
