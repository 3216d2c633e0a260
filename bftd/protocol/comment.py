"""The comment of a pilot's job: it tells everybody who reads the queue whose pilot that is. Pure."""

from __future__ import annotations

_WORD = "bft"
# Begins the word that names the daemon.
_AT = "@"


def make(trainer: str, lease: str, daemon: str = "") -> str:
    """Return the comment of the pilot that `trainer` starts for `lease` of `daemon`; none of them has white space."""
    return " ".join((_WORD, trainer, lease, *([_AT + daemon] if daemon else [])))


def parse(comment: str) -> tuple[str, str] | None:
    """Return trainer and lease from a job's comment; None for a job that is no pilot of a driver.

    Users may write anything into a comment, so it proves nothing by itself.
    """
    words = _words(comment)
    return (words[1], words[2]) if words else None


def daemon_of(comment: str) -> str:
    """Return the daemon that granted a pilot's lease; "" if the driver was not told, or if this is no pilot.

    A name with unprintable characters counts as none: it must not control administrators' terminals.
    """
    words = _words(comment)
    return words[3].removeprefix(_AT) if len(words) == 4 and words[3].isprintable() else ""


def _words(comment: str) -> list[str]:
    """Return the words of a pilot's comment; empty for any other comment."""
    words = comment.split()
    if len(words) not in (3, 4) or words[0] != _WORD or (len(words) == 4 and not words[3].startswith(_AT)):
        return []
    return words
