"""Which worker of how many this process is, and at which step: as torchrun tells it, or as another framework does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class World:
    """Where to ask: this worker's `rank` of `size`, and how many steps were done before the next one.

    `by_script`: whether the script itself counts them, each with a call, and can forget to.
    """

    rank: Callable[[], int]
    size: Callable[[], int]
    step: Callable[[], int]
    by_script: bool = True


_world = World(lambda: 0, lambda: 1, lambda: 0)


def current() -> World:
    """The one of the framework that the script uses."""
    return _world


def share(count: int, rank: int, size: int) -> tuple[int, int]:
    """The part of `count` things in a row that is one's of `size` workers: its first, and the first of the next one."""
    return rank * count // size, (rank + 1) * count // size


def use(world: World) -> None:
    """Ask there from now on."""
    global _world
    _world = world
