"""A recommendation of t_fwd and pj_max for a site, with the gain to expect, from replays of its own trace.

The replays cover a grid of both settings. Liu et al., "BFTrainer" (arXiv:2106.12091), sections 5.1 and 5.3.
"""

from bftd.simulation.advise.advice import Advice, advise
from bftd.simulation.advise.choice import Prefer, pareto, recommend
from bftd.simulation.advise.confidence import GainEstimate
from bftd.simulation.advise.sweep import SweepPoint, sweep

__all__ = ["Advice", "GainEstimate", "Prefer", "SweepPoint", "advise", "pareto", "recommend", "sweep"]
