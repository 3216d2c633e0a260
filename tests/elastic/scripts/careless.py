#!/usr/bin/env python3
"""A torchrun script with one of the mistakes that scripts have, by its argument; `right` has none."""

import json
import sys
import time

import torch
import torch.distributed as dist

import elastic

case = sys.argv[1]
STEPS, BATCH = 40, 16
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
saved = elastic.load()
if saved is not None:
    model.load_state_dict(saved["model"])
parallel = torch.nn.parallel.DistributedDataParallel(model)
points = torch.randn(BATCH * STEPS, 4, generator=torch.Generator().manual_seed(1))
for step in elastic.batches(len(points), global_batch=BATCH, epochs=1, seed=1).steps():
    due = False
    for part in step:
        with part.sync(parallel):
            (parallel(points[part.data]).square().mean() * part.weight).backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
    if rank == 0:
        with open("steps.jsonl", "a") as file:
            file.write(json.dumps({"step": step.number, "size": size}) + "\n")
    if case == "ends_early" and rank == 0 and step.number == 10:
        sys.exit(0)
    if case != "counts_nothing":
        due = elastic.step(global_samples=step.global_samples, save_every=5)
    if due:
        elastic.save({"model": model.state_dict()})
dist.barrier()
dist.destroy_process_group()
