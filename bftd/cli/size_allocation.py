"""Runs `bft size profile` on one GPU of a partition, as a step of a job of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

import click

from bftd.errors import BftError

_OWN = ("--partition", "-p")
_LEAVES_S = 10.0


def profiled(partition: str, device: str, threads: int) -> dict[str, Any]:
    """What this very command answers there, as JSON has it; what it says meanwhile goes to standard error.

    Raises BftError with Slurm's words where the partition is closed to the user, or the job ends otherwise.
    """
    srun = shutil.which("srun")
    if srun is None:
        raise BftError("no srun on PATH: --partition needs Slurm; without it, this device is profiled")
    gpu = [] if device == "cpu" else ["--gres=gpu:1"]
    options = ["--partition", partition, "-n1", f"--cpus-per-task={threads}", "--job-name=bft-profile", *gpu]
    command = [srun, *options, sys.executable, "-m", "bftd.cli.main", *words_of(sys.argv[1:])]
    job = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # the terminal's Ctrl-C is ours to hand on: srun asks for it twice
    )
    trouble: list[str] = []
    listening = threading.Thread(target=_listen, args=(job, trouble), daemon=True)
    listening.start()
    try:
        assert job.stdout is not None
        said = job.stdout.read()
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
            answer: dict[str, Any] = json.loads(said)
            return answer
    except ValueError:
        pass
    raise BftError(trouble[0] if trouble else f"the job in {partition} ended with {code} and no answer")


def words_of(given: list[str]) -> list[str]:
    """This command's own words without the partition, and with --json."""
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
    """Hand on what is said on the way; the first line of an error is kept back, to be told as such."""
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
