"""Both back-ends on a real cluster: real pilots, real workers, real regular jobs."""

from __future__ import annotations

import re
import signal
import sys
import venv
from collections import Counter
from itertools import groupby
from pathlib import Path

import psutil
import pytest

from bftd.protocol.reports import CrashReport, LeaseReport, ProgressReport, ResizeReport, ResumeReport, SuspendReport
from tests.elastic.cluster import EVERY, SCRIPTS, TrainerJob
from tests.support.messages import says, wording

pytestmark = pytest.mark.cluster
HOROVOD = pytest.param("horovod", marks=pytest.mark.horovod)
TORCHRUN = pytest.param("torchrun", marks=pytest.mark.torch)
both = pytest.mark.parametrize("backend", [HOROVOD, TORCHRUN])


def assert_checkpoint_is_whole(trainer: TrainerJob) -> None:
    """The weight always was what so many steps make it: no state was mixed, lost or applied twice."""
    rows = trainer.rows  # read once: training goes on
    assert rows
    assert [row["weight"] for row in rows] == [float(row["step"]) for row in rows]


def assert_no_gap(trainer: TrainerJob) -> None:
    steps = {row["step"] for row in trainer.rows}
    assert steps == set(range(1, max(steps) + 1))


def assert_no_secret_is_shown(trainer: TrainerJob, node: str) -> None:
    """Workers get nothing of the driver's job, and no command line tells the secret."""
    [worker] = trainer.workers(node)
    environ = worker.environ()
    assert environ["SLURM_JOB_ID"] != trainer.job_id
    assert environ["SLURM_JOB_PARTITION"] == "elastic"
    assert environ["SLURM_JOB_NODELIST"] == node
    assert not {name for name in environ if name.startswith(("SBATCH_", "SALLOC_", "SQUEUE_"))}
    # The driver's job asks for three CPUs a task: left in the environment, srun would take it for an option.
    assert environ.get("SLURM_CPUS_PER_TASK") != "3"
    secret = environ["BFT_SECRET"]
    assert len(secret) >= 32
    processes = trainer.processes()
    assert len(processes) >= 4
    assert not [process for process in processes if secret in " ".join(process.cmdline())]
    assert secret not in trainer.output


@both
def test_a_trainer_grows_shrinks_falls_to_zero_and_resumes_elsewhere_without_losing_a_step(
    trainer: TrainerJob, backend: str
) -> None:
    trainer.count(backend, "n1")
    assert_no_secret_is_shown(trainer, "n1")
    trainer.daemon.grant("n2", "n3")
    trainer.trains_on(3)
    # n1 holds rank 0.
    trainer.daemon.revoke("n1")
    trainer.trains_on(2)
    trainer.wait("n1 is given back", lambda: trainer.state("n1") == "ended")
    trainer.daemon.revoke("n2", "n3")
    [suspended] = trainer.wait("suspended", lambda: trainer.daemon.of(SuspendReport))
    trainer.wait("all given back", lambda: trainer.state("n2") == trainer.state("n3") == "ended")
    last = trainer.rows[-1]["step"]
    assert suspended.step == last
    trainer.daemon.grant("n4")
    trainer.trains_on(1)
    assert [row["node"] for row in trainer.rows if row["step"] == last + 1] == ["n4"]
    assert trainer.daemon.of(ResumeReport)
    assert trainer.again == 0
    assert_no_gap(trainer)
    assert_checkpoint_is_whole(trainer)
    # Horovod ends the workers that it removed by SIGABRT: that is success.
    assert trainer.daemon.of(CrashReport) == []
    resizes = trainer.daemon.of(ResizeReport)
    # n2 and n3 join together, or one after the other where one comes up much later.
    assert [kind for kind, _ in groupby(report.kind for report in resizes)] == ["up", "down"]
    assert [report.from_nodes for report in resizes[1:]] == [report.to_nodes for report in resizes[:-1]]
    assert (resizes[0].from_nodes, resizes[-2].to_nodes, resizes[-1].to_nodes) == (1, 3, 2)
    for told in resizes:
        assert None not in (told.stall_s, told.save_s, told.rendezvous_s, told.load_s, told.state_bytes)
        parts_s = told.save_s + told.rendezvous_s + told.load_s
        # what is left is the way from the loaded checkpoint to the end of the first step
        assert min(told.rendezvous_s, told.load_s) > 0, told
        assert parts_s <= told.stall_s + 1e-6, told
        assert (told.save_s > 0) == (backend == "torchrun"), "Horovod's workers keep their state"
    assert trainer.daemon.of(ProgressReport)[-1].steps_lost == 0


