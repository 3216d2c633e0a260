"""Runs `bft size profile` or `check` on one GPU of a partition, as a job step of its own."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from bftd.base.errors import BftError

_OWN = ("--partition", "-p")
_LEAVES_S = 10.0
_ROOT = Path(__file__).resolve().parents[4]
# Not by PYTHONPATH: the Python that runs the user's model would inherit it.
_OURS = "import sys; sys.path.insert(0, sys.argv.pop(1)); from bftd.cli.{0} import {1}; {1}()"


def profiled(partition: str, device: str, threads: int) -> dict[str, Any]:
    """Run this same `bft size profile` command in the partition and return its JSON answer."""
    gpu = [] if device == "cpu" else ["--gres=gpu:1"]
    options = [f"--cpus-per-task={threads}", "--job-name=bft-profile", *gpu]
    return answered(partition, options, ("main", "main"), words_of(sys.argv[1:]))


def answered(partition: str, options: Sequence[str], entry: tuple[str, str], words: Sequence[str]) -> dict[str, Any]:
    """Run a function of a module of bftd.cli in a job, and return the JSON that it prints.

    Other output goes to standard error. Raises BftError with Slurm's message if the partition is closed to the user, or
    if the job fails or gives no answer.
    """
    srun = shutil.which("srun")
    if srun is None:
        raise BftError("no srun on PATH: --partition needs Slurm; without it, this device is used")
    ours = [sys.executable, "-c", _OURS.format(*entry), str(_ROOT)]
    command = [srun, "--partition", partition, "-n1", *options, *ours, *words]
    job = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C must reach only bft, which passes it on: srun would ask for a second one
    )
    trouble: list[str] = []
    listening = threading.Thread(target=_listen, args=(job, trouble), daemon=True)
    listening.start()
    try:
        assert job.stdout is not None
        output = job.stdout.read()
        code = job.wait()
        listening.join()
    except BaseException:
        job.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            job.wait(_LEAVES_S)
        job.kill()
        raise
    try:
        if code == 0:
            answer: dict[str, Any] = json.loads(output)
            return answer
    except ValueError:
        pass
    raise BftError(trouble[0] if trouble else f"the job in {partition} ended with {code} and no answer")


def words_of(given: list[str]) -> list[str]:
    """Return this command's arguments without the partition and with --json."""
    words: list[str] = []
    skips = False
    for word in given:
        if skips:
            skips = False
        elif word in _OWN:
            skips = True
        elif not word.startswith("--partition=") and not (word.startswith("-p") and not word.startswith("--")):
            words.append(word)
    return words if "--json" in words else [*words, "--json"]


def _listen(job: subprocess.Popen[str], trouble: list[str]) -> None:
    """Pass srun's messages on to standard error; keep error lines back to report them as the error."""
    assert job.stderr is not None
    for line in job.stderr:
        text = line.rstrip()
        for mark in ("srun: error: ", "error: ", "bft: "):
            if text.startswith(mark):
                trouble.append(text.removeprefix(mark))
                break
        else:
            if text:
                click.echo(text, err=True)
