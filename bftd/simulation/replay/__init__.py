"""Replays of a recorded trace of idle nodes through the daemon's own core, with simulated trainers.

Liu et al., "BFTrainer" (arXiv:2106.12091), sections 4 and 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bftd.simulation.replay.options import EXACT, REFERENCE, Mends, Options

if TYPE_CHECKING:
    from bftd.simulation.replay.loop import run
    from bftd.simulation.replay.result import Result

__all__ = ["EXACT", "REFERENCE", "Mends", "Options", "Result", "run"]


def __getattr__(name: str) -> Any:
    """Import code that needs numpy and the solvers only on demand: `bft replay --help` needs neither."""
    if name == "Result":
        from bftd.simulation.replay.result import Result

        return Result
    if name == "run":
        from bftd.simulation.replay.loop import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
