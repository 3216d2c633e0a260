"""Trainers inside an image, on a real cluster with a real runtime: Charliecloud, of Debian's package.

The image is a folder with this machine's own Python in it, bound and not copied. Debian 12's Charliecloud is older than
the option of the preset that makes mount points beside a read-only image, so the image is written to instead.
"""

from __future__ import annotations

import os
import shutil
import site
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bftd.protocol.container import PRESETS
from bftd.protocol.reports import SuspendReport
from tests.elastic.cluster import EVERY, TrainerJob
from tests.support.messages import excerpt, wording

pytestmark = [pytest.mark.cluster, pytest.mark.torch, pytest.mark.container]
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}


def python_folders() -> list[str]:
    """What of this machine a Python with torch is made of."""
    return ["/usr", sys.base_prefix, *site.getsitepackages()]


def make_image(folder: Path) -> Path:
    """An empty system: mount points, links of a merged /usr and what a Dockerfile would have set."""
    for name in ("dev", "etc", "proc", "sys", "tmp", "usr", "ch"):
        (folder / name).mkdir(parents=True)
    for name, target in LINKS.items():
        (folder / name).symlink_to(target)
    for name in ("passwd", "group", "hosts", "resolv.conf"):
        (folder / "etc" / name).touch()
    packages = os.pathsep.join(site.getsitepackages())
    (folder / "ch" / "environment").write_text(
        f"PATH={sys.base_prefix}/bin:/usr/bin\nPYTHONPATH={packages}\nIN_IMAGE=yes\n"
    )
    return folder


def charliecloud(*folders: str) -> str:
    """The preset, as Debian 12's release understands it, with further folders in the image."""
    binds = " ".join(f"--bind={folder}" for folder in folders)
    return PRESETS["charliecloud"].replace("--write-fake", f"--write {binds}")


@pytest.fixture
def image(trainer: TrainerJob) -> Iterator[Path]:
    trainer.daemon.container = charliecloud(*python_folders())
    image = make_image(trainer.folder / "image")
    yield image
    shutil.rmtree(image, ignore_errors=True)


@pytest.mark.parametrize("backend", ["torchrun", pytest.param("horovod", marks=pytest.mark.horovod)])
def test_a_trainer_in_an_image_grows_loses_an_agent_falls_to_zero_and_resumes(
    trainer: TrainerJob, image: Path, backend: str
) -> None:
    trainer.count(backend, "n1", spec=f"1-4,container={image}", interpreter="python3")
    trainer.daemon.grant("n2")
    trainer.trains_on(2)
    [worker] = trainer.workers("n2")
    assert Path(f"/proc/{worker.pid}/root/ch/environment").read_text() == (image / "ch" / "environment").read_text()
    agent = agent_on(trainer, "n1")
    inside = agent.children(recursive=True)
    assert len(inside) >= 2
    kept, done = stored(trainer), len(trainer.rows)
    agent.kill()
    assert_all_gone(inside)
    trainer.trains_on(1)
    assert kept < min(done_again(trainer, done), default=kept + 1), "what was stored is not done again"
    kept, done = stored(trainer), len(trainer.rows)
    trainer.run_regular_job("n2")
    trainer.wait("suspended", lambda: trainer.daemon.of(SuspendReport))
    trainer.daemon.grant("n3")
    trainer.trains_on(1)
    assert kept < min(done_again(trainer, done), default=kept + 1), "what was stored is not done again"
    rows = trainer.rows
    assert [row["weight"] for row in rows] == [float(row["step"]) for row in rows], trainer.output
    assert {row["step"] for row in rows} == set(range(1, max(row["step"] for row in rows) + 1))
    if backend == "horovod":  # others have each commit in memory at once; saves of a torchrun script are uploaded first
        assert trainer.again <= 2 * EVERY


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        ("image", "no-such-image: No such file or directory"),
        ("python", "can't execve(2): python3: No such file or directory"),
        ("torch", excerpt("elastic.driver.store_ended", rc=1) + "python3 in container="),
        ("site", wording("elastic.script.no_containers")),
    ],
)
def test_what_an_image_lacks_ends_the_trainer_at_once_with_one_line(
    trainer: TrainerJob, image: Path, lacking: str, said: str
) -> None:
    name = image.with_name("no-such-image") if lacking == "image" else image
    if lacking == "python":
        trainer.daemon.container = charliecloud()
    elif lacking == "torch":
        # its packages may be in a folder that Charliecloud shares by itself
        (image / "ch" / "environment").write_text(f"PATH={sys.base_prefix}/bin:/usr/bin\n")
    elif lacking == "site":
        trainer.daemon.container = ""
    spec = f"1-4,container={name}"
    trainer.submit("count_torchrun.py", 1, 0, 1, backend="torchrun", spec=spec, interpreter="python3")
    assert trainer.ended()[0] == "FAILED"
    [line] = [line for line in trainer.output.splitlines() if "exit code" in line]
    assert said in line
    assert "Traceback" not in trainer.output


def test_a_container_that_slurm_makes_is_a_step_of_its_own_and_given_back_as_quickly(trainer: TrainerJob) -> None:
    """As with Pyxis, whose options are other ones of srun: here the step has no image."""
    trainer.daemon.container = "srun --comment={image} --job-name={binds} --chdir={cwd} {command}"
    trainer.count("torchrun", "n1", "n2", spec="1-4,container=nvcr.io#x/torch:1")
    [worker] = trainer.workers("n1")
    assert worker.environ()["SLURM_STEP_ID"] != agent_on(trainer, "n1").environ()["SLURM_STEP_ID"]
    trainer.daemon.revoke("n2")
    trainer.trains_on(1)
    # Slurm's notice reaches every process of the pilot; the checkpoint of the last node is uploaded in spite of it.
    trainer.run_regular_job("n1")
    trainer.wait("suspended", lambda: trainer.daemon.of(SuspendReport))
    trainer.daemon.grant("n3")
    trainer.trains_on(1)
    assert trainer.again <= EVERY
    workers = trainer.workers("n3")
    agent_on(trainer, "n3").kill()
    assert_all_gone(workers)


def stored(trainer: TrainerJob) -> int:
    """The step of the newest checkpoint that is stored, 0 for none."""
    return max((int(state.name.split("-")[1]) for state in trainer.checkpoints()), default=0)


def done_again(trainer: TrainerJob, since: int) -> set[int]:
    """The steps among the rows from this one on that are in a row before, too."""
    steps = [row["step"] for row in trainer.rows]
    return {step for place, step in enumerate(steps) if place >= since and step in steps[:place]}


def agent_on(trainer: TrainerJob, node: str) -> psutil.Process:
    """The agent's process; its srun has the same words behind its own."""
    [agent] = [
        found
        for found in trainer.processes()
        if found.environ().get("SLURMD_NODENAME") == node and found.cmdline()[1:] == ["-m", "elastic.node.agent"]
    ]
    return agent


def assert_all_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=300)
    assert alive == []
