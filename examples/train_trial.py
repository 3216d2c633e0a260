#!/usr/bin/env python3
"""One trial of the study in optuna_hpo.py: a torchrun script that reports its loss to a file, and a result at its end.

The batches are the same on any number of nodes, so that trials which had many nodes and trials which had few compare.
"""

import argparse
import json
import math
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from data import student, teacher_data
from torch.nn.parallel import DistributedDataParallel

from bftd import elastic

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path, required=True, help="where the trial's reports and its result go")
parser.add_argument("--lr", type=float, required=True)
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--global-batch", type=int, default=256)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--report-every", type=int, default=16, help="steps between two reports, and two saves")
parser.add_argument("--step-time-s", type=float, default=0.05, help="what a GPU would compute for, here slept")
arguments = parser.parse_args()

dist.init_process_group("gloo")
first = dist.get_rank() == 0
dataset = teacher_data()
network = student()
optimizer = torch.optim.SGD(network.parameters(), lr=arguments.lr, momentum=arguments.momentum)
mean = 0.0  # of the loss, over about the last 16 steps

checkpoint = elastic.load()
if checkpoint is not None:
    network.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    mean = checkpoint["mean"]
model = DistributedDataParallel(network)

batches = elastic.batches(dataset, global_batch=arguments.global_batch, seed=7, epochs=arguments.epochs)
for step in batches.steps():
    optimizer.zero_grad()
    whole = torch.zeros(())
    for part in step:
        points, labels = dataset[part.data]
        with part.sync(model):
            loss = torch.nn.functional.cross_entropy(model(points), labels) * part.weight
            loss.backward()
        whole += loss.detach()
    time.sleep(arguments.step_time_s * step.samples / arguments.global_batch)
    optimizer.step()
    dist.all_reduce(whole)
    value = whole.item() / dist.get_world_size()
    if not math.isfinite(value):
        raise FloatingPointError(f"the loss is {value} at step {step.number}: the learning rate is too high")
    mean = value if step.number == 0 else mean + (value - mean) / 16
    if elastic.step(global_samples=step.global_samples, loss=mean, save_every=arguments.report_every):
        state = {"model": network.state_dict(), "optimizer": optimizer.state_dict(), "mean": mean}
        elastic.save(state)
    if first and (step.number + 1) % arguments.report_every == 0:
        # a step that is done again after a node was taken is reported again: who reads it knows steps by their number
        with (arguments.folder / "reports.jsonl").open("a") as file:
            file.write(json.dumps({"step": step.number + 1, "loss": mean}) + "\n")

if first:
    written = arguments.folder / "result.json.new"
    written.write_text(json.dumps({"loss": mean}))
    os.replace(written, arguments.folder / "result.json")  # there whole, or not at all
dist.destroy_process_group()
