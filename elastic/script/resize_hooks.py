"""`elastic.resizing`: reactions of a script to a changed number of workers: hooks, and rules for the learning rate.

With `elastic.batches` none of this is needed: the global batch stays the same. It is for scripts whose batch grows with
the number of workers. The learning rate then grows with it, in proportion (Goyal et al., Accurate, Large Minibatch SGD,
2017) or with its square root (Krizhevsky, One weird trick, 2014; You et al., LARS, 2017).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

Hook = Callable[[int, int], None]

_hooks: list[Hook] = []
_before: int | None = None
_now = 0


def on_resize(hook: Hook) -> Hook:
    """Calls `hook(old, new)` whenever the number of workers changes from `old` to `new`; also usable as a decorator.

    Under torchrun a resize starts the script again, so call this once the optimizer has the state that `elastic.load`
    returned: the hook is then called at once if another number of workers saved that state. Under Horovod the hook is
    called after each resize.
    """
    _hooks.append(hook)
    if _before is not None and _before != _now:
        hook(_before, _now)
    return hook


def began_with(before: object, now: int) -> None:
    """Note that this process resumes from a checkpoint saved by `before` workers; None if it does not say."""
    global _before, _now
    _before, _now = before if isinstance(before, int) else None, now


def resized(before: int, now: int) -> None:
    """Call the hooks if the number of workers has changed in this process."""
    global _before
    _before = None
    if before != now:
        for hook in list(_hooks):
            hook(before, now)


def linear(optimizer: Any, scheduler: Any = None) -> Hook:
    """Returns a hook that scales the learning rates of an optimizer and its scheduler with the number of workers."""
    return lambda old, new: _scale(optimizer, scheduler, new / old)


def square_root(optimizer: Any, scheduler: Any = None) -> Hook:
    """Returns a hook that scales the same learning rates with the square root of the number of workers."""
    return lambda old, new: _scale(optimizer, scheduler, math.sqrt(new / old))


def _scale(optimizer: Any, scheduler: Any, factor: float) -> None:
    for group in optimizer.param_groups:
        for name in ("lr", "initial_lr"):
            if name in group:
                group[name] = group[name] * factor  # not in place: it may be a tensor that others refer to
    if scheduler is not None:
        scheduler.base_lrs = [rate * factor for rate in scheduler.base_lrs]
