"""The random number generators of a worker: torch's on CPU and GPU, numpy's and Python's, saved and restored."""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any

import torch


def states() -> dict[str, Any]:
    """Return the state of every generator that this worker uses."""
    found: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found["cuda"] = torch.cuda.get_rng_state()
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        found["numpy"] = numpy_random.get_state()
    return found


def restore(saved: dict[str, Any]) -> None:
    """Set each generator to the state that `states` found."""
    torch.set_rng_state(saved["torch"])
    random.setstate(saved["python"])
    if "cuda" in saved and torch.cuda.is_available():
        torch.cuda.set_rng_state(saved["cuda"])
    if "numpy" in saved and (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.set_state(saved["numpy"])


def begin(version: str, rank: int) -> None:
    """Seed the generators of a worker without saved ones, differently for each checkpoint version and rank."""
    seed = int.from_bytes(hashlib.blake2b(f"{version} {rank}".encode(), digest_size=8).digest(), "big")
    torch.manual_seed(seed)  # seeds every GPU too
    random.seed(seed)
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed(seed & 0xFFFFFFFF)
