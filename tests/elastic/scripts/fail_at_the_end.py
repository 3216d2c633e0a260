#!/usr/bin/env python3
"""A torchrun script that trains to its end, where rank 0 evaluates alone, and fails."""

import os
import sys
import time

import torch
import torch.distributed as dist

import elastic

STEPS = 2

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
weight = torch.zeros(1)
saved = elastic.load()
step = saved["step"] if saved is not None else 0
before = os.path.getsize("done") if os.path.exists("done") else 0
dist.barrier()
while step < STEPS:
    dist.all_reduce(weight)
    step += 1
    if elastic.step(samples=1, save_every=1):
        elastic.save({"step": step})
dist.destroy_process_group()
if rank == 0:
    while world > 1 and (not os.path.exists("done") or os.path.getsize("done") == before):
        time.sleep(0.01)
    # Until its end is told as well.
    time.sleep(0.5)
    sys.exit(int(sys.argv[1]))
with open("done", "a") as done:
    done.write(f"{rank}\n")
