"""Models of the transformers package as they come, in sizes that are trained on one GPU."""

from __future__ import annotations

import torch
import transformers
from huggingface import pictures, text, train
from training import DEVICE, Step


def _bert(batch: int, precision: str) -> Step:
    samples = text(batch, 512, 30522)
    lengths = 512 - 4 * torch.arange(batch, device=DEVICE)
    samples["attention_mask"] = (torch.arange(512, device=DEVICE) < lengths[:, None]).long()
    return train(transformers.BertForMaskedLM(transformers.BertConfig()), samples, precision=precision)


def bert(batch_size: int) -> Step:
    """BERT base on padded texts."""
    return _bert(batch_size, "fp32")


def bert_autocast(batch_size: int) -> Step:
    """In bfloat16."""
    return _bert(batch_size, "bf16")


def _vit(batch: int, precision: str) -> Step:
    config = transformers.ViTConfig(num_labels=1000)
    return train(transformers.ViTForImageClassification(config), pictures(batch, 224, 1000), precision=precision)


def vit(batch_size: int) -> Step:
    """ViT-B/16."""
    return _vit(batch_size, "fp32")


def vit_autocast(batch_size: int) -> Step:
    """In bfloat16."""
    return _vit(batch_size, "bf16")


def _resnet(batch: int, precision: str) -> Step:
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000))
    return train(model, pictures(batch, 224, 1000), optimizer="momentum", precision=precision)


def resnet(batch_size: int) -> Step:
    """ResNet-50."""
    return _resnet(batch_size, "fp32")


def resnet_autocast(batch_size: int) -> Step:
    """In bfloat16."""
    return _resnet(batch_size, "bf16")


def gpt2_autocast(batch_size: int) -> Step:
    """GPT-2 small, with the dropout that it comes with."""
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))
    return train(model, text(batch_size, 1024, 50257), precision="bf16")


def llama_autocast(batch_size: int) -> Step:
    """A Llama of a quarter of a billion parameters."""
    config = transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=4,
        use_cache=False,
    )
    return train(transformers.LlamaForCausalLM(config), text(batch_size, 1024, 32000), precision="bf16")


def mixtral_autocast(batch_size: int) -> Step:
    """Eight experts, two for each word, by grouped products."""
    config = transformers.MixtralConfig(
        vocab_size=32000,
        hidden_size=768,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=12,
        num_key_value_heads=4,
        num_local_experts=8,
        num_experts_per_tok=2,
        use_cache=False,
    )
    return train(transformers.MixtralForCausalLM(config), text(batch_size, 512, 32000), precision="bf16")


def t5(batch_size: int) -> Step:
    """T5 base."""
    config = transformers.T5Config(
        d_model=768, d_ff=3072, num_layers=12, num_heads=12, use_cache=False, decoder_start_token_id=0
    )
    return train(transformers.T5ForConditionalGeneration(config), text(batch_size, 512, 32128))
