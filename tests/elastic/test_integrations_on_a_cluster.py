"""A real Hugging Face Trainer on a real cluster: resized, suspended and resumed, the same samples in the same steps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bftd.protocol.reports import CrashReport, ProgressReport, SuspendReport
from tests.elastic.cluster import SCRIPTS, TrainerJob
from tests.elastic.test_same_training_on_a_cluster import Rows, last_of, read

pytestmark = [pytest.mark.cluster, pytest.mark.torch, pytest.mark.frameworks]


def alone(folder: Path, steps: int) -> Rows:
    """The same training by one worker, outside bftd."""
    environ = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    environ |= {"MASTER_PORT": "0", "PYTHONPATH": str(Path(__file__).parents[2])}
    argv = [sys.executable, str(SCRIPTS / "hugging_face.py"), str(steps), "0", "alone"]
    subprocess.run(argv, env=environ, cwd=folder, check=True, capture_output=True)
    return read(folder, "alone")


def test_a_hugging_face_trainer_is_resized_and_suspended_and_sees_the_same_samples_as_on_one_node(
    trainer: TrainerJob,
) -> None:
    steps = 1000

    def trained(size: int) -> None:
        first: list[int] = []

        def seen() -> bool:
            last, workers = last_of(trainer.folder, "seen")
            if workers == size and not first:
                first.append(last)  # a step that its workers have not counted yet may be done again
            return workers == size and last >= first[0] + 3

        trainer.wait(f"three steps of {size} workers", seen)

    trainer.submit("hugging_face.py", steps, 0.05, "seen", "shared", backend="torchrun")
    trainer.daemon.grant("n1")
    trained(1)
    trainer.daemon.grant("n2", "n3")
    trained(3)
    trainer.daemon.revoke("n1", "n2", "n3")
    trainer.wait("suspended", lambda: trainer.daemon.of(SuspendReport))
    trainer.wait("all given back", lambda: all(trainer.state(node) == "ended" for node in ("n1", "n2", "n3")))
    shared = trainer.folder / "checkpoints" / "_elastic"
    assert not list(shared.glob("*/*.part")), "who was to leave has written his"
    assert len(list(shared.glob("*/step-*"))) in (2, 3)
    trainer.daemon.grant("n4", "n2")
    trained(2)
    trainer.cancel()
    trainer.ended()
    seen = read(trainer.folder, "seen")  # nothing was done twice
    assert sorted(seen) == list(range(len(seen))), "no step is left out"
    assert {row[2] for row in seen.values()} == {1, 2, 3}
    assert trainer.daemon.of(CrashReport) == []
    last = trainer.daemon.of(ProgressReport)[-1]
    assert last.samples == last.step * 12
    own = set((trainer.folder / "checkpoints").glob("*")) - {shared}
    assert not own, "what bftd asked for is none of the script's own"
    reference = alone(trainer.folder, len(seen))
    assert {step: row[0] for step, row in seen.items()} == {step: row[0] for step, row in reference.items()}
    # Summed weights: Adam's steps follow the last digits of gradients that are summed in another order.
    assert {step: row[1] for step, row in seen.items()} == pytest.approx(
        {step: row[1] for step, row in reference.items()}, rel=1e-4
    )
