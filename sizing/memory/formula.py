"""The peak of one GPU's memory from a transformer's sizes: MARP's idea, with the parts it leaves out.

A step is followed through its moments, and the largest counts: the end of forward, the loss going backward, the output
matrix's gradient, the last layer's backward, the first layer's, the embedding's, the optimizer's step. Between two of
them memory only grows or only shrinks, layer by layer. With master weights (Megatron-LM, Alpa) the terms are added up
instead, as MARP and Korthikanti et al. do: there gradients lie in buffers that stay, and memory is planned ahead. Not
included: CUDA's context, NCCL's buffers, memory that the allocator cannot reuse (the guard band covers those), and
pipelines.
"""

from __future__ import annotations

from collections.abc import Mapping

from sizing.base.estimate import Estimate
from sizing.memory import activations, states
from sizing.memory.peak import FORMULA_LOW_SHARE, MemoryPeak, guarded_bytes
from sizing.model.counts import parameters_of_rank
from sizing.model.trace import CATEGORIES, Category
from sizing.model.transformer import ModelConfig

_MARP_STATES_BYTES = 20
"""Bytes of each parameter: "the size of static parameters is 20W", mixed precision and Adam."""


def peak_of(model: ModelConfig) -> MemoryPeak:
    """Return the peak of one rank by formula, by category at that moment, with MARP's number.

    Its range extends on both sides as far as the formula may be wrong.
    """
    moments = moments_of(model)
    worst = max(moments.values(), key=lambda each: sum(each.values()))
    total = sum(worst.values())
    return MemoryPeak(
        peak=Estimate(total, round(total * FORMULA_LOW_SHARE), guarded_bytes(total, "formula"), "formula"),
        by_category={name: worst[name] for name in CATEGORIES},
        parallel=model.parallel,
        batch=model.batch,
        marp_bytes=marp_bytes_of(model),
    )


def moments_of(model: ModelConfig) -> Mapping[str, Mapping[Category, int]]:
    """Return the bytes by category at each moment of a step that can be its peak."""
    counts = parameters_of_rank(model)
    held = states.states_of(model, counts)
    layer = activations.layer_of(model)
    loss = activations.loss_of(model)
    below = layer.boundary if model.recompute == "full" else layer.saved
    saved = model.layers * below + activations.once_of(model)
    # `saved` has the last layer's own tensors, except those that are recomputed
    extra = activations.backward_extra(model, layer) - below
    gathered = states.gathered_bytes(model, counts)

    def moment(activation: int, temporary: int, gradients: int = 0, casts: int = 0) -> dict[Category, int]:
        return {
            "parameters": held.parameters,
            "gradients": max(gradients, held.kept),
            "optimizer": held.optimizer,
            "activations": activation + casts,
            "temporary": temporary + held.buckets + gathered,
        }

    if model.master:
        return {"together": moment(saved + loss.saved, extra + loss.backward, held.gradients)}
    size = states.bytes_of(model)
    casts = 0 if gathered else size.cast * counts.matrices
    # with checkpoints a cast made in forward lives as long as autocast's cache; the output matrix's is saved
    of_output = 0 if gathered else size.cast * (counts.output or counts.embedding)
    left = of_output if model.recompute == "full" else casts
    head = _share(size.gradient * counts.embedding, held.gradients, size.gradient * counts.total)
    one_layer = _share(size.gradient * counts.layer, held.gradients, size.gradient * counts.total)
    largest = size.gradient * counts.embedding
    twice = largest if model.tied or held.kept else 0
    stream = size.residual * model.hidden * model.tokens
    return {
        "end of forward": moment(saved + loss.saved, loss.forward, casts=casts),
        "loss backward": moment(saved + loss.saved, loss.backward, casts=left),
        "output matrix": moment(saved, loss.product + (size.compute * counts.embedding), head, left),
        "last layer": moment(saved + loss.held, extra, head, left - of_output),
        "first layer": moment(
            below + loss.held,
            extra,
            held.gradients - one_layer,
            size.cast * counts.layer_matrices if left > of_output else 0,
        ),
        "embedding": moment(loss.held, stream + twice, held.gradients),
        "optimizer": moment(loss.held, held.step, held.gradients),
    }


def _share(part: int, whole: int, of: int) -> int:
    """Return a part of all gradients, in proportion to their size."""
    return part * whole // of if of else 0


def marp_weights(hidden: int, layers: int, vocab: int) -> int:
    """Return MARP's number of weights: W = V h + l (12 h^2 + 13 h)."""
    return vocab * hidden + layers * (12 * hidden * hidden + 13 * hidden)


def marp_bytes_of(model: ModelConfig) -> int:
    """Return the memory of one GPU by MARP, Frenzy's formula, exactly as its paper prints it; it is never corrected.

    20 W / t + s B h l (10 / d + 24 / (d t) + 5 a s / (d h t)).
    B / d are the sequences of one replica, which is `batch` here (also of a GPU that shares its replica's state). MARP
    takes the whole batch of a step for one micro-batch, so accumulation counts as batch.
    """
    h, t, s = model.hidden, model.parallel.tp, model.seq
    static = _MARP_STATES_BYTES * marp_weights(h, model.layers, model.vocab) / t
    sequences = model.batch * model.accumulation
    activations = s * sequences * h * model.layers * (10 + 24 / t + 5 * model.heads * s / (h * t))
    return round(static + activations)
