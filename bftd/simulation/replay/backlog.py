"""The list of trainers as they arrive, once or repeatedly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

from bftd.simulation.drivers.trainers import SimTrainer


class Backlog:
    """Trainers in order of arrival.

    An `endless` list starts again when it is used up: trainers of later rounds arrive whenever there is a free place.
    """

    def __init__(self, trainers: Sequence[SimTrainer], *, endless: bool = False) -> None:
        self._coming = sorted(trainers, key=lambda trainer: trainer.submit_s)
        self._at = 0
        self._more = _repeated(self._coming) if endless else iter(())

    @property
    def next_s(self) -> float:
        """The arrival time of the next trainer of the first round."""
        return self._coming[self._at].submit_s if self._at < len(self._coming) else inf

    def arrived(self, now_s: float, *, spare: int) -> list[SimTrainer]:
        """Return the trainers newly arrived by now; later rounds fill up to `spare`."""
        first = self._at
        while self._at < len(self._coming) and self._coming[self._at].submit_s <= now_s:
            self._at += 1
        arrived = self._coming[first : self._at]
        while self._at == len(self._coming) and len(arrived) < spare:
            repeated = next(self._more, None)
            if repeated is None:
                break
            arrived.append(replace(repeated, submit_s=now_s))
        return arrived


def _repeated(trainers: Sequence[SimTrainer]) -> Iterator[SimTrainer]:
    lap = 1
    while True:
        lap += 1
        for trainer in trainers:
            yield replace(trainer, name=f"{trainer.name}#{lap}")
