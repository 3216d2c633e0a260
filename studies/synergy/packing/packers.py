"""The packers by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from sizing.base.errors import UsageError
from studies.synergy.optimum import opt
from studies.synergy.packing import priced, proportional, tune
from studies.synergy.packing.types import Packer

PACKERS: Mapping[str, Packer] = {
    "priced": priced.pack,
    "tune": tune.tune,
    "opt": opt.pack,
    "greedy": tune.greedy,
    "proportional": proportional.pack,
}
FAIR = ("priced", "tune", "opt", "proportional")
"""Packers under which every job runs, and none slower than with its GPU-proportional share."""


def packer(name: str) -> Packer:
    """Return the packer of a name. Raises UsageError, one line, for an unknown name."""
    if name in PACKERS:
        return PACKERS[name]
    near = difflib.get_close_matches(name.lower(), PACKERS, n=1, cutoff=0.5)
    raise UsageError(
        f"--policy {name[:40]!r}: no such policy; "
        + (f"did you mean {near[0]}?" if near else f"one of {', '.join(PACKERS)}")
    )
