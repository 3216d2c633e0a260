"""MARP, number for number as its paper has it."""

from __future__ import annotations

import pytest

from sizing.memory import formula
from sizing.model.config import parse


def test_its_weights_are_the_papers() -> None:
    assert formula.marp_weights(1024, 24, 50257) == 50257 * 1024 + 24 * (12 * 1024**2 + 13 * 1024)


@pytest.mark.parametrize(("batch", "gib"), [(1, 9.26), (4, 17.28), (8, 27.96)])
def test_it_says_of_gpt2_350m_what_the_study_of_it_found(batch: int, gib: float) -> None:
    model = parse(f"gpt:h=1024,l=24,a=16,s=1024,V=50257,b={batch}")
    assert formula.marp_bytes_of(model) / 2**30 == pytest.approx(gib, abs=0.01)


def test_it_is_the_formula_of_the_paper_with_replicas_and_tensor_parallelism() -> None:
    h, layers, a, s, vocab, batch, d, t = 2048, 24, 32, 1024, 51200, 32, 4, 2
    model = parse(f"gpt:h={h},l={layers},a={a},s={s},V={vocab},b={batch // d},dp={d},tp={t}")
    static = 20 * (vocab * h + layers * (12 * h * h + 13 * h)) / t
    assert formula.marp_bytes_of(model) == round(
        static + s * batch * h * layers * (10 / d + 24 / (d * t) + 5 * a * s / (d * h * t))
    )


def test_it_is_not_mended_by_what_it_does_not_know() -> None:
    known = formula.marp_bytes_of(parse("gpt:h=64,l=2,a=2,s=64,V=100,b=4"))
    for more in (
        "recompute=full",
        "attention=flash",
        "zero=3",
        "precision=bf16-pure",
        "optimizer=sgd",
        "ffn=1",
        "tied=no",
    ):
        assert formula.marp_bytes_of(parse(f"gpt:h=64,l=2,a=2,s=64,V=100,b=4,{more}")) == known
    assert formula.marp_bytes_of(parse("gpt:h=64,l=2,a=2,s=64,V=100,b=1,accumulation=4")) == known
