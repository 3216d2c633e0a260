"""The content of the web pages, gathered in a thread: state, history and usage, as far as their caller may see it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bftd.base.errors import BftError
from bftd.base.folding import Folds, folded
from bftd.core.model.domain import State
from bftd.core.sampling import LEASED, PoolSample, sample
from bftd.http.auth.caller import Caller
from bftd.http.auth.privacy import Privacy
from bftd.ledger import usage as kept
from bftd.ledger.history import query
from bftd.ledger.history.query import TooMuch
from bftd.ledger.reader import LedgerReader
from bftd.web.details import Subject
from bftd.web.history import Drawn, drawn, of_trainer
from bftd.web.html import text
from bftd.web.page import DEFAULT_HOURS, STEPS, PageData
from bftd.web.sections import LINKS_MOST

Look = Callable[[LedgerReader], dict[str, Any] | None]

# Charts show points that come once a minute, and take the longest to make of everything on the page.
DRAWN_S = 30.0
# If a step was too fine for one answer, it is tried again after this time.
COARSER_S = 3600.0


@dataclass(frozen=True, slots=True)
class PageRequest:
    """One page: its caller, its hours (0: as many as are recorded, up to a day), and the state at one moment.

    `recorded` is what the last record has, None if this daemon has made none yet.
    """

    caller: Caller
    hours: int
    private: bool
    state: State
    now_s: float
    place: str
    later: Callable[[], dict[str, Any]]
    windows: Sequence[Mapping[str, Any]]
    recorded: PoolSample | None


@dataclass(frozen=True, slots=True)
class _Past:
    """The ledger's history at a moment, drawn; `missing` says why there is none."""

    at_s: float
    hours: int
    drawn: Drawn
    missing: str = ""


