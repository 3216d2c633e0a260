#!/usr/bin/env python3
"""A Horovod script whose only weight counts the steps: whatever state is lost or done twice shows."""

import json
import os
import sys
import time

import horovod.torch as hvd
import torch

import elastic.horovod

steps, step_time_s, commit_every = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
fails_at = sys.argv[4] if len(sys.argv) > 4 else ""  # a step, or a node
hvd.init()
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())


@hvd.elastic.run
def train(state):
    while state.batch < steps:
        optimizer.zero_grad()
        (-model(torch.ones(1, 1))).sum().backward()
        time.sleep(step_time_s)
        if fails_at in (str(state.batch + 1), os.environ["SLURMD_NODENAME"]):
            raise ValueError(f"a bad batch at {fails_at}")
        optimizer.step()
        state.batch += 1
        if hvd.rank() == 0:
            row = {"step": state.batch, "weight": model.weight.item(), "size": hvd.size()}
            with open("steps.jsonl", "a") as log:
                log.write(json.dumps({**row, "node": os.environ["SLURMD_NODENAME"]}) + "\n")
        if state.batch % commit_every == 0:
            # The first half of a commit is each rank's own: were rank 0 killed between its step and its row, the others
            # would keep a step of which nothing is written.
            hvd.barrier()
            state.commit()
        else:
            state.check_host_updates()


train(elastic.horovod.TorchState(model=model, optimizer=optimizer, batch=0))
