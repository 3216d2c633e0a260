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

    One that `must` be read is not put off because all together cost too much; a `prompt` one has credit, which is
    saved afterwards, while nothing else waits for its turn. The `first` time of some comes at once.
    """

    every_s: float
    requests: int = 1
    must: bool = False
    first: bool = True
    prompt: bool = False


@dataclass
class Turns:
    """Whose turn it is, of readings by name."""

    readings: Mapping[str, Reading]
    _due_s: dict[str, float] = field(default_factory=dict)
    _early: set[str] = field(default_factory=set)
    _paid_until_s: float = 0.0
    _last: str = ""

    def next(self, now_s: float, unwanted: Collection[str] = ()) -> str | None:
        """The reading that is due, if any: what must be read, else what has been due for longest.

        Nothing is read twice running while something else is due.
        """
        for name, reading in self.readings.items():
            if name not in self._due_s:
                self._due_s[name] = now_s if reading.first else now_s + reading.every_s
                self._early |= {name} if reading.first else set()
        wait = {name for name in self.readings if name not in unwanted and now_s >= self._due_s[name]}
        due = [name for name in self.readings if name in wait and self._is_paid(name, now_s, alone=wait == {name})]
        due.sort(key=lambda name: (name == self._last, not self.readings[name].must, self._due_s[name]))
        return due[0] if due else None

    def done(self, name: str, now_s: float, worked: bool = True) -> None:
        """A reading was tried, and Slurm asked, whether it worked or not."""
        reading = self.readings[name]
        self._early.discard(name)
        self._due_s[name] = now_s + (reading.every_s if worked else min(reading.every_s, _AGAIN_S))
        self._paid_until_s = max(self._paid_until_s, now_s) + PACE_S * reading.requests
        self._last = name

    def _is_paid(self, name: str, now_s: float, alone: bool) -> bool:
        reading = self.readings[name]
        paid_s = self._paid_until_s - (PACE_S if reading.prompt and alone else 0.0)
        return reading.must or name in self._early or now_s >= paid_s
