"""Models of transformers by class, small by configuration: "GemmaForCausalLM_bf16" is trained in bfloat16."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import transformers
from huggingface import text
from torch import Tensor, nn
from training import DEVICE, Step, how_of, step_of, tokens

_WORDS, _LENGTH, _SIDE = 4096, 128, 128
_BERT: dict[str, Any] = {
    "vocab_size": _WORDS,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_size": 1024,
}
_LLAMA = {**_BERT, "intermediate_size": 688, "num_key_value_heads": 2, "use_cache": False}
_EXPERTS = {**_LLAMA, "num_hidden_layers": 3, "intermediate_size": 384, "num_experts_per_tok": 2}
_VIT = {**_BERT, "image_size": _SIDE, "patch_size": 16}
_DECODER = {"vocab_size": _WORDS, "use_cache": False}
_TWO_STACKS = {
    "d_model": 256,
    **{f"{part}_{what}": size for part in ("encoder", "decoder") for what, size in (("layers", 3), ("ffn_dim", 1024))},
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
}
_RESNET = {
    **{"model_type": "resnet", "embedding_size": 32, "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2]},
    "out_features": ["stage4"],
}

_SIZES: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": {**_DECODER, "n_embd": 256, "n_layer": 4, "n_head": 8, "n_positions": _LENGTH},
    "BertForMaskedLM": _BERT,
    "RobertaForMaskedLM": _BERT,
    "T5ForConditionalGeneration": {
        **_DECODER,
        **{"d_model": 256, "d_kv": 32, "d_ff": 1024, "num_layers": 3, "num_heads": 8, "decoder_start_token_id": 0},
    },
    "BartForConditionalGeneration": {**_DECODER, **_TWO_STACKS},
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": {**_LLAMA, "sliding_window": 64},
    "Qwen2ForCausalLM": _LLAMA,
    "Qwen3MoeForCausalLM": {**_EXPERTS, "num_experts": 8, "moe_intermediate_size": 192, "head_dim": 32},
    "MixtralForCausalLM": {**_EXPERTS, "num_local_experts": 8},
    "GemmaForCausalLM": {**_LLAMA, "head_dim": 32},
    "MambaForCausalLM": {**_DECODER, "hidden_size": 192, "num_hidden_layers": 3, "state_size": 8},
    "WhisperForConditionalGeneration": {
        **{**_DECODER, **_TWO_STACKS},
        **{"pad_token_id": 0, "decoder_start_token_id": 1, "max_source_positions": 200},
    },
    "Wav2Vec2ForCTC": {**_BERT, "vocab_size": 32, "conv_dim": (128,) * 7, "num_conv_pos_embeddings": 32},
    "CLIPModel": {"text_config": _BERT, "vision_config": _VIT, "projection_dim": 128},
    "SamModel": {
        "vision_config": {
            **{"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 6, "image_size": 2 * _SIDE},
            **{"output_channels": 128, "num_pos_feats": 64, "window_size": 8, "global_attn_indexes": [3]},
        },
        "prompt_encoder_config": {"hidden_size": 128, "image_size": 2 * _SIDE},
        "mask_decoder_config": {"hidden_size": 128, "num_attention_heads": 4, "iou_head_hidden_dim": 128},
    },
    "ViTMAEForPreTraining": {**_VIT, "decoder_hidden_size": 128, "decoder_num_hidden_layers": 2},
    "DetrForObjectDetection": {**_TWO_STACKS, "num_labels": 20, "backbone_config": _RESNET},
    "SegformerForSemanticSegmentation": {"num_labels": 20},
}


def _inputs(name: str, batch: int) -> dict[str, Tensor]:
    """What the model's forward takes, with what it is to say."""
    pictures = {"pixel_values": torch.randn(batch, 3, _SIDE, _SIDE, device=DEVICE)}
    if name.startswith("Whisper"):
        return {"input_features": torch.randn(batch, 80, 400, device=DEVICE), "labels": tokens(batch, 64, _WORDS)}
    if name.startswith("Wav2Vec2"):
        return {"input_values": torch.randn(batch, 16000, device=DEVICE), "labels": 1 + tokens(batch, 12, 31)}
    if name == "CLIPModel":
        return {"input_ids": tokens(batch, 64, _WORDS), **pictures}
    if name == "SamModel":
        pictures = {"pixel_values": torch.randn(batch, 3, 2 * _SIDE, 2 * _SIDE, device=DEVICE)}
        masks = torch.rand(batch, 1, 3, _SIDE // 2, _SIDE // 2, device=DEVICE).round()
        return {**pictures, "input_points": torch.rand(batch, 1, 2, 2, device=DEVICE), "masks": masks}
    if name.startswith("Detr"):
        classes = torch.randint(20, (batch, 4), device=DEVICE)
        return {**pictures, "boxes": 0.25 + torch.rand(batch, 4, 4, device=DEVICE) / 4, "classes": classes}
    if name.startswith("Segformer"):
        return {**pictures, "labels": torch.randint(20, (batch, _SIDE, _SIDE), device=DEVICE)}
    return pictures if name.startswith("ViTMAE") else text(batch, _LENGTH, _WORDS)


def _loss(net: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """What the model is trained to make small."""
    if "masks" in inputs:
        wanted = inputs.pop("masks")
        return nn.functional.binary_cross_entropy_with_logits(net(**inputs).pred_masks, wanted)
    if "boxes" in inputs:
        found = zip(inputs.pop("classes"), inputs.pop("boxes"), strict=True)
        return net(**inputs, labels=[{"class_labels": classes, "boxes": boxes} for classes, boxes in found]).loss
    return net(**inputs, **({"return_loss": True} if len(inputs) > 1 and "labels" not in inputs else {})).loss


def _step(name: str, batch_size: int) -> Step:
    name, how = how_of(name)
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**_SIZES[name])).train().to(DEVICE)
    inputs = _inputs(name, batch_size)
    loss = lambda net, *parts: _loss(net, dict(zip(inputs, parts, strict=True)))  # noqa: E731
    return step_of(model, list(inputs.values()), loss, **how)


def __getattr__(name: str) -> Callable[[int], Step]:
    if name.startswith("__"):
        raise AttributeError(name)
    return functools.partial(_step, name)
