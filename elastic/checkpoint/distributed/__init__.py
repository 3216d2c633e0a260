"""Distributed checkpoints, of large and sharded states: every worker writes its part below one path, and reads any.

The files are those of torch.distributed.checkpoint. The driver keeps only a manifest of each *checkpoint version*:
its step and its files with sizes and digests. This module does not import torch: it costs a script outside bftd
nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastic.worker.driver_link import Download


@dataclass(frozen=True)
class Loaded:
    """A state that was read, and when it was saved: its step, the samples until then, and the number of workers."""

    state: Any
    step: int
    samples: int
    size: int | None


def wanted(state: Any) -> bool:
    """Whether `state` goes into a distributed checkpoint: if the user gave a path, or if it holds DTensors."""
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
    # FSDP1's ShardedTensor: refused when it is saved; otherwise rank 0's shard would be taken for the whole.
    return isinstance(value, kind) or type(value).__name__ == "ShardedTensor"


def save(state: Any, step: int, samples: int, *, pause: bool) -> None:
    """Have all workers write `state` in the background; with `pause` this does not return once it is written.

    Every worker calls it at the same step. The content of `state` may change as soon as it returns. If checkpoints come
    faster than they can be written, only the newest is. Raises CheckpointError if none can be written at all.
    """
    from elastic.checkpoint.distributed import saving

    saving.save(state, step, samples, pause=pause)


def load(download: Download, into: Any | None) -> Loaded | None:
    """Read the newest complete version of `download` into the tensors of `into`, or onto the CPU without it.

    Returns None if there is no version. Every worker calls it. Raises CheckpointError if none can be read or if they
    belong to another model; `into` is then unchanged.
    """
    from elastic.checkpoint.distributed import loading

    return loading.load(download.versions, into)


def copied(state: Any, into: Any) -> Any:
    """Copy `state`, which is whole, into the tensors of `into`. Raises CheckpointError if it is of another model."""
    from elastic.checkpoint.distributed import loading

    return loading.copied(state, into)
