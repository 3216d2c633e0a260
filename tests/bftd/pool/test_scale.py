"""The pool of a large cluster: its work grows with nodes plus jobs, not with nodes times jobs."""

from __future__ import annotations

from collections.abc import Iterator

from bftd.config.keys import PoolConfig
from bftd.pool import membership
from bftd.pool.harvest import Harvest
from slurm_plugin.read.types import Job, Node, Snapshot


class Counted(tuple[str, ...]):
    """Partitions of a node that tell how often anybody goes through them."""

    looks = 0

    def __iter__(self) -> Iterator[str]:
        type(self).looks += 1
        return super().__iter__()


def node(number: int) -> Node:
    partitions = Counted(("batch", "elastic"))
    return Node(f"n{number}", "IDLE", frozenset(), partitions, (), "", {}, 4, 2**32, "")


def job(number: int) -> Job:
    """A job that waits for nodes of another part of the machine."""
    return Job(
        id=str(number), user="ada", partition=("fat",), state="PENDING", name="j", nodes=(), sched_nodes=(),
        start_s=None, submit_s=0.0, time_limit_s=60.0, reason="Priority", node_count=1, comment="", dependency="",
        priority=1, reservation="",
    )  # fmt: skip


def test_thousands_of_jobs_for_other_nodes_cost_no_look_at_every_node_each() -> None:
    nodes = {f"n{number}": node(number) for number in range(400)}
    snapshot = Snapshot(1000.0, nodes, tuple(job(number) for number in range(300)), ())
    Counted.looks = 0
    _, view = membership.observe(
        membership.PoolMemory(), snapshot, PoolConfig(debounce_polls=1), Harvest.of("elastic"), {}, {}
    )
    assert Counted.looks <= 3 * len(nodes)
    assert view.hold is None
    assert sum(seen.in_pool for seen in view.nodes.values()) == len(nodes)
