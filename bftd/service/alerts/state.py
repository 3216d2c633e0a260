"""News for the site about problems that begin and end, and their timing. Pure.

Nothing is lost: undelivered news is sent the next time, and a problem that comes and goes in between is sent once with
the number of times it began.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bftd.base import old_names
from bftd.base.health import LEVELS, HealthProblem, Level

FORMAT = 1
# The most problems in one list of a message, which says how many more there are.
LISTED_MOST = 100
# The most problems that are remembered while no message is delivered; the oldest are dropped.
KEPT_MOST = 1000


@dataclass(frozen=True, slots=True)
class Spell:
    """One problem from its beginning on; `ended_s` is None while it lasts. Times are unix seconds."""

    problem: HealthProblem
    since_s: float
    ended_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the spell as a message has it."""
        fields: dict[str, Any] = {"level": self.problem.level, "kind": self.problem.kind, "name": self.problem.name}
        fields |= {"text": self.problem.text, "since_s": self.since_s}
        return fields if self.ended_s is None else fields | {"ended_s": self.ended_s}


@dataclass
class _News:
    """The news since the last message: how often each problem began, and the last spells that ended."""

    times: dict[str, int] = field(default_factory=dict)
    ended: dict[str, Spell] = field(default_factory=dict)


class Ringing:
    """The present problems, and those that the site knows of; `known` is an earlier result of `kept`."""

    def __init__(self, known: Mapping[str, Any] | None = None) -> None:
        self.standing = _restored(known or {})
        self._known = dict(self.standing)
        self._news = _News()
        self._sent: tuple[_News, dict[str, Spell]] | None = None
        self._sent_s = float("-inf")

    def hear(self, now_s: float, problems: Iterable[HealthProblem]) -> None:
        """Take in all present problems."""
        now = {problem.key: problem for problem in problems}
        for key in [key for key in self.standing if key not in now]:
            spell = self.standing.pop(key)
            self._news.ended[key] = Spell(spell.problem, spell.since_s, now_s)
        for key, problem in now.items():
            before = self.standing.get(key)
            if before is None:
                self._news.times[key] = self._news.times.get(key, 0) + 1
            self.standing[key] = Spell(problem, now_s if before is None else before.since_s)
        for kept in (self._news.times, self._news.ended):
            for key in list(kept)[: max(0, len(kept) - KEPT_MOST)]:
                del kept[key]

    def due(self, now_s: float, every_s: float) -> bool:
        """Whether there is news, no message is being sent, and the last one is long enough ago."""
        news = self._news.times or self._news.ended
        return bool(news) and self._sent is None and not 0.0 <= now_s - self._sent_s < every_s

    def send(self, now_s: float) -> dict[str, Any]:
        """Return a message with all news; call `delivered` or `failed` once its fate is known."""
        news, self._news = self._news, _News()
        self._sent, self._sent_s = (news, dict(self.standing)), now_s
        begun = [key for key in news.times if key in self.standing or key in news.ended]
        ended = [key for key in news.ended if key not in self.standing]
        still = [key for key in self.standing if key not in news.times]
        spells = {**news.ended, **self.standing}
        level: Level = max((spell.problem.level for spell in self.standing.values()), key=LEVELS.index, default="OK")
        lists = {
            "begun": [spells[key].to_json() | {"times": news.times[key]} for key in begun],
            "ended": [news.ended[key].to_json() for key in ended],
            "still": [self.standing[key].to_json() for key in still],
        }
        left_out = sum(max(0, len(items) - LISTED_MOST) for items in lists.values())
        listed = {name: _worst_first(items)[:LISTED_MOST] for name, items in lists.items()}
        return (
            {"format": FORMAT, "time_s": now_s, "level": level, "text": _text(level, lists)}
            | listed
            | {"left_out": left_out}
        )

    def delivered(self) -> None:
        """Note that the last message was delivered: the site knows its contents."""
        if self._sent is not None:
            self._known, self._sent = self._sent[1], None

    def failed(self) -> None:
        """Note that the last message was not delivered: its contents are still news."""
        if self._sent is None:
            return
        before, self._sent = self._sent[0], None
        for key, times in before.times.items():
            self._news.times[key] = self._news.times.get(key, 0) + times
        self._news.ended = {**before.ended, **self._news.ended}

    def kept(self) -> dict[str, Any]:
        """Return the problems that the site knows of, for the next start: only changes are sent then."""
        return {"standing": [spell.to_json() for spell in self._known.values()][:KEPT_MOST]}


def _restored(known: Mapping[str, Any]) -> dict[str, Spell]:
    """Restore what `kept` returned; ignores anything else."""
    found = {}
    for item in known.get("standing", ()):
        if isinstance(item, Mapping) and item.get("level") in LEVELS and isinstance(item.get("since_s"), (int, float)):
            kind = str(item.get("kind"))
            kind = old_names.PROBLEMS.get(kind, kind)
            problem = HealthProblem(item["level"], str(item.get("text")), kind, str(item.get("name", "")))
            found[problem.key] = Spell(problem, float(item["since_s"]))
    return found


def _worst_first(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(items, key=lambda item: -LEVELS.index(item["level"]))


def _text(level: Level, lists: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return everything in one line, for a mail's subject or a chat."""
    parts = []
    for name, what in (("begun", "begun"), ("ended", "over"), ("still", "still")):
        texts = [_line(item) for item in _worst_first(list(map(dict, lists[name])))]
        more = [f"{len(texts) - 3} more"] if len(texts) > 3 else []
        if texts:
            parts.append(f"{what}: {'; '.join(texts[:3] + more)}")
    return f"{level}: {' / '.join(parts)}"


def _line(item: Mapping[str, Any]) -> str:
    times = item.get("times", 1)
    return f"{item['text']} ({times} times)" if times > 1 else str(item["text"])
