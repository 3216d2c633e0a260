#!/usr/bin/env python3
"""A torchrun script with a sharded model that writes down each step and its loss."""

import json
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import elastic

steps, step_time_s, every = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(7, 11), torch.nn.Tanh(), torch.nn.Linear(11, 5))
for layer in (model[0], model[2], model):
    fully_shard(layer)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def state(step):
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer, "step": step}


step = 0
saved = elastic.load(into=state(0))
if saved is not None:
    set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
    step = saved["step"]
while step < steps:
    # The whole batch on every worker: the loss of a step is that of any number of them.
    points = torch.randn(16, 7, generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    loss = model(points).square().mean()
    loss.backward()
    optimizer.step()
    time.sleep(step_time_s)
    step += 1
    if rank == 0:
        with open("steps.jsonl", "a") as file:
            file.write(json.dumps({"step": step, "size": size, "loss": loss.item()}) + "\n")
    if elastic.step(samples=16, loss=loss.item(), save_every=every):
        elastic.save(state(step))
dist.destroy_process_group()
