"""What a Horovod script does with hvd.elastic.TorchState under bftd, in real Horovod alone with itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.horovod

STEPS = """
import sys
import torch
import elastic.horovod
import horovod.torch as hvd
from elastic import session

told = []
session.current().step = lambda step, samples, rank, size, loss, *rest: told.append(loss)
hvd.init()
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, loss=0.0)
for state.loss in (0.5, torch.tensor(0.25), torch.tensor([2.0]), torch.ones(3), torch.tensor(1j), 10**400, "none yet"):
    optimizer.step()
print(told)
"""


def test_regression_a_state_whose_loss_was_a_tensor_of_several_failed_at_the_first_step() -> None:
    said = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=False, timeout=60)
    assert (said.stdout, said.stderr) == ("[0.5, 0.25, 2.0, None, None, None, None]\n", "")
