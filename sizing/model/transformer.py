"""A transformer's sizes, and the settings that it is trained with."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from sizing.base.errors import UsageError
from sizing.base.parallel import Parallel

Precision = Literal["fp32", "tf32", "bf16", "fp16-amp", "fp16", "bf16-master", "bf16-pure"]
"""fp32 and tf32: all in fp32. bf16 and fp16-amp: torch.autocast, weights in fp32 and cast for each product. fp16 and
bf16-master: weights in 16 bits with a master copy in fp32 (Megatron-LM, DeepSpeed, Alpa). bf16-pure: all in bf16."""

Optimizer = Literal["adam", "adamw", "sgd", "momentum", "adafactor", "adam8bit"]
Recompute = Literal["none", "selective", "full"]
Attention = Literal["math", "flash"]
Norm = Literal["layer", "rms"]

_WIDEST_HEAD = 256  # of FlashAttention
LARGEST = 10**9
"""The largest size that is accepted; a larger number is a typing error."""


def shown(value: object) -> str:
    """Return a user's input for a message, cut short and printable."""
    text = str(value)[:40]
    return text if text.isprintable() else ascii(text)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder or encoder and its training settings. `batch` counts the sequences of a replica's micro-batch (b).

    `heads` (a) attention heads share `kv_heads` heads of keys and values; a head is `head_size` wide, else hidden /
    heads. `ffn_hidden` is the width inside a feed-forward layer; `gated` layers (SwiGLU) have three matrices instead of
    two. Each token goes through `experts_used` of the `experts`, and through one more of width `shared_ffn`.
    `positions` says whether positions are learned, in `position_rows` rows, else in `seq`. `biased` says whether
    matrices of attention and of feed-forward layers have biases; `norms` counts the normalisations of a layer. `fused`
    says whether queries, keys and values come out of one matrix, `gelu_new` whether the activation function is GPT-2's,
    written out as single operators. `zero` is the stage of ZeRO over the data-parallel GPUs; 3 is FSDP. `accumulation`
    is the number of micro-batches of a step. Raises UsageError, one line, for impossible sizes.
    """

    hidden: int
    layers: int
    heads: int
    seq: int
    vocab: int
    batch: int = 1
    kv_heads: int | None = None
    ffn_hidden: int | None = None
    gated: bool = False
    tied: bool = True
    experts: int = 1
    experts_used: int = 1
    positions: bool = True
    dropout: bool = False
    precision: Precision = "fp32"
    optimizer: Optimizer = "adam"
    recompute: Recompute = "none"
    attention: Attention = "flash"
    zero: int = 0
    accumulation: int = 1
    parallel: Parallel = field(default_factory=Parallel)
    name: str = "gpt"
    head_size: int | None = None
    shared_ffn: int = 0
    position_rows: int | None = None
    biased: tuple[bool, bool] = (True, True)
    norm: Norm = "layer"
    norms: int = 2
    encoder: bool = False
    fused: bool = True
    gelu_new: bool = False

    def __post_init__(self) -> None:
        sizes = (
            ("h", self.hidden),
            ("l", self.layers),
            ("a", self.heads),
            ("s", self.seq),
            ("V", self.vocab),
            ("b", self.batch),
            ("kv", self.kv_heads),
            ("ffn", self.ffn_hidden),
            ("experts", self.experts),
            ("topk", self.experts_used),
            ("accumulation", self.accumulation),
            ("head", self.head_size),
            ("dp", self.parallel.dp),
            ("tp", self.parallel.tp),
            ("fsdp", self.parallel.fsdp),
        )
        for key, size in sizes:
            if size is not None and not 1 <= size <= LARGEST:
                raise UsageError(f"{key}={shown(size)}: a whole number from 1 to {LARGEST}")
        for key, word, words in (
            ("precision", self.precision, get_args(Precision)),
            ("optimizer", self.optimizer, get_args(Optimizer)),
            ("recompute", self.recompute, get_args(Recompute)),
            ("attention", self.attention, get_args(Attention)),
            ("norm", self.norm, get_args(Norm)),
            ("zero", self.zero, range(4)),
        ):
            if word not in words:
                raise UsageError(f"{key}={shown(word)}: one of {', '.join(map(str, words))}")
        self._divides()

    def _divides(self) -> None:
        kv, tp = self.kv, self.parallel.tp
        if self.head_size is None and self.hidden % self.heads:
            raise UsageError(
                f"h={self.hidden} cannot be cut into a={self.heads} heads: choose a multiple, or give head="
            )
        if self.heads % kv:
            raise UsageError(f"a={self.heads} heads cannot share kv={kv} keys and values: kv must divide a")
        if self.experts_used > self.experts:
            raise UsageError(
                f"topk={self.experts_used}: a token goes through at most the experts={self.experts} there are"
            )
        for key, size in (("a", self.heads), ("ffn", self.ffn), ("ffn of the shared expert", self.shared_ffn)):
            if size % tp:
                raise UsageError(f"tp={tp} does not divide {key}={size}: choose a tp that does")
        if kv % tp and tp % kv:
            raise UsageError(f"tp={tp} and kv={kv}: one must divide the other")

    @property
    def kv(self) -> int:
        """The number of heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def head(self) -> int:
        """The width of one head."""
        return self.head_size or self.hidden // self.heads

    @property
    def ffn(self) -> int:
        """The width inside a feed-forward layer, of one expert."""
        return self.ffn_hidden or 4 * self.hidden

    @property
    def tokens(self) -> int:
        """The number of tokens of a micro-batch."""
        return self.batch * self.seq

    @property
    def query_width(self) -> int:
        """The width of all queries of a token, on one tensor-parallel rank."""
        return self.heads * self.head // self.parallel.tp

    @property
    def key_width(self) -> int:
        """The width of all keys of a token on one rank; a rank has at least one head of them."""
        return max(self.kv // self.parallel.tp, 1) * self.head

    @property
    def rank_vocab(self) -> int:
        """The rows of the vocabulary on one rank, rounded up: Megatron-LM cuts along rows and pads the rest."""
        return math.ceil(self.vocab / self.parallel.tp)

    @property
    def active_ffn(self) -> int:
        """The feed-forward width that a token goes through, on one rank."""
        return (self.experts_used * self.ffn + self.shared_ffn) // self.parallel.tp

    @property
    def master(self) -> bool:
        """Whether weights are in 16 bits with a master copy in fp32."""
        return self.precision in ("fp16", "bf16-master")

    @property
    def autocast(self) -> bool:
        """Whether weights are in fp32 and cast to 16 bits for each matrix product."""
        return self.precision in ("bf16", "fp16-amp")

    @property
    def keeps_scores(self) -> bool:
        """Whether attention is written out, so that backward needs its scores.

        Of CUDA's kernels only FlashAttention's shares keys and values among heads, and it takes neither fp32 nor heads
        wider than 256: torch writes such attention out. Megatron-LM repeats keys and values before its kernel.
        """
        no_kernel = self.kv != self.heads and (self.precision in ("fp32", "tf32") or self.head > _WIDEST_HEAD)
        return self.attention == "math" or (no_kernel and not self.master)

    @property
    def flops_precision(self) -> str:
        """The precision of the matrix products, as `GpuType.flops` names it."""
        return self.precision.split("-")[0]
