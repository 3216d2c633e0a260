"""A transformer by its sizes, as `--config` and a Hugging Face config.json give them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sizing.model.parallel import Parallel

Precision = Literal["fp32", "tf32", "fp16", "bf16", "bf16-pure"]
Optimizer = Literal["adam", "adamw", "sgd", "momentum", "adafactor", "adam8bit"]
Recompute = Literal["none", "selective", "full"]
Attention = Literal["math", "flash"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder or encoder and how it is trained. `batch` counts the sequences of a micro-batch on one replica (b).

    `heads` (a) attend, in groups that share `kv_heads` keys and values; `ffn_hidden` is the width inside a feed-forward
    layer, `gated` ones (SwiGLU) have three matrices and not two; of `experts` each token goes through `experts_used`.
    Mixed precisions (fp16, bf16) keep weights in fp32 too, bf16-pure does not. `zero` is the stage of ZeRO over the
    data-parallel GPUs, 3 being FSDP. `accumulation` is how many micro-batches make a step.
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
