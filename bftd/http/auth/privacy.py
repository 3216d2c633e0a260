"""The part of other users' trainers that a caller may see.

As with squeue, everybody sees who trains where, but not how well it goes. If Slurm keeps users' jobs or usage private
(PrivateData), others' trainers have no name: administrators see everything, everybody else their own. A handler asks
`sees`, or passes its answer through `text` and `data`, which remove names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bftd.core.model.domain import State
from bftd.http.auth.caller import Caller

# The name that replaces another user's trainer.
NAMELESS = "(private)"
_JOB = re.compile(r"\b(job|pilot|trainer)s? \d\S*(?:(?<=,) \d\S*)*")
# Lists of users' jobs as `foreign_pilots` writes them: users without a trainer here are in no list of names.
_OF_OTHERS = re.compile(r"\(jobs? \d[^()]*\)")
_BENEFICIARIES = re.compile(r"^(.*?: )?.* (gains? more|had no node|makes? more of them)$")  # the last until 1.1
_HOLDER = re.compile(r" \(.*?, ([^ ()]+)\)(?= since )")
_WORD = re.compile(r"[^\s,;:()]+")


class Privacy:
    """The view of one caller at one moment; `private` says whether Slurm hides users' jobs from one another."""

    def __init__(self, caller: Caller, state: State, private: bool) -> None:
        self._caller = caller
        self._users = {trainer.id: trainer.user for trainer in state.trainers.values()}
        self.hides = private and not caller.admin
        others = [trainer for trainer in state.trainers.values() if not self.owns(trainer.user)]
        self._words: frozenset[str] = frozenset()
        self._phrases: tuple[str, ...] = ()
        if self.hides:
            own = {caller.user} | {trainer.name for trainer in state.trainers.values() if self.owns(trainer.user)}
            # a number may be anything: job ids are recognised by the word before them
            named = {word for item in others for word in (item.id, item.user, item.name) if not word.isdecimal()} - own
            self._words = frozenset(word for word in named if _WORD.fullmatch(word))
            self._phrases = tuple(sorted(named - self._words - {""}, key=len, reverse=True))

    def owns(self, user: str) -> bool:
        """Whether the caller may see everything of this user's."""
        # a caller without a name, as on [web] listen, owns nothing, not even what has no known owner
        return self._caller.admin or (bool(user) and self._caller.user == user)

    def sees(self, user: str | None) -> bool:
        """Whether the caller may see what this user has, and on which nodes; `user` None is unknown."""
        return not self.hides or (user is not None and self.owns(user))

    def sees_trainer(self, id_: str | None) -> bool:
        """Whether the caller may see the trainer with this id, if it is known."""
        return self.sees(self._users.get(id_ or ""))

    def text(self, text: str) -> str:
        """Return a sentence without the jobs of others and the names of others' trainers."""
        if not self.hides:
            return text
        text = _JOB.sub(r"a \1", _OF_OTHERS.sub("(jobs of others)", text))
        # also of users whose trainers are forgotten here
        text = _HOLDER.sub(lambda found: found[0] if self.owns(found[1]) else "", text)
        text = _BENEFICIARIES.sub(lambda found: f"{found[1] or ''}others {found[2].replace('s ', ' ', 1)}", text)
        for phrase in self._phrases:
            text = text.replace(phrase, NAMELESS)
        text = _WORD.sub(lambda found: NAMELESS if found[0] in self._words else found[0], text)
        return text.replace(f" ({NAMELESS}, {NAMELESS})", "")

    def data(self, value: Any) -> Any:
        """Return JSON with the names removed from every text in it."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {name: self.data(item) for name, item in value.items()}
        return [self.data(item) for item in value] if isinstance(value, list) else value

    def trainer(self, shown: dict[str, Any]) -> dict[str, Any]:
        """Return one trainer: whole for its user, without loss and log for others, or without a name."""
        if self.owns(shown["user"]):
            return shown
        shown = shown | {"loss": None, "log": ""}
        if not self.hides:
            return shown
        nodes = {"on": ""} if "on" in shown else {}  # squeue would not tell which ones either
        return shown | {"id": "", "name": NAMELESS, "user": "", "account": ""} | nodes

    def overview(self, shown: dict[str, Any]) -> dict[str, Any]:
        """Return all of a status for the caller."""
        shown = shown | {"trainers": [self.trainer(item) for item in shown["trainers"]]}
        if not self.hides:
            return shown
        hidden = {
            "hold": None if shown["hold"] is None else self.text(shown["hold"]),
            "nodes": [self.node(item) for item in shown["nodes"]],
            # the caller's own as well: all callers without trainers share one answer
            "earmarks": [item | {"job": ""} for item in shown["earmarks"]],
            "orphan_jobs": (orphans := [item for item in shown["orphan_jobs"] if self.sees(item["user"])]),
            "strays": orphans,  # until 1.1
            "caps": [item for item in shown["caps"] if item["kind"] == "user" and self.sees(item["name"])],
            "alarms": [item for item in shown["alarms"] if item["kind"] == "overdue"],
            "pauses": [self.data(item) for item in shown["pauses"] if self._concerns(item)],
            "silent": [id_ for id_ in shown["silent"] if self.sees_trainer(id_)],
            "decisions": [self.data(item) for item in shown["decisions"] if self.sees_trainer(item["trainer"])],
        }
        if "shadow" in shown:
            waiting = [item for item in shown["shadow"]["waiting"] if self.sees(item["user"])]
            hidden["shadow"] = shown["shadow"] | {"waiting": waiting}
        return shown | hidden

    def node(self, shown: dict[str, Any]) -> dict[str, Any]:
        """Return one node of a status, without the name of another user who has it."""
        if not self.hides:
            return shown
        shown = shown | {"why": self.text(shown["why"])}  # may name another user's job that needs this node
        if shown["trainer"] is None or self.sees_trainer(shown["trainer"]):
            return shown
        return shown | {"trainer": NAMELESS, "lease": None}

    def _concerns(self, pause: Mapping[str, Any]) -> bool:
        """Whether a pause names nobody but the caller."""
        if pause["kind"] in ("all", "node"):
            return True
        return pause["kind"] == "user" and all(self.sees(name) for name in pause["names"])
