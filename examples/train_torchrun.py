#!/usr/bin/env python3
"""A torchrun script; bftd needs `elastic.load`, `elastic.save` and one `elastic.step` a step.

Submit it with: bft sbatch --elastic=1-6 examples/train_torchrun.py --steps 500
"""

import argparse
import time

import torch
import torch.distributed as dist
from data import student, teacher_data
from torch.nn.parallel import DistributedDataParallel

from bftd import elastic

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--batch-size", type=int, default=32, help="samples a worker and step")
parser.add_argument("--save-every", type=int, default=5, help="steps between saves")
parser.add_argument("--step-time-s", type=float, default=0.1, help="what a GPU would compute for, here slept")
arguments = parser.parse_args()

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
dataset = teacher_data()
network = student()
optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)

step = 0
checkpoint = elastic.load()
if checkpoint is not None:
    network.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    step = checkpoint["step"]
model = DistributedDataParallel(network)

while step < arguments.steps:
    # The batch of step k is the same whatever the number of workers was before.
    generator = torch.Generator().manual_seed(step)
    chosen = torch.randint(len(dataset), (size, arguments.batch_size), generator=generator)[rank]
    points, labels = dataset[chosen]
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(points), labels)
    loss.backward()
    time.sleep(arguments.step_time_s)
    optimizer.step()
    step += 1
    save_every, total = arguments.save_every, arguments.steps
    if elastic.step(samples=len(points), loss=loss.item(), save_every=save_every, total_steps=total):
        elastic.save({"model": network.state_dict(), "optimizer": optimizer.state_dict(), "step": step})

if rank == 0:
    print(f"done: step {step}", flush=True)
dist.destroy_process_group()
