"""What a back-end says of itself: everything that the rest of the project has to know of it, without importing it."""

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
"""What a back-end for torch refuses: torch scripts may read their data with tensorflow, or have torch as a choice."""


@dataclass(frozen=True)
class Kind:
    """One row of the registry; what is named "module:attribute" is imported by whom it is for, when it is needed.

    The rows themselves are read by the daemon's command line, by a light agent and by a build step: a row's module
    imports neither torch nor anything else of its back-end.
    """

    name: str
    """What the user writes after `backend=`: a small letter, then letters, digits and hyphens."""

    driver: str
    """The `Backend` that lives in the driver. Its module runs in bftd's own Python: no torch, no Horovod."""

    node: str
    """The node process's side, made of an `AgentLink` and the script's words; see elastic.node.__main__.Node."""

    preload: str
    """A function of no arguments that imports, once a node, what every worker needs."""

    library: str
    """What `preload` imports, as a user calls it."""

    rank_variable: str
    """The environment variable without which a worker of this back-end would train alone."""

    asked_for: str | None = None
    """A regular expression that finds, in a script's source, that the script is for this back-end; None: it cannot."""

    refused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Modules that it cannot train with, unless the script also imports one of those beside them."""

    interface_variables: tuple[str, ...] = ()
    """Environment variables of the node process that name the network interface by which a node reaches the driver."""

    ipv4_only: bool = False
    """Whether its library reaches what is beside the driver by IPv4 alone."""

    defaults: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the node process, where the pilot's own environment has none of that name."""

    ships_in_background: bool = False
    """Whether the driver fetches the workers' last state from time to time; else workers send it by themselves."""

    saves_together: bool = False
    """Whether workers save at a step that all of them agree on (elastic.link.fence); else rank 0 saves by itself."""

    noise: str | None = None
    """A regular expression of lines that a worker on a revoked node prints as it ends: they would alarm the user."""

    def wants(self, source: str) -> bool:
        """Whether this script's source asks for the back-end."""
        return self.asked_for is not None and re.search(self.asked_for, source, re.MULTILINE) is not None

    def is_noise(self, line: str) -> bool:
        """Whether a line of output says no more than that a node was taken away."""
        return self.noise is not None and re.search(self.noise, line) is not None


def load(name: str) -> Any:
    """What "module:attribute" names; raises ImportError where something that it needs is not installed."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
