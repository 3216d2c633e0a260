"""How much one user may ask of the daemon: far more than his drivers need, and too little to keep it from its work."""

from __future__ import annotations

# In units of one small request. A driver's report and poll are about one a second; what an endpoint costs stands in
# its route, a body costs by its size, and so does what the ledger writes down of it.
UNITS_PER_S = 100.0
BURST = 2_000.0
BYTES_PER_UNIT = 1024.0
WRITTEN_BYTES_PER_UNIT = 4096.0
_MOST_USERS = 10_000


class Budgets:
    """A token bucket a uid, which fills by UNITS_PER_S up to BURST."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[float, float]] = {}  # uid -> units at a time

    def spend(self, uid: int, units: float, now_s: float) -> bool:
        """Take units from a uid's budget; False, and nothing taken, where it is spent.

        A request that is larger than any budget empties it instead of being refused for ever.
        """
        if len(self._left) >= _MOST_USERS:
            self._left = {key: entry for key, entry in self._left.items() if _filled(entry, now_s) < BURST}
        left = _filled(self._left.get(uid, (BURST, now_s)), now_s)
        if left < min(units, BURST):
            return False
        self._left[uid] = (max(0.0, left - units), now_s)
        return True

    def charge(self, uid: int, units: float, now_s: float) -> None:
        """Take what a request has turned out to cost, so that the next ones wait; at most a burst is owed."""
        left = _filled(self._left.get(uid, (BURST, now_s)), now_s)
        self._left[uid] = (max(-BURST, left - units), now_s)


def _filled(entry: tuple[float, float], now_s: float) -> float:
    units, at_s = entry
    return min(BURST, units + (now_s - at_s) * UNITS_PER_S)
