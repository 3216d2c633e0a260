"""Sizes out of a config.json, held against models that the transformers package makes of the same file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sizing.base.errors import UsageError
from sizing.model import config, huggingface
from tests.support.messages import excerpt, fragment, wording

# model_type -> what differs from the package's own defaults: sizes that people train.
REAL: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gpt_bigcode": {},
    "gptj": {"n_layer": 4},
    "gpt_neox": {"num_hidden_layers": 4},
    "opt": {},
    "bloom": {"hidden_size": 1024, "n_layer": 12, "n_head": 16},
    "falcon": {"num_hidden_layers": 4},
    "phi": {"num_hidden_layers": 6},
    "starcoder2": {"num_hidden_layers": 4},
    "stablelm": {"num_hidden_layers": 4},
    "llama": {"num_hidden_layers": 4, "num_key_value_heads": 8},
    "mistral": {"num_hidden_layers": 4},
    "mixtral": {"num_hidden_layers": 3},
    "qwen2": {"num_hidden_layers": 4, "num_key_value_heads": 4},
    "qwen2_moe": {"num_hidden_layers": 3},
    "qwen3": {"num_hidden_layers": 4, "num_key_value_heads": 8},
    "gemma": {"num_hidden_layers": 3},
    "gemma2": {"num_hidden_layers": 3},
    "phi3": {"num_hidden_layers": 4},
    "bert": {},
    "roberta": {},
}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


def test_every_type_is_held_against_a_real_model() -> None:
    assert REAL.keys() == huggingface.TYPES.keys()


@pytest.mark.torch
@pytest.mark.frameworks
@pytest.mark.parametrize("kind", REAL)
def test_the_parameters_are_those_of_the_real_model(kind: str) -> None:
    import torch
    import transformers

    made = transformers.AutoConfig.for_model(kind, **REAL[kind])
    auto = transformers.AutoModelForMaskedLM if kind in ("bert", "roberta") else transformers.AutoModelForCausalLM
    with torch.device("meta"):
        real = auto.from_config(made)
    real.tie_weights()
    count = sum(each.numel() for each in {id(each): each for each in real.parameters()}.values())
    model = huggingface.read(json.loads(made.to_json_string(use_diff=False)), name="config.json")
    assert config.parameters(model) == pytest.approx(count, rel=0.005)


def test_a_file_gives_the_sizes_and_the_family() -> None:
    model = huggingface.read(LLAMA, name="config.json")
    assert (model.hidden, model.layers, model.kv, model.ffn, model.vocab) == (4096, 32, 8, 14336, 128256)
    assert model.gated
    assert not model.tied
    assert not model.positions
    assert model.batch == 1
    # Meta names it 8.03 thousand million
    assert config.parameters(model) == pytest.approx(8.03e9, rel=0.001)


def test_a_sequence_is_as_long_as_the_model_takes_but_no_longer_than_4096() -> None:
    assert huggingface.read(LLAMA, name="c").seq == huggingface.LONGEST
    assert huggingface.read({**LLAMA, "max_position_embeddings": 2048}, name="c").seq == 2048
    assert config.with_options(huggingface.read(LLAMA, name="c"), "s=8192,b=2").seq == 8192


def test_regression_the_data_type_of_the_weights_was_not_read() -> None:
    assert huggingface.read(LLAMA, name="c").precision == "fp32"
    for key, kind, precision in (("torch_dtype", "bfloat16", "bf16"), ("dtype", "float16", "fp16-amp")):
        assert huggingface.read({**LLAMA, key: kind}, name="c").precision == precision


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "mamba"}, excerpt("sizing.huggingface.not_modelled", kind="mamba")),
        ({"model_type": "lama"}, excerpt("sizing.huggingface.looks_like", near=fragment("llama"))),
        ({"model_type": None}, "no model_type"),
        ({"model_type": ["llama"]}, "no model_type"),
        ({"hidden_size": None}, "no hidden_size"),
        ({"hidden_size": "4096"}, "hidden_size is '4096'"),
        ({"hidden_size": "40\n96"}, "hidden_size is '40"),
        (
            {"tie_word_embeddings": "false"},
            wording("sizing.huggingface.not_a_flag", key="tie_word_embeddings", told="'false'"),
        ),
        ({"attention_dropout": "0.1"}, "attention_dropout is '0.1': a rate"),
        (
            {"attention_dropout": float("nan")},
            excerpt("sizing.huggingface.not_a_rate", key="attention_dropout", told="nan"),
        ),
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"dtype": ["float32"]}, "dtype is "),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": -3}, "num_hidden_layers is -3"),
        ({"vocab_size": 1e30}, "vocab_size is 1e+30"),
        ({"num_key_value_heads": 5}, "kv=5"),
        (
            {"num_attention_heads": 33, "num_key_value_heads": 33},
            excerpt("sizing.transformer.heads_do_not_divide", heads=fragment("33")),
        ),
    ],
)
def test_a_file_that_is_no_model_is_refused_in_one_line_that_names_it(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        huggingface.read({**LLAMA, **change}, name="model/config.json")
    assert str(caught.value).startswith("model/config.json: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_layers_that_differ_are_refused() -> None:
    fields = {**LLAMA, "model_type": "qwen2_moe", "num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": [0]}
    with pytest.raises(UsageError, match="mlp_only_layers"):
        huggingface.read({**fields, "moe_intermediate_size": 1408}, name="c")


def test_regression_null_for_whether_a_matrix_is_shared_meant_no() -> None:
    tied = huggingface.read({**LLAMA, "model_type": "gemma", "tie_word_embeddings": None}, name="x").tied
    assert tied is huggingface.TYPES["gemma"].tied
