"""Large and sharded states: every worker writes its part of a checkpoint below one path, and reads any part of it.

The files are those of torch.distributed.checkpoint. The driver keeps no more than a manifest of each *generation*: its
step and its files with sizes and digests. This module imports no torch: a script outside bftd pays nothing for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastic.session import Fetched


@dataclass(frozen=True)
class Loaded:
    """A state that was read, and when it was saved: its step, the samples until then, and by how many workers."""

    state: Any
    step: int
    samples: int
    size: int | None


def wanted(state: Any) -> bool:
    """Whether `state` goes by path: where the user gave one, and where it is sharded (holds DTensors)."""
    return os.environ.get("BFT_STATE_BY_PATH") == "1" or sharded(state)


def sharded(state: Any) -> bool:
    """Whether `state` holds DTensors."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and _is_sharded(state, module.DTensor)


def _is_sharded(value: Any, kind: type) -> bool:
    if isinstance(value, Mapping):
        return any(_is_sharded(each, kind) for each in value.values())
    if isinstance(value, (list, tuple)):
        return any(_is_sharded(each, kind) for each in value)
    # FSDP1's: refused there, where here rank 0's shard would be taken for the whole
    return isinstance(value, kind) or type(value).__name__ == "ShardedTensor"


def save(state: Any, step: int, samples: int, *, pause: bool) -> None:
    """Has all workers write `state` in the background; with `pause` this returns no more, once it is written.

    Every worker calls it at the same step. What it holds may change as soon as it returns. Of states that come faster
    than they can be written the newest is. Raises StateError where no state can go by path at all.
    """
    from elastic.bypath import saving

    saving.save(state, step, samples, pause=pause)


def load(fetched: Fetched, into: Any | None) -> Loaded | None:
    """The newest whole generation of `fetched`, read into the tensors of `into`, or onto the CPU without it.

    None when there is no generation. Every worker calls it. Raises StateError when none can be read, and when they are
    of another model; nothing in `into` was changed then.
    """
    from elastic.bypath import loading

    return loading.load(fetched.generations, into)


def copied(state: Any, into: Any) -> Any:
    """`state`, which came whole, copied into the tensors of `into`; raises StateError where it is of another model."""
    from elastic.bypath import loading

    return loading.copied(state, into)
