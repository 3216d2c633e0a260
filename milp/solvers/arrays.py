"""What the tables of all solvers share: arrays, and what keeps a prohibitive cost from setting their scale."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def worst_that_matters(best: Floats, least: float, most_earned: float) -> Floats:
    """The worth (J,) below which no count of a trainer is in an optimal plan, when it can have `best` (J,) at most.

    A plan worth `least` is known, so no trainer of a better one loses more against its best than all could lose
    together. A prohibitive cost is cut to twice that: left as it is, it would set the scale of rounding errors and
    tie-breaks, and drown what plans really differ by. `most_earned` keeps the cut well above rounding where nobody
    loses anything; where nobody earns anything either, costs are all there is.
    """
    if most_earned <= 0:
        return np.full(len(best), -np.inf)
    floor: Floats = best - 2 * (best.sum() - least + most_earned)
    return floor
