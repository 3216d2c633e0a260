#!/usr/bin/env python3
"""A torchrun script with one of the mistakes that scripts have, by its argument; `right` has none."""

import json
import sys
import time

import torch
import torch.distributed as dist

import elastic

case = sys.argv[1]
STEPS, BATCH = 10_000 if case == "loads_on_rank_0_alone" else 40, 16
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
saved = elastic.load() if case != "loads_on_rank_0_alone" or rank == 0 else None
if saved is not None:
    model.load_state_dict(saved["model"])
parallel = torch.nn.parallel.DistributedDataParallel(model)
samples = BATCH * STEPS
if case == "last_batch_of_one":
    samples = (BATCH * STEPS) // 2 - BATCH + 3  # each of two epochs ends with three samples
epochs = 2 if case == "last_batch_of_one" else 1
points = torch.randn(samples, 4, generator=torch.Generator().manual_seed(1))
parts = BATCH // 4 if case == "counts_parts" else None
for step in elastic.batches(samples, global_batch=BATCH, epochs=epochs, micro_batch=parts, seed=1).steps():
    due = False
    for part in step:
        with part.sync(parallel):
            (parallel(points[part.data]).square().mean() * part.weight).backward()
        if case == "counts_parts":
            due = elastic.step(samples=part.samples, save_every=5)
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
    if rank == 0:
        with open("steps.jsonl", "a") as file:
            file.write(json.dumps({"step": step.number, "size": size}) + "\n")
    if case == "ends_early" and rank == 0 and step.number == 10:
        sys.exit(0)
    if case not in ("counts_nothing", "counts_parts"):
        due = elastic.step(global_samples=step.global_samples, save_every=5)
    if due:
        elastic.save({"model": model.state_dict()})
dist.barrier()
dist.destroy_process_group()
