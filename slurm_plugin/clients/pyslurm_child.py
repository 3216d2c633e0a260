"""The process that reads Slurm through pyslurm: each line on standard input is answered by a line on standard output.

It is a process of its own because pyslurm ends its process if there is no slurm.conf, and blocks all threads for about
ten seconds if the controller is down. It exits when its standard input ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any, TextIO

WITH_RESERVATIONS = "all"
WITHOUT_RESERVATIONS = "nodes and jobs"

# pyslurm also returns the jobs that are over, until Slurm forgets them.
_OVER = frozenset(
    {
        *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE"),
        *("OUT_OF_MEMORY", "REVOKED"),
    }
)


def main() -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # library output must not look like an answer
    import pyslurm

    serve(pyslurm, sys.stdin, answers)


def serve(pyslurm: Any, requests: TextIO, answers: TextIO) -> None:
    """Answer each line of `requests` with one line of JSON: the rows asked for, or an error."""
    for request in requests:
        try:
            answer = _snapshot(pyslurm, request.strip() == WITH_RESERVATIONS)
        except Exception as error:  # any failure of the library is an unusable answer
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _snapshot(pyslurm: Any, with_reservations: bool) -> dict[str, Any]:
    nodes = [_node(node) for node in pyslurm.Nodes.load().values()]
    jobs = [_job(job) for job in pyslurm.Jobs.load().values() if job.state not in _OVER]
    found = pyslurm.Reservations.load().values() if with_reservations else None
    reservations = None if found is None else [_reservation(one) for one in found]
    return {"nodes": nodes, "jobs": jobs, "reservations": reservations}


def _node(node: Any) -> dict[str, Any]:
    return {
        "name": node.name,
        "state": node.state,
        "partitions": list(node.partitions),
        "features": list(node.active_features),
        "gres": dict(node.configured_gres),
        "cpus": node.total_cpus,
        "memory_mb": max(0, node.real_memory - (getattr(node, "memory_reserved_system", None) or 0)),
        "reason": node.reason or "",
        "weight": getattr(node, "weight", None) or 1,
        "cpus_used": getattr(node, "allocated_cpus", None) or 0,
        "memory_used_mb": getattr(node, "allocated_memory", None) or 0,
        "gres_used": dict(getattr(node, "allocated_gres", None) or {}),
    }


def _job(job: Any) -> dict[str, Any]:
    """Return a job's fields; for a pending job that pyslurm cannot read, only its id and partition, if readable."""
    try:
        return _whole_job(job)
    except Exception as error:  # the library may fail on any field
        if job.state != "PENDING":
            raise
        known = {"state": "PENDING", "unreadable": f"{type(error).__name__}: {error}"}
        for field in ("id", "partition"):
            with contextlib.suppress(Exception):
                known[field] = str(getattr(job, field))
        return known


def _whole_job(job: Any) -> dict[str, Any]:
    return {
        "id": _job_id(job),
        "user": job.user_name or str(job.user_id),
        "partition": job.partition,
        "state": job.state,
        "name": job.name or "",
        "nodes": job.allocated_nodes or "",
        "sched_nodes": job.scheduled_nodes or "",
        "start_s": job.start_time,
        "submit_s": job.submit_time,
        "time_limit_min": job.time_limit,
        "reason": job.state_reason or "",
        "node_count": job.num_nodes or 0,
        "comment": job.comment or "",
        "dependency": _dependency(job.dependencies),
        "priority": job.priority or 0,
        "reservation": job.reservation or "",
        "account": job.account or "",
        "request": _request(job),
    }


def _request(job: Any) -> dict[str, Any] | None:
    """Return a job's request; None if the library fails on it."""
    try:
        per_cpu = job.memory_per_cpu
        gres = job.gres_per_node or {}
        return {
            "features": ",".join(job.constraints or ()),
            "required": job.required_nodes or "",
            "excluded": job.excluded_nodes or "",
            "contiguous": bool(job.requires_contiguous_nodes),
            "sharing": job.resource_sharing or "",
            "least_min": job.time_limit_min or 0,
            "cpus": job.cpus or 0,
            "cpus_per_node": job.min_cpus_per_node or 0,
            "memory_mb": (job.memory_per_node if per_cpu is None else per_cpu) or 0,
            "memory_per_cpu": per_cpu is not None,
            "gres": ",".join(f"{name}:{count}" for name, count in gres.items()),
            "switches": job.required_switches or 0,
        }
    except Exception:  # the library may fail on any field: the job waits all the same
        return None


def _job_id(job: Any) -> str:
    """Format a job's id as squeue does: "12_[3-5%2]" for the waiting tasks of an array, "12_3" for one of its tasks."""
    if job.array_id and job.array_tasks_waiting:
        at_once = f"%{job.array_tasks_parallel}" if job.array_tasks_parallel else ""
        return f"{job.array_id}_[{job.array_tasks_waiting}{at_once}]"
    if job.array_id and job.array_task_id is not None:
        return f"{job.array_id}_{job.array_task_id}"
    if job.heterogeneous_id:
        return f"{job.heterogeneous_id}+{job.heterogeneous_offset}"
    return str(job.id)


def _dependency(found: Any) -> str:
    if not found:
        return ""
    kinds = [":".join([kind, *map(str, jobs)]) for kind, jobs in found.items() if isinstance(jobs, list) and jobs]
    separator = "?" if found.get("satisfy") == "any" else ","
    return separator.join([*kinds, *(["singleton"] if found.get("singleton") else [])])


def _reservation(reservation: Any) -> dict[str, Any]:
    return {
        "name": reservation.name,
        "nodes": reservation.nodes or "",
        "start_s": reservation.start_time,
        "end_s": reservation.end_time,
        "flags": _flags(reservation),
    }


def _flags(reservation: Any) -> list[str]:
    try:
        return [flag.name for flag in type(reservation.flags) if flag in reservation.flags]
    except ValueError:  # a flag that pyslurm has no name for
        return []


if __name__ == "__main__":
    main()
