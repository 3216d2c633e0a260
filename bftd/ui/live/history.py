"""The memory of the screen: decisions, and the sizes of trainers over time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from bftd.client import Decision, History, Status

# The decisions to scroll back through, and the time that a line of sizes shows.
_DECISIONS_MOST = 300
PAST_S = 3600.0
_SIZES_MOST = 3700


class Memory:
    """Collects data from one status after another; bounded in time and number."""

    def __init__(self) -> None:
        self._decisions: deque[Decision] = deque(maxlen=_DECISIONS_MOST)
        self._sizes: dict[str, deque[tuple[float, float]]] = {}
        self._history: History | None = None

    def take(self, status: Status) -> bool:
        """Take in a status; return whether it had new decisions."""
        for trainer in status.trainers:
            if trainer.id:
                sizes = self._sizes.setdefault(trainer.id, deque(maxlen=_SIZES_MOST))
                if not sizes or status.time_s > sizes[-1][0]:
                    sizes.append((status.time_s, float(trainer.working)))
        there = {trainer.id for trainer in status.trainers}
        self._sizes = {id_: sizes for id_, sizes in self._sizes.items() if id_ in there}
        known = {(each.at_s, each.trainer, each.text) for each in self._decisions}
        new = [each for each in status.decisions if (each.at_s, each.trainer, each.text) not in known]
        self._decisions.extend(new)
        return bool(new)

    def learn(self, history: History) -> None:
        """Take in the daemon's history from before this screen."""
        self._history = history

    @property
    def decisions(self) -> Sequence[Decision]:
        """The decisions, the newest first."""
        return tuple(reversed(self._decisions))

    def sizes(self, trainer: str) -> Sequence[tuple[float, float]]:
        """Return (unix seconds, working nodes) of one trainer, oldest first."""
        seen = tuple(self._sizes.get(trainer, ()))
        before = self._history.sizes(trainer) if self._history is not None else ()
        first_s = seen[0][0] if seen else float("inf")
        return (*(point for point in before if point[0] < first_s), *seen)
