"""A job's request beside its number of nodes, read from one field of squeue's row.

The letters share one field, separated by a sign that a user may write as well: so their content can damage only this
job's request. An unreadable request is unknown (NO_REQUEST) and never an error, as the job waits all the same. Many
jobs have the same request, and each distinct text is parsed once.
"""

from __future__ import annotations

import re
from functools import lru_cache

from slurm_plugin.errors import SlurmError
from slurm_plugin.nodeset import expand
from slurm_plugin.read.types import NO_REQUEST, JobRequest

_SIGN = "\x1f"
# Features, -w and -x nodes, contiguous, sharing, CPUs in total and per node, memory, GRES per node.
_LETTERS = ("f", "n", "x", "O", "h", "C", "c", "m", "b")

FORMAT = _SIGN.join(f"%{letter}" for letter in _LETTERS)
"""The part of squeue's --format whose output `read` parses."""

_KEPT = 1 << 13
_NOTHING = frozenset({"", "(null)", "N/A"})
_NO = frozenset({"0", "NO", "FALSE"})
# Words of %h for a job that lets others have the rest of its nodes; all other words reserve them to some degree. Since
# 26.05 an ordinary job has NO there as well: see `wishes`.
_SHARING = frozenset({"OK", "YES"})
_AMOUNT = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)([KMGTP]?)$")
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
# 22.05 writes gres:gpu:a100:2, later releases gres/gpu:a100:2; neither is what --gres takes.
_GRES_PREFIX = re.compile(r"(?<![^,])gres[:/]")


@lru_cache(maxsize=_KEPT)
def read(text: str) -> JobRequest:
    """Read what squeue printed for `FORMAT`; NO_REQUEST if it cannot be read."""
    fields = text.split(_SIGN)
    if len(fields) != len(_LETTERS):
        return NO_REQUEST
    features, required, excluded, contiguous, sharing, cpus, cpus_per_node, memory, gres = fields
    try:
        return JobRequest(
            features=_text(features),
            required=tuple(expand(_text(required))),
            excluded=tuple(expand(_text(excluded))),
            contiguous=_text(contiguous).upper() not in _NO | _NOTHING,
            exclusive=not is_shared(sharing),
            cpus=_amount(cpus),
            cpus_per_node=_amount(cpus_per_node),
            memory_bytes=_amount(memory, bare="M"),
            gres=gres_asked(gres),
        )
    except (SlurmError, ValueError):
        return NO_REQUEST


def is_shared(word: str) -> bool:
    """Whether Slurm's word for a job's sharing lets other jobs have the rest of its nodes."""
    return word.upper() in _SHARING


def gres_asked(text: str) -> str:
    """Return GRES as --gres takes them ("gpu:a100:2,shard:1"), whichever way Slurm writes them."""
    return _GRES_PREFIX.sub("", _text(text))


def _amount(text: str, bare: str = "") -> int:
    """Parse a number that squeue may have shortened ("4G"); `bare` is the unit of one without."""
    match = _AMOUNT.match(_text(text) or "0")
    if match is None:
        raise ValueError(f"not a number: {text!r}")
    return round(float(match[1]) * 1024.0 ** _UNITS[match[2] or bare])


def _text(text: str) -> str:
    return "" if text in _NOTHING else text
