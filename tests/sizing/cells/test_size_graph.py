"""Models by their sizes as chains: the parts that profiles cut, with FLOPs and weights to the last one."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from sizing.base.errors import UsageError
from sizing.cells.size_graph import chain
from sizing.model import config
from sizing.model.wide_resnet import WideResNet

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "text",
    [
        "gpt:h=64,l=3,a=4,s=32,V=512,b=4",
        "bert:h=64,l=1,a=4,s=32,V=512,b=2",
        "llama:h=64,l=2,a=4,kv=2,s=32,V=512,b=4,recompute=full",
        "mixtral:h=64,l=2,a=4,kv=2,ffn=256,s=32,V=512",
        "gpt:h=64,l=3,a=4,s=32,V=512,tied=no,rows=64",
    ],
)
def test_a_chain_adds_up_to_the_whole_model(text: str) -> None:
    model = config.parse(text)
    found = chain(model)
    assert found.flops == config.step_flops(model)
    assert found.parameters == config.parameters(model)
    assert [each.name for each in found.operators] == [
        "embedding",
        *(f"layers.{at}" for at in range(model.layers)),
        "head",
    ]
    assert {each.across_bytes for each in found.operators[:-1]} == {4 * model.batch * 32 * 64}


def test_a_chain_is_of_one_micro_batch_on_one_gpu() -> None:
    text = "gpt:h=64,l=3,a=4,s=32,V=512"
    assert chain(config.parse(f"{text},b=2,accumulation=8,tp=2,dp=4"), 4) == chain(config.parse(f"{text},b=4"))
    with pytest.raises(UsageError):
        chain(config.parse(text), 0)


@pytest.mark.torch
@pytest.mark.parametrize(
    "model", [WideResNet(width=2, blocks=2, channels=8, image=16), config.parse("gpt:h=64,l=2,a=4,s=32,V=512,b=2")]
)
def test_a_chain_has_the_parts_that_are_profiled(model: WideResNet | config.ModelConfig) -> None:
    import torch

    from sizing.tracer import families
    from sizing.tracer.operators import flops

    wide = isinstance(model, WideResNet)
    sizes = {"kind": "wide_resnet" if wide else "transformer", **asdict(model)}
    whole = families.chain(sizes, 1)
    found = chain(model, 2)
    assert [part.name for part in whole.parts] == [each.name for each in found.operators]
    counter = flops.Counter()
    with torch.random.fork_rng():
        x, targets = whole.first(2), whole.targets(2)
        modules = [part.make() for part in whole.parts]
        for module, each in zip(modules, found.operators, strict=True):
            before = counter.flops
            with flops.Attention(counter), counter:
                x = module(x, targets) if each.name == "head" else module(x)
            assert counter.flops - before == each.flops, each.name
            assert each.name == "head" or x.numel() * 4 == each.across_bytes
    count = sum(weight.numel() for module in modules for weight in module.parameters())
    tied = 0 if wide else 64 * 512
    assert count - tied == found.parameters