@both
def test_regular_jobs_get_their_nodes_also_from_a_worker_that_is_stopped(trainer: TrainerJob, backend: str) -> None:
    trainer.count(backend, "n1", "n2", "n3")
    trainer.run_regular_job("n1")
    trainer.trains_on(2)
    assert trainer.daemon.of(LeaseReport, state="leaving")
    # Ignores SIGTERM as every worker does, and cannot even be asked.
    [worker] = trainer.workers("n2")
    worker.suspend()
    trainer.run_regular_job("n2")
    trainer.trains_on(1)
    assert_no_gap(trainer)
    assert_checkpoint_is_whole(trainer)
    assert trainer.again <= 2 * EVERY
    # The last node goes too: its checkpoint is uploaded within the notice.
    trainer.run_regular_job("n3")
    trainer.wait("suspended", lambda: trainer.daemon.of(SuspendReport))
    trainer.daemon.grant("n4")
    trainer.trains_on(1)
    assert_no_gap(trainer)
    assert_checkpoint_is_whole(trainer)


@both
def test_a_killed_worker_costs_at_most_a_commit_interval_and_trains_again_and_none_survives_a_dead_driver(
    trainer: TrainerJob, backend: str
) -> None:
    trainer.count(backend, "n1", "n2")
    # Rank 0's: the one that reports, saves and holds the group together.
    [worker] = trainer.workers("n1")
    before = len(trainer.rows)
    worker.send_signal(signal.SIGKILL)
    [crash] = trainer.wait("told", lambda: trainer.daemon.of(CrashReport))
    assert (crash.node, crash.rc) == ("n1", -9)
    trainer.trains_on(2)
    assert len(trainer.rows) > before
    assert trainer.again <= EVERY
    assert_no_gap(trainer)
    assert_checkpoint_is_whole(trainer)
    [resize] = trainer.wait("its cost is told", lambda: trainer.daemon.of(ResizeReport, kind="crash"))
    assert resize.steps_lost <= EVERY
    assert trainer.state("n1") == trainer.state("n2") == "working"
    assert "a worker on n1 ended with signal SIGKILL" in trainer.output
    [driver] = [found for found in trainer.processes() if Path(found.cmdline()[1]).name == "bft-driver"]
    pilots = [process for process in trainer.processes() if "BFT_LEASE" in process.environ()]
    assert len(pilots) >= 6
    driver.kill()

    def alive() -> list[psutil.Process]:
        return psutil.wait_procs(pilots, timeout=0)[1]

    trainer.wait("all are gone", lambda: not alive(), alive)
    status = trainer.sandbox.status
    trainer.wait("the nodes are idle", lambda: set(status().values()) == {"IDLE"}, status)
    assert trainer.daemon.finished is None


