#!/usr/bin/env python3
"""A Horovod script that writes which samples it saw in which step, and the loss over the global batch."""

import json
import sys
import time

import horovod.torch as hvd
import torch
from same import GLOBAL_BATCH, dataset, network
from torch.utils.data import DataLoader

import elastic
import elastic.horovod

steps, step_time_s, log = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
hvd.init()
module = network()
optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=module.named_parameters())
batches = elastic.batches(dataset(), global_batch=GLOBAL_BATCH, micro_batch=5, seed=3)


@hvd.elastic.run
def train(state):
    for step in batches.steps(DataLoader(dataset(), batch_sampler=batches)):
        if step.number == steps:
            return
        optimizer.set_backward_passes_per_step(len(step.parts))
        optimizer.zero_grad()
        mine, total = [], torch.zeros(())
        for part in step:
            numbers, points, labels = part.data
            loss = torch.nn.functional.cross_entropy(module(points), labels) * part.weight
            loss.backward()
            total += loss.detach()
            mine += numbers.tolist() if part.weight else []
        time.sleep(step_time_s)
        optimizer.step()
        total = hvd.allreduce(total, name="loss")
        row = {"step": step.number, "samples": mine, "loss": total.item(), "size": hvd.size()}
        with open(f"{log}.{hvd.rank()}", "a") as file:
            file.write(json.dumps(row) + "\n")
        if step.number % 5 == 4:
            state.commit()
        else:
            state.check_host_updates()


train(hvd.elastic.TorchState(module, optimizer))
