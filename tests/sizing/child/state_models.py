"""Models as they are put together and copied: traced as for a GPU, and trained for real on this CPU.

Each function is a make_step; the step that it returns says what it holds: `step.modules` and `step.optimizers`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH = 96


def stepping(model: Any, x: Any, optimizer: Any, also: Sequence[Any] = (), after: Any = None) -> Any:
    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if after is not None:
            after()

    function: Any = step
    function.modules, function.optimizers = [model, *also], [optimizer]
    return step


def layers(count: int = 3) -> Any:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(count)))


def rows(batch: int, *shape: int) -> Any:
    return torch.randn(batch, *(shape or (WIDTH,)), device=DEVICE)


def adam(model: Any) -> Any:
    return torch.optim.AdamW(model.parameters())


def encoder(batch: int) -> Any:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 4, 128, batch_first=True), 2).to(DEVICE)
    return stepping(model, rows(batch, 5, WIDTH), adam(model))


def transformer(batch: int) -> Any:
    model = nn.Transformer(WIDTH, 4, 1, 2, 128, batch_first=True).to(DEVICE)
    x = rows(batch, 5, WIDTH)
    return stepping(lambda given: model(given, given), x, adam(model), [model])


def averaged(batch: int) -> Any:
    """A moving average of the weights, which an everyday copy holds."""
    model = layers().to(DEVICE)
    average = copy.deepcopy(model)

    def update() -> None:
        with torch.no_grad():
            for old, new in zip(average.parameters(), model.parameters(), strict=True):
                old.lerp_(new, 0.01)

    return stepping(model, rows(batch), adam(model), [average], update)


class Adapted(nn.Module):
    """A frozen layer beside two small matrices that learn (LoRA)."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        return self.base(x) + self.up(self.down(x))


def adapted(batch: int) -> Any:
    model = copy.deepcopy(nn.Sequential(*(Adapted(each) for each in layers()))).to(DEVICE)
    return stepping(model, rows(batch), torch.optim.AdamW(each for each in model.parameters() if each.requires_grad))


class Tied(nn.Module):
    """One matrix for what comes in and what goes out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Embedding(500, WIDTH), nn.Linear(WIDTH, 500, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x: Any) -> Any:
        return self.last(self.first(x))


def tied(batch: int) -> Any:
    model = copy.deepcopy(Tied()).to(DEVICE)
    return stepping(model, torch.randint(0, 500, (batch, 5), device=DEVICE), adam(model))


def shared(batch: int) -> Any:
    layer = nn.Linear(WIDTH, WIDTH)
    model = copy.deepcopy(nn.Sequential(layer, layer, layer)).to(DEVICE)
    return stepping(model, rows(batch), adam(model))


def lazily_made(batch: int) -> Any:
    model = copy.deepcopy(nn.Sequential(nn.LazyLinear(WIDTH), nn.LazyLinear(WIDTH))).append(nn.LazyBatchNorm1d())
    model.to(DEVICE)
    model(rows(batch))
    return stepping(model, rows(batch), adam(model))


def lazily_made_in_the_step(batch: int) -> Any:
    model = nn.Sequential(nn.LazyLinear(WIDTH), nn.LazyLinear(WIDTH)).to(DEVICE)
    return stepping(model, rows(batch), adam(model))


def made_without_contents(batch: int) -> Any:
    with torch.device("meta"):
        model = copy.deepcopy(layers())
    model.to_empty(device=DEVICE)
    return stepping(model, rows(batch), adam(model))


def compiled(batch: int) -> Any:
    model = copy.deepcopy(layers()).to(DEVICE)
    return stepping(torch.compile(model) if DEVICE == "cuda" else model, rows(batch), adam(model))


def in_no_module(batch: int) -> Any:
    weight = nn.Parameter(torch.randn(WIDTH, WIDTH, device=DEVICE))
    return stepping(lambda x: x @ weight, rows(batch), torch.optim.AdamW([weight]))


def read_by_the_host(batch: int) -> Any:
    """Weights that are copied to the host in each step stay where they are."""
    model = layers().to(DEVICE)
    return stepping(model, rows(batch), adam(model), after=lambda: [each.cpu() for each in model.parameters()])


def put_together(batch: int, copies: str, count: int, frozen: int, half: bool, optimizer: str) -> Any:
    """A model of so many layers, the first `frozen` of them fixed, copied before or after it moves, or both."""
    model = layers(count)
    for layer in model[:frozen]:
        layer.requires_grad_(False)
    model = copy.deepcopy(model) if "before" in copies else model
    model = (model.bfloat16() if half else model).to(DEVICE)
    model = copy.deepcopy(model) if "after" in copies else model
    return stepping(model, rows(batch).to(model[0].weight.dtype), getattr(torch.optim, optimizer)(model.parameters()))
