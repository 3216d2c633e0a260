"""Hooks that run before a script destroys its process groups, while a save may still be writing with its own.

Scripts destroy them as their last act, usually by a name that they imported in their first lines. So the function is
replaced before any script runs; this costs nothing until there is a distributed checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

_hooks: list[Callable[[], None]] = []


def before_destroy(hook: Callable[[], None]) -> None:
    """Have `hook` called before the script destroys its process groups."""
    _hooks.append(hook)


def watch() -> None:
    """Make destroy_process_group call the hooks first, under whatever name scripts import it from now on."""
    if not dist.is_available():
        return
    original = dist.destroy_process_group
    if getattr(original, "_bft_watched", False):
        return

    def destroy_process_group(group: Any = None) -> None:
        if group is None or group is dist.group.WORLD:
            for hook in _hooks:
                hook()
        original(group)

    destroy_process_group._bft_watched = True  # type: ignore[attr-defined]
    dist.destroy_process_group = destroy_process_group
    dist.distributed_c10d.destroy_process_group = destroy_process_group
