"""Models of the transformers package as they come, with random weights."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from training import DEVICE, Spread, Step, in_replicas, in_shards, step_of, tokens

with contextlib.suppress(ModuleNotFoundError):  # transformers takes it where it is there
    import with_torchvision  # noqa: F401


def _loss(model: nn.Module, **inputs: Tensor) -> Tensor:
    return model(**inputs).loss


def train(
    model: Any, samples: dict[str, Tensor], *, recompute: bool = False, spread: Spread = None, **how: Any
) -> Step:
    """A step of a model on samples by the names of its inputs; `how` is what `step_of` takes."""
    model.train().to(DEVICE)
    if recompute:
        model.gradient_checkpointing_enable()
    if spread is not None:
        model = spread(model)
    names = tuple(samples)
    return step_of(
        model, list(samples.values()), lambda net, *parts: _loss(net, **dict(zip(names, parts, strict=True))), **how
    )


def text(batch: int, seq: int, vocab: int) -> dict[str, Tensor]:
    """Inputs of a language model."""
    return {"input_ids": tokens(batch, seq, vocab), "labels": tokens(batch, seq, vocab)}


def pictures(batch: int, size: int, classes: int) -> dict[str, Tensor]:
    """Inputs of a model that says what is in a picture."""
    pictures = torch.randn(batch, 3, size, size, device=DEVICE)
    return {"pixel_values": pictures, "labels": torch.randint(classes, (batch,), device=DEVICE)}


def _gpt2(batch: int, **how: Any) -> Step:
    config = transformers.GPT2Config(vocab_size=4096, n_positions=256, n_embd=256, n_layer=4, n_head=8, use_cache=False)
    return train(transformers.GPT2LMHeadModel(config), text(batch, 256, 4096), **how)


def gpt2(batch_size: int) -> Step:
    """With the dropout that it comes with."""
    return _gpt2(batch_size)


def gpt2_autocast_recompute(batch_size: int) -> Step:
    """In bfloat16, layers computed anew."""
    return _gpt2(batch_size, precision="bf16", recompute=True)


def gpt2_ddp(batch_size: int, *, dp: int = 1) -> Step:
    """Replicas with DistributedDataParallel."""
    return _gpt2(batch_size, spread=in_replicas(dp))


def _bert(batch: int, dropout: float = 0.1, **how: Any) -> Step:
    config = transformers.BertConfig(
        vocab_size=4096,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=8,
        intermediate_size=1024,
        max_position_embeddings=256,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    samples = text(batch, 256, 4096)
    # Texts of several lengths, padded to the longest.
    lengths = 256 - 16 * torch.arange(batch, device=DEVICE)
    samples["attention_mask"] = (torch.arange(256, device=DEVICE) < lengths[:, None]).long()
    return train(transformers.BertForMaskedLM(config), samples, **how)


def bert(batch_size: int) -> Step:
    """With the dropout that it comes with."""
    return _bert(batch_size)


def bert_without_dropout(batch_size: int) -> Step:
    """As users fine-tune it."""
    return _bert(batch_size, dropout=0.0, clip=1.0)


def bert_autocast(batch_size: int) -> Step:
    """In bfloat16."""
    return _bert(batch_size, precision="bf16")


def bert_recompute(batch_size: int) -> Step:
    """Layers computed anew."""
    return _bert(batch_size, recompute=True)


def _vit(batch: int, **how: Any) -> Step:
    config = transformers.ViTConfig(
        image_size=128,
        patch_size=16,
        hidden_size=256,
        num_hidden_layers=6,
        num_attention_heads=8,
        intermediate_size=1024,
        num_labels=100,
    )
    return train(transformers.ViTForImageClassification(config), pictures(batch, 128, 100), **how)


def vit(batch_size: int) -> Step:
    """Without dropout, as it comes."""
    return _vit(batch_size)


def vit_autocast(batch_size: int) -> Step:
    """In bfloat16."""
    return _vit(batch_size, precision="bf16")


def vit_recompute_accumulation(batch_size: int) -> Step:
    """Layers computed anew, two micro-batches a step."""
    return _vit(batch_size, recompute=True, micro_batches=2)


def _resnet(batch: int, size: int = 96, **how: Any) -> Step:
    config = transformers.ResNetConfig(
        embedding_size=32, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], num_labels=100
    )
    return train(transformers.ResNetForImageClassification(config), pictures(batch, size, 100), **how)


def resnet(batch_size: int) -> Step:
    """Bottleneck blocks with batch norms, SGD with momentum as is usual."""
    return _resnet(batch_size, optimizer="momentum")


def resnet_autocast(batch_size: int) -> Step:
    """In bfloat16."""
    return _resnet(batch_size, optimizer="momentum", precision="bf16")


def _llama(batch: int, **how: Any) -> Step:
    config = transformers.LlamaConfig(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=256,
        use_cache=False,
    )
    return train(transformers.LlamaForCausalLM(config), text(batch, 256, 4096), **how)


def llama(batch_size: int) -> Step:
    """As it comes."""
    return _llama(batch_size)


def llama_autocast(batch_size: int) -> Step:
    """In bfloat16."""
    return _llama(batch_size, precision="bf16")


def llama_recompute(batch_size: int) -> Step:
    """Layers computed anew."""
    return _llama(batch_size, recompute=True)


def llama_sharded(batch_size: int, *, fsdp: int = 1) -> Step:
    """Parameters, gradients and states in shards (FSDP2)."""
    return _llama(batch_size, spread=in_shards(fsdp, "model.layers"))


def _mixtral(batch: int, **how: Any) -> Step:
    config = transformers.MixtralConfig(
        vocab_size=4096,
        hidden_size=192,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        num_local_experts=8,
        num_experts_per_tok=2,
        max_position_embeddings=128,
        use_cache=False,
    )
    return train(transformers.MixtralForCausalLM(config), text(batch, 128, 4096), **how)


def mixtral(batch_size: int) -> Step:
    """Eight experts, two for each word, by grouped products."""
    return _mixtral(batch_size)


def mixtral_autocast(batch_size: int) -> Step:
    """In bfloat16."""
    return _mixtral(batch_size, precision="bf16")


def _t5(batch: int, **how: Any) -> Step:
    config = transformers.T5Config(
        vocab_size=4096,
        d_model=256,
        d_kv=32,
        d_ff=1024,
        num_layers=3,
        num_heads=8,
        use_cache=False,
        decoder_start_token_id=0,
    )
    return train(transformers.T5ForConditionalGeneration(config), text(batch, 128, 4096), **how)


def t5(batch_size: int) -> Step:
    """An encoder and a decoder, with dropout."""
    return _t5(batch_size)


def t5_autocast(batch_size: int) -> Step:
    """In bfloat16, with Adafactor."""
    return _t5(batch_size, precision="bf16", optimizer="adafactor")
