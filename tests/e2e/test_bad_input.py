"""What a user can get wrong: one clear line, the right exit code, no traceback, and nothing submitted."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import pytest

from bftd.cli.admin.sandbox_site import SandboxSite
from tests.support.clusters import Clusters

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def site(clusters: Clusters) -> Iterator[SandboxSite]:
    with clusters.site(nodes=2, tuned=True) as site:
        (site.work / "train.py").write_text(f"#!{sys.executable}\nimport torch\n")
        (site.work / "shell.sh").write_text("#!/bin/bash\nhostname\n")
        (site.work / "wide.py").write_text(f"#!{sys.executable}\n#SBATCH --nodes=4\n#SBATCH --elastic=1-2\n")
        (site.work / "nobody.py").write_text("#!/usr/bin/env python9.9\n")
        (site.work / "keras.py").write_text(f"#!{sys.executable}\nfrom horovod import keras as hvd\n")
        site.start_daemon()
        yield site


def refused(site: SandboxSite, *words: str) -> tuple[int, str]:
    """Runs bft, checks that it fails in one line and submits nothing, and returns exit code and line."""
    done = site.bft(*words)
    assert done.returncode != 0, done.stdout
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert site.slurm("squeue", "-h", "-o", "%i") == ""
    return done.returncode, done.stderr.strip()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--elastic=4-1", "train.py"], "--elastic=1-4"),
        (["--elastic=0", "train.py"], "1"),
        (["--elastic=0-4", "train.py"], "1"),
        (["--elastic=many", "train.py"], "MIN-MAX"),
        (["--elastic=3-4", "train.py"], "2 nodes"),
        (["--elastic=1-2,backend=horovodd", "train.py"], "horovod"),
        (["--elastic=1-2,sizes=1:9", "train.py"], "9"),
        (["--elastic=1-2,colour=red", "train.py"], "known"),
        (["--elastic=1-2,container=/images/torch.sif", "train.py"], "[elastic] container"),
        (["--elastic=1-2,container=--writable", "train.py"], "container=--writable"),
        (["--elastic=1-2", "missing.py"], "missing.py"),
        (["--elastic=1-2"], "script"),
        (["train.py"], "--elastic"),
        (["--elastic=1-2", "-p", "elastik", "train.py"], "elastic"),
        (["--elastic=1-2", "-N", "4", "train.py"], "--elastic"),
        (["--elastic=1-2", "wide.py"], "--nodes=4"),
        (["--elastic=1-2", "shell.sh"], "Python"),
        (["--elastic=1-2", "nobody.py"], "python9.9"),
        (["--elastic=1-2", "keras.py"], "horovod.keras"),
        (["--elastic=1-2,backend=torchrun", "keras.py"], "horovod.keras"),
    ],
)
def test_an_impossible_request_is_refused_in_one_line_and_nothing_is_submitted(
    site: SandboxSite, words: list[str], hint: str
) -> None:
    code, line = refused(site, "sbatch", *words)
    assert code == 2, line
    assert hint in line


def test_a_submission_that_is_only_tried_leaves_no_job(site: SandboxSite) -> None:
    done = site.bft("sbatch", "--test-only", "--elastic=1-2", "train.py")
    assert done.returncode == 0, done.stderr
    assert re.search(r"Job \d+ to start at", done.stderr)
    assert (done.stdout, site.slurm("squeue", "-h", "-o", "%i")) == ("", "")


def test_a_script_for_another_library_than_torch_is_not_run_in_the_foreground_either(site: SandboxSite) -> None:
    code, line = refused(site, "run", "--nodes", "1-2", "keras.py")
    assert code == 2, line
    assert "horovod.keras" in line


def test_without_a_daemon_nothing_is_submitted_and_the_line_says_where_it_was_looked_for(site: SandboxSite) -> None:
    config = site.work / "elsewhere.toml"
    config.write_text(f'[slurm]\nconf = "{site.cluster.conf}"\n[api]\nsocket = "{site.work}/nobody.sock"\n')
    code, line = refused(site, "sbatch", "--config", str(config), "--elastic=1-2", "train.py")
    assert code == 1
    assert "nobody.sock" in line
    code, line = refused(site, "status", "--config", str(config))
    assert code == 1


def test_a_wrong_configuration_key_names_the_nearest_one(site: SandboxSite) -> None:
    config = site.work / "wrong.toml"
    config.write_text("[decide]\nt_fdw_s = 60\n")
    code, line = refused(site, "status", "--config", str(config))
    assert code == 2
    assert "t_fwd_s" in line


def test_a_second_daemon_on_the_same_ledger_ends_with_one_line(site: SandboxSite) -> None:
    done = site._run([sys.executable, "-m", "bftd.daemon.process", "--config", str(site.config_path)], 20.0)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert "ledger" in done.stderr.strip().splitlines()[-1]
    assert site.client.status()["trainers"] == []


def test_tuning_acts_at_once_and_survives_a_restart_of_the_daemon(site: SandboxSite) -> None:
    assert site.bft("tune", "--t-fwd", "45", "--objective", "efficiency", "--pj-max", "3").returncode == 0
    wanted = {
        "t_fwd_s": 45.0,
        "objective": "efficiency",
        "pj_max": 3,
        "solver": "auto",
        "max_nodes": 0,
        "max_share": 1.0,
    }
    assert site.client.status()["settings"] == wanted
    assert site.stop_daemon() == 0
    site.start_daemon()
    assert site.client.status()["settings"] == wanted
    code, _ = refused(site, "tune", "--t-fwd", "-3")
    assert code in (1, 2)
    assert site.client.status()["settings"] == wanted


def test_explaining_an_unknown_job_says_so(site: SandboxSite) -> None:
    code, line = refused(site, "explain", "9999")
    assert code in (1, 2)
    assert "9999" in line
