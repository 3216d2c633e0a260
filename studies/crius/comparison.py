"""Several schedulers on the same jobs: single runs, and the figures over all runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from studies.crius.schedulers import maker
from studies.simulation import report
from studies.simulation.clusters import Pool, capacity
from studies.simulation.engine import simulate
from studies.simulation.models import TrainedModel
from studies.simulation.report import Figures
from studies.simulation.speeds import FormulaSpeeds, with_error
from studies.simulation.types import SimulatedJob


@dataclass(frozen=True)
class Site:
    """A cluster, the models that are trained on it, and their true speeds there."""

    pools: Mapping[str, Pool]
    models: Mapping[str, TrainedModel]
    speeds: FormulaSpeeds

    @classmethod
    def of(cls, pools: Mapping[str, Pool], models: Mapping[str, TrainedModel]) -> Site:
        """Return a site with speeds by data sheets."""
        return cls(pools, models, FormulaSpeeds(models, pools))

    @property
    def batches(self) -> dict[str, int]:
        """Samples of an iteration by model."""
        return {name: model.global_batch for name, model in self.models.items()}


def run(name: str, jobs: Sequence[SimulatedJob], site: Site, *, error: float = 0.0, seed: int = 0) -> Figures:
    """Run one scheduler on jobs; the speeds it is told are wrong by up to `error`."""
    policy = maker(name)(with_error(site.speeds, error, seed), site.speeds)
    return report.figures(simulate(jobs, capacity(site.pools), policy, site.speeds), site.batches)


RATIOS = ("mean_jct_s", "mean_queue_s", "window_finished", "window_normalised", "window_raw", "peak_raw")
"""Figures whose paired ratios to the first policy are reported."""


_OF_JOBS = ("mean_jct_s", "mean_queue_s")


def ratio(figure: str, firsts: Sequence[Figures], others: Sequence[Figures]) -> report.Interval | None:
    """Return the first policy's figure over another's, paired by seed; None if one of them is 0.

    Also None for times of jobs if some have not ended: a policy that drops long jobs would look fast.
    """
    if figure in _OF_JOBS and any(each.finished < each.jobs for each in (*firsts, *others)):
        return None
    pair = [[float(getattr(each, figure) or 0.0) for each in side] for side in (firsts, others)]
    return report.paired(*pair)


def to_json(runs: Mapping[str, Sequence[Figures]]) -> dict[str, Any]:
    """Return all policies' figures over the seeds, and the first one's over each other's.

    The latter are geometric means of ratios paired by seed.
    """
    first = next(iter(runs), "")
    ratios: dict[str, dict[str, Any]] = {}
    for name, others in runs.items():
        if name == first:
            continue
        ratios[name] = {}
        for figure in RATIOS:
            found = ratio(figure, runs[first], others)
            ratios[name][figure] = found and found.to_json()
    return {
        "policies": {name: report.to_json(found) for name, found in runs.items()},
        f"{first}_over": ratios,
        "seeds": len(next(iter(runs.values()), ())),
    }
