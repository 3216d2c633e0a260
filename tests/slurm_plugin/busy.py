"""The private cluster with a bit of everything on it, as its outputs were recorded and as live tests make it."""

from __future__ import annotations

BUSY_NODES: dict[str, tuple[str, set[str]]] = {
    "n1": ("ALLOCATED", set()),
    "n2": ("ALLOCATED", set()),
    "n3": ("IDLE", {"PLANNED"}),
    "n4": ("IDLE", {"PLANNED"}),
    "n5": ("IDLE", {"DRAIN"}),
    "n6": ("DOWN", set()),
    "svc1": ("MIXED", set()),
}
"""State and flags by node: n1-2 run a job, n3-4 are planned for one that waits for all four, n5-6 are set aside."""
