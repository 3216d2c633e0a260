"""Node names folded and expanded the way Slurm writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from slurm_plugin.errors import SlurmError, one_line

# The limit for the numbers of a range and for all nodes: more would take minutes to expand, and no cluster has them.
_WIDEST = 1_000_000


def fold(names: Iterable[str]) -> str:
    """Write node names compactly and in order: n1, n2, n4 become "n[1-2,4]". Words that name no node stay apart."""
    return _folded(tuple(names))


@lru_cache(maxsize=1024)  # one decision is reported several times: in the ledger, the log, and to its driver
def _folded(names: tuple[str, ...]) -> str:
    try:
        return str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))
    except (NodeSetException, OverflowError, ValueError):
        return ",".join(names)


def expand(text: str) -> list[str]:
    """List the node names of a folded set, in order; "" and Slurm's "(null)" are the empty set.

    Raise SlurmError for text that is no node set, or one wider than any cluster. ClusterShell's groups (@all) are none:
    Slurm knows nothing of them.
    """
    if text in ("", "(null)"):
        return []
    if "[" not in text and "," not in text:  # one plain name: by far the most frequent case, and parsing is slow
        return [text]
    return list(_expanded(text))


@lru_cache(maxsize=8192)  # a large cluster shows the same few thousand sets every second
def _expanded(text: str) -> tuple[str, ...]:
    ranges = re.findall(r"(\d{1,18})-(\d{1,18})", " ".join(re.findall(r"\[([^\[\]]*)", text)))
    # several ranges are expanded one after the other before they can be counted
    if sum(max(0, int(last) - int(first)) for first, last in ranges) >= _WIDEST:
        raise SlurmError(f"{one_line(text)} is a wider range than any cluster has")
    try:
        nodes = NodeSet(text, resolver=RESOLVER_NOGROUP)
        count = len(nodes)
    except (NodeSetException, ValueError) as error:  # the latter for a number of thousands of digits
        raise SlurmError(f"not a node set: {one_line(text)!r} ({one_line(str(error))})") from error
    except OverflowError:  # more than fit in 64 bits
        count = _WIDEST + 1
    if count > _WIDEST:  # with two ranges, as in r[1-9999]n[1-9999], it is their product
        raise SlurmError(f"{one_line(text)} are more nodes than any cluster has")
    return tuple(nodes)
