"""Batches with the real loaders: torch's with processes of its own, and torchdata's."""

from __future__ import annotations

from typing import Any

import pytest

import elastic
from elastic.script import ranks

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def first_of_two(alone: None) -> None:
    ranks.use(ranks.World(lambda: 0, lambda: 2, lambda: 2))


def loaders() -> list[Any]:
    found = [pytest.param(torch.utils.data.DataLoader, id="torch")]
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError:
        skipped = pytest.mark.skip(reason="torchdata is not installed")
        return [*found, pytest.param(None, id="torchdata", marks=skipped)]
    return [*found, pytest.param(StatefulDataLoader, id="torchdata")]


@pytest.mark.parametrize("loader", loaders())
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_loads_ahead_brings_every_part_of_this_workers_share(loader: Any, workers: int) -> None:
    points = torch.arange(21)
    plan = elastic.batches(points, global_batch=6, micro_batch=2, seed=4, epochs=2)
    indices = [[part.data for part in step] for step in plan.steps(start=2)]
    made = loader(torch.utils.data.TensorDataset(points), batch_sampler=plan, num_workers=workers)
    steps = [[part.data[0].tolist() for part in step] for step in plan.steps(made, start=2)]
    assert steps == indices
    assert len(steps) == 6, "two steps of eight were done"
    # and once more, as after a resize within one process
    again = [[part.data[0].tolist() for part in step] for step in plan.steps(made, start=5)]
    assert again == indices[3:]
