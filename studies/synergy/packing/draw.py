"""Jobs to pack, drawn from recorded sensitivity matrices."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sizing.base.errors import UsageError
from sizing.cpu.sensitivity.matrix import Matrices
from studies.synergy.packing.types import PackJob

KINDS = ("image", "language", "speech")
"""The classes of jobs in the order in which a mix names them."""

Mix = Mapping[str, float]
"""Shares of classes, which sum to 1."""


def mix_of(text: str, kinds: tuple[str, ...] = KINDS) -> Mix:
    """Read percentages of image/language/speech, such as 20/70/10; raise UsageError, one line, for an invalid text."""
    try:
        percent = [float(part) for part in text.split("/")]
    except ValueError:
        percent = []
    if len(percent) != len(kinds) or not all(0 <= part <= 100 for part in percent):
        raise UsageError(f"--mix {text[:40]!r}: give percentages of {'/'.join(kinds)}, as in 20/70/10")
    if abs(sum(percent) - 100) > 1e-6:
        raise UsageError(f"--mix {text[:40]}: the percentages sum to {sum(percent):g}: make it 100")
    return {kind: part / 100 for kind, part in zip(kinds, percent, strict=True)}


def draw(matrices: Matrices, mix: Mix, gpus: int, seed: int) -> tuple[PackJob, ...]:
    """Draw as many one-GPU jobs as there are GPUs: a class by its share in `mix`, then any model of that class.

    The same matrices, mix, GPUs and seed give the same jobs. Raises UsageError if the file has no one-GPU job of a
    requested class.
    """
    models: dict[str, list[str]] = {}
    for name, recorded in matrices.items():
        if recorded.matrix.gpus == 1:
            models.setdefault(recorded.kind, []).append(name)
    wanted = {kind: share for kind, share in mix.items() if share > 0}
    for kind in wanted:
        if kind not in models:
            there = ", ".join(filter(None, sorted(models))) or "none at all"
            raise UsageError(
                f"the file has no one-GPU job of class {kind}, only of {there}: change --mix, or "
                "the class of jobs in the file"
            )
    random = np.random.default_rng([seed, 53])
    kinds = random.choice(list(wanted), gpus, p=list(wanted.values()))
    found = []
    for at, kind in enumerate(kinds):
        names = sorted(models[str(kind)])
        name = names[int(random.integers(len(names)))]
        found.append(PackJob(f"{at}:{name}", matrices[name].matrix))
    return tuple(found)
