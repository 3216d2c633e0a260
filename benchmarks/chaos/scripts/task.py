"""The data of the scripts, the record that they write of each step, and the orders of faults to their workers."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import torch
from torch.utils.data import TensorDataset

GLOBAL_BATCH = 24
SAVE_EVERY = 5
NAME, STEPS, STEP_TIME_S = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
"""The trainer's name; the steps to make, 0 if the file `stop-NAME` will tell; and what a GPU would compute for."""

NODE = os.environ.get("SLURMD_NODENAME", "")
_STAY = 'trap "" TERM; echo $$ > "$0.new"; mv "$0.new" "$0"; while :; do sleep 1000; done'


def dataset() -> TensorDataset:
    """Points of three classes, eight whole batches of them."""
    generator = torch.Generator().manual_seed(1)
    points = torch.randn(8 * GLOBAL_BATCH, 6, generator=generator)
    return TensorDataset(points, (points[:, :3] + 0.3 * torch.randn(len(points), 3, generator=generator)).argmax(1))


def is_over(step: int) -> bool:
    """Whether training ends after this step; ranks may see it at different steps."""
    if STEPS:
        return step == STEPS
    try:
        with open(f"stop-{NAME}") as file:
            return step >= int(file.read())
    except FileNotFoundError:
        return False


def log(step: int, value: object) -> None:
    """Write a line for a step that is done."""
    with open(f"steps-{NAME}.jsonl", "a") as file:
        file.write(json.dumps({"at_s": time.time(), "step": step, "value": value}) + "\n")


def obey() -> None:
    """Do what a fault asks of the worker on this node."""
    if _is_asked(f"fork-{NODE}"):
        subprocess.run(["setsid", "--fork", "sh", "-c", _STAY, f"forked-{NODE}"], check=True)
    if _is_asked(f"ignore-{NODE}"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            with contextlib.suppress(BaseException):
                time.sleep(1000)


def _is_asked(name: str) -> bool:
    try:
        os.unlink(name)
    except OSError:
        return False
    return True
