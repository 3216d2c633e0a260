#!/usr/bin/env python3
"""A trial whose end its number decides: 1 fails, the others train until a file says that they may end."""

import argparse
import json
import time
from pathlib import Path

import elastic

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path, required=True)
folder = parser.parse_known_args()[0].folder
step = (elastic.load() or {"step": 0})["step"]
if folder.name == "1":
    raise ValueError("a bad learning rate")
while not (folder.parent / "end").exists():
    step += 1
    time.sleep(0.05)
    if elastic.step(samples=8, loss=1.0 / step, save_every=10, total_steps=100_000):
        elastic.save({"step": step})
        with (folder / "reports.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "loss": 1.0 / step}) + "\n")
(folder / "result.json").write_text(json.dumps({"loss": 1.0 / step}))
