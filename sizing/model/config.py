"""A transformer's sizes as text for `--config`: `gpt:h=1024,l=24,a=16,s=1024,V=50257,b=8`.

The family gives the values that the text leaves out; `KEYS` lists all keys.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from sizing.base.errors import UsageError
from sizing.base.parallel import Parallel
from sizing.model import wide_resnet
from sizing.model.counts import Parameters, collective_bytes, parameters, parameters_of_rank, step_flops, tensor_sums
from sizing.model.transformer import LARGEST, Attention, ModelConfig, Norm, Optimizer, Precision, Recompute, shown

__all__ = [
    "FAMILIES",
    "KEYS",
    "Attention",
    "ModelConfig",
    "Norm",
    "Optimizer",
    "Parameters",
    "Precision",
    "Recompute",
    "collective_bytes",
    "format",
    "parameters",
    "parameters_of_rank",
    "parse",
    "split",
    "step_flops",
    "tensor_sums",
    "with_options",
]

_LLAMA: dict[str, Any] = {
    "gated": True,
    "tied": False,
    "positions": False,
    "norm": "rms",
    "biased": (False, False),
    "fused": False,
}
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "gpt": {},
    "bert": {"encoder": True, "fused": False},
    "llama": _LLAMA,
    "mixtral": {**_LLAMA, "experts": 8, "experts_used": 2},
    "moe": {"experts": 8, "experts_used": 2},
}
"""The fields that each family sets: gpt (GPT-2, GPT-3), bert (an encoder with a masked-language head), llama (SwiGLU,
RMSNorm, rotary positions, no biases, untied output matrix), mixtral (llama with 8 experts), moe (gpt with 8)."""

_REQUIRED = ("h", "l", "a", "s", "V")


def _number(least: int) -> Callable[[str, str], int]:
    def read(key: str, text: str) -> int:
        if not (text.isascii() and text.isdigit()) or len(text) > 12 or not least <= int(text) <= LARGEST:
            raise UsageError(f"{key}={shown(text)}: a whole number from {least} to {LARGEST}")
        return int(text)

    return read


def _flag(key: str, text: str) -> bool:
    if text.lower() in ("yes", "true", "1", "on"):
        return True
    if text.lower() in ("no", "false", "0", "off"):
        return False
    raise UsageError(f"{key}={shown(text)}: yes or no")


def _rate(key: str, text: str) -> bool:
    """Whether there is dropout, from its rate or a yes or no."""
    try:
        rate = float(text)
    except ValueError:
        return _flag(key, text)
    if not 0 <= rate <= 1:
        raise UsageError(f"{key}={shown(text)}: a rate from 0 to 1, or yes or no")
    return rate > 0


def _word(key: str, text: str) -> str:
    return text


def _biases(key: str, text: str) -> tuple[bool, bool]:
    known = {"yes": (True, True), "no": (False, False), "attention": (True, False), "ffn": (False, True)}
    if text not in known:
        raise UsageError(f"{key}={shown(text)}: one of {', '.join(known)}")
    return known[text]


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the text: the field that it sets, the function that reads its value, and its meaning."""

    field: str
    read: Callable[[str, str], Any]
    meaning: str


_SIZE = _number(1)
KEYS: Mapping[str, Key] = {
    "h": Key("hidden", _SIZE, "hidden size"),
    "l": Key("layers", _SIZE, "layers"),
    "a": Key("heads", _SIZE, "attention heads"),
    "s": Key("seq", _SIZE, "tokens of a sequence"),
    "V": Key("vocab", _SIZE, "size of the vocabulary"),
    "b": Key("batch", _SIZE, "sequences of a micro-batch on one replica"),
    "kv": Key("kv_heads", _SIZE, "heads of keys and values (GQA, MQA); else a"),
    "head": Key("head_size", _SIZE, "width of a head; else h / a"),
    "ffn": Key("ffn_hidden", _SIZE, "width inside a feed-forward layer; else 4 h"),
    "gated": Key("gated", _flag, "feed-forward layers have three matrices (SwiGLU)"),
    "tied": Key("tied", _flag, "the output matrix is the embedding"),
    "experts": Key("experts", _SIZE, "experts of a feed-forward layer"),
    "topk": Key("experts_used", _SIZE, "experts that a token goes through"),
    "shared": Key("shared_ffn", _number(0), "width of an expert that all tokens go through"),
    "positions": Key("positions", _flag, "learned positions"),
    "rows": Key("position_rows", _SIZE, "rows of learned positions; else s"),
    "bias": Key("biased", _biases, "biases: yes, no, attention, ffn"),
    "fused": Key("fused", _flag, "queries, keys and values come out of one matrix"),
    "gelu_new": Key("gelu_new", _flag, "the activation function is written out, as transformers has it for GPT-2"),
    "norm": Key("norm", _word, "layer or rms"),
    "norms": Key("norms", _SIZE, "normalisations of a layer"),
    "encoder": Key("encoder", _flag, "an encoder with a masked-language head"),
    "dropout": Key("dropout", _rate, "dropout: its rate, or yes or no"),
    "precision": Key("precision", _word, "fp32, tf32, bf16, fp16-amp, fp16, bf16-master, bf16-pure"),
    "optimizer": Key("optimizer", _word, "adam, adamw, sgd, momentum, adafactor, adam8bit"),
    "recompute": Key("recompute", _word, "activations computed again in backward: none, selective, full"),
    "attention": Key("attention", _word, "math or flash"),
    "zero": Key("zero", _number(0), "stage of ZeRO over dp: 0 to 3"),
    "accumulation": Key("accumulation", _SIZE, "micro-batches of a step"),
    "dp": Key("dp", _SIZE, "replicas"),
    "tp": Key("tp", _SIZE, "GPUs of a tensor-parallel group"),
    "fsdp": Key("fsdp", _SIZE, "GPUs that share a replica's state (FSDP)"),
}
_SPREAD = ("dp", "tp", "fsdp")
_OPTIONAL = frozenset({"kv_heads", "head_size", "ffn_hidden", "position_rows"})


