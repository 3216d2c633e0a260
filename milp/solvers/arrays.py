"""Array types of all solvers' tables, and a floor that keeps a prohibitive cost from setting their scale."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def worst_that_matters(best: Floats, least: float, most_earned: float) -> Floats:
    """Return the worth (J,) below which no count of a trainer is in an optimal plan, given each trainer's `best` (J,).

    A plan worth `least` is known, so no trainer of a better plan loses more against its best than all could lose
    together. A prohibitive cost is cut to twice that: otherwise it would set the scale of rounding errors and
    tie-breaks, and drown the real differences between plans. `most_earned` keeps the cut well above rounding if no
    trainer loses anything; if none earns anything either, only costs matter, and nothing is cut.
    """
    if most_earned <= 0:
        return np.full(len(best), -np.inf)
    floor: Floats = best - 2 * (best.sum() - least + most_earned)
    return floor
