"""Pilots that ask for a part of their nodes on a real cluster: real workers, real regular jobs beside them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftd.protocol.reports import NoteReport, ProgressReport
from sizing.cpu import needs
from sizing.cpu.needs import StoredNeed
from slurm_plugin.sandbox import Sandbox
from tests.elastic.cluster import SCRIPTS, TrainerJob
from tests.support.clusters import Clusters
from tests.support.messages import says, wording

pytestmark = [pytest.mark.cluster, pytest.mark.torch]


@pytest.fixture(scope="module")
def sandbox(clusters: Clusters) -> Iterator[Sandbox]:
    with clusters.lend(nodes=2, tuned=True, cpus_per_node=2, shared=True) as cluster:
        yield cluster


def test_workers_are_kept_to_their_part_and_a_regular_job_runs_beside_them(trainer: TrainerJob) -> None:
    trainer.count("torchrun", "n1", "n2", spec="1-2,share=1:1500M")
    alone = {len(worker.cpu_affinity()) for node in ("n1", "n2") for worker in trainer.workers(node)}
    assert alone == {1}
    before = trainer.rows[-1]["step"]
    argv = ["srun", "-p", "batch", "-w", "n1", "-n1", "-c1", "--mem=500M", "nproc"]
    assert trainer.slurm(*argv) == "1"
    pilots = trainer.slurm("squeue", "-h", "-p", "elastic", "-o", "%C %m %h").splitlines()
    # 26.05 shows the partition's OverSubscribe=NO, older releases OK
    assert [pilot.rpartition(" ")[0] for pilot in pilots] == ["1 1500M", "1 1500M"]
    assert not any("EXCLUSIVE" in pilot for pilot in pilots)
    trainer.trains_on(2)
    assert trainer.rows[-1]["step"] > before
    assert trainer.again == 0
    assert says(trainer.output, "elastic.shares.part_of_node", part="1 CPU and 1.46 GiB", whose="share=1:1500M")
    assert [note.text for note in trainer.daemon.of(NoteReport) if "pilots ask" in note.text]


def test_a_part_that_is_too_small_is_told_and_whole_nodes_are_asked_for(trainer: TrainerJob) -> None:
    trainer.submit("count_torchrun.py", 1_000_000, 0.03, 5, backend="torchrun", spec="1-1,share=1:120M")
    trainer.daemon.grant("n1")
    trainer.wait("told", lambda: says(trainer.output, "elastic.shares.out_of_memory", part="1 CPU and 120 MiB"))
    trainer.wait("given back", lambda: trainer.state("n1") == "ended")
    trainer.daemon.grant("n2")
    trainer.trains_on(1)
    assert trainer.slurm("squeue", "-h", "-p", "elastic", "-o", "%C %N") == "2 n2"


def test_what_was_profiled_is_asked_for_once_the_checkpoint_is_known(
    trainer: TrainerJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = ("python", "count_torchrun.py", "1000000", "0.03", "5")
    assert needs.keep(words, SCRIPTS, StoredNeed(1, 600 * 2**20, 0, "here", time.time())) == ""
    trainer.count("torchrun", "n1", spec="1-2")
    against = wording("slurm_plugin.sharing.no_larger", cpus=2, memory_bytes=4000)
    assert says(trainer.output, "elastic.shares.whole_nodes", node="n1", against=against)
    # The driver knows it a moment after the file is there.
    reports = trainer.daemon.of
    trainer.wait("the checkpoint's size is told", lambda: any(told.state_bytes for told in reports(ProgressReport)))
    trainer.daemon.grant("n2")
    trainer.trains_on(2)
    whose = wording("elastic.profiled.found", text="here", old_s="today")
    assert says(trainer.output, "elastic.shares.part_of_node", part="1 CPU and 1.09 GiB", whose=whose)
    assert sorted(trainer.slurm("squeue", "-h", "-p", "elastic", "-o", "%N %C").splitlines()) == ["n1 2", "n2 1"]
