#!/usr/bin/env python3
"""A torchrun script whose only weight counts the steps: whatever state is lost or done twice shows."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import elastic

steps, step_time_s, save_every = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
fails_at = sys.argv[4] if len(sys.argv) > 4 else ""  # a step, or a node
dist.init_process_group("gloo")
network = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(network.weight)
optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
step = 0
saved = elastic.load()
if saved is not None:
    network.load_state_dict(saved["model"])
    step = saved["step"]
model = DistributedDataParallel(network)
while step < steps:
    optimizer.zero_grad()
    (-model(torch.ones(1, 1))).sum().backward()
    time.sleep(step_time_s)
    if fails_at in (str(step + 1), os.environ["SLURMD_NODENAME"]):
        raise ValueError(f"a bad batch at {fails_at}")
    optimizer.step()
    step += 1
    if dist.get_rank() == 0:
        row = {"step": step, "weight": network.weight.item(), "size": dist.get_world_size()}
        with open("steps.jsonl", "a") as log:
            log.write(json.dumps({**row, "node": os.environ["SLURMD_NODENAME"]}) + "\n")
    if elastic.step(samples=1, save_every=save_every):
        dist.barrier()  # as a save that gathers a sharded model: it hangs unless every rank comes here
        elastic.save({"model": network.state_dict(), "step": step})
dist.destroy_process_group()
