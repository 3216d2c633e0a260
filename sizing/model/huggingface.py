"""Reads a transformer's sizes from a `config.json` of the transformers package, without needing that package.

Each supported `model_type` has a row with its traits; a type without a row is refused by its name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sizing.base.errors import UsageError
from sizing.model.transformer import LARGEST, ModelConfig, Precision, shown

LONGEST = 4096
"""The longest sequence, in tokens, that is assumed unless the user gives `s=`, even if the model takes more."""

Config = Mapping[str, Any]

_SIZES = {
    "hidden": ("hidden_size", "n_embd", "dim", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "vocab": ("vocab_size",),
}
_LENGTH = ("max_position_embeddings", "n_positions", "n_ctx", "seq_length", "max_seq_len")
_INNER = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "hidden_dim")
_DROPOUT = (
    "resid_pdrop",
    "hidden_dropout",
    "hidden_dropout_prob",
    "dropout",
    "residual_dropout",
    "attn_pdrop",
    "attention_dropout",
    "attention_probs_dropout_prob",
)


@dataclass(frozen=True, slots=True)
class FamilyTraits:
    """The traits of all models of a type. `tied` is the default for a file without `tie_word_embeddings`.

    `more` computes further fields from the file.
    """

    family: str
    norm: str = "layer"
    gated: bool = False
    tied: bool = True
    positions: bool = False
    biased: tuple[bool, bool] = (True, True)
    norms: int = 2
    fused: bool = False
    more: Callable[[Config], dict[str, Any]] = lambda _: {}


def _rows(extra: int) -> Callable[[Config], dict[str, Any]]:
    """Return a reader of the rows of learned positions: the file's length plus `extra`."""
    return lambda config: {"position_rows": _whole(config, _first(config, _LENGTH)) + extra}


def _llama(config: Config) -> dict[str, Any]:
    return {"biased": (_flag(config, "attention_bias", missing=False), _flag(config, "mlp_bias", missing=False))}


def _mixtral(config: Config) -> dict[str, Any]:
    return {
        "experts": _whole(config, "num_local_experts"),
        "experts_used": _whole(config, "num_experts_per_tok"),
    }


def _qwen_moe(config: Config) -> dict[str, Any]:
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise UsageError(
            "mlp_only_layers and decoder_sparse_step: layers that differ are not modelled; trace the step instead"
        )
    return {
        "experts": _whole(config, "num_experts"),
        "experts_used": _whole(config, "num_experts_per_tok"),
        "ffn_hidden": _whole(config, "moe_intermediate_size"),
        "shared_ffn": _whole(config, "shared_expert_intermediate_size", missing=0),
    }


def _opt(config: Config) -> dict[str, Any]:
    if config.get("word_embed_proj_dim", config.get("hidden_size")) != config.get("hidden_size"):
        raise UsageError(
            "word_embed_proj_dim is not hidden_size: such embeddings are not modelled; trace the step instead"
        )
    bias = _flag(config, "enable_bias", missing=True)
    return {"biased": (bias, bias), **_rows(2)(config)}


def _falcon(config: Config) -> dict[str, Any]:
    new = _flag(config, "new_decoder_architecture", missing=False)
    shared = 1 if _flag(config, "multi_query", missing=True) else None
    bias = _flag(config, "bias", missing=False)
    kv = _whole(config, "num_kv_heads", missing=None) if new else shared
    return {
        "kv_heads": kv,
        "biased": (bias, bias),
        "norms": 2 if new or not _flag(config, "parallel_attn", missing=True) else 1,
    }


def _bigcode(config: Config) -> dict[str, Any]:
    return {"kv_heads": 1 if _flag(config, "multi_query", missing=True) else None}


def _starcoder(config: Config) -> dict[str, Any]:
    bias = _flag(config, "use_bias", missing=True)
    return {"biased": (bias, bias)}


def _stablelm(config: Config) -> dict[str, Any]:
    return {"biased": (_flag(config, "use_qkv_bias", missing=False), False)}


