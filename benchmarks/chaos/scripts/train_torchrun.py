#!/usr/bin/env python3
"""A torchrun script whose weights are the same to the last bit on any number of nodes."""

import hashlib
import time

import task
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import elastic

dist.init_process_group("gloo")
torch.manual_seed(2)
module = torch.nn.Sequential(
    torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.2), torch.nn.Tanh(), torch.nn.Linear(16, 3)
)
optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
checkpoint = elastic.load()
if checkpoint is not None:
    module.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
model = DistributedDataParallel(module)
batches = elastic.batches(task.dataset(), global_batch=task.GLOBAL_BATCH, pieces=4, seed=3)
for step in batches.steps(DataLoader(task.dataset(), batch_sampler=batches)):
    task.obey()
    optimizer.zero_grad()
    total = torch.zeros(())
    for part in step:
        points, labels = part.data
        with part.sync(model):
            loss = torch.nn.functional.cross_entropy(model(points), labels) * part.weight
            loss.backward()
        total += loss.detach()
    time.sleep(task.STEP_TIME_S)
    optimizer.step()
    done = step.number + 1
    sums = torch.tensor([total.item(), float(task.is_over(done))])
    dist.all_reduce(sums)
    if dist.get_rank() == 0:
        weights = b"".join(tensor.numpy().tobytes() for tensor in module.state_dict().values())
        task.log(done, hashlib.sha256(weights).hexdigest()[:16])
    over = sums[1].item() > 0
    due = elastic.step(global_samples=step.global_samples, loss=sums[0].item(), save_every=task.SAVE_EVERY)
    if due or over:
        elastic.save({"model": module.state_dict(), "optimizer": optimizer.state_dict()})
    if over:
        break
dist.destroy_process_group()
