"""Sizing of regular Slurm jobs: GPUs to ask for, by the memory that a model's training takes (Frenzy).

`fit`, `choose`, `estimate`, `profile_cpu` and `learn` are the library; they need neither a daemon nor a GPU. They are
loaded when they are first used: this module also runs under a user's own Python, with `sizing.tracer` alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sizing.base.errors import SizingError
    from sizing.functions.cpu_profile import CpuProfile, profile_cpu
    from sizing.functions.gpu_plans import FitResult, fit
    from sizing.functions.job_runs import ChooseResult, choose
    from sizing.functions.job_usage import learn
    from sizing.functions.site import Site
    from sizing.functions.step_estimate import StepEstimate, estimate

__all__ = [
    "ChooseResult",
    "CpuProfile",
    "FitResult",
    "Site",
    "SizingError",
    "StepEstimate",
    "choose",
    "estimate",
    "fit",
    "learn",
    "profile_cpu",
]

_PLACES = {
    "ChooseResult": "functions.job_runs",
    "CpuProfile": "functions.cpu_profile",
    "FitResult": "functions.gpu_plans",
    "Site": "functions.site",
    "SizingError": "base.errors",
    "StepEstimate": "functions.step_estimate",
    "choose": "functions.job_runs",
    "estimate": "functions.step_estimate",
    "fit": "functions.gpu_plans",
    "learn": "functions.job_usage",
    "profile_cpu": "functions.cpu_profile",
}

if not TYPE_CHECKING:  # a checker of types sees the imports above

    def __getattr__(name: str) -> Any:
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
