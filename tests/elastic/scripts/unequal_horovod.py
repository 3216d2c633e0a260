"""A Horovod script that writes one line a step, and ends once it was told to."""

import json
import os
import sys
import time

import horovod.torch as hvd
import torch

import elastic.horovod

stop = sys.argv[1]
hvd.init()
model = torch.nn.Linear(1, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())


@hvd.elastic.run
def train(state):
    # All ranks have to agree on the last step.
    while not hvd.broadcast_object(os.path.exists(stop)):
        optimizer.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        state.batch += 1
        if hvd.rank() == 0:
            row = {"size": hvd.size(), "nodes": hvd.cross_size(), "key": os.environ.get("BFT_RUN_KEY")}
            with open("steps.jsonl", "a") as log:
                log.write(json.dumps(row) + "\n")
        time.sleep(0.02)
        state.commit()


train(elastic.horovod.TorchState(model=model, optimizer=optimizer, batch=0))
