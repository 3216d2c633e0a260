"""The fitness of nodes for a job, as Slurm shows it, whatever runs on them. Pure."""

from __future__ import annotations

from dataclasses import replace

from slurm_plugin.read.types import Node

BUSY = frozenset({"ALLOCATED", "MIXED"})
# Flags that leave an idle node usable; every other flag, even one that a later Slurm invents, keeps it out.
HARMLESS_FLAGS = frozenset({"PLANNED", "CLOUD", "DYNAMIC_NORM", "DYNAMIC_FUTURE"})
_FLAG_SENTENCES = (
    ("NOT_RESPONDING", "does not respond"),
    ("POWER", "is powered down or changes power"),
    ("DRAIN", "is draining"),
    ("DOWN", "is down"),
    ("FAIL", "is failing"),
    ("REBOOT", "is rebooting"),
    ("MAINT", "is in maintenance"),
    ("RESERVED", "is reserved"),
    ("COMPLETING", "is between two jobs"),
)


def is_unheard(node: Node) -> bool:
    """Whether the node has not answered Slurm, which says nothing of the job there.

    A controller that has just started shows all nodes UNKNOWN until each has answered (4 s), and a node whose answer
    was lost as NOT_RESPONDING.
    """
    return node.state == "UNKNOWN" or "NOT_RESPONDING" in node.flags


def as_heard(node: Node) -> Node:
    """Return a node with a job on it as Slurm showed it while it answered; a node that is DOWN stays DOWN."""
    state = "ALLOCATED" if node.state == "UNKNOWN" else node.state
    return replace(node, state=state, flags=node.flags - {"NOT_RESPONDING"})


def unusable(node: Node, flags: frozenset[str]) -> str | None:
    """Return why a node with `flags` is not to be used whatever it runs, or None."""
    if node.state != "IDLE" and node.state not in BUSY:
        return f"is {node.state.lower()}"
    flags = flags - HARMLESS_FLAGS
    if not flags:  # true for nearly all of thousands of nodes
        return None
    for part, sentence in _FLAG_SENTENCES:
        if any(part in flag for flag in flags):
            return f"{sentence}: {node.reason}" if node.reason and part in ("DRAIN", "DOWN", "FAIL") else sentence
    return f"has the flag {min(flags)}"
