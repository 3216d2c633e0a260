"""The script's last words on each node: the error that a worker reported, else the last lines of the node's output."""

from __future__ import annotations

from collections import deque

from elastic.base.errors import OF_A_PEER

LINES_KEPT = 12
LINE_MOST = 400
"""The most characters of one line that are kept."""

TEXT_MOST = 2048
"""The most characters of an error that are kept: the last ones, since a traceback ends with the error itself."""


class LastWords:
    """The last lines of each pilot, by its lease."""

    def __init__(self) -> None:
        self._errors: dict[str, list[str]] = {}
        self._printed: dict[str, deque[str]] = {}
        self._order: dict[str, int] = {}
        self._used: set[str] = set()
        self._count = 0

    def printed(self, lease: str, line: str) -> None:
        """Takes a line of the node's output."""
        if line.strip():
            self._printed.setdefault(lease, deque(maxlen=LINES_KEPT)).append(_plain(line))

    def take_error(self, lease: str, text: str) -> None:
        """Takes a worker's error; of several workers, the first error is the one to look at.

        If a script takes its group down before it reports its own error, the peers report theirs first.
        """
        if lease in self._used:
            self._drop(lease)
        if lease not in self._errors or (self.of_a_peer(lease) and not OF_A_PEER.search(text)):
            self._errors[lease] = [_plain(line) for line in text[-TEXT_MOST:].splitlines() if line.strip()]
            self._count += 1
            self._order[lease] = self._count

    def began(self, lease: str) -> None:
        """Notes that workers restart on this pilot, maybe before the end of the earlier ones was reported."""
        if lease in self._used:
            self._drop(lease)

    def used(self, lease: str) -> None:
        """Notes that the failure of this error has been handled."""
        self._used.add(lease)

    def forget(self, leases: set[str]) -> None:
        """Keeps only the words of these pilots."""
        for lease in (self._errors.keys() | self._printed.keys() | self._used) - leases:
            self._drop(lease)
            self._printed.pop(lease, None)

    def order(self, lease: str) -> int:
        """Returns the position of this pilot's error among all; 0 if none was reported: that end is no consequence."""
        return self._order.get(lease, 0)

    def of_a_peer(self, lease: str) -> bool:
        """Whether a worker's error is about a connection: its peer may have ended first."""
        return any(OF_A_PEER.search(line) for line in self._errors.get(lease, ()))

    def of(self, lease: str) -> tuple[str, ...]:
        """Returns the lines in order, empty if there are none."""
        return tuple(self._errors.get(lease) or self._printed.get(lease) or ())

    def error(self, lease: str) -> str:
        """Returns the last line of the worker's error, "" if there is none."""
        lines = self._errors.get(lease)
        return lines[-1].strip() if lines else ""

    def _drop(self, lease: str) -> None:
        self._errors.pop(lease, None)
        self._order.pop(lease, None)
        self._used.discard(lease)


def _plain(line: str) -> str:
    """Returns a line that cannot control a terminal, shortened to LINE_MOST characters."""
    return "".join(letter if letter.isprintable() else " " for letter in line[:LINE_MOST]).rstrip()
