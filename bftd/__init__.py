"""bftd: a Slurm backfill daemon that lends idle nodes to elastic training jobs.

Training scripts write `from bftd import elastic`: that finds bftd's package also where a folder `elastic` of the user's
own stands beside the script.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import elastic as elastic  # for checkers and editors; at run time by __getattr__

__version__ = "1.0.0"


def __getattr__(name: str) -> ModuleType:
    if name == "elastic":
        from bftd import own_packages

        return own_packages.package(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
