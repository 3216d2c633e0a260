"""What a Horovod script does with hvd.elastic.TorchState under bftd, in real Horovod alone with itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.messages import wording
from tests.support.torch_forks import Scripts
from tests.support.waiting import STILL_S

pytestmark = [pytest.mark.slow, pytest.mark.horovod]

STEPS = """
import sys
import torch
import elastic.horovod
import horovod.torch as hvd
from elastic.worker import driver_link as session

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
    said = subprocess.run(
        [sys.executable, "-c", STEPS], capture_output=True, text=True, check=False, timeout=5 * STILL_S
    )
    assert (said.stdout, said.stderr) == ("[0.5, 0.25, 2.0, None, None, None, None]\n", "")


COUNTS = """
import torch
import elastic
import elastic.horovod
import horovod.torch as hvd
from elastic.worker import driver_link as session

told = []
session.current().step = lambda step, samples, *rest: told.append((step, samples))
hvd.init()
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = hvd.elastic.TorchState(model=model, optimizer=optimizer)
"""

CALLS = (
    COUNTS
    + """
for _ in range(3):
    optimizer.step()
    elastic.horovod.step(samples=8)
print(told[1:])
"""
)


def test_regression_the_first_step_of_each_start_counted_twice_where_the_script_counts_steps_itself(
    horovod_scripts: Scripts,
) -> None:
    said = horovod_scripts(CALLS)
    assert (said.stdout, said.stderr) == ("[(1, 8), (2, 16), (3, 24)]\n", "")


BATCHES = (
    COUNTS
    + """
batches = elastic.batches(12, global_batch=5, micro_batch=2, epochs=1)
next(batches.steps())  # a step that a lost worker ends, and that is done again
for step in batches.steps():
    list(step)
    optimizer.step()
print(told)
"""
)


def test_regression_the_samples_of_batches_were_counted_as_one_for_each_worker_and_step(
    horovod_scripts: Scripts,
) -> None:
    said = horovod_scripts(BATCHES)
    assert (said.stdout, said.stderr) == ("[(1, 5), (2, 10), (3, 12)]\n", "")


SAVES = """
import io
import sys
import tempfile
import threading
import time
import torch
import elastic.horovod
import horovod.torch as hvd
from elastic.worker import driver_link as session
from elastic.worker.driver_link import Download

committed = []
session.current().commit = committed.append
hvd.init()
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

def train():
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()

def moment(optimizer):
    return next(iter(optimizer["state"].values()))["exp_avg"].sum().item()

def written(saved):
    file = io.BytesIO()
    saved.write(file)
    file.seek(0)
    return torch.load(file, weights_only=False)

state = hvd.elastic.TorchState(model=model, optimizer=optimizer, seen=[0], energy=model(torch.ones(1, 2)).sum())
train()
state.save()
"""

SLOW = """
class Slow(io.RawIOBase):
    def writable(self):
        return True
    def write(self, data):
        begun.set()
        go_on.wait(20)
        return len(data)
begun, go_on = threading.Event(), threading.Event()
writer = threading.Thread(target=committed[-1].write, args=(Slow(),))
writer.start()
begun.wait(20)
state.save()
print(len(committed), writer.is_alive())
go_on.set()
writer.join()
"""

CHANGED = """
saved = committed[-1]
before = written(saved)
state.seen.append(1)
state.restore()
train()
after = written(saved)
print(moment(before["handlers"]["optimizer"]["_saved_optimizer_state"]) != moment(optimizer.state_dict()))
print(moment(before["handlers"]["optimizer"]["_saved_optimizer_state"])
      == moment(after["handlers"]["optimizer"]["_saved_optimizer_state"])
      == moment(state._handlers["optimizer"]._saved_optimizer_state))
print(before["attributes"]["seen"], after["attributes"]["seen"], state.seen)
"""

