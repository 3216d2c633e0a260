"""A limit on trainers' notes, sentences for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bftd.protocol.bounds import NOTES_AT_ONCE_MOST, NOTES_PER_S_MOST
from bftd.protocol.reports import NoteReport, Report

_MOST_TRAINERS = 10_000


class Notes:
    """A filter that passes notes at NOTES_PER_S_MOST per trainer, after an initial few.

    The next note that passes says how many were dropped.
    """

    def __init__(self) -> None:
        self._left: dict[str, tuple[float, float, int]] = {}  # trainer -> how many more, at a time, and those dropped

    def taken(self, trainer: str, reports: Sequence[Report], now_s: float) -> list[Report]:
        """Return the reports without the notes that are too many."""
        if len(self._left) >= _MOST_TRAINERS:
            self._left.clear()
        left, at_s, dropped = self._left.get(trainer, (float(NOTES_AT_ONCE_MOST), now_s, 0))
        left = min(float(NOTES_AT_ONCE_MOST), left + (now_s - at_s) * NOTES_PER_S_MOST)
        kept: list[Report] = []
        for report in reports:
            if not isinstance(report, NoteReport):
                kept.append(report)
            elif left < 1:
                dropped += 1
            else:
                left -= 1
                more = f" ({dropped} more notes were too many and are not kept)" if dropped else ""
                kept.append(replace(report, text=report.text + more))
                dropped = 0
        self._left[trainer] = (left, now_s, dropped)
        return kept
