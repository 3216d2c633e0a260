#!/usr/bin/env python3
"""A torchrun script that writes which samples it saw in which step, the loss over the global batch, and its weights."""

import hashlib
import json
import sys
import time

import torch
import torch.distributed as dist
from same import GLOBAL_BATCH, dataset, network
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import elastic

steps, step_time_s, log = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo")
module = network(torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.2))
optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
saved = elastic.load()
if saved is not None:
    module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
model = DistributedDataParallel(module)
batches = elastic.batches(dataset(), global_batch=GLOBAL_BATCH, pieces=4, seed=3)
for step in batches.steps(DataLoader(dataset(), batch_sampler=batches)):
    if step.number == steps:
        break
    optimizer.zero_grad()
    mine, total = [], torch.zeros(())
    for part in step:
        numbers, points, labels = part.data
        with part.sync(model):
            loss = torch.nn.functional.cross_entropy(model(points), labels) * part.weight
            loss.backward()
        total += loss.detach()
        mine += numbers.tolist() if part.weight else []
    time.sleep(step_time_s)
    optimizer.step()
    dist.all_reduce(total)
    row = {"step": step.number, "samples": mine, "loss": total.item(), "size": dist.get_world_size()}
    weights = b"".join(tensor.numpy().tobytes() for tensor in module.state_dict().values())
    row["weights"] = hashlib.sha256(weights).hexdigest()
    with open(f"{log}.{dist.get_rank()}", "a") as file:
        file.write(json.dumps(row) + "\n")
    if elastic.step(global_samples=step.global_samples, loss=total.item(), save_every=5):
        elastic.save({"model": module.state_dict(), "optimizer": optimizer.state_dict()})
dist.destroy_process_group()
