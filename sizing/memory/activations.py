"""The memory that a micro-batch holds between forward and backward, by the operators of a layer.

After Korthikanti et al. 2022 (Reducing Activation Recomputation in Large Transformer Models), section 4, whose 16-bit
layer is s b h (34 + 5 a s / h). The tensors here are the same, with the bytes that the model's precision gives each,
without dropout's masks if there is none, with shared keys and values, gated and several feed-forward layers, and
normalised tensors that torch keeps. Tensor parallelism cuts heads and inner width; normalisations and the residual
stream are whole.
"""

from __future__ import annotations

from dataclasses import dataclass

from sizing.memory.states import bytes_of
from sizing.model.transformer import ModelConfig


@dataclass(frozen=True, slots=True)
class Layer:
    """The tensors that one layer saves for backward, in bytes of a micro-batch on one rank.

    `boundary` is its input, which full recomputation keeps as well; `attention` is from the first normalisation to the
    output projection, `core` the part of it that grows with the square of the sequence; `feed_forward` is the rest.
    """

    boundary: int
    attention: int
    core: int
    feed_forward: int

    @property
    def saved(self) -> int:
        """All saved bytes."""
        return self.boundary + self.attention + self.core + self.feed_forward


def layer_of(model: ModelConfig) -> Layer:
    """Return a layer's saved tensors.

    Attention: normalised input, queries, keys and values, the heads' output (where scores are not kept, also a log-sum
    in fp32 of each row), a mask of dropout. Feed-forward: residual stream, normalised input, the activation function's
    input and output (if gated: both halves, the function's output and their product), a mask. With experts each token's
    input and output once for each expert that it goes through.
    """
    size = bytes_of(model)
    tokens, h = model.tokens, model.hidden
    mask = h if model.dropout else 0
    attention = (
        _normalised(model, 1 if model.fused else 3)
        + size.compute * (2 * model.query_width + 2 * model.key_width)
        + mask
    )
    heads = model.query_width // model.head
    core = 0
    if model.keeps_scores:
        core = heads * model.seq * _score_bytes(model)
        if not model.master:  # the plain product repeats shared keys and values for each head
            attention += 2 * size.compute * max(model.query_width - model.key_width, 0)
    else:
        attention += 4 * heads
    feed_forward = size.residual * h + _normalised(model, 2 if model.gated and not model.fused else 1) + mask
    feed_forward += size.compute * (4 if model.gated else 2) * model.active_ffn + _written_out(model)
    if model.experts > 1:
        feed_forward += 2 * size.compute * h * model.experts_used + 4 * model.experts
    if model.recompute == "selective":
        core = 0
    return Layer(size.residual * h * tokens, attention * tokens, core * tokens, feed_forward * tokens)


def _normalised(model: ModelConfig, products: int = 1) -> int:
    """Return the bytes per token that a normalisation leaves, besides its input.

    They are its output as the `products` that follow take it (under autocast each makes its own cast), and for RMSNorm
    as the transformers package writes it the normalised tensor. In fp32 and under autocast that is one tensor of 4
    bytes. In 16 bits it is one of 2, and the input's copy in fp32, which replaces the input itself (2 less) unless
    recomputation keeps that.
    """
    size = bytes_of(model)
    extra = 0
    if model.norm == "rms" and not model.master:
        extra = 4
        if size.residual == 2 and model.recompute == "full":
            extra += 2
    casts = products if model.autocast else 1
    return model.hidden * (casts * size.compute + extra)


def _written_out(model: ModelConfig) -> int:
    """Return GPT-2's x / 2 (1 + tanh(... x^3)) in single operations: three more tensors of the inner width.

    Under autocast the power turns 16 bits into fp32: 4 each for x, tanh and 1 + tanh; half of x stands in for x in 2.
    """
    if not model.gelu_new or model.master:
        return 0
    return 3 * (4 if model.autocast else bytes_of(model).compute) * model.active_ffn


