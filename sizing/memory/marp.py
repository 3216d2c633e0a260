"""MARP, Frenzy's memory formula, exactly as its paper prints it: shown next to ours and never corrected."""

from __future__ import annotations

from sizing.model.transformer import ModelConfig

_STATES_BYTES = 20
"""Bytes of each parameter: "the size of static parameters is 20W", mixed precision and Adam."""


def weights(hidden: int, layers: int, vocab: int) -> int:
    """Return W = V h + l (12 h^2 + 13 h)."""
    return vocab * hidden + layers * (12 * hidden * hidden + 13 * hidden)


def bytes_of(model: ModelConfig) -> int:
    """Return the memory of one GPU by MARP: 20 W / t + s B h l (10 / d + 24 / (d t) + 5 a s / (d h t)).

    B / d are the sequences of one replica, which is `batch` here (also of a GPU that shares its replica's state). MARP
    takes the whole batch of a step for one micro-batch, so accumulation counts as batch.
    """
    h, t, s = model.hidden, model.parallel.tp, model.seq
    static = _STATES_BYTES * weights(h, model.layers, model.vocab) / t
    sequences = model.batch * model.accumulation
    activations = s * sequences * h * model.layers * (10 + 24 / t + 5 * model.heads * s / (h * t))
    return round(static + activations)
