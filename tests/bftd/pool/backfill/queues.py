"""Short ways to the nodes and jobs that tests of the queue are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from bftd.pool.backfill.model import Numbering
from bftd.pool.backfill.queue import Queue, queue
from bftd.pool.backfill.topology import Layout, layout_of
from slurm_plugin.read.types import Job, JobRequest, Node, Partition, Scheduler, Snapshot
from tests.bftd.builders import job, node

GB = 2**30
NOW_S = 100_000.0


def nodes(count: int, **fields: Any) -> dict[str, Node]:
    """n0, n1, ...: nodes of 4 CPUs in the partition batch."""
    return {f"n{index}": node(f"n{index}", **{"memory_bytes": 16 * GB, **fields}) for index in range(count)}


def both(*some: Mapping[str, Node]) -> dict[str, Node]:
    """Nodes of several kinds, numbered on."""
    every = [item for one in some for item in one.values()]
    return {f"n{index}": replace(item, name=f"n{index}") for index, item in enumerate(every)}


def layout(some: Mapping[str, Node]) -> Layout:
    return layout_of(some, Numbering.of(some))


def mask(*indices: int) -> int:
    """The set of n<index>."""
    return sum(1 << index for index in indices)


def waits(id_: str = "1", **fields: Any) -> Job:
    """A job that waits for nodes; what is no field of a job is one of its request."""
    own = {key: fields.pop(key) for key in list(fields) if key not in Job.__dataclass_fields__}
    return job(id_, **{"request": JobRequest(**own), **fields})


def queued(
    pending: Iterable[Job],
    some: Mapping[str, Node] | None = None,
    partitions: Iterable[Partition] = (),
    others: Iterable[Job] = (),
    **scheduler: Any,
) -> Queue:
    """The queue at NOW_S."""
    there = nodes(8) if some is None else dict(some)
    jobs = tuple(pending)
    known = {one.name: one for one in partitions}
    snapshot = Snapshot(NOW_S, there, (*jobs, *others), (), known, Scheduler(**{"read": True, **scheduler}))
    return queue(snapshot, jobs, there, Numbering.of(there))
