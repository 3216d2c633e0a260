#!/usr/bin/env python3
"""An Elastic Horovod script whose loss is the same on any number of nodes, but for the order of sums."""

import time
from typing import Any

import horovod.torch as hvd
import task
import torch
from torch.utils.data import DataLoader

import elastic
import elastic.horovod

hvd.init()
torch.manual_seed(2)
module = torch.nn.Linear(6, 3)
# The decay draws weights that rounding has driven apart together again, so that losses stay comparable for ever.
sgd = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.5, weight_decay=0.05)
optimizer = hvd.DistributedOptimizer(sgd, named_parameters=module.named_parameters())
batches = elastic.batches(task.dataset(), global_batch=task.GLOBAL_BATCH, micro_batch=6, seed=3)


@hvd.elastic.run  # type: ignore[untyped-decorator]
def train(state: Any) -> None:
    for step in batches.steps(DataLoader(task.dataset(), batch_sampler=batches)):
        task.obey()
        optimizer.set_backward_passes_per_step(len(step.parts))
        optimizer.zero_grad()
        total = torch.zeros(())
        for part in step:
            points, labels = part.data
            loss = torch.nn.functional.cross_entropy(module(points), labels) * part.weight
            loss.backward()
            total += loss.detach()
        time.sleep(task.STEP_TIME_S)
        optimizer.step()
        done = step.number + 1
        means = hvd.allreduce(torch.stack([total, torch.tensor(float(task.is_over(done)))]), name="means")
        if hvd.rank() == 0:
            task.log(done, means[0].item())
        over = means[1].item() > 0
        if over or done % task.SAVE_EVERY == 0:
            hvd.barrier()  # rank 0 has written its line before any rank keeps the step
            state.commit()
        else:
            state.check_host_updates()
        if over:
            return


train(hvd.elastic.TorchState(module, optimizer))