_PRECISIONS: Mapping[str, Precision] = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16-amp"}
"""The precision of a training by the type of the file's weights: its products have that type, and its weights fp32."""
_NONE = (False, False)
TYPES: Mapping[str, FamilyTraits] = {
    "gpt2": FamilyTraits("gpt", positions=True, fused=True),
    "gpt_bigcode": FamilyTraits("gpt", positions=True, fused=True, more=_bigcode),
    "gptj": FamilyTraits("gpt", tied=False, biased=(False, True), norms=1),
    "gpt_neox": FamilyTraits("gpt", tied=False, fused=True),
    "opt": FamilyTraits("gpt", positions=True, more=_opt),
    "bloom": FamilyTraits("gpt", fused=True),
    "falcon": FamilyTraits("gpt", fused=True, more=_falcon),
    "phi": FamilyTraits("gpt", tied=False, norms=1),
    "starcoder2": FamilyTraits("gpt", more=_starcoder),
    "stablelm": FamilyTraits("llama", gated=True, tied=False, biased=_NONE, more=_stablelm),
    "llama": FamilyTraits("llama", "rms", gated=True, tied=False, biased=_NONE, more=_llama),
    "mistral": FamilyTraits("llama", "rms", gated=True, tied=False, biased=_NONE),
    "mixtral": FamilyTraits("mixtral", "rms", gated=True, tied=False, biased=_NONE, more=_mixtral),
    "qwen2": FamilyTraits("llama", "rms", gated=True, tied=False, biased=(True, False)),
    "qwen2_moe": FamilyTraits("mixtral", "rms", gated=True, tied=False, biased=(True, False), more=_qwen_moe),
    "qwen3": FamilyTraits("llama", "rms", gated=True, tied=False, biased=_NONE, more=_llama),
    "gemma": FamilyTraits("llama", "rms", gated=True, biased=_NONE, more=_llama),
    "gemma2": FamilyTraits("llama", "rms", gated=True, biased=_NONE, norms=4, more=_llama),
    "phi3": FamilyTraits("llama", "rms", gated=True, tied=False, biased=_NONE, fused=True),
    "bert": FamilyTraits("bert", positions=True),
    "roberta": FamilyTraits("bert", positions=True),
}


def read(config: Config, *, name: str) -> ModelConfig:
    """Return the model of a `config.json`, with one sequence per replica, of its full length but at most `LONGEST`.

    `name` is the file, for messages. Raises UsageError, one line, for an unknown type and for missing or invalid sizes.
    """
    kind = config.get("model_type")
    row = TYPES.get(kind) if isinstance(kind, str) else None
    if row is None:
        raise UsageError(f"{name}: {_refusal(kind)}")
    try:
        return _model(config, row)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None


def _refusal(kind: object) -> str:
    if not isinstance(kind, str):
        return "no model_type; is it the config.json of a model as transformers writes it?"
    near = difflib.get_close_matches(kind, TYPES, n=1, cutoff=0.8)
    hint = f" (it looks like {near[0]})" if near else ""
    return (
        f"model_type {shown(kind)} is not modelled{hint}; trace the step, or write it as --config gpt:... or llama:..."
    )


def _model(config: Config, row: FamilyTraits) -> ModelConfig:
    sizes: dict[str, Any] = {field: _whole(config, _first(config, keys)) for field, keys in _SIZES.items()}
    length = next((key for key in _LENGTH if config.get(key) is not None), None)
    sizes["seq"] = min(_whole(config, length), LONGEST) if length else LONGEST
    inner = next((key for key in _INNER if config.get(key) is not None), None)
    if inner:
        sizes["ffn_hidden"] = _whole(config, inner)
    if config.get("num_key_value_heads") is not None:
        sizes["kv_heads"] = _whole(config, "num_key_value_heads")
    if config.get("head_dim") is not None:
        sizes["head_size"] = _whole(config, "head_dim")
    if row.positions:
        sizes.update(_rows(0)(config))
    sizes.update(
        name=row.family,
        fused=row.fused,
        gelu_new="gelu_new" in (config.get("activation_function"), config.get("hidden_act")),
        norm=row.norm,
        norms=row.norms,
        gated=row.gated,
        positions=row.positions,
        biased=row.biased,
        encoder=row.family == "bert",
        tied=_flag(config, "tie_word_embeddings", missing=row.tied),
        dropout=any(_rate(config, key) > 0 for key in _DROPOUT),
    )
    sizes.update(row.more(config))
    dtype = config.get("dtype") or config.get("torch_dtype") or "float32"
    precision = _PRECISIONS.get(dtype) if isinstance(dtype, str) else None
    if precision is None:
        raise UsageError(f"dtype is {_told(dtype)}: one of {', '.join(_PRECISIONS)}")
    return ModelConfig(**sizes, precision=precision)


def _first(config: Config, keys: tuple[str, ...]) -> str:
    """Return the first of the names for which the file has a value; the first name if it has none."""
    return next((key for key in keys if config.get(key) is not None), keys[0])


def _whole(config: Config, key: str, *, missing: Any = ...) -> Any:
    value = config.get(key)
    if value is None and missing is not ...:
        return missing
    if value is None:
        raise UsageError(f"no {key}; a model needs one")
    least = 0 if missing == 0 else 1
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
        raise UsageError(f"{key} is {_told(value)}: a whole number from {least} to {LARGEST}")
    return value


def _flag(config: Config, key: str, *, missing: bool) -> bool:
    value = config.get(key)
    if value is None:
        return missing
    if not isinstance(value, bool):
        raise UsageError(f"{key} is {_told(value)}: true or false")
    return value


def _rate(config: Config, key: str) -> float:
    value = config.get(key)
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise UsageError(f"{key} is {_told(value)}: a rate from 0 to 1")
    return float(value)


def _told(value: object) -> str:
    """Return a value of the file for a message; text is quoted, because "4096" is not a number."""
    return repr(value)[:50] if isinstance(value, str) else shown(value)
