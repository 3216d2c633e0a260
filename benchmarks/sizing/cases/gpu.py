"""The models written out, as large as they are trained on one GPU."""

from __future__ import annotations

import gpt
import llama
import moe
import torch
from training import Step

GPT = gpt.Sizes(hidden=1024, layers=12, heads=16, seq=1024, vocab=50257)
LLAMA = llama.Sizes(hidden=1024, layers=12, heads=16, kv_heads=4, inner=2816, seq=1024, vocab=32000)
MOE = gpt.Sizes(hidden=768, layers=8, heads=12, seq=512, vocab=32000)


def gpt_fp32(batch_size: int) -> Step:
    """As simple as can be."""
    return gpt.train(batch_size, GPT)


def gpt_autocast(batch_size: int) -> Step:
    """In bfloat16 where autocast says so; gradients are clipped."""
    return gpt.train(batch_size, GPT, precision="bf16", clip=1.0)


def gpt_autocast_dropout(batch_size: int) -> Step:
    """With dropout, of attention too."""
    return gpt.train(batch_size, GPT, precision="bf16", dropout=0.1)


def gpt_fp16(batch_size: int) -> Step:
    """In float16 with a scaler of gradients."""
    return gpt.train(batch_size, GPT, precision="fp16", clip=1.0)


def gpt_pure_bf16(batch_size: int) -> Step:
    """With weights in bfloat16 too."""
    return gpt.train(batch_size, GPT, dtype=torch.bfloat16)


def gpt_formula(batch_size: int) -> Step:
    """Attention by its formula."""
    return gpt.train(batch_size, GPT, attention="formula")


def gpt_formula_autocast_dropout(batch_size: int) -> Step:
    """The same in bfloat16 with dropout on the scores."""
    return gpt.train(batch_size, GPT, attention="formula", precision="bf16", dropout=0.1)


def gpt_recompute(batch_size: int) -> Step:
    """Layers are computed anew in the backward pass."""
    return gpt.train(batch_size, GPT, recompute=True)


def gpt_recompute_autocast_dropout(batch_size: int) -> Step:
    """The same in bfloat16 with dropout."""
    return gpt.train(batch_size, GPT, recompute=True, precision="bf16", dropout=0.1)


def gpt_accumulation(batch_size: int) -> Step:
    """Four micro-batches a step, in bfloat16."""
    return gpt.train(batch_size, GPT, micro_batches=4, precision="bf16")


def gpt_momentum(batch_size: int) -> Step:
    """With one state of a parameter."""
    return gpt.train(batch_size, GPT, optimizer="momentum", precision="bf16")


def gpt_fused(batch_size: int) -> Step:
    """AdamW by one kernel, untied logits."""
    return gpt.train(batch_size, GPT, optimizer="adamw-fused", precision="bf16", tied=False)


def llama_fp32(batch_size: int) -> Step:
    """As simple as can be."""
    return llama.train(batch_size, LLAMA)


def llama_autocast(batch_size: int) -> Step:
    """In bfloat16 where autocast says so."""
    return llama.train(batch_size, LLAMA, precision="bf16")


def llama_recompute_autocast(batch_size: int) -> Step:
    """Layers are computed anew in the backward pass."""
    return llama.train(batch_size, LLAMA, recompute=True, precision="bf16")


def llama_pure_bf16(batch_size: int) -> Step:
    """With weights in bfloat16 too."""
    return llama.train(batch_size, LLAMA, dtype=torch.bfloat16, clip=1.0)


def moe_fp32(batch_size: int) -> Step:
    """Eight experts, two for each word."""
    return moe.train(batch_size, MOE)


def moe_autocast(batch_size: int) -> Step:
    """In bfloat16."""
    return moe.train(batch_size, MOE, precision="bf16")


def moe_recompute(batch_size: int) -> Step:
    """Layers are computed anew in the backward pass."""
    return moe.train(batch_size, MOE, recompute=True, precision="bf16")
