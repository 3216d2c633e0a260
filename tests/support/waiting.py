"""Waiting in tests: for as long as something moves, however slow the machine is, and no longer."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")

STILL_S = 120.0
"""Importing torch, during which nothing is written, takes a third of this beside a load of ten a core."""

_POLL_S = (0.001, 0.05)
"""Between the first looks, and between later ones."""

_LOOK_S = 1.0
_SUFFIXES, _STEMS = (".log", ".out", ".jsonl"), ("log", "out", "seen")


def until(
    what: str,
    reached: Callable[[], Found],
    moved: Callable[[], object] = str,
    shown: Callable[[], object] = str,
    still_s: float = STILL_S,
) -> Found:
    """Poll until `reached` gives something true, and return it.

    `moved` gives a value that changes while what is waited for comes nearer, as a step or what logs hold; without it
    nothing is known of that. The test fails when the value has stayed the same for `still_s`, and names it beside what
    `shown` gives. Both may read files that are not there yet.
    """
    last, pause_s = _seen(moved), _POLL_S[0]
    since_s = looked_s = time.monotonic()
    while not (found := reached()):
        now_s = time.monotonic()
        if now_s - looked_s >= _LOOK_S:
            looked_s = now_s
            if (value := _seen(moved)) != last:
                last, since_s = value, now_s
            elif now_s - since_s > still_s:
                raise AssertionError(
                    f"{what}: nothing has moved for {still_s:g} s, it stands at {last}\n{_seen(shown)}"
                )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _POLL_S[1])
    return found


def _seen(look: Callable[[], object]) -> object:
    with contextlib.suppress(FileNotFoundError):
        return look()
    return None


def written(*folders: Path) -> Callable[[], dict[str, int]]:
    """What a cluster and its jobs have written: the sizes of the logs below some folders, for `until`."""

    def sizes() -> dict[str, int]:
        found = {}
        for top in folders:
            for folder, _, names in os.walk(top):  # passes over folders that have just been removed
                for path in (Path(folder, name) for name in names):
                    if path.suffix in _SUFFIXES or path.stem in _STEMS:
                        with contextlib.suppress(OSError):  # it has just been removed
                            found[str(path)] = path.stat().st_size
        return found

    return sizes
