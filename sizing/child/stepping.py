"""Measures a user's training step on one core of this CPU, or on this GPU, run for real in a separate process."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from sizing.base.errors import DoesNotFit, Untraceable
from sizing.base.estimate import Estimate
from sizing.child import launch
from sizing.model.reply import number, refused, word

TIMEOUT_S = 120.0
_MOST = 2**50
_ENTRY = "sizing.tracer.runs.steps"


@dataclass(frozen=True, slots=True)
class RealStep:
    """A step of `batch` samples: its seconds on one core, and the number of trainable elements of its model."""

    batch: int
    core_s: float
    parameters: int


@dataclass(frozen=True, slots=True)
class GpuStep:
    """A step of `batch` samples on one GPU: its seconds, and its memory in bytes.

    `allocated_bytes` is the most that tensors held at once, `reserved_bytes` the memory that torch took from the driver
    for them, `in_use_bytes` the part of the GPU's `memory_bytes` in use at the end. `within_guard` says whether a GPU
    with the given bytes would have been enough; torch takes more if it can. `device` is the driver's name of the GPU.
    """

    batch: int
    step_s: Estimate
    allocated_bytes: int
    reserved_bytes: int
    in_use_bytes: int
    memory_bytes: int
    within_guard: bool
    device: str
    torch: str


def run_on_gpu(step: str, batch: int, limit_bytes: int, *, python: str = "", timeout_s: float = TIMEOUT_S) -> GpuStep:
    """Run a step of `batch` samples on this GPU several times; `step` is "PATH.py:FUNCTION".

    The step first runs as if the GPU had only `limit_bytes`; if that is too little, it runs again with all memory.
    Raises DoesNotFit if that is too little as well, Untraceable if the step does not run here, UsageError if there is
    no GPU, file, function or Python, or if another process uses the GPU.
    """
    path, name = launch.parts(step)
    request = {"path": str(path), "function": name, "batch": batch, "takes": [], "target": "cuda"}
    for limit in (limit_bytes, 0):
        data = launch.run(
            _ENTRY,
            request | {"limit_bytes": limit},
            python=python,
            timeout_s=timeout_s,
            env={"HF_HUB_OFFLINE": "1"},
            what=path.name,
        )
        try:
            said = json.loads(data)
            refused(said)
            if said.get("too_large") is not True:
                return gpu_step({**said, "batch": batch, "within_guard": limit > 0})
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            why = f"{path.name} answered what no step on a GPU is ({type(error).__name__}: {error})"
            raise Untraceable(why) from None
    raise DoesNotFit(f"{path.name}: {name} takes more memory than this GPU has")


def gpu_step(said: dict[str, Any]) -> GpuStep:
    """Read a step from its JSON, in which `step_s` is (value, low, high).

    Raises KeyError, OverflowError, TypeError or ValueError if the JSON is not a step.
    """
    value, low, high = (float(each) for each in said["step_s"])
    if not 0 < low <= value <= high < math.inf or type(said["within_guard"]) is not bool:
        raise ValueError(f"{said['step_s']!r} is no time")
    return GpuStep(
        batch=number(said["batch"]),
        step_s=Estimate(value, low, high, "measured"),
        allocated_bytes=number(said["allocated_bytes"]),
        reserved_bytes=number(said["reserved_bytes"]),
        in_use_bytes=number(said["in_use_bytes"]),
        memory_bytes=number(said["memory_bytes"]),
        within_guard=said["within_guard"],
        device=word(said["device"]),
        torch=word(said["torch"]),
    )


def run(
    step: str, batch: int, *, python: str = "", timeout_s: float = TIMEOUT_S, memory_bytes: int | None = None
) -> RealStep:
    """Run a step of `batch` samples a few times; `step` is "PATH.py:FUNCTION".

    Raises Untraceable if it does not run here, UsageError if there is no such file, function or Python.
    """
    path, name = launch.parts(step)
    request = {"path": str(path), "function": name, "batch": batch}
    env = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    data = launch.run(
        _ENTRY, request, python=python, timeout_s=timeout_s, memory_bytes=memory_bytes, env=env, what=path.name
    )
    try:
        said = json.loads(data)
        refused(said)
        found, parameters = said["core_s"], said["parameters"]
        if type(parameters) is not int or not 0 <= parameters <= _MOST:
            raise ValueError(f"{parameters!r} is no number of parameters")
        if type(found) is not float or not math.isfinite(found) or found < 0:
            raise ValueError(f"{found!r} is no time")
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise Untraceable(f"{path.name} answered what no time is ({type(error).__name__}: {error})") from None
    # a clock of whole milliseconds may read 0 for a very small step
    return RealStep(batch, max(found, 1e-6), parameters)
