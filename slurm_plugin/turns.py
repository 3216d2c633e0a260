"""When what changes slowly is read again: one reading at a time, and no more of them than Slurm is to answer. Pure.

Each reading costs requests. Together they cost at most one in `PACE_S`, however many kinds there are; only in the first
seconds some come one after another, and what that costs too much is saved afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

PACE_S = 15.0
_AGAIN_S = 60.0  # after one that failed, where it would else be longer


@dataclass(frozen=True, slots=True)
class Reading:
    """A kind of reading: read again after `every_s` at the earliest, for so many requests of Slurm.

    One that `must` be read is not put off because all together cost too much. The `first` time of some does not wait
    for that either.
    """

    every_s: float
    requests: int = 1
    must: bool = False
    first: bool = True


@dataclass
class Turns:
    """Whose turn it is, of readings by name; where several are due the first of the mapping goes first."""

    readings: Mapping[str, Reading]
    _due_s: dict[str, float] = field(default_factory=dict)
    _paid_until_s: float = 0.0
    _last: str = ""

    def next(self, now_s: float, unwanted: Collection[str] = ()) -> str | None:
        """The reading that is due, if any: what must be read first, but not twice running while others are due."""
        due = [name for name in self.readings if name not in unwanted and self._is_due(name, now_s)]
        due.sort(key=lambda name: (name == self._last, not self.readings[name].must))
        return due[0] if due else None

    def done(self, name: str, now_s: float, worked: bool = True) -> None:
        """A reading was tried, and Slurm asked, whether it worked or not."""
        reading = self.readings[name]
        self._due_s[name] = now_s + (reading.every_s if worked else min(reading.every_s, _AGAIN_S))
        self._paid_until_s = max(self._paid_until_s, now_s) + PACE_S * reading.requests
        self._last = name

    def _is_due(self, name: str, now_s: float) -> bool:
        reading = self.readings[name]
        if name not in self._due_s and reading.first:
            return True
        return now_s >= self._due_s.get(name, 0.0) and (reading.must or now_s >= self._paid_until_s)
