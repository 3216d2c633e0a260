"""The nodes that a job's constraint (`--constraint`) allows. Pure.

The language is that of Slurm 22.05 to 24.11: names joined by "&" (or ",") and "|", evaluated from the left without
precedence; parentheses, not nested, around some of them; "name*4" for at least four such nodes; and one pair of
brackets, "[a|b]" for all nodes with the same one, "[a*2&b*4]" for these numbers of each. Slurm has no "not". Any other
text counts as no constraint: nodes are earmarked, and the job is backed off if it does not start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

# Names joined from the left, each with its operator; the first one with "&".
Group = tuple[tuple[str, str], ...]

_TOKEN = re.compile(r"[&|,()\[\]*]|[^&|,()\[\]*\s]+")
_MARKS = frozenset("&|,()[]*")
_LONGEST = 4096  # characters; Slurm's own limit on this text is lower


@dataclass(frozen=True, slots=True)
class Constraint:
    """A parsed constraint: features of every node, alternatives common to all nodes, and sets with counts."""

    all_of: tuple[tuple[str, Group], ...] = ()
    either: tuple[Group, ...] = ()
    counted: tuple[tuple[Group, int], ...] = ()


@dataclass(frozen=True, slots=True)
class FeatureChoice:
    """The nodes a constraint leaves: all must be among `allowed` and, if there is `either`, within one of its sets.

    Of each of the `counted` sets, all within `allowed`, there must be at least the given number.
    """

    allowed: int
    either: tuple[int, ...] = ()
    counted: tuple[tuple[int, int], ...] = ()


class _Unknown(Exception):
    """A text that is not in the language above."""


def choose(text: str, by_feature: Mapping[str, int], among: int) -> FeatureChoice:
    """Return the nodes of `among` that a constraint leaves; `by_feature` has the nodes with each feature."""
    constraint = read(text)
    if constraint is None:
        return FeatureChoice(among)
    allowed = among
    for joint, group in constraint.all_of:
        with_it = _with(group, by_feature, among)
        allowed = allowed & with_it if joint == "&" else allowed | with_it
    either = tuple(allowed & _with(group, by_feature, among) for group in constraint.either)
    if either:
        allowed = 0
        for one in either:
            allowed |= one
    counted = tuple((allowed & _with(group, by_feature, among), count) for group, count in constraint.counted)
    return FeatureChoice(allowed, either, counted)


def _with(group: Group, by_feature: Mapping[str, int], among: int) -> int:
    mask = among
    for joint, name in group:
        with_it = by_feature.get(name, 0) & among
        mask = mask & with_it if joint == "&" else mask | with_it
    return mask


@lru_cache(maxsize=1 << 12)  # a queue of thousands has a few dozen
def read(text: str) -> Constraint | None:
    """Parse a constraint. Returns None for a text that is not in the language."""
    if len(text) > _LONGEST or "!" in text:
        return None
    if not text.strip():
        return Constraint()
    try:
        return _Reader(text).constraint()
    except _Unknown:
        return None


class _Reader:
    """A parser of one constraint, token by token from the left."""

    def __init__(self, text: str) -> None:
        self._words = _TOKEN.findall(text)
        self._at = 0

    def constraint(self) -> Constraint:
        """Parse the whole text."""
        all_of: list[tuple[str, Group]] = []
        either: list[Group] = []
        counted: list[tuple[Group, int]] = []
        joint, brackets = "&", False
        while True:
            if self._next() == "[":
                if brackets or joint == "|":
                    raise _Unknown
                brackets = True
                some, counts = self._bracket()
                either += some
                counted += counts
            else:
                group, count = self._group(), self._count()
                if count is None:
                    all_of.append((joint, group))
                elif joint == "|":
                    raise _Unknown
                else:
                    counted.append((group, count))
            if self._at == len(self._words):
                return Constraint(tuple(all_of), tuple(either), tuple(counted))
            joint = self._joint()
            # the meaning of an "or" beside such a set is not documented
            if joint == "|" and (brackets or counted):
                raise _Unknown

    def _bracket(self) -> tuple[list[Group], list[tuple[Group, int]]]:
        """Parse brackets: sets one of which holds for all nodes, or sets with their counts."""
        self._take("[")
        members: list[tuple[Group, int | None]] = []
        joints: set[str] = set()
        while True:
            members.append((self._group(), self._count()))
            if self._next() == "]":
                break
            joints.add(self._joint())
        self._take("]")
        counts = [(group, count) for group, count in members if count is not None]
        if not counts and joints <= {"|"}:
            return [group for group, _ in members], []
        if len(counts) == len(members) and joints <= {"&"}:
            return [], counts
        raise _Unknown

    def _group(self) -> Group:
        """Parse a name, or names in parentheses."""
        if self._next() != "(":
            return (("&", self._name()),)
        self._take("(")
        names = [("&", self._name())]
        while self._next() != ")":
            names.append((self._joint(), self._name()))
        self._take(")")
        return tuple(names)

    def _count(self) -> int | None:
        if self._next() != "*":
            return None
        self._take("*")
        number = self._name()
        if not number.isdecimal() or not 0 < len(number) <= 9 or int(number) < 1:
            raise _Unknown
        return int(number)

    def _joint(self) -> str:
        word = self._word()
        if word not in ("&", "|", ","):
            raise _Unknown
        return "&" if word == "," else word  # a comma is a common mistake, which Slurm corrects

    def _name(self) -> str:
        word = self._word()
        if word in _MARKS:
            raise _Unknown
        return word

    def _take(self, mark: str) -> None:
        if self._word() != mark:
            raise _Unknown

    def _word(self) -> str:
        word = self._next()
        if not word:
            raise _Unknown
        self._at += 1
        return word

    def _next(self) -> str:
        return self._words[self._at] if self._at < len(self._words) else ""
