"""Changes of a trainer's nodes in words: in the present or conditional by the daemon, in the past by the driver.

`bft explain` and the job's output describe the same change alike. Node sets come in as folded text.
"""

from __future__ import annotations

from typing import NamedTuple


class Verb(NamedTuple):
    """A verb in the third person, in the form after "would", and in the past."""

    indicative: str
    conditional: str
    past: str = ""


STARTS = Verb("starts", "start", "started")
RESUMES = Verb("resumes", "resume", "resumed")
GROWS = Verb("grows", "grow", "grew")
SHRINKS = Verb("shrinks", "shrink", "shrank")
SUSPENDED = Verb("is suspended and gives back", "be suspended and give back", "was suspended and gave back")
GIVES_BACK = Verb("gives back", "give back", "gave back")

UNKNOWN_SPEED = "its speed is being measured"
CANCELLED = "the job was cancelled"
# Whether for a regular job, its time limit or an administrator, the pilot is not told.
ASKED = "Slurm asked the pilot to leave"

_VERBS = (STARTS, RESUMES, GROWS, SHRINKS, SUSPENDED, GIVES_BACK)


def nodes(count: int) -> str:
    """Return a number of nodes in words."""
    return "1 node" if count == 1 else f"{count} nodes"


def begun(size: int, added: str, on: str = "") -> str:
    """Return the rest of a sentence with "starts" or "resumes"; `on` is the nodes' class, "" if there is only one."""
    return f" on {nodes(size)} ({added}{f', {on}' if on else ''})"


def grown(before: int, after: int, added: str) -> str:
    """Return the rest of a sentence with "grows"."""
    return f" from {before} to {nodes(after)} ({added})"


def shrunk(before: int, after: int, dropped: str, how: str = "given back") -> str:
    """Return the rest of a sentence with "shrinks"."""
    return f" from {before} to {nodes(after)}, {dropped} {how}"


def why_of(sentence: str, who: str) -> str:
    """Return the reason in the daemon's sentence about a change of `who`; any other sentence is returned whole."""
    for verb in _VERBS:
        start = f"{who} {verb.indicative} "
        if sentence.startswith(start):
            _, found, why = sentence[len(start) :].partition(": ")
            return why if found else ""
    return sentence
