"""Decisions in the conditional: what bftd says in shadow mode it only would have done."""

from __future__ import annotations

import re

# The verbs of the sentences in `bftd.core.sentences` and `bftd.core.planning`, each as it is after "would".
_VERBS = {
    "starts": "start",
    "resumes": "resume",
    "grows": "grow",
    "is suspended and gives back": "be suspended and give back",
    "is suspended": "be suspended",
    "shrinks": "shrink",
    "gives back": "give back",
    "waits": "wait",
    "keeps": "keep",
    "stays": "stay",
    "is lost": "be lost",
    "has finished": "have finished",
}
_FIRST_VERB = re.compile(rf"^(\S+) ({'|'.join(_VERBS)})\b")


def conditional(sentence: str) -> str:
    """The sentence about an imaginary trainer as something that would be; any other with a mark in front of it."""
    changed, count = _FIRST_VERB.subn(lambda match: f"{match[1]} would {_VERBS[match[2]]}", sentence)
    return changed if count else f"(shadow) {sentence}"
