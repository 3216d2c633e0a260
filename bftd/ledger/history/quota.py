"""A limit on the ledger's history per user: reports beyond it take effect, but are not kept."""

from __future__ import annotations

import logging

from bftd.core.model.domain import Action, Decided, Happened, State

log = logging.getLogger("bftd")

# A user's share per day, of which one more may have been saved up: the file grows by at most twice this in any day.
BYTES_A_DAY = 64 * 2**20
_DAY_S = 86_400.0


class HistoryQuota:
    """Each user's remaining share, which fills by BYTES_A_DAY a day."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[float, float]] = {}  # user -> bytes at a time
        self._logged_s: dict[str, float] = {}

    def spend(self, user: str, written: int, now_s: float) -> None:
        """Note that so many bytes about a user's trainers were written."""
        if written:
            self._left[user] = (self._filled(user, now_s) - written, now_s)

    def is_spent(self, user: str, now_s: float) -> bool:
        """Whether a user has used up their share; that is logged once a day."""
        if self._filled(user, now_s) > 0:
            return False
        if now_s - self._logged_s.get(user, -_DAY_S) >= _DAY_S:
            self._logged_s[user] = now_s
            log.warning(
                "the drivers of %s have told more than the ledger keeps of a user a day: the rest is lost", user
            )
        return True

    def move(self, by_s: float) -> None:
        """Move all times by `by_s`: the clock was set."""
        self._left = {user: (left, at_s + by_s) for user, (left, at_s) in self._left.items()}
        self._logged_s = {user: at_s + by_s for user, at_s in self._logged_s.items()}

    def _filled(self, user: str, now_s: float) -> float:
        left, at_s = self._left.get(user, (float(BYTES_A_DAY), now_s))
        return min(float(BYTES_A_DAY), left + max(0.0, now_s - at_s) / _DAY_S * BYTES_A_DAY)


def is_history_of(user: str, action: Action, state: State) -> bool:
    """Whether an action only reports about a user's trainer; the daemon's own measurements are kept."""
    if not isinstance(action, (Decided, Happened)) or action.trainer is None:
        return False
    if isinstance(action, Happened) and action.kind in ("registered", "give_back", "alarm"):
        return False
    return action.trainer in state.trainers and state.trainers[action.trainer].user == user