class PageMaker:
    """A maker of pages from one ledger; not thread-safe. Charts are kept for half a minute."""

    def __init__(self, ledger: LedgerReader) -> None:
        self._ledger = ledger
        self._folds = Folds()
        self._pasts: dict[tuple[str | None, int], _Past] = {}
        self._coarser: dict[int, tuple[float, float]] = {}

    def gather(self, asked: PageRequest) -> PageData:
        """Return all of one page."""
        privacy = Privacy(asked.caller, asked.state, asked.private)
        past = self._past(asked, privacy)
        usage, missing = None, past.missing
        try:
            usage = self._usage(asked, past.hours)
        except BftError as error:
            missing = str(error)
        seen = self._seen(asked)
        status = folded(seen, self._folds)
        groups = grouped(seen["nodes"], status["trainers"], self._folds)
        return PageData(
            asked.place, status, groups, past.drawn, asked.windows, usage, asked.caller.admin, past.hours, missing
        )

    def _seen(self, asked: PageRequest) -> dict[str, Any]:
        return Privacy(asked.caller, asked.state, asked.private).overview(asked.later())

    def subject(self, asked: PageRequest, id_: str, told: Look | None) -> Subject:
        """Return a trainer or a node; `told` is None for a caller who is not identified: they see a status alone."""
        return Subject(asked.place, id_, self._seen(asked), None if told is None else told(self._ledger))

    def trainer_charts(self, asked: PageRequest, id_: str) -> tuple[int, str]:
        """Return the hours that the charts of one trainer show, and the charts as HTML."""
        try:
            hours, history = self._recorded(asked, Privacy(asked.caller, asked.state, asked.private))
        except BftError as error:
            return asked.hours or DEFAULT_HOURS, f"<p class=quiet>{text(str(error))}"
        return hours, of_trainer(history, id_, hours)

    def _past(self, asked: PageRequest, privacy: Privacy) -> _Past:
        """Return the charts, which are the same for all callers from whom nothing is hidden."""
        self._pasts = {key: past for key, past in self._pasts.items() if 0.0 <= asked.now_s - past.at_s < DRAWN_S}
        # a caller without a name who sees no names differs from one who sees all
        key = (asked.caller.user if privacy.hides else None, asked.hours)
        known = self._pasts.get(key)
        if known is None:
            known = self._pasts[key] = self._drawn(asked, privacy)
        return known

    def _drawn(self, asked: PageRequest, privacy: Privacy) -> _Past:
        try:
            hours, history = self._recorded(asked, privacy)
        except BftError as error:
            hours = asked.hours or DEFAULT_HOURS
            return _Past(asked.now_s, hours, drawn({"points": []}, hours), str(error))
        return _Past(asked.now_s, hours, drawn(history, hours))

    def _recorded(self, asked: PageRequest, privacy: Privacy) -> tuple[int, dict[str, Any]]:
        """Return the history of the hours asked for, or of those in which anything was recorded."""
        hours = asked.hours or DEFAULT_HOURS
        history = self._history(asked, privacy, hours)
        if not asked.hours and (enough := _enough(history)) != hours:
            hours = enough
            history = self._history(asked, privacy, hours)
        return hours, history

    def _usage(self, asked: PageRequest, hours: int) -> dict[str, Any] | None:
        """Return everybody's usage for administrators, a user's own for that user, None for a caller without a name."""
        if not asked.caller.admin and not asked.caller.user:
            return None
        whose = None if asked.caller.admin else asked.caller.user
        since_s = asked.now_s - hours * 3600
        return kept.read(self._ledger.path, kept.UsageRequest(since_s, asked.now_s, ("user",), whose))

    def _history(self, asked: PageRequest, privacy: Privacy, hours: int) -> dict[str, Any]:
        """Return history as fine as the page shows it, or coarser if one answer cannot hold its many trainers."""
        now_s = asked.now_s
        since_s = max(0.0, now_s - hours * 3600)
        step_s, until_s = self._coarser.get(hours, (STEPS[hours], 0.0))
        if not now_s <= until_s <= now_s + COARSER_S:
            step_s = STEPS[hours]
        length_s = hours * 3600.0
        while True:
            try:
                request = query.HistoryRequest(since_s, now_s, now_s, step_s, True, privacy.sees)
                answer = query.read(self._ledger, request)
                break
            except TooMuch:
                if step_s >= length_s:
                    raise
                step_s = min(3 * step_s, length_s)
                self._coarser[hours] = (step_s, now_s + COARSER_S)
        if asked.recorded is None:
            return answer
        users = {item.id: (item.name, item.user) for item in asked.state.trainers.values()}
        return query.with_present(answer, asked.recorded, sample(asked.state), users, request)


def grouped(
    nodes: Sequence[Mapping[str, Any]], trainers: Sequence[Mapping[str, Any]], folds: Folds
) -> list[dict[str, Any]]:
    """Group a status's nodes by what they are and why, and lent nodes by trainer."""
    names = {item["id"]: item["name"] for item in trainers}
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for node in nodes:
        state, why = node["kind"], node["why"]
        if state == LEASED and node["trainer"]:
            name = names.get(node["trainer"], "")
            whose = f"{name} ({node['trainer']})" if name and name != node["trainer"] else node["trainer"]
            why = f"{whose}: {why if node['lease_state'] in (None, 'working') else node['lease_state']}"
        found[state, why].append(node["name"])
    return [
        {"state": state, "why": why, "nodes": folds.fold(names), "count": len(names)}
        | ({"names": names} if len(names) <= LINKS_MOST else {})
        for (state, why), names in found.items()
    ]


def _enough(history: Mapping[str, Any]) -> int:
    """Return the shortest range that has all that was recorded, up to the default."""
    if not history["points"]:
        return min(STEPS)
    recorded_s = history["until_s"] - history["points"][0]["at_s"]
    return next((hours for hours in sorted(STEPS) if recorded_s <= hours * 3600 <= DEFAULT_HOURS * 3600), DEFAULT_HOURS)
