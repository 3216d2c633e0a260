"""Hooks that are called when the number of workers has changed."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest

import elastic
from elastic.script import resize_hooks


@pytest.fixture(autouse=True)
def nothing_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resize_hooks, "_hooks", [])
    monkeypatch.setattr(resize_hooks, "_before", None)
    monkeypatch.setattr(resize_hooks, "_now", 0)


def calls() -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    elastic.on_resize(lambda old, new: found.append((old, new)))
    return found


def test_a_hook_is_called_at_once_where_another_number_of_workers_saved_the_checkpoint() -> None:
    resize_hooks.began_with(2, 8)
    assert calls() == [(2, 8)]


@pytest.mark.parametrize("before", [None, 8, "2"])
def test_a_hook_is_not_called_where_the_number_is_the_same_or_not_known(before: object) -> None:
    resize_hooks.began_with(before, 8)
    assert calls() == []


def test_a_hook_is_called_at_each_change_in_one_process() -> None:
    found = calls()
    for old, new in ((1, 2), (2, 2), (2, 4)):
        resize_hooks.resized(old, new)
    assert found == [(1, 2), (2, 4)]


def test_a_hook_that_comes_after_a_change_in_the_process_is_not_told_of_the_one_before_it() -> None:
    resize_hooks.began_with(2, 4)
    resize_hooks.resized(4, 3)
    assert calls() == []


class Optimizer:
    def __init__(self) -> None:
        self.param_groups: list[dict[str, Any]] = [{"lr": 0.1, "initial_lr": 0.2}, {"lr": 1.0}]


class Scheduler:
    base_lrs = (0.2, 1.0)


def test_the_rules_scale_every_learning_rate_of_optimizer_and_scheduler() -> None:
    optimizer, scheduler = Optimizer(), Scheduler()
    resize_hooks.linear(optimizer, scheduler)(2, 6)
    assert optimizer.param_groups == [{"lr": pytest.approx(0.3), "initial_lr": pytest.approx(0.6)}, {"lr": 3.0}]
    assert scheduler.base_lrs == pytest.approx([0.6, 3.0])
    resize_hooks.square_root(optimizer)(6, 2)
    assert optimizer.param_groups[1]["lr"] == pytest.approx(3.0 * math.sqrt(1 / 3))


@pytest.mark.torch
def test_a_scheduler_of_torch_goes_on_from_the_scaled_rate() -> None:
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    resize_hooks.linear(optimizer, scheduler)(1, 4)
    rates = []
    for _ in range(4):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == [4.0, 4.0, 2.0, 2.0]


def test_a_script_finds_the_rules_by_their_name_and_until_1_1_by_the_old_path() -> None:
    assert elastic.resizing is resize_hooks
    assert importlib.import_module("elastic.script.resizing") is resize_hooks
