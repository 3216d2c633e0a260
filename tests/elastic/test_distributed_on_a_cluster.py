"""Distributed checkpoints on a real cluster: suspended, damaged, resumed elsewhere and by another job, kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from bftd.protocol.reports import SuspendReport
from tests.elastic.cluster import TrainerJob
from tests.support.messages import fragment, says

pytestmark = [pytest.mark.cluster, pytest.mark.torch]

BFT = Path(sys.executable).parent / "bft"


def checkpoints(trainer: TrainerJob) -> list[dict[str, Any]]:
    """What `bft checkpoints ls` shows of this job."""
    said = subprocess.run(
        [BFT, "checkpoints", "ls", "--json"], env=trainer.env(), capture_output=True, text=True, check=True
    )
    return [state for state in json.loads(said.stdout)["checkpoints"] if state["id"] == trainer.job_id]


def count(trainer: TrainerJob, *nodes: str, **fields: Any) -> None:
    trainer.count("torchrun", *nodes, script="count_distributed.py", **fields)


def suspended(trainer: TrainerJob, *nodes: str) -> int:
    """Takes the nodes; the step that the trainer was suspended at."""
    before = len(trainer.daemon.of(SuspendReport))
    trainer.daemon.revoke(*nodes)
    trainer.wait("suspended", lambda: len(trainer.daemon.of(SuspendReport)) > before)
    trainer.wait("given back", lambda: all(trainer.state(node) == "ended" for node in nodes))
    return trainer.daemon.of(SuspendReport)[-1].step


def test_a_trainer_goes_on_from_its_versions_and_from_the_one_before_when_a_shard_is_gone(
    trainer: TrainerJob,
) -> None:
    count(trainer, "n1", "n2")
    last = suspended(trainer, "n1", "n2")
    assert last == trainer.rows[-1]["step"], trainer.output
    trainer.daemon.grant("n3")
    trainer.trains_on(1)
    assert trainer.again == 0, "nothing was lost"
    [shown] = checkpoints(trainer)
    home = Path(shown["distributed_folder"])
    last = suspended(trainer, "n3")
    first, second = sorted(home.iterdir())
    assert second.name.startswith(f"step-{last:012d}-")
    [shown] = checkpoints(trainer)
    assert (shown["step"], shown["state"], shown["set_aside"]) == (last, "running", 0)
    (second / "rank0").unlink()
    trainer.daemon.grant("n4")
    trainer.trains_on(1)
    before = int(first.name.split("-")[1])
    missing = fragment("rank0 is missing or altered")
    assert says(trainer.output, "elastic.versions.not_used", step=last, why=missing, on=before)
    trainer.wait("the lost steps are done again", lambda: trainer.again >= last - before)
    assert second.exists(), "what is not whole is kept"
    trainer.cancel()
    trainer.ended()
    [shown] = checkpoints(trainer)
    assert (shown["state"], shown["set_aside"]) == ("stopped", 1)


def test_a_new_job_resumes_from_anothers_version_whose_files_stay_when_that_is_removed(trainer: TrainerJob) -> None:
    count(trainer, "n1", "n2")
    trainer.wait("a version", lambda: checkpoints(trainer) and checkpoints(trainer)[0]["step"])
    trainer.cancel()
    trainer.ended()
    [shown] = checkpoints(trainer)
    first, step = trainer.job_id, shown["step"]
    done = len(trainer.rows)
    count(trainer, "n3", spec=f"1-4,resume={first}", steps=step + 40)
    subprocess.run([BFT, "checkpoints", "rm", first], env=trainer.env(), check=True, capture_output=True)
    assert trainer.rows[done]["step"] == step + 1
    assert trainer.ended() == ("COMPLETED", 0)
    [shown] = checkpoints(trainer)
    assert shown["state"] == "ended"
    assert [path.name.split("-")[1] for path in Path(shown["distributed_folder"]).iterdir()] == [f"{step + 40:012d}"]


@pytest.mark.skipif(find_spec("elastic.node.shared_folder") is None, reason="this tree's agents write no probe")
def test_a_path_of_the_users_holds_the_versions_until_bft_checkpoints_removes_them(trainer: TrainerJob) -> None:
    path = trainer.folder / "lustre"
    count(trainer, "n1", "n2", spec=f"1-4,state={path}")
    trainer.wait("a version", lambda: checkpoints(trainer) and checkpoints(trainer)[0]["step"])
    trainer.cancel()
    trainer.ended()
    [shown] = checkpoints(trainer)
    [home] = path.iterdir()
    assert shown["distributed_folder"] == str(home)
    assert os.stat(home).st_mode & 0o777 == 0o700
    assert all(entry.name.startswith("step-") for entry in home.iterdir())
    subprocess.run([BFT, "checkpoints", "rm", trainer.job_id], env=trainer.env(), check=True, capture_output=True)
    assert list(path.iterdir()) == []
    assert checkpoints(trainer) == []
