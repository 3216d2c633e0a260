"""Trainers of the examples on a site, and what is waited for."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bftd.base.errors import BftError
from bftd.cli.admin.sandbox_site import SandboxSite
from tests.support import waiting

EXAMPLES = Path(__file__).parents[2] / "examples"


def until(what: str, condition: Callable[[], Any], site: SandboxSite) -> Any:
    """Waits for a true value while training goes on or logs grow; fails with the logs when it does not come."""
    written = waiting.written(site.root)

    def moved() -> object:
        with contextlib.suppress(BftError):  # the daemon may be what has ended
            return written(), [(item["id"], item["step"]) for item in site.client.status()["trainers"]]
        return written()

    def shown() -> str:
        logs = [site.log_path, *site.work.glob("*.log")]
        return "\n".join(f"{path.name}:\n{path.read_text()[-1500:]}" for path in logs)

    return waiting.until(what, condition, moved, shown)


def submit(site: SandboxSite, backend: str, elastic: str, *arguments: str) -> str:
    words = [f"--elastic={elastic},backend={backend}", "--parsable", f"--output={backend}.log", f"-J{backend}"]
    script = str(EXAMPLES / f"train_{backend}.py")
    done = site.bft("sbatch", *words, script, "--step-time-s=0.05", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def trainer(site: SandboxSite, job: str) -> dict[str, Any]:
    found = [item for item in site.client.status()["trainers"] if item["id"] == job]
    return dict(found[0]) if found else {"state": "unknown", "working": 0, "step": 0}


def pilots(site: SandboxSite) -> dict[str, str]:
    """Pilot's job id -> node."""
    rows = site.slurm("squeue", "-h", "-n", "bft-pilot", "-t", "RUNNING", "-o", "%i %N").splitlines()
    return dict(row.split() for row in rows)  # type: ignore[misc]


def share_and_give_back(site: SandboxSite) -> None:
    """The main job: two trainers on all nodes, a regular job that needs them all, and the trainers again."""
    horovod = submit(site, "horovod", "1-2,workers=1", "--steps=100000")
    torchrun = submit(site, "torchrun", "1-2,workers=1", "--steps=100000")
    until("both train", lambda: all(trainer(site, job)["working"] == 2 for job in (horovod, torchrun)), site)
    until("steps", lambda: all(trainer(site, job)["step"] > 20 for job in (horovod, torchrun)), site)

    site.slurm("sbatch", "-p", "batch", "-N", "4", "-t", "1", "-o", "/dev/null", "--wrap", "touch regular; sleep 1")
    until("the regular job's start", lambda: (site.work / "regular").exists(), site)
    assert not pilots(site)
    until("both suspended", lambda: all(trainer(site, job)["suspends"] == 1 for job in (horovod, torchrun)), site)
    steps = {job: trainer(site, job)["step"] for job in (horovod, torchrun)}
    until("both go on", lambda: all(trainer(site, job)["step"] > steps[job] for job in steps), site)

    text = site.bft("explain", horovod).stdout
    assert "horovod" in text
    assert "suspended to disk" in text
    seen = json.loads(site.bft("status", "--json").stdout)
    assert seen["give_back_s"]["count"] == 4
    assert seen["training_node_seconds"] <= seen["used_node_seconds"] <= seen["pool_node_seconds"]
