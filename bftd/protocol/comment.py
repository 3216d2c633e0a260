"""The comment of a pilot's job: it tells everybody who reads the queue whose pilot that is. Pure."""

from __future__ import annotations

_WORD = "bft"
# Begins the word that names the daemon.
_AT = "@"


def make(trainer: str, lease: str, daemon: str = "") -> str:
    """Write the comment of the pilot that `trainer` starts for `lease` of `daemon`; none of them holds white space."""
    return " ".join((_WORD, trainer, lease, *([_AT + daemon] if daemon else [])))


def parse(comment: str) -> tuple[str, str] | None:
    """Read trainer and lease from a job's comment; None for a job that is no pilot of a driver.

    Users may write what they like into a comment, so that it proves nothing by itself.
    """
    words = _words(comment)
    return (words[1], words[2]) if words else None


def daemon_of(comment: str) -> str:
    """Read which daemon granted a pilot's lease; "" for one whose driver was not told, and for what is no pilot.

    What administrators are shown must not command their terminals: no daemon calls itself what cannot be printed.
    """
    words = _words(comment)
    return words[3].removeprefix(_AT) if len(words) == 4 and words[3].isprintable() else ""


def _words(comment: str) -> list[str]:
    """The words of a pilot's comment; none for any other."""
    words = comment.split()
    if len(words) not in (3, 4) or words[0] != _WORD or (len(words) == 4 and not words[3].startswith(_AT)):
        return []
    return words
