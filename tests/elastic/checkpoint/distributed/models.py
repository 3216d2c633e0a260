"""What the workers of these tests train and save."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard


def network(width: int = 11) -> torch.nn.Module:
    """A small network whose shapes no number of workers divides."""
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(7, width), torch.nn.Tanh(), torch.nn.Linear(width, 5))


class Sharded:
    """The network under FSDP2, and its optimizer."""

    def __init__(self, width: int = 11) -> None:
        self.model = network(width)
        for layer in (self.model[0], self.model[2]):
            fully_shard(layer)
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def take(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

    def train(self, first: int, steps: int) -> list[float]:
        """Steps on the whole batch of each step on every worker: the losses are those of any number of workers."""
        losses = []
        for step in range(first, first + steps):
            generator = torch.Generator().manual_seed(step)
            points = torch.randn(16, 7, generator=generator)
            self.optimizer.zero_grad()
            loss = self.model(points).square().mean()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return losses
