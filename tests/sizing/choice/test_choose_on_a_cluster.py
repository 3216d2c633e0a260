"""`bft size choose` on a real Slurm: it asks when runs could start, tells what is closed, and submits."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugin.pilots.start_estimate import asked
from slurm_plugin.sandbox import Sandbox
from tests.support.clusters import Clusters
from tests.support.messages import says, wording
from tests.support.programs import run_bft
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

ROOT = Path(__file__).parents[3]
JOB = ("--config", "gpt:h=1024,l=24,a=16,s=1024,V=50257,b=4,precision=bf16,recompute=full", "--global-batch", "32")
STEPS = ("--steps", "1000", "--max-stages", "1")
PARTITIONS = (
    "PartitionName=reserved Nodes=n[1-2] MaxTime=2-0 State=UP ReqResv=YES",
    "PartitionName=old Nodes=n[1-2] MaxTime=60 State=DOWN",
    "PartitionName=ending Nodes=n[1-2] MaxTime=60 State=INACTIVE",
    "PartitionName=short Nodes=n[1-4] MaxTime=3 State=UP",
)


@pytest.fixture(scope="module")
def sandbox(clusters: Clusters) -> Iterator[Sandbox]:
    with clusters.lend(nodes=4, gpus={"a100": 4, "v100": 2}, tuned=True) as cluster:
        client = cluster.client()
        for partition in PARTITIONS:
            answer = client.run("scontrol", "create", *partition.split())
            assert answer.code == 0, answer.complaint
        yield cluster
        for partition in PARTITIONS:
            client.run("scontrol", "delete", partition.split()[0])


def choose(sandbox: Sandbox, *words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "SLURM_CONF": str(sandbox.conf)}
    return run_bft("size", "choose", *JOB, *STEPS, *words, env=env, cwd=cwd)


def test_slurm_takes_the_winners_lines_and_what_is_closed_is_told_in_its_words(sandbox: Sandbox) -> None:
    ended = choose(sandbox, "--json")
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert said["winner"]["partition"] == "batch"
    assert said["winner"]["start_s"] == pytest.approx(time.time(), abs=120)
    assert asked(sandbox.client(), said["winner"]["sbatch"]).taken
    assert {run["partition"] for run in said["refused"]} == {"reserved"}
    assert all(re.match("refused: .*denied", run["slurm"]) for run in said["refused"]), said["refused"][0]["slurm"]
    down = wording("cli.size_choose.left_out", name="old", state="DOWN")
    assert any(note.startswith(down) for note in said["notes"])
    short = [each["why"] for each in said["out"] if each["partition"] == "short"]
    assert any(says([why], "sizing.limits.too_long", max_time_s="3 min") for why in short), short
    assert not [run for run in said["runs"] if run["partition"] in ("short", "old", "reserved")]
    inactive = next(note for note in said["notes"] if note.startswith("partition ending"))
    assert re.search("its State is INACTIVE: .*(inactive|drain)", inactive), inactive
    named = choose(sandbox, "--partition", "old")
    assert (named.returncode, named.stdout) == (2, "")
    assert re.fullmatch(rf"bft: {re.escape(down)}; name another.*\n", named.stderr)


def test_the_job_gets_what_was_chosen_while_another_holds_the_faster_gpus(sandbox: Sandbox, tmp_path: Path) -> None:
    client = sandbox.client()
    script = "#!/bin/sh\n#SBATCH --output=/dev/null\nsleep 60\n"
    holding = client.submit(["--nodelist=n[1-2]", "--time=2-0"], script)
    try:
        until("the other job runs", lambda: (at := client.job(holding)) is not None and at.state == "RUNNING")
        (tmp_path / "job.sh").write_text("#!/bin/sh\n#SBATCH --output=out\nprintenv | grep ^BFT_\nsrun sleep 60\n")
        ended = choose(sandbox, "--submit", "job.sh", "--yes", "--json", cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        said = json.loads(ended.stdout)
        winner = said["winner"]
        try:
            assert winner["gpu_type"].startswith("v100")
            assert re.search(r"a100-\S+ in batch runs .* less but starts .* later", said["why"])
            shown = client.run("scontrol", "show", "job", said["job_id"]).out
            fields = dict(word.partition("=")[::2] for word in shown.split())
            assert fields["NumNodes"].split("-")[0] == str(winner["nodes"])
            assert "v100" in fields["TresPerNode"]
            assert fields["Partition"] == "batch"
            days, _, clock = fields["TimeLimit"].rpartition("-")
            hours, minutes, seconds = map(int, clock.split(":"))
            limit_s = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
            assert limit_s == winner["time_limit_s"]
            until("the job has written", lambda: "BFT_DP=" in _text(tmp_path / "out"))
            assert set(_text(tmp_path / "out").split()) == {f"{k}={v}" for k, v in said["environment"].items()}
        finally:
            client.cancel([said["job_id"]], signal="KILL")
    finally:
        client.cancel([holding], signal="KILL")


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
