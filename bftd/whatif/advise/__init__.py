"""A recommendation of t_fwd and pj_max for a site, with the gain to expect, from replays of its own trace.

The replays cover a grid of both settings. Liu et al., "BFTrainer" (arXiv:2106.12091), sections 5.1 and 5.3.
"""

from bftd.whatif.advise.advice import Advice, advise
from bftd.whatif.advise.choice import Prefer, pareto, recommend
from bftd.whatif.advise.confidence import Expected
from bftd.whatif.advise.sweep import Point, sweep

__all__ = ["Advice", "Expected", "Point", "Prefer", "advise", "pareto", "recommend", "sweep"]
