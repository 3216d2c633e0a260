"""What follows from a transformer's sizes alone: parameters, floating point operations, bytes of collectives."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sizing.model.parallel import Parallel
from sizing.model.transformer import ModelConfig


@dataclass(frozen=True, slots=True)
class Parameters:
    """Elements on one tensor-parallel rank: the embedding of tokens, the output matrix where it is another (else 0),
    the matrices of one layer, and what is small and on every rank (positions; a layer's normalisations and biases).

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
        """One layer."""
        return self.layer_matrices + self.layer_rest

    @property
    def total(self) -> int:
        """All."""
        return self.embedding + self.output + self.layers * self.layer + self.rest

    @property
    def matrices(self) -> int:
        """Those that a matrix product takes, the output matrix among them (it may be the embedding)."""
        return self.layers * self.layer_matrices + (self.output or self.embedding)


def parameters_of_rank(model: ModelConfig) -> Parameters:
    """The parameters that one tensor-parallel rank holds before ZeRO or FSDP cut them further."""
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
    """The trainable elements of the whole model, over all GPUs."""
    return parameters_of_rank(replace(model, parallel=Parallel())).total


def step_flops(model: ModelConfig) -> int:
    """The floating point operations of one rank's step: forward, backward and what is computed again.

    A product with a matrix of P elements is 2 P a token forward and 4 P backward; QK^T and PV together are 4 s A a
    token and layer forward (A the width of all heads), twice that backward, and flash attention computes QK^T once
    more. No half is taken off for a causal mask (as torch's own counter does not).
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
    """All-reduces of tensor-parallel ranks for one micro-batch (Shoeybi et al. 2019, Megatron-LM)."""
    return model.layers * (6 if model.recompute == "full" else 4) + 2


def collective_bytes(model: ModelConfig) -> dict[str, int]:
    """The bytes of one rank's collectives in a step, by kind: of the whole tensor before or after it is cut.

    Tensor parallelism sums the output of each attention and feed-forward layer forward and their inputs' gradients
    backward, and of the embedding and the output layer one each; full recomputation repeats the forward sums. Replicas
    sum gradients once a step; ZeRO 1 and 2 scatter that sum and gather the new weights; ZeRO 3 and FSDP gather weights
    for each forward and backward and scatter gradients each micro-batch.
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
