"""The memory formula: numbers worked out by hand, and how it moves when one thing is changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing.base.parallel import Parallel
from sizing.memory import activations, formula, states
from sizing.memory.peak import guarded_bytes
from sizing.model.config import ModelConfig, parameters, parameters_of_rank, parse

GPT = parse("gpt:h=1024,l=24,a=16,s=1024,V=50257,b=8")
LARGE = parse("gpt:h=4096,l=32,a=32,s=1024,V=51200,b=4,precision=fp16,attention=math")


def bytes_of(model: ModelConfig, **changes: Any) -> float:
    return formula.peak_of(replace(model, **changes)).peak.value


@pytest.mark.parametrize(
    ("precision", "optimizer", "bytes_a_parameter"),
    [
        ("fp32", "adam", 16),
        ("tf32", "adamw", 16),
        ("bf16", "adam", 16),
        ("fp16-amp", "momentum", 12),
        ("fp32", "sgd", 8),
        ("fp32", "adafactor", 8),
        ("bf16-pure", "adam", 8),
        # 2 + 2 + 4 + 4 + 4 + 4 (Smith et al. 2022)
        ("fp16", "adam", 20),
        ("bf16-master", "adam", 20),
        ("fp16", "sgd", 12),
        ("fp32", "adam8bit", 10 + 8 / 256),
    ],
)
def test_a_parameter_takes_what_its_precision_and_optimizer_say(
    precision: Any, optimizer: Any, bytes_a_parameter: float
) -> None:
    model = replace(GPT, precision=precision, optimizer=optimizer)
    held = states.states_of(model, parameters_of_rank(model))
    count = parameters(model)
    assert (held.parameters + held.gradients + held.optimizer) / count == pytest.approx(bytes_a_parameter, rel=1e-6)


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("tp", [1, 4])
def test_a_layer_in_16_bits_is_korthikantis(dropout: bool, tp: int) -> None:
    """s b h (10 + 24 / t + 5 a s / (h t)) with dropout; without, two masks and three bytes of scores less."""
    model = replace(LARGE, dropout=dropout, parallel=Parallel(tp=tp))
    unit, scores = model.tokens * model.hidden, model.heads * model.seq / model.hidden
    expected = unit * (8 + 24 / tp + 2 * scores / tp + (2 + 3 * scores / tp if dropout else 0))
    assert activations.layer_of(model).saved == expected


def test_flash_attention_leaves_no_scores_but_a_sum_of_each_row() -> None:
    math, flash = (activations.layer_of(replace(LARGE, attention=kind)) for kind in ("math", "flash"))
    assert flash.core == 0
    assert math.core == 2 * LARGE.heads * LARGE.seq * LARGE.tokens
    assert flash.attention - math.attention == 4 * LARGE.heads * LARGE.tokens


def test_shared_keys_and_gated_layers_change_what_is_saved() -> None:
    llama = parse("llama:h=4096,l=32,a=32,s=4096,V=32000,b=1,ffn=14336,precision=bf16-pure")
    shared = activations.layer_of(replace(llama, kv_heads=8))
    assert activations.layer_of(llama).saved - shared.saved == 2 * 2 * (4096 - 1024) * llama.tokens
    plain = activations.layer_of(replace(llama, gated=False))
    assert activations.layer_of(llama).feed_forward - plain.feed_forward == 2 * 2 * 14336 * llama.tokens


def test_what_the_transformers_package_writes_out_is_saved_piece_by_piece() -> None:
    """Checked operator by operator against traces of its GPT-2, Llama and BERT."""
    unit = GPT.tokens * GPT.hidden

    def added(precision: Any, **changes: Any) -> float:
        plain = replace(GPT, precision=precision)
        return (activations.layer_of(replace(plain, **changes)).saved - activations.layer_of(plain).saved) / unit

    assert added("fp32", gelu_new=True) == 3 * 4 * 4
    assert added("bf16", gelu_new=True) == 3 * 4 * 4
    assert added("bf16-pure", gelu_new=True) == 3 * 2 * 4
    assert added("fp16", gelu_new=True) == 0
    assert added("fp32", norm="rms") == added("bf16", norm="rms") == 2 * 4
    assert added("bf16-pure", norm="rms") == 2 * 4
    # three products take the normalised input, each with a cast of its own under autocast
    assert added("bf16", fused=False) == 2 * 2
    assert added("fp32", fused=False) == 0
    # no kernel for fp32 shares keys: they are repeated, and the scores are kept in place of a sum for each row
    assert added("fp32", kv_heads=4) == 4 * 16 - 4 * 16 / 1024
    assert added("bf16", kv_heads=4) == -2 * 2 * 0.75
    bert = parse("bert:h=768,l=12,a=12,s=512,V=30522,b=8")
    assert activations.once_of(bert) - activations.once_of(replace(bert, encoder=False)) == 12 * bert.tokens * 768


def test_a_token_of_a_mixture_goes_through_its_experts_and_all_experts_are_held() -> None:
    one = parse("moe:h=1024,l=4,a=16,s=1024,V=1000,b=4,experts=8,topk=1")
    two = replace(one, experts_used=2)
    assert parameters(one) == parameters(two)
    assert parameters(replace(one, experts=16)) - parameters(one) >= 4 * 8 * 8 * 1024**2
    each = activations.layer_of(two).feed_forward - activations.layer_of(one).feed_forward
    assert each == 4 * (2 * 4 * 1024 + 2 * 1024) * one.tokens


def test_logits_count_as_cross_entropy_holds_them() -> None:
    """fp32: logits, log-softmax, the gradient that comes and the one that goes; 16 bits: logits in two bytes."""
    moments = formula.moments_of(GPT)
    logits = GPT.tokens * GPT.vocab
    base = formula.moments_of(replace(GPT, vocab=1))["loss backward"]
    here = moments["loss backward"]
    assert here["temporary"] - base["temporary"] == 8 * (logits - GPT.tokens)
    assert here["activations"] - base["activations"] == 8 * (logits - GPT.tokens)
    loss = activations.loss_of(replace(GPT, precision="bf16"))
    assert loss.saved + loss.backward == 14 * logits
    loss = activations.loss_of(replace(GPT, precision="fp16"))
    assert loss.saved + loss.backward == 10 * logits


def test_recomputation_keeps_a_layers_input_and_builds_up_one_layer() -> None:
    full, none = replace(LARGE, recompute="full"), replace(LARGE, recompute="none")
    unit = LARGE.tokens * LARGE.hidden
    kept = formula.moments_of(full)["together"]["activations"] - formula.moments_of(none)["together"]["activations"]
    assert kept == -32 * (activations.layer_of(none).saved - 2 * unit)
    assert bytes_of(full) < bytes_of(LARGE, recompute="selective") < bytes_of(none)
    # what flash attention saves anyway need not be computed again
    assert bytes_of(LARGE, attention="flash", recompute="selective") == bytes_of(LARGE, attention="flash")


def test_zero_cuts_states_by_its_stages() -> None:
    count = parameters(GPT)
    model = replace(GPT, parallel=Parallel(dp=8), precision="fp16")
    sizes = {}
    for stage in range(4):
        held = states.states_of(replace(model, zero=stage), parameters_of_rank(model))
        sizes[stage] = (held.parameters, held.gradients, held.optimizer)
    assert sizes[0] == (2 * count, 6 * count, 12 * count)
    assert sizes[1] == pytest.approx((2 * count, 6 * count, 12 * count / 8), rel=1e-6)
    assert sizes[2] == pytest.approx((2 * count, 6 * count / 8, 12 * count / 8), rel=1e-6)
    assert sizes[3] == pytest.approx((2 * count / 8, 6 * count / 8, 12 * count / 8), rel=1e-6)
    over = replace(model, parallel=Parallel(fsdp=8))
    held = states.states_of(over, parameters_of_rank(over))
    assert (held.parameters, held.gradients, held.optimizer) == sizes[3]


def test_shards_hold_two_layers_and_the_root_whole_for_a_moment() -> None:
    model = replace(GPT, parallel=Parallel(fsdp=8))
    counts = parameters_of_rank(model)
    assert states.gathered_bytes(model, counts) == 4 * (3 * counts.layer + counts.embedding + counts.rest)
    assert states.gathered_bytes(replace(GPT, zero=3), counts) == 0


def test_replicas_copy_gradients_into_buckets_and_megatron_has_buffers() -> None:
    count = parameters(GPT)
    two = Parallel(dp=2)
    assert bytes_of(GPT, parallel=two) - bytes_of(GPT) == 4 * count
    assert bytes_of(GPT, parallel=two, precision="fp16") == bytes_of(GPT, precision="fp16")


def test_adam_holds_one_more_tensor_of_each_while_it_steps() -> None:
    tiny = replace(GPT, batch=1, seq=8)
    moments = formula.moments_of(tiny)
    assert max(moments, key=lambda name: sum(moments[name].values())) == "optimizer"
    assert moments["optimizer"]["temporary"] == 4 * parameters(tiny)
    assert formula.moments_of(replace(tiny, optimizer="momentum"))["optimizer"]["temporary"] == 0


def test_gradients_are_there_in_forward_where_micro_batches_add_up() -> None:
    assert formula.peak_of(GPT).by_category["gradients"] == 0
    assert formula.peak_of(replace(GPT, accumulation=2)).by_category["gradients"] == 4 * parameters(GPT)


def test_the_answer_says_where_it_comes_from_and_adds_up() -> None:
    peak = formula.peak_of(GPT)
    assert peak.peak.origin == "formula"
    assert peak.peak.low < peak.peak.value < peak.peak.high == guarded_bytes(peak.peak.value, "formula")
    assert sum(peak.by_category.values()) == peak.peak.value
    assert peak.marp_bytes is not None
    assert peak.to_json()["per_rank"] == {"dp": 1, "tp": 1, "fsdp": 1}


def test_regression_a_formula_fitted_where_it_had_missed_by_a_quarter() -> None:
    """The worst measured run (docs/evidence/benchmarks.md) took 25.09 GiB, and had the guard band of a trace."""
    sizes = "h=4096,l=32,a=32,s=1024,V=51200,b=32,tp=16"
    peak = formula.peak_of(parse(f"gpt:{sizes},precision=fp16,optimizer=adam,recompute=full,attention=math")).peak
    assert peak.value < 0.76 * 25.09 * 2**30 < 25.09 * 2**30 < peak.high


ANY = st.builds(
    lambda family, h, layers, b, s, more: replace(
        parse(f"{family}:h={64 * h},l={layers},a=8,kv=4,s={s},V=1000,b={b},ffn={64 * h}"), **more
    ),
    st.sampled_from(["gpt", "llama", "bert", "moe", "mixtral"]),
    st.integers(1, 8),
    st.integers(1, 12),
    st.integers(1, 8),
    st.integers(1, 512),
    st.fixed_dictionaries(
        {
            "precision": st.sampled_from(["fp32", "bf16", "fp16", "bf16-pure"]),
            "recompute": st.sampled_from(["none", "selective", "full"]),
            "attention": st.sampled_from(["math", "flash"]),
            "dropout": st.booleans(),
            "accumulation": st.integers(1, 3),
            "zero": st.integers(0, 3),
        }
    ),
)


@settings(max_examples=150, deadline=None)
@given(ANY)
def test_more_of_anything_is_never_less_memory_and_more_gpus_to_share_it_never_more(model: ModelConfig) -> None:
    here = bytes_of(model)
    assert here > 0
    for more in ({"batch": model.batch + 1}, {"layers": model.layers + 1}, {"seq": model.seq + 1}, {"vocab": 2000}):
        assert bytes_of(model, **more) > here
    assert bytes_of(model, dropout=True) >= here
    assert bytes_of(model, parallel=Parallel(tp=2)) < here
    assert bytes_of(model, parallel=Parallel(tp=4)) < bytes_of(model, parallel=Parallel(tp=2))
    assert bytes_of(model, parallel=Parallel(fsdp=8)) <= bytes_of(model, parallel=Parallel(fsdp=4))
    spread = replace(model, parallel=Parallel(dp=4))
    by_stage = [bytes_of(spread, zero=stage) for stage in range(3)]
    assert by_stage == sorted(by_stage, reverse=True)
    assert all(size >= 0 for moment in formula.moments_of(model).values() for size in moment.values())


@pytest.mark.parametrize(
    ("changes", "keeps"),
    [
        ({"precision": "fp32"}, True),
        ({"precision": "tf32"}, True),
        ({"precision": "bf16"}, False),
        ({"precision": "bf16-pure"}, False),
        ({"precision": "fp16"}, False),
        ({"precision": "fp32", "kv_heads": 8}, False),
        ({"precision": "bf16", "head_size": 512}, True),
        ({"precision": "bf16", "attention": "math"}, True),
    ],
)
def test_scores_are_kept_where_no_kernel_shares_keys_among_heads(changes: dict[str, Any], keeps: bool) -> None:
    model = replace(parse("llama:h=1024,l=2,a=8,kv=2,ffn=2816,s=512,V=1000,b=2"), **changes)
    assert (activations.layer_of(model).core > 0) == keeps


def test_an_encoders_loss_has_its_log_softmax_in_the_precision_of_its_logits() -> None:
    bert = parse("bert:h=64,l=1,a=2,s=8,V=1000,b=1")
    for precision, saved, backward in (("fp32", 8, 8), ("bf16", 8, 4), ("bf16-pure", 4, 4)):
        loss = activations.loss_of(replace(bert, precision=precision))  # type: ignore[arg-type]
        assert (loss.saved, loss.backward) == (saved * 8000, backward * 8000)
