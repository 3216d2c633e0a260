#!/usr/bin/env python3
"""A torchrun script whose model is sharded over all workers (FSDP2); each of them saves and loads its part.

Submit it with: bft sbatch --elastic=1-6,state=/lustre/me/run7 examples/train_fsdp.py --steps 500
"""

import argparse
import time

import torch
import torch.distributed as dist
from data import student, teacher_data
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

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
model = student()
for layer in model:
    if any(True for _ in layer.parameters()):
        fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def state(step: int) -> dict:
    """All that training goes on from; the shards are this worker's."""
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer, "step": step}


step = 0
checkpoint = elastic.load(into=state(0))
if checkpoint is not None:
    set_state_dict(model, optimizer, model_state_dict=checkpoint["model"], optim_state_dict=checkpoint["optimizer"])
    step = checkpoint["step"]

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
    if elastic.step(samples=len(points), loss=loss.item(), save_every=arguments.save_every):
        elastic.save(state(step))

if rank == 0:
    print(f"done: step {step}", flush=True)
dist.destroy_process_group()
