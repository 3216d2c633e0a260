"""The examples as a trainer starts them: any start may be one that finds its training complete."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.torch
@pytest.mark.parametrize("script", ["train_torchrun.py", "train_fsdp.py"])
def test_regression_an_example_that_began_again_at_its_end_failed_for_want_of_a_loss(script: str) -> None:
    group = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    environ = {**os.environ, **group, "PYTHONPATH": str(EXAMPLES.parent)}
    argv = [sys.executable, str(EXAMPLES / script), "--steps", "0"]
    ended = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "done: step 0\n"), ended.stderr