def split(text: str) -> tuple[str, str]:
    """Split a `--config` into its family (or path) and its options ("" if it has none)."""
    head, _, options = text.partition(":")
    return head, options


def _options(text: str) -> dict[str, Any]:
    """Return the fields that `key=value,...` sets. Raises UsageError."""
    found: dict[str, Any] = {}
    for part in text.split(",") if text.strip() else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not key or not equals or not value:
            raise UsageError(f"{shown(part.strip()) or 'an empty option'}: write key=value, as in h=1024,l=24,a=16")
        if key not in KEYS:
            raise UsageError(f"{shown(key)}={shown(value)}: no such key; {_near(key, KEYS)}")
        if KEYS[key].field in found:
            raise UsageError(f"{key} is given twice")
        found[KEYS[key].field] = KEYS[key].read(key, value)
    return found


def _near(word: str, known: Mapping[str, Any]) -> str:
    """Suggest the key that was meant: in other case, by the name of its field, or of similar spelling."""
    same = [key for key in known if key.lower() == word.lower()]
    same += [key for key, entry in KEYS.items() if known is KEYS and word.lower() in (entry.field, f"n_{entry.field}")]
    near = same or difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}"


def with_options(model: ModelConfig, options: str) -> ModelConfig:
    """Return the model with its fields changed by `key=value,...`. Raises UsageError, one line."""
    changes = _options(options)
    spread = {key: changes.pop(key) for key in _SPREAD if key in changes}
    if spread:
        changes["parallel"] = replace(model.parallel, **spread)
    return replace(model, **changes)


def parse(text: str) -> ModelConfig:
    """Parse a model from `FAMILY:key=value,...`. Raises UsageError, one line that names what is wrong."""
    family, options = split(text.strip())
    if family == wide_resnet.FAMILY:
        raise UsageError(
            f"{family}: there is no formula for its memory, so only bft size cells, profile and tune take it; "
            "name a make_model of yours instead (MODULE.py:make_model)"
        )
    if family not in FAMILIES:
        others = (*FAMILIES, wide_resnet.FAMILY)
        near = difflib.get_close_matches(family, others, n=1, cutoff=0.5)
        raise UsageError(
            f"{shown(family) or 'an empty --config'}: no such family; "
            + (f"did you mean {near[0]}?" if near else f"one of {', '.join(others)}, or a config.json")
        )
    found = _options(options)
    missing = [key for key in _REQUIRED if KEYS[key].field not in found]
    if missing:
        raise UsageError(f"{family}: say {', '.join(f'{key}= ({KEYS[key].meaning})' for key in missing)}")
    parallel = Parallel(**{key: found.pop(key) for key in _SPREAD if key in found})
    merged = {**FAMILIES[family], **found, "parallel": parallel, "name": family}
    if "ffn_hidden" not in merged and merged.get("gated"):
        merged["ffn_hidden"] = _gated_width(merged["hidden"])
    return ModelConfig(**merged)


def _gated_width(hidden: int) -> int:
    """The width at which three matrices hold as much as two of width 4 h, rounded up to a multiple of 256.

    Touvron et al. 2023, LLaMA.
    """
    return -(-(8 * hidden) // (3 * 256)) * 256


def format(model: ModelConfig) -> str:
    """Format a model as text that `parse` reads back; values that its family sets anyway are left out."""
    family = model.name if model.name in FAMILIES else "gpt"
    usual = {each.name: each.default for each in fields(ModelConfig)} | dict(FAMILIES[family])
    words = []
    for key, entry in KEYS.items():
        if key in _SPREAD:
            value: Any = getattr(model.parallel, key)
            default: Any = 1
        else:
            value, default = getattr(model, entry.field), usual[entry.field]
            if entry.field == "ffn_hidden" and model.gated and value is None:
                value = model.ffn
        if value == default and key not in _REQUIRED:
            continue
        if value is None and entry.field in _OPTIONAL:
            continue
        words.append(f"{key}={_text(value)}")
    return f"{family}:{','.join(words)}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return {(True, True): "yes", (False, False): "no", (True, False): "attention", (False, True): "ffn"}[value]
    return str(value)
