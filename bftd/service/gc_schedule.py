"""The schedule of Python's garbage collection: with a snapshot, not while somebody is served.

Looking through everything that the daemon holds for a large cluster takes tens of milliseconds. Objects that were
looked at once are set aside, so that the collections in between see new objects only.
"""

from __future__ import annotations

import gc
import time

EVERY_S = 60.0


def only_when_called() -> None:
    """Leave full collections to `Garbage.collect`; new objects are collected as usual."""
    new, young, _ = gc.get_threshold()
    gc.set_threshold(new, young, 10**6)


class Garbage:
    """Full garbage collections, at most once a minute, at moments that the caller chooses."""

    def __init__(self) -> None:
        self._last_s = float("-inf")

    def collect(self) -> None:
        """Run a full collection if the last one was at least a minute ago."""
        if time.monotonic() - self._last_s < EVERY_S:
            return
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._last_s = time.monotonic()
