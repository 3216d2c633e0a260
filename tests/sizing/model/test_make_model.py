"""A make_model is traced with the step that it would be trained by."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sizing.base.errors import Untraceable, UsageError
from sizing.base.parallel import Parallel
from sizing.child import tracing
from tests.support.messages import fragment, pattern

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.usefixtures("forked")]

MODEL = """
import torch
from torch import nn
from torch.nn import functional


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(512, 2048), nn.Linear(2048, 512)

    def forward(self, x, labels):
        return {"loss": functional.cross_entropy(self.two(functional.gelu(self.one(x))), labels)}


def make_model(batch_size):
    return Classifier(), {"x": torch.randn(batch_size, 512), "labels": torch.randint(512, (batch_size,))}


def make_step(batch_size):
    model, inputs = make_model(batch_size)
    model.cuda()
    inputs = {name: each.cuda() for name, each in inputs.items()}
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        model(**inputs)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def nothing_to_train(batch_size):
    return nn.Identity(), (torch.randn(batch_size, 512),)


def no_model(batch_size):
    return "model", (torch.randn(batch_size, 512),)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path / "model.py"


def test_it_takes_what_the_same_step_by_hand_takes(path: Path) -> None:
    made = tracing.trace(f"{path}:make_model", 64, Parallel(), python=sys.executable)
    own = tracing.trace(f"{path}:make_step", 64, Parallel(), python=sys.executable)
    assert made.peak_bytes == own.peak_bytes
    assert made.by_category == own.by_category
    assert made.operators == own.operators


def test_a_replica_sums_its_gradients(path: Path) -> None:
    trace = tracing.trace(f"{path}:make_model", 64, Parallel(2), python=sys.executable)
    assert trace.collectives["all_reduce"] >= 4 * trace.parameters


def test_what_is_no_model_or_has_nothing_to_train_is_told(path: Path) -> None:
    with pytest.raises(UsageError, match=pattern("sizing.training.nothing_trained", name=fragment("nothing_to_train"))):
        tracing.trace(f"{path}:nothing_to_train", 4, Parallel(), python=sys.executable)
    with pytest.raises((UsageError, Untraceable), match=r"return \(model, inputs\)"):
        tracing.trace(f"{path}:no_model", 4, Parallel(), python=sys.executable)
