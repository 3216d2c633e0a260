"""What a script said last on each node: the error that a worker told, else the last lines that its node printed."""

from __future__ import annotations

import re
from collections import deque

LINES_KEPT = 12
LINE_MOST = 400
"""Letters of one line that are kept."""

TEXT_MOST = 2048
"""Letters of an error that are kept: the last ones, since the error itself stands at a traceback's end."""

_OF_A_PEER = re.compile(
    r"(?i)connection (?:was )?(?:likely )?(?:closed|reset)|(?:closed|reset) by (?:remote )?peer|broken ?pipe"
    r"|connection(?:reset|aborted)?error|remote process exit|ncclremoteerror|dist(?:network|store)error"
    r"|horovodinternalerror"
)
"""How gloo, NCCL, torch's store, Horovod and Python name the loss of somebody at the other end."""


class LastWords:
    """Few lines a pilot, by its lease."""

    def __init__(self) -> None:
        self._told: dict[str, list[str]] = {}
        self._printed: dict[str, deque[str]] = {}
        self._order: dict[str, int] = {}
        self._used: set[str] = set()
        self._count = 0

    def printed(self, lease: str, line: str) -> None:
        """A line of the node's output."""
        if line.strip():
            self._printed.setdefault(lease, deque(maxlen=LINES_KEPT)).append(_plain(line))

    def told(self, lease: str, text: str) -> None:
        """A worker's error; of several workers the first one that fails is the one to look at.

        A script that takes its group down before its own error is told has the peers tell theirs first.
        """
        if lease in self._used:
            self._drop(lease)
        if lease not in self._told or (self.of_a_peer(lease) and not _OF_A_PEER.search(text)):
            self._told[lease] = [_plain(line) for line in text[-TEXT_MOST:].splitlines() if line.strip()]
            self._count += 1
            self._order[lease] = self._count

    def began(self, lease: str) -> None:
        """Workers begin anew on this pilot, maybe before it was heard how those before them ended."""
        if lease in self._used:
            self._drop(lease)

    def used(self, lease: str) -> None:
        """The failure that the error led to is dealt with."""
        self._used.add(lease)

    def forget(self, leases: set[str]) -> None:
        """Keeps only what these pilots said."""
        for lease in (self._told.keys() | self._printed.keys() | self._used) - leases:
            self._drop(lease)
            self._printed.pop(lease, None)

    def order(self, lease: str) -> int:
        """The place of this pilot's error among all; 0 where none was told: such an end is nobody's consequence."""
        return self._order.get(lease, 0)

    def of_a_peer(self, lease: str) -> bool:
        """Whether the error that a worker told is of a connection: its peer may have ended first."""
        return any(_OF_A_PEER.search(line) for line in self._told.get(lease, ()))

    def of(self, lease: str) -> tuple[str, ...]:
        """The lines, the last one last; none where nothing was said."""
        return tuple(self._told.get(lease) or self._printed.get(lease) or ())

    def error(self, lease: str) -> str:
        """The last line of the error that a worker told, "" where none did."""
        lines = self._told.get(lease)
        return lines[-1].strip() if lines else ""

    def _drop(self, lease: str) -> None:
        self._told.pop(lease, None)
        self._order.pop(lease, None)
        self._used.discard(lease)


def _plain(line: str) -> str:
    """A line that cannot steer a terminal, and no longer than a reader wants."""
    return "".join(letter if letter.isprintable() else " " for letter in line[:LINE_MOST]).rstrip()
