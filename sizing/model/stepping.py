"""How long a user's training step takes on one core of this CPU, run for real in a process of its own."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from sizing.errors import Untraceable, UsageError
from sizing.model import launch
from sizing.model.reply import word

TIMEOUT_S = 120.0
_MOST = 2**50
_ENTRY = "sizing.model.child.steps"


@dataclass(frozen=True, slots=True)
class RealStep:
    """A step of `batch` samples: the seconds of one core that it takes, and the trainable elements of its model."""

    batch: int
    core_s: float
    parameters: int


def run(
    step: str, batch: int, *, python: str = "", timeout_s: float = TIMEOUT_S, memory_bytes: int | None = None
) -> RealStep:
    """Run a step of `batch` samples a few times; `step` is "PATH.py:FUNCTION".

    Raises Untraceable where it does not run here, UsageError where there is no such file, function or Python.
    """
    path, name = launch.parts(step)
    request = {"path": str(path), "function": name, "batch": batch}
    env = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    data = launch.run(
        _ENTRY, request, python=python, timeout_s=timeout_s, memory_bytes=memory_bytes, env=env, what=path.name
    )
    try:
        said = json.loads(data)
        if "refused" in said:
            raise (UsageError if said.get("usage") is True else Untraceable)(word(said["refused"], 1000))
        found, parameters = said["core_s"], said["parameters"]
        if type(parameters) is not int or not 0 <= parameters <= _MOST:
            raise ValueError(f"{parameters!r} is no number of parameters")
        if type(found) is not float or not math.isfinite(found) or found < 0:
            raise ValueError(f"{found!r} is no time")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Untraceable(f"{path.name} answered what no time is ({type(error).__name__}: {error})") from None
    # a clock of whole milliseconds may show nothing of a very small step
    return RealStep(batch, max(found, 1e-6), parameters)
