"""The books of a replay: rates and node counts over time, and every charge; all its figures come from them."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bftd.simulation.drivers.driver import Charge
from bftd.simulation.drivers.trainers import SimTrainer

Floats = npt.NDArray[np.float64]


@dataclass
class Account:
    """The state from each event on, as columns of equal length, and the charges with their times.

    `rate` is in samples/s of all trainers; `pool`, `held` and `training` are in nodes. `still` are node-seconds, from
    `still_s` on, in which nodes of `training` stood still for a resize. A charge is "rescale", "preempt" or
    "overshoot": samples beyond a trainer's work, counted until the trainer was next looked at. `earned` is the total of
    each trainer at the end.
    """

    time_s: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    pool: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    training: list[int] = field(default_factory=list)
    still_s: list[float] = field(default_factory=list)
    still: list[float] = field(default_factory=list)
    charged_s: list[float] = field(default_factory=list)
    charge: list[Charge] = field(default_factory=list)
    charged: list[float] = field(default_factory=list)
    decided_s: list[float] = field(default_factory=list)
    preempted_s: list[float] = field(default_factory=list)
    preemptions: int = 0
    runtimes_s: dict[str, list[float]] = field(default_factory=dict)
    earned: dict[str, float] = field(default_factory=dict)

    def note(self, time_s: float, rate: float, pool: int, held: int, training: int) -> None:
        """Record the state from `time_s` on."""
        self.time_s.append(time_s)
        self.rate.append(rate)
        self.pool.append(pool)
        self.held.append(held)
        self.training.append(training)

    def take_off(self, time_s: float, charge: Charge, samples: float) -> None:
        """Charge samples."""
        if samples:
            self.charged_s.append(time_s)
            self.charge.append(charge)
            self.charged.append(samples)

    def stand_still(self, time_s: float, node_s: float) -> None:
        """Record that nodes that take part stood still for `node_s` node-seconds from `time_s` on."""
        if node_s:
            self.still_s.append(time_s)
            self.still.append(node_s)

    def completed(self, spec: SimTrainer, runtime_s: float) -> None:
        """Record a trainer as done, `runtime_s` after it was admitted."""
        self.runtimes_s.setdefault(spec.kind, []).append(runtime_s)
        self.earned[spec.name] = spec.work_samples

    def total(self, charge: Charge) -> float:
        """Return the sum of all charges of one kind, in samples."""
        return float(sum(samples for kind, samples in zip(self.charge, self.charged, strict=True) if kind == charge))

    def outcome(self, edges_s: Floats) -> Floats:
        """Return the samples earned between consecutive edges, less charges."""
        charged, _ = np.histogram(self.charged_s, edges_s, weights=self.charged)
        earned: Floats = self._integral(self.rate, edges_s) - charged
        return earned

    def pool_node_s(self, edges_s: Floats) -> Floats:
        """Return the node-seconds of the pool between consecutive edges, equation (17)."""
        return self._integral(self.pool, edges_s)

    def held_node_s(self, edges_s: Floats) -> Floats:
        """Return the node-seconds that trainers held between consecutive edges."""
        return self._integral(self.held, edges_s)

    def training_node_s(self, edges_s: Floats) -> Floats:
        """Return the node-seconds of training between consecutive edges; a stall counts where it begins."""
        still, _ = np.histogram(self.still_s, edges_s, weights=self.still)
        trained: Floats = self._integral(self.training, edges_s) - still
        return trained

    def preempted_within(self, horizon_s: float) -> float:
        """Return the share of preemptions within `horizon_s` of the decision before them, the paper's Figure 7a."""
        if not self.preempted_s:
            return 0.0
        since_s = [at_s - self.decided_s[bisect_left(self.decided_s, at_s) - 1] for at_s in self.preempted_s]
        return sum(passed_s <= horizon_s for passed_s in since_s) / len(since_s)

    def _integral(self, values: list[float] | list[int], edges_s: Floats) -> Floats:
        """Return the integral of a step function between consecutive edges; it is 0 before the first step."""
        times = np.append(self.time_s, max(edges_s[-1], self.time_s[-1]))
        steps = np.concatenate([[0.0], np.cumsum(np.asarray(values, np.float64) * np.diff(times))])
        between: Floats = np.diff(np.interp(edges_s, times, steps))
        return between
