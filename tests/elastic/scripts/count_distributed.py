#!/usr/bin/env python3
"""Counts steps and keeps the count in distributed checkpoints: each rank in a file of its own, told to the driver as
elastic.checkpoint.distributed does.

It needs no torch, so what it shows is the driver's part alone.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import elastic
from elastic.script import api
from elastic.worker import driver_link

steps, step_time_s, save_every = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
group = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
link, home = driver_link.current(), Path(os.environ["BFT_STATE_PATH"])


def read(version: dict) -> int:
    """What all ranks of it have counted; raises ValueError for one that is not whole."""
    counted = set()
    for file, size_bytes, digest in version["files"]:
        content = Path(version["path"], file).read_bytes() if Path(version["path"], file).exists() else b""
        if len(content) != size_bytes or hashlib.md5(content).hexdigest() != digest:
            raise ValueError(f"{file} is missing or altered")
        counted.add(int(content))
    assert counted == {version["step"]}
    return counted.pop()


def together(step: int) -> None:
    """Waits for the other ranks, as a collective does."""
    Path(f"at-{group}-{rank}").write_text(str(step))
    for other in range(size):
        path = Path(f"at-{group}-{other}")
        while not path.exists() or int(path.read_text() or -1) < step:
            time.sleep(0.002)


def save(step: int) -> None:
    # A group has a number of its own, and saves once at a step.
    name = f"step-{step:012d}-{group:08x}{step:08x}"
    folder = home / name
    folder.mkdir(parents=True, exist_ok=True)
    content = str(step).encode()
    files = [f"rank{rank}", *([".metadata"] if rank == 0 else [])]
    for file in files:
        (folder / file).write_bytes(content)
    told = [[file, len(content), hashlib.md5(content).hexdigest()] for file in files]
    message = {"op": "shards", "name": name, "path": str(folder), "step": step, "samples": step * size}
    link.tell({**message, "rank": rank, "size": size, "files": told, "took_s": 0.0})
    if link.pause_requested.is_set():
        link.tell({"op": "paused"})
        time.sleep(3600)


step = 0
download = link.download_checkpoint()
for version in download.versions:
    try:
        step = read(version)
        break
    except ValueError as error:
        link.tell({"op": "corrupt", "name": version["name"], "text": str(error)})
api._progress.step = step
while step < steps:
    time.sleep(step_time_s)
    step += 1
    together(step)
    if rank == 0:
        with open("steps.jsonl", "a") as log:
            log.write(json.dumps({"step": step, "size": size, "node": os.environ["SLURMD_NODENAME"]}) + "\n")
    if elastic.step(samples=1, save_every=save_every):
        save(step)
