"""A budget of requests per user: far more than their drivers need, and too little to keep the daemon from its work."""

from __future__ import annotations

# In units of one small request. A driver's report and poll are about one unit per second; the cost of an endpoint is in
# its route, a body costs by its size, and so does what the ledger writes because of it.
UNITS_PER_S = 100.0
BURST = 2_000.0
BYTES_PER_UNIT = 1024.0
WRITTEN_BYTES_PER_UNIT = 4096.0
_MOST_USERS = 10_000


class Budgets:
    """A token bucket per uid, which fills by UNITS_PER_S up to BURST."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[float, float]] = {}  # uid -> units at a time

    def spend(self, uid: int, units: float, now_s: float) -> bool:
        """Take units from a uid's budget; return False, with nothing taken, if it is spent.

        A request larger than any budget empties it instead of being refused for ever.
        """
        if len(self._left) >= _MOST_USERS:
            self._left = {key: entry for key, entry in self._left.items() if _filled(entry, now_s) < BURST}
        left = _filled(self._left.get(uid, (BURST, now_s)), now_s)
        if left < min(units, BURST):
            return False
        self._left[uid] = (max(0.0, left - units), now_s)
        return True

    def charge(self, uid: int, units: float, now_s: float) -> None:
        """Charge for what a request turned out to cost, so that later ones wait; a uid owes at most BURST."""
        left = _filled(self._left.get(uid, (BURST, now_s)), now_s)
        self._left[uid] = (max(-BURST, left - units), now_s)


def _filled(entry: tuple[float, float], now_s: float) -> float:
    units, at_s = entry
    return min(BURST, units + (now_s - at_s) * UNITS_PER_S)
