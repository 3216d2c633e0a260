"""This process's rank, number of workers and step, as torchrun or another framework gives them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class World:
    """Functions that return this worker's `rank`, the `size` of its group, and the number of steps done.

    `by_script`: the script itself counts the steps, with a call for each, and may forget to. `took` is told the number
    of samples of all workers at the beginning of each step of `elastic.batches`.
    """

    rank: Callable[[], int]
    size: Callable[[], int]
    step: Callable[[], int]
    by_script: bool = True
    took: Callable[[int], None] = lambda samples: None


_world = World(lambda: 0, lambda: 1, lambda: 0)


def current() -> World:
    """Return the world of the framework that the script uses."""
    return _world


def share(count: int, rank: int, size: int) -> tuple[int, int]:
    """Return one worker's part of `count` things in a row: the index of its first, and of the next worker's first."""
    return rank * count // size, (rank + 1) * count // size


def use(world: World) -> None:
    """Set the world to ask from now on."""
    global _world
    _world = world