@pytest.mark.horovod
def test_cancelling_the_job_ends_all_of_it_and_keeps_the_checkpoint(trainer: TrainerJob) -> None:
    trainer.count("horovod", "n1", "n2")
    trainer.trains_on(2, steps=2 * EVERY)
    trainer.cancel()
    # Slurm calls a job cancelled as soon as it has sent the signal.
    said = trainer.wait("its last word", lambda: re.search(r"the checkpoint of step (\d+) is kept in", trainer.output))
    assert trainer.ended()[0] == "CANCELLED"
    assert trainer.daemon.finished is not None
    assert trainer.daemon.finished.exit_code == 143
    assert wording("elastic.run.cancelled") + "; step" in trainer.output
    kept, last = int(said[1]), trainer.rows[-1]["step"]
    # Every save of a torchrun script is uploaded; a Horovod script's commits are at most once a second.
    assert EVERY <= kept <= last
    [state] = trainer.checkpoints(kept)
    assert state.stat().st_size > 0
    assert "Traceback" not in trainer.output


@pytest.mark.horovod
def test_training_that_is_complete_ends_the_job_well_and_leaves_no_file(trainer: TrainerJob) -> None:
    trainer.submit("count_horovod.py", 12, 0.02, EVERY, backend="horovod")
    trainer.daemon.grant("n1", "n2")
    assert trainer.ended() == ("COMPLETED", 0)
    assert [row["step"] for row in trainer.rows] == list(range(1, 13))
    assert trainer.daemon.finished is not None
    assert trainer.daemon.finished.exit_code == 0
    assert trainer.daemon.finished.summary.step == 12
    assert {path.name for path in trainer.folder.iterdir()} == {"out", "s", "steps.jsonl"}


@pytest.mark.horovod
def test_a_script_that_crashes_at_once_ends_after_three_crashes_with_its_own_exit_code(trainer: TrainerJob) -> None:
    """A torchrun script's end is that of tests/e2e/test_job_ends.py."""
    trainer.submit("crash.py", 42, backend="horovod")
    trainer.daemon.grant("n1", "n2")
    assert trainer.ended() == ("FAILED", 42)
    assert trainer.daemon.finished is not None
    assert trainer.daemon.finished.exit_code == 42
    said = re.search(r"the script failed (\d+) times", trainer.output)
    assert said is not None
    # Three failures are the script's, unless one node is part of all of them and another is not: then the fourth is.
    failed = Counter(report.node for report in trainer.daemon.of(CrashReport) if report.rc == 42)
    assert int(said[1]) == 3 or (int(said[1]) == 4 and max(failed.values()) >= 3)
    assert "Traceback" not in trainer.output


@pytest.mark.torch
def test_regression_a_script_that_failed_at_the_same_step_began_anew_for_ever(trainer: TrainerJob) -> None:
    trainer.submit("count_torchrun.py", 100, 0.2, EVERY, 8, backend="torchrun")
    trainer.daemon.grant("n1")
    assert trainer.ended() == ("FAILED", 1)
    assert [row["step"] for row in trainer.rows].count(7) == 3
    assert trainer.daemon.finished is not None
    assert "the script failed 3 times" in trainer.daemon.finished.reason
    assert trainer.daemon.finished.reason.endswith("n1 with exit code 1: ValueError: a bad batch at 8")
    last = trainer.output.splitlines()[-8:]
    assert any(line.startswith("bft: ") and line.endswith(" ValueError: a bad batch at 8") for line in last)


@pytest.mark.horovod
def test_regression_a_node_that_failed_among_healthy_ones_was_never_given_back(trainer: TrainerJob) -> None:
    trainer.submit("count_horovod.py", 1_000_000, 0.05, EVERY, "n2", backend="horovod")
    trainer.daemon.grant("n1")
    trainer.trains_on(1)
    trainer.daemon.grant("n2")
    trainer.wait("n2 is given back", lambda: trainer.state("n2") == "ended")
    trainer.trains_on(1, steps=2 * EVERY)
    assert [crash.node for crash in trainer.daemon.of(CrashReport)] == ["n2", "n2"]
    assert trainer.daemon.finished is None
    assert_no_gap(trainer)
    assert_checkpoint_is_whole(trainer)


