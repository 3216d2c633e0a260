"""When Python looks for garbage: with a snapshot, and not while somebody is served.

Looking through all that the daemon holds of a large cluster takes tens of milliseconds. What was looked through once is
set aside, so that the collections in between see new objects only.
"""

from __future__ import annotations

import gc
import time

EVERY_S = 60.0


def only_when_told() -> None:
    """Have this process look through everything when `Garbage.collect` does, and at what is new as always."""
    new, young, _ = gc.get_threshold()
    gc.set_threshold(new, young, 10**6)


class Garbage:
    """Looks through everything once a minute, when it is told that now is the time."""

    def __init__(self) -> None:
        self._last_s = float("-inf")

    def collect(self) -> None:
        """Look through everything, if the last time is a minute ago."""
        if time.monotonic() - self._last_s < EVERY_S:
            return
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._last_s = time.monotonic()
