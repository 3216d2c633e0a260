"""Trainers inside an image, on a real cluster with a real runtime: Charliecloud, of Debian's package.

The image is a folder with this machine's own Python in it, bound and not copied. Debian 12's Charliecloud is older than
the option of the preset that makes mount points beside a read-only image, so the image is written to instead.
"""

from __future__ import annotations

import os
import shutil
import signal
import site
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bftd.protocol.container import PRESETS
from bftd.protocol.reports import CrashReport, SuspendReport
from tests.elastic.cluster import TrainerJob

pytestmark = [pytest.mark.cluster, pytest.mark.torch, pytest.mark.container]
BOUND = ("/usr", "/root/.pyenv")
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
    (folder / "ch" / "environment").write_text(f"PATH={sys.base_prefix}/bin:/usr/bin\nPYTHONPATH={packages}\nIN_IMAGE=yes\n")
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


def test_a_trainer_in_an_image_grows_shrinks_falls_to_zero_and_resumes(trainer: TrainerJob, image: Path) -> None:
    trainer.count("torchrun", "n1", spec=f"1-4,container={image}", interpreter="python3")
    trainer.daemon.grant("n2")
    trainer.trains_on(2)
    [worker] = trainer.workers("n2")
    assert "IN_IMAGE" in worker.environ()
    trainer.daemon.revoke("n1")
    trainer.trains_on(1)
    trainer.run_regular_job("n2")
    trainer.wait("suspended", lambda: trainer.daemon.of(SuspendReport))
    trainer.daemon.grant("n3")
    trainer.trains_on(1)
    rows = trainer.rows
    assert [row["weight"] for row in rows] == [float(row["step"]) for row in rows]
    assert {row["step"] for row in rows} == set(range(1, max(row["step"] for row in rows) + 1))
    assert trainer.daemon.of(CrashReport) == []
