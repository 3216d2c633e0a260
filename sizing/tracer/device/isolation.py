"""Limits of a step while it is traced: no network, no checkpoints, and data is loaded in this process."""

from __future__ import annotations

import inspect
import socket
from typing import Any

from sizing.tracer import torch_internals


def no_network() -> None:
    """Refuse connections: a trace must not download anything, nor wait for it."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OSError("a traced step has no network; load what it needs beforehand")

    network: Any = socket
    network.socket.connect = network.socket.connect_ex = network.getaddrinfo = refuse


def no_checkpoints() -> None:
    """Make torch.save do nothing: the tensors are empty, and the file may be a real checkpoint of the user."""
    import torch

    everything: Any = torch
    everything.save = lambda *args, **kwargs: None


def load_data_here(tracker: Any) -> None:
    """Let data loaders work in this process and on real numbers (they draw orders and seeds).

    The batches that they return have no contents.
    """
    from torch.utils import data

    loader: Any = data.DataLoader
    made, iterated = loader.__init__, loader.__iter__
    signature = inspect.signature(made)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs).arguments
        for name in ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "multiprocessing_context"):
            given.pop(name, None)
        made(**given)

    def iterate(self: Any) -> Any:
        with torch_internals.without_modes():
            batches = iterated(self)
        while True:
            try:
                with torch_internals.without_modes():
                    batch = next(batches)
            except StopIteration:
                return
            yield torch_internals.without_contents(batch, tracker)

    loader.__init__, loader.__iter__ = init, iterate
