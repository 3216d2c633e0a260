"""Many real nodes harvested at once, and given back to one regular job at once: drivers, pilots and agents are real.

What the agents start sleeps where training would compute (benchmarks/impact/training.py).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.impact import logs, training
from benchmarks.markdown import Measured, measured, spread
from bftd.cli.admin.sandbox_site import SandboxSite
from examples.regular_jobs import RegularJob, stream
from slurm_plugin.sandbox import processes

TRAINERS = 4
LOCKOUT_S = 2.0
_SLOWEST_S = 5.0
_UP_S = 240.0  # 64 agents and their node processes start on two cores
_CONF = "MinJobAge=3600\nMaxStepCount=100000\n"


def harvest_many(nodes: int = 64, rounds: int = 3, log: Callable[[str], None] = print) -> dict[str, Any]:
    """Let `nodes` nodes fall idle at one moment `rounds` times, and take all back with one job each time.

    Seconds. `idle_to_first_s` and `idle_to_placed_s` are from the end of the job before to the first and the last
    pilot, `idle_to_ready_s` to the last warm agent, as the drivers report them. `preempt_to_start_s` is from the
    controller's first preempt line to the regular job's first line, `submit_to_start_s` from its submission, and
    `idle_cluster_submit_to_start_s` that of the same job without pilots. `left_over` counts
    processes of jobs at the end.
    """
    # All nodes at once is the most that Slurm can preempt: no node is earmarked before it asks.
    config: dict[str, dict[str, Any]] = {
        "decide": {"pj_max": TRAINERS},
        "limits": {"trainers_per_user": 0},
        "pool": {"earmark": False},
    }
    with SandboxSite(config, nodes=nodes, tuned=True, extra_conf=_CONF) as site:
        log(f"{nodes} nodes are up")
        site.start_daemon()
        script = training.lay_out(site.work)
        baseline = [row["delay_s"] for row in stream(site, [RegularJob(0.0, nodes, 1.0)], lambda: None)]
        trainers = [_submit(site, number, nodes, str(script)) for number in range(TRAINERS)]
        found = []
        _wait("all trainers", lambda: len(site.client.status()["trainers"]) == TRAINERS, site)
        _wait("the first harvest", lambda: _counts(site)["ready"] == nodes, site)
        for number in range(rounds):
            found.append(_round(site, nodes))
            log(f"round {number + 1} of {rounds}: " + ", ".join(f"{key} {found[-1][key]}" for key in _TOLD))
        site.slurm("scancel", *trainers)
        _wait("the trainers' end", lambda: not site.slurm("squeue", "-h", "-o", "%i"), site)
        time.sleep(1.0)  # Slurm's own step daemons take a moment longer than their steps
        left = [process for process in processes.of_root(site.root) if not process.is_daemon]
        backs = [e["data"]["duration_s"] for e in _events(site) if e["kind"] == "give_back"]
        alarms = sum(e["kind"] == "alarm" for e in _events(site))
        errors = site.log_path.read_text().count("ERROR")
    return {
        "nodes": nodes,
        "rounds": rounds,
        "idle_cluster_submit_to_start_s": baseline[0],
        **{key: _spread([row[key] for row in found]) for key in (*_TIMES, "pilots_per_s")},
        "samples": found,
        "refused": sum(row["refused"] for row in found),
        "lockouts": sum(row["preempt_to_start_s"] > LOCKOUT_S for row in found),
        "preempted": [row["preempted"] for row in found],
        "give_back_s": {**_spread(backs), "p99": _rank(backs, 0.99), "count": len(backs)},
        "alarms": alarms,
        "errors": errors,
        "left_over": len(left),
    }


def table(result: Any) -> str:
    """The rows in Markdown."""

    def seen(name: str) -> list[float]:
        return [row[name] for row in result["samples"]]

    took_s, slowest_s = seen("preempt_to_start_s"), result["give_back_s"]["max"]
    left = [result[name] for name in ("refused", "alarms", "lockouts", "left_over")]
    idle = f"{result['idle_cluster_submit_to_start_s']:.2f} s"
    return measured(
        (
            Measured(
                f"all {result['nodes']} nodes idle to all pilots placed", spread(seen("idle_to_placed_s"), "s", 1)
            ),
            Measured("one job on all nodes, submission to start", spread(seen("submit_to_start_s"), "s")),
            Measured("the same without pilots", idle),
            Measured("preemption to start", spread(took_s, "s"), f"{LOCKOUT_S:.0f} s", max(took_s) > LOCKOUT_S),
            Measured("slowest give-back", f"{slowest_s:.1f} s", f"{_SLOWEST_S:.0f} s", slowest_s > _SLOWEST_S),
            Measured("refused, alarms, lock-outs, processes left", ", ".join(map(str, left)), "0", any(left)),
        )
    )


_TIMES = ("idle_to_first_s", "idle_to_placed_s", "idle_to_ready_s", "submit_to_start_s", "preempt_to_start_s")
_TOLD = (*_TIMES, "pilots_per_s", "refused", "preempted")


def _round(site: SandboxSite, nodes: int) -> dict[str, Any]:
    """One job over all nodes, which all pilots leave for, and the harvest after its end."""
    seen = len(_events(site))
    [row] = stream(site, [RegularJob(0.0, nodes, 5.0)], lambda: None)
    if row["start_s"] is None:
        raise SystemExit(f"scale.many_nodes: the regular job never started\n{_tail(site)}")
    idle_s = (site.work / f"ended-{row['id']}").stat().st_mtime
    _wait("all pilots", lambda: _counts(site)["ready"] == nodes, site)
    leases = [event for event in _events(site)[seen:] if event["kind"] == "lease"]
    placed = sorted(e["data"]["at_s"] for e in leases if e["data"]["state"] == "placed" and e["data"]["at_s"] > idle_s)
    ready = [e["data"]["at_s"] for e in leases if e["data"]["state"] == "ready" and e["data"]["at_s"] > idle_s]
    log = (site.root / "log" / "slurmctld.log").read_text().splitlines()
    mine = [preemption for preemption in logs.preemptions(log) if preemption.by == row["id"]]
    first_s = min((preemption.at_s for preemption in mine), default=row["start_s"])
    return {
        "idle_to_first_s": round(placed[0] - idle_s, 2),
        "idle_to_placed_s": round(placed[-1] - idle_s, 2),
        "idle_to_ready_s": round(max(ready) - idle_s, 2),
        "submit_to_start_s": round(row["delay_s"], 2),
        "preempt_to_start_s": round(row["start_s"] - first_s, 2),
        "pilots_per_s": round((len(placed) - 1) / max(1e-3, placed[-1] - placed[0]), 1),
        "refused": sum(event["data"]["state"] == "refused" for event in leases),
        "preempted": len(mine),
    }


def _submit(site: SandboxSite, number: int, nodes: int, script: str) -> str:
    words = [f"--elastic=1-{nodes},backend=torchrun", f"--job-name=many-{number}", f"--output=many-{number}.log"]
    done = site.bft("sbatch", "--parsable", *words, script)
    if done.returncode:
        raise SystemExit(f"scale.many_nodes: {done.stderr.strip()}")
    return done.stdout.strip()


def _counts(site: SandboxSite) -> dict[str, int]:
    states = [node["lease_state"] for node in site.client.status()["nodes"]]
    return {state: states.count(state) for state in ("granted", "placed", "ready", "working", "leaving", "revoked")}


def _events(site: SandboxSite) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while batch := site.client.events(after=found[-1]["rowid"] if found else 0, limit=10_000):
        found += batch
    return found


def _wait(what: str, condition: Callable[[], Any], site: SandboxSite) -> None:
    deadline_s = time.monotonic() + _UP_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise SystemExit(
                f"scale.many_nodes: {what} did not come within {_UP_S:g} s: {_counts(site)}\n{_tail(site)}"
            )
        time.sleep(0.2)


def _tail(site: SandboxSite) -> str:
    paths = [site.log_path, *site.work.glob("*.log")]
    return "\n".join(path.read_text(errors="replace")[-1500:] for path in paths)


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return {"median": None, "min": None, "max": None}
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def _rank(values: Sequence[float], share: float) -> float | None:
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)] if ordered else None
