"""A training with elastic.batches: the same samples in the same steps, and the same losses, whatever the nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from bftd.protocol.reports import SuspendReport
from tests.elastic.cluster import SCRIPTS, TrainerJob

pytestmark = pytest.mark.cluster
STEP_TIME_S = 0.05
# What is granted and taken, one after the other, with some steps between; three times nothing is left.
WAYS = (
    ("+", "n1"),
    ("+", "n2"),
    ("+", "n3", "n4"),
    ("-", "n1"),
    ("-", "n2", "n3", "n4"),
    ("+", "n3", "n1"),
    ("+", "n2"),
    ("-", "n3"),
    ("-", "n1", "n2"),
    ("+", "n4"),
    ("+", "n3"),
    ("-", "n4"),
    ("-", "n3"),
    ("+", "n1", "n2", "n3"),
    ("-", "n2"),
    ("+", "n4"),
    ("-", "n1"),
)

# By step: the samples of all workers, the loss, how many workers there were, and a digest of what was trained.
Rows = dict[int, tuple[list[int], float, int, str]]


def read(folder: Path, log: str) -> Rows:
    """What the workers wrote; of a last step that not all of them came to the end of, nothing."""
    by_step: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for file in sorted(folder.glob(f"{log}.*")):
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                row = json.loads(line)
                by_step[row["step"]].append(row)
    found = {}
    for step, rows in by_step.items():
        size = rows[0]["size"]
        assert len(rows) <= size, f"step {step} was done twice"
        if len(rows) < size:
            assert step == max(by_step), f"step {step} was not done by all"
            continue
        samples = sorted(sample for row in rows for sample in row["samples"])
        found[step] = samples, rows[0]["loss"], size, rows[0].get("weights", "")
    return found


def alone(folder: Path, script: str, steps: int) -> Rows:
    """The same training by one worker, outside bftd."""
    environ = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    argv = [sys.executable, str(SCRIPTS / script), str(steps), "0", "alone"]
    subprocess.run(argv, env=environ, cwd=folder, check=True, capture_output=True)
    return read(folder, "alone")


def last_of(folder: Path, log: str) -> tuple[int, int]:
    """The last step that rank 0 has done, -1 before the first, and on how many workers; the others may be behind."""
    file = folder / f"{log}.0"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    return (rows[-1]["step"], rows[-1]["size"]) if rows else (-1, 0)


@pytest.mark.parametrize(
    ("backend", "ways", "suspensions"),
    [
        pytest.param("torchrun", WAYS, 3, marks=pytest.mark.torch),
        pytest.param("horovod", WAYS[:6], 1, marks=pytest.mark.horovod),
    ],
)
def test_a_training_sees_the_same_samples_and_losses_with_ten_resizes_and_three_suspensions_as_on_one_node(
    trainer: TrainerJob, backend: str, ways: tuple[tuple[str, ...], ...], suspensions: int
) -> None:
    trainer.submit(f"same_{backend}.py", 1_000_000, STEP_TIME_S, "seen", backend=backend)
    nodes: set[str] = set()
    for sign, *some in ways:
        if sign == "+":
            trainer.daemon.grant(*some)
            nodes |= set(some)
        else:
            trainer.daemon.revoke(*some)
            nodes -= set(some)
        if nodes:
            step, size = last_of(trainer.folder, "seen")[0] + 8, len(nodes)

            def trained(step: int = step, size: int = size) -> bool:
                last, workers = last_of(trainer.folder, "seen")
                return last >= step and workers == size

            trainer.wait(f"step {step} on {size} nodes", trained, lambda: last_of(trainer.folder, "seen"))
        else:
            trainer.wait("suspended", lambda some=some: all(trainer.state(node) == "ended" for node in some))
    trainer.cancel()
    trainer.ended()
    seen = read(trainer.folder, "seen")
    assert len(trainer.daemon.of(SuspendReport)) >= suspensions
    assert sorted(seen) == list(range(len(seen))), "no step is left out"
    reference = alone(trainer.folder, f"same_{backend}.py", len(seen))
    assert {step: row[0] for step, row in seen.items()} == {step: row[0] for step, row in reference.items()}
    assert [step for step, row in seen.items() if row[3] != reference[step][3]] == [], "weights to the last bit"
    assert {step: row[1] for step, row in seen.items()} == pytest.approx(
        {step: row[1] for step, row in reference.items()}, rel=1e-5
    )
