"""`sbatch --elastic` from the user's side: a training script, submitted and trained to its end on the real cluster."""

from __future__ import annotations

import os
import sys

import pytest

from bftd.cli.admin.sandbox_site import SandboxSite
from tests import program
from tests.slurm_plugin.plugins import User, another_driver
from tests.support.messages import wording
from tests.support.programs import shell_script
from tests.support.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.torch]


SCRIPT = """\
#!/usr/bin/env python3
#SBATCH --elastic=2-2,workers=1
#SBATCH --output=out.log
import os, sys, elastic
elastic.step(samples=1)
print("worker", os.getuid(), os.environ["WORLD_SIZE"], sys.argv[1:], flush=True)
sys.exit(0 if elastic.load() is None else 9)
"""


def test_a_plain_sbatch_trains_on_idle_nodes_as_the_user_and_ends_as_the_script_does(
    site: SandboxSite, user: User
) -> None:
    python = program.python()
    if python is None:  # a Python in root's home: root is the only user it has
        python, user = sys.executable, User(os.getuid(), site.work, site.env())
    commands = site.root / "commands"
    commands.mkdir()
    (commands / "python3").symlink_to(python)
    driver = commands / "bft-driver"
    start = 'exec python3 -c "from elastic.driver.main import main; main()" "$@"'
    shell_script(driver, f"export PYTHONPATH={program.python_path()}\n{start}")
    (user.home / "train.py").write_text(SCRIPT)
    log = user.home / "out.log"
    try:
        path = f"{commands}:{user.env['PATH']}"
        environ = {"PATH": path, "TMPDIR": "/tmp"}
        with another_driver(site, driver):
            done = user.run("sbatch", "--wait", "train.py", "a", "b c", env=environ, timeout_s=120)
        assert done.returncode == 0, done.stderr + (log.read_text() if log.exists() else "")
        taken = wording("slurm_plugin.bftd.taken", low=2, high=2, partition="elastic", driver_partition="bft-driver")
        assert taken in done.stderr
        assert f"worker {user.uid} 2 ['a', 'b c']" in log.read_text()
        assert "training is complete; step 1, exit code 0" in log.read_text()
        until("the pilots' end", lambda: not user.run("squeue", "-h").stdout)
    finally:
        user.run("scancel", "--me")
