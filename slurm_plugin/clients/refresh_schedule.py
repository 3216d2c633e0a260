"""The schedule of slowly changing readings: one reading at a time, within a budget of requests to Slurm. Pure.

Each reading costs requests. Together they cost at most one in `PACE_S`, however many kinds there are. Only in the first
seconds several follow one another, and the excess is saved afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

PACE_S = 15.0
_AGAIN_S = 60.0  # the delay after a failed reading, if its own is longer


@dataclass(frozen=True, slots=True)
class Reading:
    """A kind of reading: repeated after `every_s` at the earliest, at a cost of `requests` to Slurm.

    A reading that `must` be done is not delayed by the budget. A `prompt` one may overdraw the budget, which is saved
    afterwards, while no other waits for its turn. With `first` the first reading is due at once.
    """

    every_s: float
    requests: int = 1
    must: bool = False
    first: bool = True
    prompt: bool = False


@dataclass
class Turns:
    """The turns of readings by name; `readings` may be replaced by others of the same names."""

    readings: Mapping[str, Reading]
    _since_s: dict[str, float] = field(default_factory=dict)
    _early: set[str] = field(default_factory=set)
    _paid_until_s: float = 0.0
    _last: str = ""

    def next(self, now_s: float, unwanted: Collection[str] = ()) -> str | None:
        """Return the reading that is due, if any: one that must be done, else the one due for longest.

        No reading is done twice in a row while another is due.
        """
        for name, reading in self.readings.items():
            if name not in self._since_s:
                self._since_s[name] = now_s - reading.every_s if reading.first else now_s
                self._early |= {name} if reading.first else set()
        due_s = {name: self._since_s[name] + reading.every_s for name, reading in self.readings.items()}
        wait = {name for name in self.readings if name not in unwanted and now_s >= due_s[name]}
        due = [name for name in self.readings if name in wait and self._is_paid(name, now_s, alone=wait == {name})]
        due.sort(key=lambda name: (name == self._last, not self.readings[name].must, due_s[name]))
        return due[0] if due else None

    def done(self, name: str, now_s: float, worked: bool = True) -> None:
        """Record that a reading was tried and Slurm asked, whether it worked or not."""
        reading = self.readings[name]
        self._early.discard(name)
        self._since_s[name] = now_s if worked else now_s - max(0.0, reading.every_s - _AGAIN_S)
        self._paid_until_s = max(self._paid_until_s, now_s) + PACE_S * reading.requests
        self._last = name

    def _is_paid(self, name: str, now_s: float, alone: bool) -> bool:
        reading = self.readings[name]
        paid_s = self._paid_until_s - (PACE_S if reading.prompt and alone else 0.0)
        return reading.must or name in self._early or now_s >= paid_s