@pytest.mark.horovod
def test_a_script_that_fails_shows_its_own_traceback_and_nothing_of_bftds(trainer: TrainerJob) -> None:
    trainer.submit("crash.py", backend="horovod")
    trainer.daemon.grant("n1")
    assert trainer.ended() == ("FAILED", 1)
    line = (SCRIPTS / "crash.py").read_text().splitlines().index("build_model()") + 1
    said = trainer.output
    assert re.search(rf'n1:   File ".*/crash\.py", line {line}, in <module>', said)
    assert "n1: ValueError: no layer of that name" in said
    assert "runpy" not in said
    assert "elastic/" not in said


@pytest.mark.torch
def test_a_python_without_torch_ends_the_trainer_with_its_sentence(trainer: TrainerJob) -> None:
    venv.create(trainer.folder / "bare", symlinks=True)
    python = str(trainer.folder / "bare" / "bin" / "python")
    trainer.submit("count_torchrun.py", 9, 0.1, EVERY, backend="torchrun", interpreter=python)
    trainer.daemon.grant("n1", "n2")
    assert trainer.ended() == ("FAILED", 1)
    assert "Traceback" not in trainer.output
    # One line for the first node, and the end: what two nodes say is no node's fault.
    assert 1 <= len([line for line in trainer.output.splitlines() if python in line]) <= 2
    assert trainer.daemon.finished is not None
    assert "torch" in trainer.daemon.finished.reason or "horovod" in trainer.daemon.finished.reason


@pytest.mark.torch
def test_without_the_submit_plugin_pilots_are_batch_jobs_that_leave_just_the_same(trainer: TrainerJob) -> None:
    trainer.count("torchrun", "n1", "n2", pilot_mode="sbatch")
    trainer.run_regular_job("n1")
    trainer.trains_on(1)
    trainer.wait("n1 is given back", lambda: trainer.state("n1") == "ended")
    trainer.daemon.revoke("n2")
    trainer.wait("n2 is given back", lambda: trainer.state("n2") == "ended")
    assert_no_gap(trainer)
    assert_checkpoint_is_whole(trainer)


def test_the_driver_needs_no_script_of_bftds_to_say_what_is_wrong(tmp_path: Path) -> None:
    plain = tmp_path / "train.py"
    plain.write_text("#!/usr/bin/env python3\nprint()\n")
    for argv in ([], [str(plain)], [str(tmp_path / "nothing.py")]):
        said = psutil.Popen(
            [sys.executable, "-c", "from elastic.driver.main import main; main()", *argv], stderr=-1, stdout=-1
        )
        out, err = said.communicate()
        assert (said.returncode, out) == (2, b"")
        assert err.startswith(b"bft: ")
        assert err.count(b"\n") == 1


@pytest.mark.torch
def test_a_requeued_job_goes_on_from_its_own_checkpoint_and_a_new_job_from_that_of_a_cancelled_one(
    trainer: TrainerJob,
) -> None:
    trainer.count("torchrun", "n1")
    trainer.wait("a checkpoint is saved", trainer.checkpoints)
    trainer.requeue()
    trainer.wait("it begins again", lambda: "resumes at step" in trainer.output)
    assert not says(trainer.output, "elastic.beginning.earlier_checkpoint")
    trainer.cancel()
    trainer.wait("its end", lambda: says(trainer.output, "elastic.run.cancelled"))
    trainer.ended()
    [kept] = trainer.checkpoints()
    step = int(kept.name.split("-")[1])

    first, trainer.job_id = trainer.job_id, ""
    trainer.submit("count_torchrun.py", step + 8, 0.02, EVERY, backend="torchrun", spec=f"1-4,resume={first}")
    trainer.daemon.grant("n2")
    assert trainer.ended() == ("COMPLETED", 0)
    assert f"resumes at step {step}" in trainer.output
    assert [row["step"] for row in trainer.rows if row["node"] == "n2"] == list(range(step + 1, step + 9))
    assert kept.exists(), "what was resumed stays"
    assert trainer.checkpoints(mark=".ended-until-*"), "what ended well is kept for a time"
