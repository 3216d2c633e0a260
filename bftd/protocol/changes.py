"""A change of a trainer's nodes in words: the daemon's, as what is and what would be, and the driver's, as what was.

`bft explain` and the output of the job say the same of the same change. Node sets come in as folded text.
"""

from __future__ import annotations

from typing import NamedTuple


class Verb(NamedTuple):
    """A verb in the third person, as it is after "would", and as what was."""

    indicative: str
    conditional: str
    past: str = ""


STARTS = Verb("starts", "start", "started")
RESUMES = Verb("resumes", "resume", "resumed")
GROWS = Verb("grows", "grow", "grew")
SHRINKS = Verb("shrinks", "shrink", "shrank")
SUSPENDED = Verb("is suspended and gives back", "be suspended and give back", "was suspended and gave back")
GIVES_BACK = Verb("gives back", "give back", "gave back")

UNKNOWN_SPEED = "its speed is not known yet"
TAKEN = "Slurm took the node for a regular job"

_VERBS = (STARTS, RESUMES, GROWS, SHRINKS, SUSPENDED, GIVES_BACK)


def nodes(count: int) -> str:
    """A number of nodes in words."""
    return "1 node" if count == 1 else f"{count} nodes"


def begun(size: int, added: str, on: str = "") -> str:
    """What follows "starts" and "resumes"; `on` is the class of the nodes, "" where there is one."""
    return f" on {nodes(size)} ({added}{f', {on}' if on else ''})"


def grown(before: int, after: int, added: str) -> str:
    """What follows "grows"."""
    return f" from {before} to {nodes(after)} ({added})"


def shrunk(before: int, after: int, dropped: str, how: str = "given back") -> str:
    """What follows "shrinks"."""
    return f" from {before} to {nodes(after)}, {dropped} {how}"


def why_of(sentence: str, who: str) -> str:
    """Why `who` has a change, of the daemon's sentence about it; of any other sentence all of it."""
    for verb in _VERBS:
        start = f"{who} {verb.indicative} "
        if sentence.startswith(start):
            _, found, why = sentence[len(start) :].partition(": ")
            return why if found else ""
    return sentence
