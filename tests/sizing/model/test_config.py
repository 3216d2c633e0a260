"""`--config`: what it reads, what it refuses, and what follows from a model's sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing.base.errors import UsageError
from sizing.base.parallel import Parallel
from sizing.model import config
from sizing.model.config import FAMILIES, KEYS, ModelConfig, parse
from tests.support.messages import excerpt, fragment, wording

GPT = "gpt:h=1024,l=24,a=16,s=1024,V=50257"
TINY = "h=12,l=2,a=3,s=8,V=10"


@st.composite
def models(draw: st.DrawFn) -> ModelConfig:
    family = draw(st.sampled_from(sorted(FAMILIES)))
    tp, kv, group, width = (draw(st.integers(1, 4)) for _ in range(4))
    experts = draw(st.integers(1, 6))
    values = dict(FAMILIES[family])
    values.update(
        name=family,
        heads=kv * group * tp,
        hidden=kv * group * tp * width,
        kv_heads=draw(st.sampled_from([None, kv * tp])),
        head_size=draw(st.sampled_from([None, 7])),
        layers=draw(st.integers(1, 99)),
        seq=draw(st.integers(1, 10**6)),
        vocab=draw(st.integers(1, 10**6)),
        batch=draw(st.integers(1, 99)),
        ffn_hidden=draw(st.integers(1, 99)) * tp,
        shared_ffn=draw(st.integers(0, 3)) * tp,
        experts=experts,
        experts_used=draw(st.integers(1, experts)),
        position_rows=draw(st.sampled_from([None, 77])),
        norms=draw(st.integers(1, 4)),
        zero=draw(st.integers(0, 3)),
        accumulation=draw(st.integers(1, 9)),
        parallel=Parallel(draw(st.integers(1, 9)), tp, draw(st.integers(1, 9))),
        biased=draw(st.tuples(st.booleans(), st.booleans())),
        **{
            name: draw(st.booleans())
            for name in ("gated", "tied", "positions", "dropout", "encoder", "fused", "gelu_new")
        },
        **{
            name: draw(st.sampled_from(get_args(kind)))
            for name, kind in (
                ("precision", config.Precision),
                ("optimizer", config.Optimizer),
                ("recompute", config.Recompute),
                ("attention", config.Attention),
                ("norm", config.Norm),
            )
        },
    )
    return ModelConfig(**values)


@settings(max_examples=60, deadline=None)
@given(models())
def test_what_is_written_is_read_again(model: ModelConfig) -> None:
    assert parse(config.format(model)) == model


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(st.text(max_size=40), st.from_regex(r"gpt:(h|l|a|s|V|b|q|kv|tp)=[^,]{0,9}(,[a-zA-Z]{1,3}=\S{0,9}){0,5}"))
)
def test_whatever_is_written_is_a_model_or_one_line(text: str) -> None:
    try:
        parse(text)
    except UsageError as error:
        assert str(error).isprintable()  # noqa: PT017


def test_the_families_differ_as_their_models_do() -> None:
    # GPT-2, and Llama 3 8B, Mixtral 8x7B, BERT-base by their authors
    assert config.parameters(parse("gpt:h=768,l=12,a=12,s=1024,V=50257")) == 124_439_808
    llama = parse("llama:h=4096,l=32,a=32,kv=8,ffn=14336,s=8192,V=128256")
    assert config.parameters(llama) == 8_030_261_248
    mixtral = parse("mixtral:h=4096,l=32,a=32,kv=8,ffn=14336,s=4096,V=32000")
    assert config.parameters(mixtral) == 46_702_792_704
    bert = parse("bert:h=768,l=12,a=12,s=512,V=30522")
    assert config.parameters(bert) == pytest.approx(109_514_298, rel=1e-4)
    assert parse("llama:h=4096,l=1,a=32,s=8,V=8").ffn == 11008


def test_every_key_is_in_the_text_of_a_model_that_sets_it() -> None:
    fields = {name for name in ModelConfig.__dataclass_fields__ if name not in ("name", "parallel")}
    assert fields | {"dp", "tp", "fsdp"} == {entry.field for entry in KEYS.values()}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no such family"),
        ("gtp:h=1", wording("sizing.fields.hint", near="gpt")),
        ("wresent:k=1", wording("sizing.fields.hint", near="wresnet")),
        ("zzz", "one of gpt, "),
        ("zzz", excerpt("sizing.config.family_wanted", others=fragment(", wresnet"))),
        ("wresnet:k=10", excerpt("sizing.config.no_formula")),
        ("gpt", "say h= (hidden size), l= (layers), a= (attention heads), s="),
        (f"{GPT},hiden=3", "hiden=3: no such key"),
        ("gpt:H=3", wording("sizing.fields.hint", near="h")),
        ("gpt:hidden=3", wording("sizing.fields.hint", near="h")),
        (f"{GPT},presicion=fp16", wording("sizing.fields.hint", near="precision")),
        (f"{GPT},h=3", wording("sizing.config.twice", key="h")),
        (f"{GPT},b", "write key=value"),
        (f"{GPT},,b=1", "an empty option"),
        (f"{GPT},b=", "write key=value"),
        (f"{GPT},b=0", excerpt("sizing.transformer.bad_size", key="b", size=0)),
        (f"{GPT},b=-4", excerpt("sizing.transformer.bad_size", key="b", size=-4)),
        (f"{GPT},b=1e30", excerpt("sizing.transformer.bad_size", key="b", size="1e30")),
        (f"{GPT},b=1{'0' * 30}", excerpt("sizing.transformer.bad_size")),
        (f"{GPT},b=２", excerpt("sizing.transformer.bad_size")),
        (f"{GPT},b=2.5", "b=2.5: a whole number"),
        (f"{GPT},tp=0", "tp=0"),
        (f"{GPT},zero=4", "zero=4: one of 0, 1, 2, 3"),
        (f"{GPT},precision=fp61", "precision=fp61: one of fp32"),
        (f"{GPT},attention=none", "attention=none: one of math, flash"),
        (f"{GPT},tied=perhaps", "tied=perhaps: yes or no"),
        (f"{GPT},dropout=7", excerpt("sizing.huggingface.not_a_rate", told=fragment("dropout=7"))),
        (f"{GPT},kv=5", wording("sizing.transformer.kv_does_not_divide", heads=16, kv=5)),
        (f"{GPT},tp=3", "tp=3 does not divide a=16"),
        (f"{GPT},ffn=4097,tp=2", "tp=2 does not divide ffn=4097"),
        ("gpt:h=24,l=1,a=24,s=1,V=1,kv=4,tp=6", wording("sizing.transformer.tp_and_kv", tp=6, kv=4)),
        (f"gpt:{TINY},kv=3,experts=2,topk=3", "topk=3"),
        ("gpt:h=10,l=1,a=3,s=1,V=1", excerpt("sizing.transformer.heads_do_not_divide", hidden=10, heads=3)),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_rate_of_dropout_counts_by_whether_there_is_one() -> None:
    assert parse(f"{GPT},dropout=0.1").dropout
    assert not parse(f"{GPT},dropout=0.0").dropout
    assert not parse(f"{GPT},dropout=no").dropout


def test_options_come_on_top_of_a_model() -> None:
    model = parse(f"{GPT},dp=2,b=4")
    assert config.with_options(model, "tp=4,precision=bf16") == replace(
        model, parallel=Parallel(2, 4), precision="bf16"
    )
    assert config.with_options(model, "") == model
    with pytest.raises(UsageError, match="no such key"):
        config.with_options(model, "q=1")


def test_a_model_spread_over_gpus_has_the_parameters_that_it_had() -> None:
    whole = parse(f"{GPT}")
    assert config.parameters(parse(f"{GPT},tp=4,dp=2,fsdp=2")) == config.parameters(whole)
    cut = config.parameters_of_rank(parse(f"{GPT},tp=4")).total
    # a quarter, and what every rank has: positions, normalisations, biases of what is summed
    assert config.parameters(whole) / 4 < cut < config.parameters(whole) / 4 * 1.02


def test_the_work_of_a_step_is_six_operations_a_parameter_and_token() -> None:
    model = parse(f"{GPT},b=2,attention=math")
    counts = config.parameters_of_rank(model)
    scores = 12 * 2 * 1024 * 1024 * 1024 * 24
    assert config.step_flops(model) == 6 * counts.matrices * model.tokens + scores
    assert config.step_flops(replace(model, accumulation=3)) == 3 * config.step_flops(model)
    layers = 6 * counts.layer_matrices * 24 * model.tokens + scores
    assert config.step_flops(replace(model, recompute="full")) == config.step_flops(model) + layers // 3
    assert config.step_flops(replace(model, parallel=Parallel(tp=2))) == pytest.approx(
        config.step_flops(model) / 2, rel=0.001
    )
    mixture = parse(f"moe:{TINY},experts=8,topk=2,ffn=60,attention=math")
    assert config.step_flops(replace(mixture, experts=16)) - config.step_flops(mixture) == 6 * 12 * 8 * 2 * 8


def test_replicas_sum_gradients_once_a_step_and_shards_gather_weights_each_micro_batch() -> None:
    model = parse(f"{GPT},accumulation=4")
    count = config.parameters(model)
    none = {"all_reduce": 0, "all_gather": 0, "reduce_scatter": 0}
    assert config.collective_bytes(model) == none
    assert config.collective_bytes(replace(model, parallel=Parallel(dp=2))) == {**none, "all_reduce": 4 * count}
    shards = config.collective_bytes(replace(model, parallel=Parallel(fsdp=8), precision="bf16"))
    assert shards == {**none, "all_gather": 2 * 4 * 2 * count, "reduce_scatter": 4 * 4 * count}
    assert config.collective_bytes(replace(model, parallel=Parallel(dp=8), zero=3, precision="bf16")) == shards
    first = config.collective_bytes(replace(model, parallel=Parallel(dp=2), zero=1))
    assert first == {**none, "reduce_scatter": 4 * count, "all_gather": 4 * count}
    # two sums a layer each way, one each for embedding and output
    tensor = config.collective_bytes(replace(model, parallel=Parallel(tp=2)))
    assert tensor["all_reduce"] == 4 * (24 * 4 + 2) * 4 * 1024 * 1024
    again = config.collective_bytes(replace(model, parallel=Parallel(tp=2), recompute="full"))
    assert again["all_reduce"] - tensor["all_reduce"] == 4 * 24 * 2 * 4 * 1024 * 1024
