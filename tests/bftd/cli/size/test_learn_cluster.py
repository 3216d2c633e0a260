"""`bft size learn` of a real job, out of a real slurmdbd."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from slurm_plugin.clients.client import SlurmClient
from slurm_plugin.clients.finished import FinishedJob, finished
from slurm_plugin.errors import SlurmError
from tests.e2e.accounted import AccountedSite
from tests.support.programs import run_bft
from tests.support.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cluster,
    pytest.mark.accounting,
    pytest.mark.torch,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can act as other users"),
]
CONF = """\
AccountingStorageTRES=gres/gpu,gres/gpu:a100
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
"""
HELD_BYTES = 50 * 2**20
JOB = f"""#!/bin/sh
exec {sys.executable} -c 'held = bytearray({HELD_BYTES}); import time; time.sleep(3)'
"""
STEP = """\
import torch
from torch import nn


def make_step(batch_size):
    model = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(batch_size, 64, device="cuda")

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step
"""


def test_a_job_that_ran_is_read_from_accounting_and_kept(tmp_path: Path) -> None:
    statements = ["add cluster sandbox", "add account chem", "add user root account=chem"]
    with AccountedSite(statements, CONF, {}, nodes=2, gpus={"a100": 2}) as site:
        (tmp_path / "job.sh").write_text(JOB)
        (tmp_path / "train.py").write_text(STEP)
        words = ("--parsable", "-pbatch", "--gres=gpu:a100:2", "-o/dev/null", str(tmp_path / "job.sh"))
        job = site.slurm("sbatch", *words)

        def learnt() -> FinishedJob | None:
            with suppress(SlurmError):  # slurmdbd hears of a job, its end and its steps one after another
                return finished(SlurmClient(site.cluster.conf), job)
            return None

        over: FinishedJob = until("all of the job in accounting", learnt, site.show)
        assert (over.id, over.cluster, over.gpus, over.gres_type) == (job, "sandbox", 2, "a100")
        assert len(over.nodes) == 1
        assert 3 <= over.ended_s - over.started_s < 600
        assert over.host_bytes is not None
        assert HELD_BYTES <= over.host_bytes < 4 * HELD_BYTES
        assert over.gpu_bytes is None, "no GPU is there"
        site.config_path.touch()
        report = {"job": job, "global_batch": 8, "steps": 10, "step_s": 0.3}
        (tmp_path / "report.json").write_text(json.dumps(report))
        env = {**site.env(), "XDG_CACHE_HOME": str(tmp_path)}
        said = run_bft("size", "learn", "train.py:make_step", "report.json", "--json", env=env, cwd=tmp_path)
        assert said.returncode == 0, said.stderr
        kept = json.loads(said.stdout)
        assert (kept["job"], kept["gpus"], kept["nodes"], kept["batch"]) == (f"sandbox/{job}", 2, 1, 4)
        assert kept["gpu_type"].startswith("a100")
        assert kept["host_bytes"] == over.host_bytes
