"""Pauses by administrators, and the events that set and lift them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PauseKind = Literal["all", "node", "user", "account"]


@dataclass(frozen=True, slots=True)
class Pause:
    """An administrator's order to lend nothing more: to anybody, on a node, or to a user's or account's trainers.

    With `release` nodes that are lent there are given back too. `name` is empty if all is paused.
    """

    kind: PauseKind
    name: str
    by: str
    since_s: float
    why: str
    release: bool = False

    @property
    def key(self) -> str:
        """The key that it is filed under: there is one pause for each node, user and account."""
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True, slots=True)
class Paused:
    """An administrator paused something: all of `pauses` are theirs, of this moment and for one reason."""

    time_s: float
    pauses: tuple[Pause, ...]


@dataclass(frozen=True, slots=True)
class Unpaused:
    """An administrator lifted the pauses with these keys."""

    time_s: float
    by: str
    keys: tuple[str, ...]
