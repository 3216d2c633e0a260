"""What the scripts that train the same on any number of workers train on."""

import torch
from torch.utils.data import TensorDataset

GLOBAL_BATCH = 24


def dataset() -> TensorDataset:
    """203 points of three classes, so that the last step of an epoch has fewer than the others; and their numbers."""
    generator = torch.Generator().manual_seed(1)
    points = torch.randn(203, 6, generator=generator)
    labels = (points[:, :3] + 0.3 * torch.randn(203, 3, generator=generator)).argmax(1)
    return TensorDataset(torch.arange(203), points, labels)


def network(*layers: torch.nn.Module) -> torch.nn.Module:
    """The same weights in every process, with more layers in the middle."""
    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), *layers, torch.nn.Tanh(), torch.nn.Linear(16, 3))
