"""Pieces: a training has the same weights, to the last bit, on any number of workers."""

from __future__ import annotations

import math
import multiprocessing
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import elastic
from elastic.base.errors import UsageError
from elastic.script import ranks
from elastic.script.pieces import children, whole

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("alone")]
STEPS = 6


@given(st.integers(1, 70), st.integers(1, 20))
def test_the_subtrees_of_all_workers_are_all_pieces_once_and_few(count: int, size: int) -> None:
    found = [whole((0, count), rank * count // size, (rank + 1) * count // size) for rank in range(size)]
    assert [piece for nodes in found for node in nodes for piece in range(*node)] == list(range(count))
    assert all(len(nodes) <= 2 * math.ceil(math.log2(count + 1)) for nodes in found)
    if count > 1:
        (begin, middle), (other, end) = children((0, count))
        assert (begin, middle, end) == (0, other, count)


def network() -> Any:
    """With dropout, and batch normalisation whose statistics are a part of the state."""
    torch.manual_seed(2)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.ReLU(), torch.nn.Linear(16, 3)
    )


def train(rank: int, size: int, folder: Path) -> None:
    """One worker of a training; the last step of an epoch is short."""
    torch.set_num_threads(1)
    if size > 1:
        torch.distributed.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=size)
    module = network()
    model = torch.nn.parallel.DistributedDataParallel(module) if size > 1 else module
    points = torch.randn(100, 6, generator=torch.Generator().manual_seed(1))
    labels = points[:, :3].argmax(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    done = 0
    ranks.use(ranks.World(lambda: rank, lambda: size, lambda: done))
    for step in elastic.batches(100, global_batch=24, pieces=4, seed=3).steps():
        if step.number == STEPS:
            break
        optimizer.zero_grad()
        for part in step:
            with part.sync(model):
                (
                    torch.nn.functional.cross_entropy(model(points[part.data]), labels[part.data]) * part.weight
                ).backward()
        optimizer.step()
        done += 1
    if rank == 0:
        torch.save(module.state_dict(), folder / "state")


def trained(folder: Path, size: int) -> dict[str, Any]:
    folder.mkdir()
    workers = [
        multiprocessing.get_context("fork").Process(target=train, args=(rank, size, folder)) for rank in range(size)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    state: dict[str, Any] = torch.load(folder / "state")
    return state


def test_weights_and_statistics_are_the_same_to_the_last_bit_on_one_three_and_five_workers(tmp_path: Path) -> None:
    one, *others = (trained(tmp_path / str(size), size) for size in (1, 3, 5))
    assert not torch.equal(one["0.weight"], network().state_dict()["0.weight"])
    assert one["1.num_batches_tracked"] == STEPS
    for other in others:
        assert [name for name, tensor in one.items() if not torch.equal(tensor, other[name])] == []


@pytest.mark.parametrize(("size", "as_on"), [(7, 4), (3, None), (5, 4), (16, 8), (4, None)])
def test_a_number_of_workers_that_pieces_do_not_divide_by_is_told_with_what_it_is_worth(
    size: int, as_on: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks.use(ranks.World(lambda: 0, lambda: size, lambda: 0))
    next(elastic.batches(64, global_batch=64, pieces=8).steps(start=0))
    said = re.findall(r"(\d+) pieces on (\d+) workers take as long as on (\d+)", capsys.readouterr().err)
    assert said == ([] if as_on is None else [("8", str(size), str(as_on))])


def steps_of(model: Any, compute: bool = True) -> None:
    for step in elastic.batches(8, global_batch=8, pieces=2, epochs=1).steps(start=0):
        for part in step:
            if compute:
                with part.sync(model):
                    model(torch.ones(len(part.data), 1)).mean().backward()


@pytest.mark.parametrize(
    ("model", "compute"),
    [
        (torch.nn.Linear(1, 1), False),
        (torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.SyncBatchNorm(1)), True),
    ],
)
def test_what_pieces_cannot_be_added_up_for_ends_in_a_line(model: Any, compute: bool) -> None:
    with pytest.raises(UsageError):
        steps_of(model, compute)


def test_the_statistics_of_a_scripts_own_normalization_follow_too() -> None:
    import torch

    from elastic.script.pieces import Gradients

    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                self.register_buffer(name, torch.zeros(()))

    own = Own()
    (kind,) = Gradients(own)._kinds.values()
    assert [id(one) for one in kind.statistics] == [id(own.running_mean), id(own.running_var)]


def test_a_parameter_that_no_piece_uses_has_no_gradient() -> None:
    model = torch.nn.ModuleDict({"used": torch.nn.Linear(1, 1), "other": torch.nn.Linear(1, 1)})
    for step in elastic.batches(8, global_batch=8, pieces=2, epochs=1).steps(start=0):
        for part in step:
            with part.sync(model):
                (model["used"](torch.ones(len(part.data), 1)).mean() * part.weight).backward()
    assert model["other"].weight.grad is None
    assert model["used"].weight.grad.item() == 1.0


@pytest.mark.parametrize("options", [{"pieces": 0}, {"pieces": 9}, {"pieces": 2, "micro_batch": 2}])
def test_pieces_that_do_not_fit_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        elastic.batches(80, global_batch=8, **options)
