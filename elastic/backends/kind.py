"""The description of a back-end: everything that the rest of the project must know of it, without importing it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

_TORCH = ("torch", "lightning", "pytorch_lightning", "accelerate", "transformers")
NOT_TORCH: Mapping[str, tuple[str, ...]] = {
    **{f"horovod.{name}": ("horovod.torch",) for name in ("tensorflow", "keras", "mxnet")},
    **dict.fromkeys(("tensorflow", "mxnet"), _TORCH),
}
"""Modules that a back-end for torch refuses, unless the script imports torch too: for its data, or as a choice."""


@dataclass(frozen=True)
class Kind:
    """One row of the registry; objects named as "module:attribute" are imported only where and when they are needed.

    The rows are read by the daemon's command line, by a light agent and by a build step: a row's module imports neither
    torch nor anything else of its back-end.
    """

    name: str
    """The name that users write after `backend=`: a small letter, then letters, digits and hyphens."""

    driver: str
    """The `Backend` in the driver. Its module runs in bftd's own Python: no torch, no Horovod."""

    node: str
    """The node process's side, made from an `AgentLink` and the script's words; see elastic.node.__main__.Node."""

    preload: str
    """A function without arguments that imports, once a node, what every worker needs."""

    library: str
    """The library that `preload` imports, by the name that users know."""

    rank_variable: str
    """The environment variable without which a worker of this back-end would train alone."""

    asked_for: str | None = None
    """A regular expression that recognises a script for this back-end by its source; None if that is impossible."""

    refused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Modules that it cannot train with, unless the script also imports one of those listed with the module."""

    interface_variables: tuple[str, ...] = ()
    """Environment variables of the node process that name the network interface by which a node reaches the driver."""

    ipv4_only: bool = False
    """Whether its library can reach processes beside the driver by IPv4 only."""

    defaults: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the node process, unless the pilot's own environment has them."""

    uploads_in_background: bool = False
    """Whether the driver asks workers for their last checkpoint from time to time; else they upload unasked."""

    saves_together: bool = False
    """Whether workers save at a step that they agree on (elastic.link.step_barrier); else rank 0 saves by itself."""

    noise: str | None = None
    """A regular expression of lines that an ending worker prints on a revoked node: they would alarm the user."""

    def wants(self, source: str) -> bool:
        """Whether this script's source asks for the back-end."""
        return self.asked_for is not None and re.search(self.asked_for, source, re.MULTILINE) is not None

    def is_noise(self, line: str) -> bool:
        """Whether a line of output says only that a node was taken away."""
        return self.noise is not None and re.search(self.noise, line) is not None


def load(name: str) -> Any:
    """Import and return "module:attribute"; raises ImportError if something that it needs is not installed."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
