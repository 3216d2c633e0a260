#!/usr/bin/env python3
"""An Elastic Horovod script as in Horovod's documentation; bftd needs the line `import elastic.horovod`.

Submit it with: bft sbatch --elastic=1-6 examples/train_horovod.py --steps 500
"""

import argparse
import time

import horovod.torch as hvd
import torch
from data import student, teacher_data

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--batch-size", type=int, default=32, help="samples a worker and step")
parser.add_argument("--commit-every", type=int, default=5, help="steps between commits")
parser.add_argument("--step-time-s", type=float, default=0.1, help="what a GPU would compute for, here slept")
arguments = parser.parse_args()

hvd.init()
dataset = teacher_data()
model = student()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
sampler = hvd.elastic.ElasticSampler(dataset, shuffle=True)
loader = torch.utils.data.DataLoader(dataset, batch_size=arguments.batch_size, sampler=sampler)


@hvd.elastic.run
def train(state):
    while state.batch < arguments.steps:
        for index, (points, labels) in enumerate(loader):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(points), labels)
            loss.backward()
            time.sleep(arguments.step_time_s)
            state.loss = loss.item()
            optimizer.step()
            state.batch += 1
            sampler.record_batch(index, len(points))
            if state.batch % arguments.commit_every == 0:
                state.commit()
            else:
                state.check_host_updates()
            if state.batch >= arguments.steps:
                break
        else:
            sampler.set_epoch(sampler.epoch + 1)
    state.commit()


fields = {"batch": 0, "loss": 0.0, "total_steps": arguments.steps}
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, **fields)
train(state)
if hvd.rank() == 0:
    print(f"done: step {state.batch}, loss {state.loss:.3f}", flush=True)
