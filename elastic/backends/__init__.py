"""The training back-ends: a folder for each, and the table of all of them.

A further back-end is a folder with a `KIND` and a line here; its tests inherit tests/elastic/backends/contract.py. The
table is read where only Python is installed (`make plugins` makes the SPANK plug-in's list from it), so neither this
module nor the folders' own modules import more than that.
"""

from __future__ import annotations

from elastic.backends import horovod, torchrun
from elastic.backends.kind import Kind, load

__all__ = ["DEFAULT", "KINDS", "Kind", "load"]

KINDS: dict[str, Kind] = {kind.name: kind for kind in (horovod.KIND, torchrun.KIND)}
"""All back-ends by name, in the order in which users see them and scripts are checked for them."""

DEFAULT = torchrun.KIND.name
"""The back-end of a script that asks for none."""
