"""The wait of regular jobs for nodes with pilots: from the node being asked back to a job seen on it. Pure.

Nobody tells the daemon for which job Slurm preempts. So the wait for a node is counted from when it was asked back for
regular work until the first snapshot in which its pilot is gone and another job runs there. It is never shorter than
the truth and longer by a poll at most; if no job comes, nothing is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bftd.core.model.domain import PoolNode

# A job that has not come by then is not the one for which the node was asked back; neither is a job that comes to a
# node after it was free for everybody for a while. Slurm preempts in one cycle and starts the job in the next.
AWAITED_S = 900.0
FREE_S = 30.0
_BUSY = ("ALLOCATED", "MIXED")


class Handovers:
    """The nodes on which regular jobs are awaited, each with the time at which it was asked back (unix seconds)."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def begin(self, node: str, at_s: float) -> None:
        """Note that a node was asked back for regular work; an earlier begin is kept."""
        self._since.setdefault(node, at_s)

    def end(self, node: str) -> None:
        """Note that a node is lent again: no job came."""
        self._since.pop(node, None)

    def move(self, by_s: float) -> None:
        """Move all times by `by_s`: the clock was set."""
        self._since = {node: at_s + by_s for node, at_s in self._since.items()}

    def seen(self, nodes: Mapping[str, PoolNode], leased: Iterable[str], at_s: float) -> list[float]:
        """Return the seconds after which regular jobs came to nodes, by a snapshot of `at_s`."""
        if not self._since:
            return []
        held, done = set(leased), []
        for name, since_s in list(self._since.items()):
            node = nodes.get(name)
            passed_s = max(0.0, at_s - since_s)
            if node is None or passed_s > AWAITED_S or (node.in_pool and name not in held and passed_s > FREE_S):
                del self._since[name]
            elif runs_regular(node):
                del self._since[name]
                done.append(passed_s)
        return done


def runs_regular(node: PoolNode) -> bool:
    """Whether a job that is no pilot of ours runs on the node; one that is just ending does not count."""
    base, *flags = node.state.split("+")
    return base in _BUSY and node.wanted and node.pilot is None and "COMPLETING" not in flags
