"""Data for the examples: a fixed random network labels random points, so there is something real to learn."""

import torch


def teacher_data(samples: int = 8192, features: int = 32, classes: int = 4) -> torch.utils.data.TensorDataset:
    """Points of `features` numbers and the class that a random two-layer network gives them; the same everywhere."""
    generator = torch.Generator().manual_seed(20260101)
    points = torch.randn(samples, features, generator=generator)
    first = torch.randn(features, 24, generator=generator)
    second = torch.randn(24, classes, generator=generator)
    labels = (torch.tanh(points @ first / features**0.5) @ second).argmax(dim=1)
    return torch.utils.data.TensorDataset(points, labels)


def student(features: int = 32, classes: int = 4) -> torch.nn.Module:
    """A small network that can learn it."""
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(features, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, classes),
    )
