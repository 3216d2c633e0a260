"""The figures of the systems from their runs: what was trained, what it cost regular jobs, and what was lost."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.impact import slots
from benchmarks.impact.analysis import figures, occupancy, stats
from benchmarks.impact.record import Run
from benchmarks.rivals.systems import AGAIN, NOTHING, SYSTEMS
from benchmarks.rivals.training import Costs, Group, trained


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of a system, and what was trained in it."""

    run: Run
    groups: Sequence[Group]


def of_seed(outcomes: Mapping[str, Outcome], costs: Costs) -> dict[str, dict[str, Any]]:
    """The figures of each system on one stream of jobs, by its name; Slurm alone must be among them, twice.

    What was trained counts until the first of the runs has started its last job, over the node-seconds that Slurm alone
    left idle until then. `groups` are all that trained, each by its nodes, its steps and how many of these were kept.
    """
    until_s = min(occupancy.standing_s(outcome.run) for outcome in outcomes.values())
    window = [(0.0, until_s)]
    alone = [outcomes[NOTHING.name].run, outcomes[AGAIN.name].run]
    idle_node_s = statistics.mean(occupancy.idle_node_s(run, window) for run in alone)
    found = {}
    for name, outcome in outcomes.items():
        run, samples = outcome.run, trained(outcome.groups, until_s)
        pilots_node_s = occupancy.pilot_node_s(run, window)
        found[name] = {
            "seed": run.seed,
            "until_s": until_s,
            "idle_node_s": idle_node_s,
            "held_node_s": pilots_node_s,
            "untrained_node_s": pilots_node_s - samples.computed * costs.step_s,
            "samples_kept": samples.kept,
            "samples_lost": samples.lost,
            "won_share": samples.kept * costs.step_s / idle_node_s,
            "lost_share": samples.lost * costs.step_s / idle_node_s,
            "delays_s": _delays_s(run, alone[:1] if name == AGAIN.name else alone),
            "waits_s": [round(figures.wait_s(run, row), 3) for row in run.jobs],
            "groups": [(group.size, len(group.steps_s), group.kept) for group in outcome.groups],
            "preempted_for": sum(row.preempt_s is not None for row in run.jobs),
            "slots_lost": sum(slots.lost(run, row) for row in run.jobs),
            "load_most": run.load_most,
            "note": run.note,
        }
    return found


def _delays_s(run: Run, alone: Sequence[Run]) -> list[float]:
    """Return the seconds by which each job waited longer than under Slurm alone, in the mean of those runs."""
    by_run = [figures.differences(one, run) for one in alone]
    return [round(statistics.mean(differences), 3) for differences in zip(*by_run, strict=True)]


def over_seeds(seeds: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """The figures of each system over the seeds, each of which counts once; intervals are 95 %, by Student's t."""
    return {system.name: _over([seed[system.name] for seed in seeds]) for system in SYSTEMS if seeds}


def _over(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    shares = {name: [row[name] for row in rows] for name in ("won_share", "lost_share")}
    shares["untrained_share"] = [row["untrained_node_s"] / row["idle_node_s"] for row in rows]
    delays_s = [statistics.mean(row["delays_s"]) for row in rows]
    return {
        **{name: _mean(of) for name, of in shares.items()},
        "delay_s": _mean(delays_s),
        "worst_delay_s": max(delay_s for row in rows for delay_s in row["delays_s"]),
        "waits_s": statistics.mean(wait_s for row in rows for wait_s in row["waits_s"]),
        **{name: sum(row[name] for row in rows) for name in ("samples_kept", "samples_lost", "untrained_node_s")},
        **{name: sum(row[name] for row in rows) for name in ("preempted_for", "slots_lost")},
    }


def _mean(of_seeds: Sequence[float]) -> dict[str, Any]:
    return {"mean": statistics.mean(of_seeds), "interval": stats.interval(of_seeds), "by_seed": of_seeds}
