"""The totals of shadow mode; they survive restarts and only grow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bftd.ledger import codec
from bftd.shadow.trainers import NETWORKS
from bftd.simulation.replay import static
from bftd.simulation.replay.options import Options

# The paper gives U for every six hours (its Figure 10), and so does the replay.
WINDOW_S = 6 * 3600.0


@dataclass
class Totals:
    """Counts since `since_s`, over `observed_s` seconds in which snapshots were read.

    `idle_node_seconds` are of nodes that Slurm shows idle and fit for a job; the ledger counts those in the pool.
    `samples` is A_e; `dedicated_samples` is A_s of the completed windows, and `window_*` belong to the current one.
    `preemptions` counts a trainer once however many nodes a job takes from it at once.
    """

    since_s: float = 0.0
    observed_s: float = 0.0
    idle_node_seconds: float = 0.0
    samples: float = 0.0
    dedicated_samples: float = 0.0
    window_s: float = 0.0
    window_node_seconds: float = 0.0
    preemptions: int = 0
    nodes_taken: int = 0
    nodes_vacated: int = 0
    submissions: int = 0
    most_submissions_per_min: int = 0
    completed: int = 0
    polls: int = 0
    slurm_calls: int = 0

    @classmethod
    def restored(cls, kept: Mapping[str, Any], now_s: float) -> Totals:
        """Return the totals that `to_json` wrote, or new ones."""
        return codec.decode(cls, kept) if kept else cls(since_s=now_s)

    def to_json(self) -> dict[str, Any]:
        """Return all counts, for `restored`."""
        return codec.encode(self)

    def pass_time(self, passed_s: float, idle: int, pool_node_seconds: float, as_planned: Options) -> None:
        """Add time that counts; `pool_node_seconds` is the pool's increase over it."""
        self.observed_s += passed_s
        self.idle_node_seconds += passed_s * idle
        self.window_s += passed_s
        self.window_node_seconds += pool_node_seconds
        if self.window_s >= WINDOW_S:
            self.dedicated_samples = self.dedicated(as_planned)
            self.window_s = self.window_node_seconds = 0.0

    def dedicated(self, as_planned: Options) -> float:
        """Return A_s: samples of the same trainers on as many dedicated nodes as the pool had on average.

        They are allocated by the objective and the pj_max that the daemon plans with.
        """
        if self.window_s <= 0:
            return self.dedicated_samples
        nodes = self.window_node_seconds / self.window_s
        return self.dedicated_samples + static.outcome(NETWORKS, nodes, self.window_s, as_planned)

    def shown(self, pool_node_seconds: float, as_planned: Options) -> dict[str, Any]:
        """Return the figures as `bft status --json` shows them.

        efficiency is U = A_e / A_s. The recovered node-seconds are that fraction of the pool's: the node-seconds of
        dedicated nodes that would have earned as many samples.
        """
        dedicated = self.dedicated(as_planned)
        efficiency = self.samples / dedicated if dedicated > 0 else None
        minutes = self.observed_s / 60.0
        return {
            "since_s": self.since_s,
            "observed_s": self.observed_s,
            "idle_node_seconds": self.idle_node_seconds,
            "samples": self.samples,
            "dedicated_samples": dedicated,
            "efficiency": efficiency,
            "recovered_node_seconds": pool_node_seconds * (efficiency or 0.0),
            "preemptions": self.preemptions,
            "nodes_taken": self.nodes_taken,
            "nodes_vacated": self.nodes_vacated,
            "submissions": self.submissions,
            "submissions_per_min": {
                "mean": self.submissions / minutes if minutes > 0 else None,
                "most": self.most_submissions_per_min,
            },
            "completed": self.completed,
            "polls": self.polls,
            "slurm_calls": self.slurm_calls,
            "slurm_calls_per_poll": self.slurm_calls / self.polls if self.polls else None,
        }
