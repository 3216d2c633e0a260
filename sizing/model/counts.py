"""Counts that follow from a transformer's sizes alone: parameters, floating point operations, bytes of collectives."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sizing.base.parallel import Parallel
from sizing.model.transformer import ModelConfig


@dataclass(frozen=True, slots=True)
class Parameters:
    """The number of elements on one tensor-parallel rank.

    `embedding` is the token embedding, `output` the output matrix (0 if it is the embedding), `layer_matrices` the
    matrices of one layer, `layer_rest` a layer's small tensors (normalisations, biases, the router), `rest` those of
    the whole model, such as positions.

    Megatron-LM (Shoeybi et al. 2019) cuts matrices of attention and feed-forward layers along heads and inner width and
    the embedding along the vocabulary; normalisations, positions and routers are on every rank.
    """

    embedding: int
    output: int
    layer_matrices: int
    layer_rest: int
    rest: int
    layers: int

    @property
    def layer(self) -> int:
        """The elements of one layer."""
        return self.layer_matrices + self.layer_rest

    @property
    def total(self) -> int:
        """All elements."""
        return self.embedding + self.output + self.layers * self.layer + self.rest

    @property
    def matrices(self) -> int:
        """The elements that matrix products use, including the output matrix (which may be the embedding)."""
        return self.layers * self.layer_matrices + (self.output or self.embedding)


def parameters_of_rank(model: ModelConfig) -> Parameters:
    """Return the parameters that one tensor-parallel rank holds before ZeRO or FSDP cut them further."""
    h, t = model.hidden, model.parallel.tp
    attention_bias, ffn_bias = model.biased
    norm = 2 * h if model.norm == "layer" else h
    expert = (3 if model.gated else 2) * h * model.ffn // t
    shared = ((3 if model.gated else 2) * model.shared_ffn // t + 1) * h if model.shared_ffn else 0
    matrices = 2 * h * model.query_width + 2 * h * model.key_width + model.experts * expert + shared
    rest = model.norms * norm
    if attention_bias:
        rest += model.query_width + 2 * model.key_width + (h if attention_bias and ffn_bias else 0)
    if ffn_bias:
        rest += model.experts * ((2 if model.gated else 1) * model.ffn // t + h)
    if model.experts > 1:
        rest += h * model.experts
    embedding = model.rank_vocab * h
    once = norm
    if model.positions:
        once += (model.position_rows or model.seq) * h
    if model.encoder:
        # BERT: two segments, and a masked-language head of a dense layer, a normalisation and a bias per word
        once += 2 * h + h * h + h + norm + model.rank_vocab
    return Parameters(embedding, 0 if model.tied else embedding, matrices, rest, once, model.layers)


def parameters(model: ModelConfig) -> int:
    """Return the number of trainable elements of the whole model, over all GPUs."""
    return parameters_of_rank(replace(model, parallel=Parallel())).total


def step_flops(model: ModelConfig) -> int:
    """Return the floating point operations of one rank's step: forward, backward and recomputation.

    A product with a matrix of P elements takes 2 P operations per token forward and 4 P backward. QK^T and PV together
    take 4 s A per token and layer forward (A is the width of all heads) and twice that backward; flash attention
    computes QK^T once more. A causal mask does not halve the count, as in torch's own counter.
    """
    h, t = model.hidden, model.parallel.tp
    kinds = 3 if model.gated else 2
    linear = 2 * h * model.query_width + 2 * h * model.key_width + kinds * h * model.active_ffn
    if model.experts > 1:
        linear += h * model.experts
    core = 2 * model.seq * model.query_width
    layer = 6 * linear + (7 if model.attention == "flash" else 6) * core
    if model.recompute == "full":
        layer += 2 * linear + 2 * core
    elif model.recompute == "selective" and model.attention == "math":
        layer += 2 * core
    head = 6 * h * model.rank_vocab + (6 * h * h // t if model.encoder else 0)
    return model.accumulation * model.tokens * (model.layers * layer + head)


def tensor_sums(model: ModelConfig) -> int:
    """Return the number of all-reduces of tensor-parallel ranks per micro-batch (Shoeybi et al. 2019, Megatron-LM)."""
    return model.layers * (6 if model.recompute == "full" else 4) + 2


def collective_bytes(model: ModelConfig) -> dict[str, int]:
    """Return the bytes of one rank's collectives in a step, by kind. Each counts the whole tensor, not its shards.

    Tensor parallelism sums the output of each attention and feed-forward layer in the forward pass and their inputs'
    gradients in the backward pass, with one sum each for the embedding and the output layer; full recomputation repeats
    the forward sums. Replicas sum gradients once a step; ZeRO 1 and 2 scatter that sum and gather the new weights;
    ZeRO 3 and FSDP gather weights for each forward and backward pass and scatter gradients each micro-batch.
    """
    found = {"all_reduce": 0, "all_gather": 0, "reduce_scatter": 0}
    spread = model.parallel
    weights = parameters_of_rank(model).total
    compute = 4 if model.precision in ("fp32", "tf32") else 2
    gradient = 2 if model.precision == "bf16-pure" else 4
    if spread.tp > 1:
        found["all_reduce"] += model.accumulation * tensor_sums(model) * compute * model.tokens * model.hidden
    sharded = spread.fsdp * (spread.dp if model.zero == 3 else 1)
    replicas = 1 if model.zero == 3 else spread.dp
    if sharded > 1:
        found["all_gather"] += 2 * model.accumulation * compute * weights
        found["reduce_scatter"] += model.accumulation * gradient * weights
    if replicas > 1 and model.zero == 0:
        found["all_reduce"] += gradient * weights // sharded
    elif replicas > 1:
        found["reduce_scatter"] += gradient * weights // sharded
        found["all_gather"] += (2 if model.master or compute == gradient == 2 else 4) * weights // sharded
    return found