def _score_bytes(model: ModelConfig) -> int:
    """Return the bytes per pair of tokens and head with attention written out.

    They are the softmax, and with dropout its mask and its output. 16 bits: 2 + 1 + 2. Autocast: the softmax in fp32
    and its cast for the product. fp32: 4, with dropout + 1 + 4.
    """
    size = bytes_of(model)
    if model.autocast:
        return 4 + 2 + (1 if model.dropout else 0)
    return size.compute * (2 if model.dropout else 1) + (1 if model.dropout else 0)


def backward_extra(model: ModelConfig, layer: Layer) -> int:
    """Return the most that a layer's backward holds beyond the saved tensors of the layers below, its own included.

    Its moments: the gradient of the activation function while all is still saved; that of the second normalisation when
    the feed-forward layer's own tensors are gone; that of the softmax; that of the first normalisation. The incoming
    gradient is there at each.
    """
    size = bytes_of(model)
    tokens, h = model.tokens, model.hidden
    stream = size.residual * h
    inner = size.compute * (2 if model.gated else 1) * model.active_ffn
    arrived = stream
    if model.master and model.recompute == "full":
        # Megatron-LM's checkpoint holds the layer's recomputed output while it goes backward
        arrived += stream
    attention = layer.attention + (0 if model.recompute == "none" else _core_again(model))
    if model.recompute == "none":
        attention += layer.core
    scores = 2 * _gradient_of_score(model) * model.query_width // model.head * model.seq if model.keeps_scores else 0
    moments = (
        attention + layer.feed_forward + (arrived + inner) * tokens,
        attention + (arrived + stream + size.compute * h + stream) * tokens,
        attention + (arrived + stream + size.compute * model.query_width + scores) * tokens,
        (arrived + 2 * stream + size.compute * h) * tokens,
    )
    return layer.boundary + max(moments)


def _gradient_of_score(model: ModelConfig) -> int:
    return 4 if model.autocast else bytes_of(model).compute


def _core_again(model: ModelConfig) -> int:
    """Return the part of attention's core that recomputation restores for one layer."""
    if not model.keeps_scores:
        return 0
    return model.query_width // model.head * model.seq * _score_bytes(model) * model.tokens


def once_of(model: ModelConfig) -> int:
    """Return the bytes saved outside the layers.

    They are the last normalisation's input, the output layer's, and the mask after the embedding (Korthikanti et al.
    2022, section 4.3: 4 s b h in 16 bits, and s b h).
    """
    size = bytes_of(model)
    each = size.residual * model.hidden + _normalised(model) + (model.hidden if model.dropout else 0)
    if model.encoder:
        # the normalisation of the embedding, and the dense layer of a masked-language head with its activation function
        each += (size.residual + 2 * size.compute) * model.hidden
    return each * model.tokens


@dataclass(frozen=True, slots=True)
class Loss:
    """Bytes of the logits and of cross-entropy.

    `saved` is saved for backward; `forward` comes on top at the end of forward, `backward` at the start of backward;
    `product` is all of it in the product that follows; `held` stays while a variable of the step holds the logits.
    """

    saved: int
    forward: int
    backward: int
    product: int
    held: int


def loss_of(model: ModelConfig) -> Loss:
    """Return the bytes for the logits of every token, cut along the vocabulary.

    torch: the logits (4 bytes, 2 in 16 bits) stay while a variable names them, log-softmax is saved in fp32; forward
    has the logits' cast to fp32 beside them, backward the incoming and the outgoing gradient, 4 each; then the outgoing
    one's cast for the product. An encoder's loss does not cast them: its log-softmax is in the logits' own precision,
    and under autocast its cast to fp32 is saved as well, whose gradient is the only one beside it. Megatron-LM's
    parallel cross-entropy goes without one of them: 2 (logits) + 4 (softmax) + 4 (gradient) = 10.
    """
    size = bytes_of(model)
    logits = model.tokens * model.rank_vocab
    if model.master:
        return Loss(6 * logits, 0, 4 * logits, 0, 0)
    held = size.compute
    if model.encoder:
        cast = 4 if model.autocast else 0
        return Loss((2 * held + cast) * logits, 0, (cast or 2 * held) * logits, 2 * held * logits, held * logits)
    up, down = (4, 2) if size.compute < 4 else (0, 0)
    return Loss((held + 4) * logits, up * logits, 8 * logits, (held + 4 + down) * logits, held * logits)
