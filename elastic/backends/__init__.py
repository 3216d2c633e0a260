"""What trains: a folder for each back-end, and the table of all of them.

A further back-end is a folder with a `KIND` and a line here; its tests inherit tests/elastic/backends/contract.py. The
table is read where nothing is installed but Python (`make plugins` makes the SPANK plug-in's list of it), so neither
this module nor a folder's own imports more than that.
"""

from __future__ import annotations

from elastic.backends import horovod, torchrun
from elastic.backends.kind import Kind, load

__all__ = ["DEFAULT", "KINDS", "Kind", "load"]

KINDS: dict[str, Kind] = {kind.name: kind for kind in (horovod.KIND, torchrun.KIND)}
"""Every back-end by its name, in the order in which users are told of them and scripts are asked."""

DEFAULT = torchrun.KIND.name
"""What a script is for that asks for none."""
