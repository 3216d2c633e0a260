"""The comment of a pilot's job: it tells everybody who reads the queue whose pilot that is. Pure."""

from __future__ import annotations

_WORD = "bft"


def make(trainer: str, lease: str) -> str:
    """Write the comment of the pilot that `trainer` starts for `lease`; neither holds white space."""
    return f"{_WORD} {trainer} {lease}"


def parse(comment: str) -> tuple[str, str] | None:
    """Read trainer and lease from a job's comment; None for a job that is no pilot of a driver.

    Users may write what they like into a comment, so that it proves nothing by itself.
    """
    words = comment.split()
    return (words[1], words[2]) if len(words) == 3 and words[0] == _WORD else None
