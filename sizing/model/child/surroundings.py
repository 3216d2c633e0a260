"""What a step may not do while it is traced: speak to the network, and let other processes load its data."""

from __future__ import annotations

import inspect
import socket
from typing import Any

from sizing.model.child import private


def no_network() -> None:
    """Refuse connections: a trace must not load anything, nor wait for it."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OSError("a traced step has no network; load what it needs beforehand")

    network: Any = socket
    network.socket.connect = network.socket.connect_ex = network.getaddrinfo = refuse


def no_checkpoints() -> None:
    """Write no checkpoint: there is nothing in the tensors, and the user's own may lie there."""
    import torch

    everything: Any = torch
    everything.save = lambda *args, **kwargs: None


def load_data_here(tracker: Any) -> None:
    """Data loaders work in this process, on real numbers (they draw orders and seeds), and hand out shapes."""
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
        with private.without_modes():
            batches = iterated(self)
        while True:
            try:
                with private.without_modes():
                    batch = next(batches)
            except StopIteration:
                return
            yield private.without_contents(batch, tracker)

    loader.__init__, loader.__iter__ = init, iterate
