"""Keys of earlier versions that a configuration file may still have."""

from __future__ import annotations

from collections.abc import Mapping

# Removed keys, each with a sentence about its replacement: a file that still names one keeps working.
GONE: Mapping[tuple[str, str], str] = {
    ("pool", "plan_wait_s"): "no waiting job stops growth any more: nodes are earmarked for those that can start",
}
# Old names of keys, understood until 0.2.
RENAMED: Mapping[tuple[str, str], str] = {("pool", "make_room"): "earmark"}
