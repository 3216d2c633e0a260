"""Pilots that ask for a part of their nodes on a real cluster: real workers, real regular jobs beside them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bftd.protocol.reports import NoteReport
from slurm_plugin.sandbox import Sandbox
from tests.elastic.cluster import TrainerJob

pytestmark = [pytest.mark.cluster, pytest.mark.torch]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(nodes=2, tuned=True, cpus_per_node=2, shared=True) as cluster:
        yield cluster


def test_workers_are_kept_to_their_part_and_a_regular_job_runs_beside_them(trainer: TrainerJob) -> None:
    trainer.count("torchrun", "n1", "n2", spec="1-2,share=1:1500M")
    alone = {len(worker.cpu_affinity()) for node in ("n1", "n2") for worker in trainer.workers(node)}
    assert alone == {1}
    before = trainer.rows[-1]["step"]
    argv = ["srun", "-p", "batch", "-w", "n1", "-n1", "-c1", "--mem=500M", "nproc"]
    assert trainer.slurm(*argv) == "1"
    assert trainer.slurm("squeue", "-h", "-p", "elastic", "-o", "%C %m %h") == "1 1500M OK\n1 1500M OK"
    trainer.trains_on(2)
    assert trainer.rows[-1]["step"] > before
    assert trainer.again == 0
    assert "pilots ask for 1 CPU and 1.46 GiB of a node (share=1:1500M)" in trainer.output
    assert [note.text for note in trainer.daemon.of(NoteReport) if "pilots ask" in note.text]


def test_a_part_that_is_too_small_is_told_and_whole_nodes_are_asked_for(trainer: TrainerJob) -> None:
    trainer.submit("count_torchrun.py", 1_000_000, 0.03, 5, backend="torchrun", spec="1-1,share=1:120M")
    trainer.daemon.grant("n1")
    trainer.wait("told", lambda: "ended for want of memory: its pilot has 1 CPU and 120 MiB" in trainer.output)
    trainer.wait("given back", lambda: trainer.state("n1") == "ended")
    trainer.daemon.grant("n2")
    trainer.trains_on(1)
    assert trainer.slurm("squeue", "-h", "-p", "elastic", "-o", "%C %N") == "2 n2"