RESUMED = """
with tempfile.TemporaryFile() as file:
    committed[-1].write(file)
    file.flush()
    session.current().download_checkpoint = lambda: Download(file)
    other = torch.nn.Linear(2, 1)
    theirs = torch.optim.Adam(other.parameters())
    again = hvd.elastic.TorchState(model=other, optimizer=theirs, seen=[], energy=0.0)
print(torch.equal(other.weight, model.weight), again.seen)
print(moment(theirs.state_dict()) == moment(optimizer.state_dict()))
"""

STRANGE = """
from elastic.base.errors import CheckpointError
with tempfile.TemporaryFile() as file:
    torch.save({"step": 1, "samples": 1, "size": 1, "state": {}}, file)
    file.flush()
    session.current().download_checkpoint = lambda: Download(file)
    try:
        hvd.elastic.TorchState(model=model)
    except CheckpointError as error:
        print(error)
"""

REFUSED = """
state.seen.append(lambda: 1)
state.save()
try:
    written(committed[-1])
except Exception as error:
    print("pickle" in str(error))
state.seen.pop()
state.save()
print(written(committed[-1])["attributes"]["seen"])
"""


class SaidBy:
    """The lines that a script prints which goes on from SAVES."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def __call__(self, script: str) -> list[str]:
        said = self._scripts(SAVES + script)
        assert (said.stderr, said.returncode) == ("", 0)
        return said.stdout.splitlines()


@pytest.fixture
def said_by(horovod_scripts: Scripts) -> SaidBy:
    return SaidBy(horovod_scripts)


def test_regression_a_commit_waited_until_the_one_before_was_written(said_by: SaidBy) -> None:
    # the first is of the state's own beginning
    assert said_by(SLOW) == ["3 True"]


def test_regression_training_on_after_a_restore_changed_the_saved_optimizer(said_by: SaidBy) -> None:
    assert said_by(CHANGED) == ["True", "True", "[0] [0] [0, 1]"]


def test_a_checkpoint_is_resumed_from_the_mapped_file(said_by: SaidBy) -> None:
    assert said_by(RESUMED) == ["True [0]", "True"]


def test_a_commit_of_what_cannot_be_pickled_is_no_error_until_it_is_to_be_sent(said_by: SaidBy) -> None:
    assert said_by(REFUSED) == ["True", "[0]"]


def test_regression_a_checkpoint_of_a_torchrun_script_was_a_key_error(said_by: SaidBy) -> None:
    assert said_by(STRANGE) == [wording("elastic.script.torchruns_checkpoint")]


SYNCED = """
import torch
import elastic.horovod
import horovod.torch as hvd

hvd.init()
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.zeros_(model.weight)
state = hvd.elastic.TorchState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), batch=0)
with torch.no_grad():
    model.weight.fill_(5.0)  # as by the broadcast of rank 0's
state.sync()
with torch.no_grad():
    model.weight.fill_(9.0)
state.restore()
print(model.weight.item())
"""


def test_regression_a_newcomer_that_lost_all_others_went_on_at_their_step_with_weights_of_its_own_start(
    horovod_scripts: Scripts,
) -> None:
    said = horovod_scripts(SYNCED)
    assert (said.stdout, said.stderr) == ("5.0\n", "")


DECAYED = """
import sys
import torch
import elastic.horovod
import horovod.torch as hvd

hvd.init()
model = torch.nn.Linear(1, 1, bias=False)
torch.nn.init.ones_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=float(sys.argv[1]), weight_decay=0.5)
state = hvd.elastic.TorchState(model=model, optimizer=hvd.DistributedOptimizer(optimizer), batch=0)
for _ in range(3):
    state.sync()
print(model.weight.item())
"""


@pytest.mark.parametrize("momentum", ["0.9", "0.0"])
def test_regression_a_newcomers_weights_decayed_when_it_joined_and_stayed_other_than_the_others(
    horovod_scripts: Scripts, momentum: str
) -> None:
    said = horovod_scripts(DECAYED, momentum)
    assert (said.stdout, said.stderr) == ("1.0\n", "")
