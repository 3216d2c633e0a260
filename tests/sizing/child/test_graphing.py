"""A user's model read as a chain of operators: FLOPs to the last one, what a cut sends on, who holds which weight."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from sizing.base.errors import Untraceable, UsageError
from sizing.cells import stages
from sizing.child import graphing
from sizing.model import config
from sizing.model.graph import Graph
from tests.support.messages import excerpt, fragment, pattern, says, wording

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.usefixtures("exporting")]

MODELS = Path(__file__).with_name("graph_models.py")
GPT = "gpt:h=64,l=3,a=4,s=32,V=512,b=4"
RESIDUAL = 4 * 32 * 64 * 4


def read(name: str, *, tp: int = 1, path: Path = MODELS) -> Graph:
    return graphing.graph(f"{path}:{name}", 4, tp=tp, python=sys.executable)


def closed(text: str) -> int:
    return config.step_flops(config.parse(text))


def test_a_gpt_has_the_flops_of_the_closed_form_and_sends_its_residual_stream() -> None:
    found = read("gpt")
    assert (found.origin, found.note, found.model, found.batch) == ("export", "", "Gpt", 4)
    assert found.flops == closed(GPT)
    assert found.parameters == config.parameters(config.parse(GPT))  # the tied matrix once
    ends = [at for at, each in enumerate(found.operators) if each.module.startswith("blocks.") and each.across_bytes]
    behind = {each.across_bytes for each in found.operators if each.name.startswith("add") and "." in each.module}
    assert behind == {RESIDUAL}
    assert found.operators[ends[-1]].across_bytes == RESIDUAL
    # queries, keys and values beside the stream; the wide inside of a feed-forward layer beside it
    wide = {each.name: each.across_bytes for each in found.operators}
    assert wide["scaled_dot_product_attention"] == 2 * RESIDUAL
    assert wide["linear_4"] == wide["gelu"] == 5 * RESIDUAL
    assert found.operators[-1].across_bytes == 0
    assert next(each for each in found.operators if each.parameters).module == "words"


def test_stages_of_a_gpt_are_cut_at_its_residual_stream() -> None:
    cut = stages.stages(read("gpt"), 4, 4)
    assert [each.across_bytes for each in cut] == [RESIDUAL, RESIDUAL, RESIDUAL, 0]


def test_a_loss_of_the_users_own_and_inputs_by_name_make_the_same_graph() -> None:
    assert read("with_loss").operators == read("gpt").operators


def test_a_llama_shares_keys_among_heads_and_does_not_send_its_angles() -> None:
    found = read("llama")
    llama = "llama:h=64,l=3,a=4,kv=2,ffn=256,s=32,V=512,b=4"
    assert found.flops == closed(llama)
    by_module = {each.module: each for each in found.operators}  # the last of each
    assert by_module["blocks.0"].across_bytes == by_module["blocks.1"].across_bytes == RESIDUAL
    # halves of a tensor are sent once: the stream, queries, and keys and values of half as many heads
    halves = next(each for each in found.operators if each.name == "chunk")
    assert halves.across_bytes == 3 * RESIDUAL


def test_frozen_weights_have_no_gradient_and_are_not_counted() -> None:
    found, whole = read("frozen"), read("llama")
    assert found.parameters == 64 * 512 + 2 * 64 + 32 * 64  # the head, the last norm and the places
    # all but the head pass a gradient on to the places; none of them has one of its weights
    layers = [each for each in found.operators if each.name.startswith("linear") and each.module.startswith("blocks")]
    assert found.operators[-1].flops == whole.operators[-1].flops == 6 * 4 * 32 * 64 * 512
    assert layers[0].flops == 4 * 4 * 32 * 64 * 64


def test_regression_lstms_had_no_flops() -> None:
    found = read("recurrent")
    tokens, gates = 4 * 10, 4 * 32
    first, second = 2 * tokens * gates * 16, 2 * tokens * gates * 32  # of an input and of a state
    assert found.flops == 3 * (first + 3 * second) - first + 3 * (2 * 4 * 32 * 5)


def test_regression_bilinear_layers_and_distances_had_no_flops_and_fourier_transforms_were_not_named() -> None:
    found = read("uncommon")
    pair, apart = 2 * 4 * 16 * 12 * 8, 3 * 4 * 6 * 8  # of a batch of 4; a distance is no product of matrices
    assert found.flops == pair * (1 + 1) + apart * (1 + 2)  # the inputs take no gradient
    assert "aten::_fft_r2c" in found.note


def test_a_resnet_is_read_with_rates_out_of_a_tensor_and_its_first_convolution_has_no_gradient_of_the_image() -> None:
    found = read("resnet")
    assert found.origin == "export"
    assert says(found.note, "sizing.graphs.real_tensors")
    first, second = (each for each in found.operators if each.name in ("conv2d", "conv2d_1"))
    assert first.flops == 2 * (2 * 4 * 32 * 32 * 9 * 3 * 16)
    assert second.flops == 3 * (2 * 4 * 32 * 32 * 9 * 16 * 16)
    image = 4 * 16 * 32 * 32 * 4
    assert second.across_bytes == 2 * image  # what passes beside it too
    # what works in place makes no other tensor
    assert {each.across_bytes for each in found.operators if each.module == "blocks.0.act"} == {image, 2 * image}
    assert found.operators[-1].parameters == 64 * 10 + 10


def test_a_model_that_export_does_not_take_is_read_by_its_blocks() -> None:
    found, whole = read("answering"), read("gpt")
    assert found.origin == "modules"
    assert says(found.note, "sizing.graphs.by_modules")
    assert "\n" not in found.note
    assert [each.name for each in found.operators] == [
        "words",
        "places",
        "blocks.0",
        "blocks.1",
        "blocks.2",
        "norm",
        "head",
    ]
    assert (found.flops, found.parameters) == (whole.flops, whole.parameters)
    assert [each.across_bytes for each in found.operators] == [RESIDUAL] * 6 + [0]
    assert found.operators[0].parameters == 64 * 512
    assert found.operators[-1].parameters == 0  # tied


def test_a_model_that_is_one_region_is_read_by_its_blocks() -> None:
    found = read("autocast")
    assert found.origin == "modules"
    assert says(found.note, "sizing.graphs.one_region")
    assert found.flops == closed(GPT)


def test_routing_by_contents_is_run_on_real_tensors() -> None:
    found = read("moe")
    assert found.origin == "modules"
    assert "by modules on real tensors" in found.note
    depends = fragment(wording("sizing.graphs.size_depends"))
    assert re.match(pattern("sizing.graphs.real_tensors", reason=depends), found.note)
    assert [each.name for each in found.operators] == ["words", "layers.0", "layers.1", "head"]
    tokens = 4 * 32
    # each token goes through one expert, whichever it is, and the scores have no gradient behind argmax
    assert found.operators[1].flops in range(6 * tokens * 64 * 64, 6 * tokens * 64 * 64 + 6 * tokens * 64 * 4 + 1)
    assert found.operators[1].across_bytes == RESIDUAL


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("name", "text", "tp"),
    [
        ("gpt2", "gpt:h=64,l=2,a=4,s=32,V=512,b=4", 1),
        ("bert", "bert:h=64,l=2,a=4,s=32,V=512,b=4", 1),
        ("hf_llama", "llama:h=64,l=2,a=4,kv=2,ffn=256,s=32,V=512,b=4", 1),
        ("hf_llama", "llama:h=64,l=2,a=4,kv=2,ffn=256,s=32,V=512,b=4,tp=2", 2),
        ("mixtral", "mixtral:h=64,l=2,a=4,kv=2,ffn=256,s=32,V=512,b=4", 1),
    ],
)
def test_models_of_transformers_have_the_flops_of_the_closed_form(name: str, text: str, tp: int) -> None:
    found = read(name, tp=tp)
    assert found.origin == "export"
    assert found.flops == closed(text)
    assert bool(says(found.note, "sizing.plans.layers_cut")) == (tp > 1)
    assert found.parameters == sum(each.parameters for each in found.operators) > 0


def test_a_plan_cuts_layers_and_leaves_the_names_of_operators() -> None:
    whole, half = read("gpt"), read("gpt", tp=2)
    assert half.note == wording("sizing.plans.layers_cut", done=18)
    cut = {each.name: each for each in half.operators}
    for each in whole.operators:
        if each.module.startswith("blocks."):
            share = 2 if each.name.startswith(("linear", "scaled")) else 1
            assert cut[each.name].flops * share == each.flops
    extra = sorted(
        {each.name.rstrip("_0123456789") for each in half.operators}
        - {each.name.rstrip("_0123456789") for each in whole.operators}
    )
    assert extra == ["all_reduce", "to_ranks"]


def test_tensor_parallelism_of_the_users_own_is_asked_for_by_tp() -> None:
    assert 2 * read("own_parallelism", tp=2).flops == read("own_parallelism").flops


def test_without_a_plan_there_is_no_tensor_parallelism() -> None:
    with pytest.raises(UsageError, match=pattern("sizing.plans.no_tensor_parallelism", function="no_plan")):
        read("no_plan", tp=2)
    with pytest.raises(
        UsageError,
        match=pattern("sizing.plans.tp_does_not_divide", tp=3, size=64, way="col", path=fragment("blocks.0.query")),
    ):
        read("gpt", tp=3)


def test_a_model_that_names_a_gpu_is_read_without_one() -> None:
    found = read("on_a_gpu")
    assert (found.origin, found.note) == ("export", "")
    assert found.flops == 2 * 4 * 8 * 16 * (2 + 3)


BROKEN = """
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        return {forward}

def make_model({given}):
    {first}
    return {returned}
"""


def test_a_class_is_no_function_that_makes_it(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(BROKEN.format(forward="x", given="batch_size", first="pass", returned="1"))
    with pytest.raises(UsageError) as caught:
        read("Net", path=path)
    assert says(str(caught.value), "sizing.graphs.is_a_class", name="Net")


@pytest.mark.parametrize(
    ("changed", "kind", "words"),
    [
        (
            {"given": "sizes, *, kind"},
            UsageError,
            excerpt("sizing.model_main.not_callable", name="make_model", error=fragment("missing")),
        ),
        ({"returned": "Net()"}, UsageError, "train.py:9: make_model returned Net: return (model, inputs)"),
        ({"returned": "1, (torch.ones(2),)"}, UsageError, excerpt("sizing.returned.not_a_model", name="int")),
        ({"returned": "Net(), 3"}, UsageError, excerpt("sizing.returned.not_inputs", name="int")),
        ({"returned": "Net(), (torch.ones(2),), 3"}, UsageError, excerpt("sizing.returned.not_a_loss", name="int")),
        ({"first": "raise ValueError('no data\\nhere')"}, Untraceable, "train.py:10: ValueError: no data"),
        ({"forward": "x @ torch.ones(3)"}, Untraceable, wording("sizing.modules.forward_fails", error="train.py:7: ")),
        (
            {"returned": "Net(), (torch.ones(2),), lambda y: y"},
            UsageError,
            excerpt("sizing.graphs.loss_form", kind="(2,)"),
        ),
        ({"forward": "None"}, UsageError, excerpt("sizing.returned.no_loss")),
    ],
)
def test_what_a_user_gets_wrong_is_told_in_one_line(
    tmp_path: Path, changed: dict[str, str], kind: type[Exception], words: str
) -> None:
    usual = {"forward": "x * 2", "given": "batch_size", "first": "pass", "returned": "Net(), (torch.ones(2),)"}
    path = tmp_path / "train.py"
    path.write_text(BROKEN.format(**{**usual, **changed}))
    with pytest.raises(kind) as caught:
        read("make_model", path=path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_functions_and_sizes_that_are_none_are_refused(tmp_path: Path) -> None:
    for step, words in ((str(tmp_path / "no.py:make"), "no such file"), ("model", "write FILE.py:FUNCTION")):
        with pytest.raises(UsageError, match=words):
            graphing.graph(step, 1)
    with pytest.raises(UsageError, match=pattern("sizing.model_main.no_function", function="nothing")):
        read("nothing")
    with pytest.raises(UsageError, match="a batch of 0"):
        graphing.graph(f"{MODELS}:gpt", 0)


@pytest.mark.parametrize(
    "changed",
    [
        {"operators": []},
        {"operators": [["a", "", 1, 1, 1], ["a", "", 1, 1, 1]]},
        {"operators": [["a", "", -1, 1, 1]]},
        {"operators": [["a", "", 1.5, 1, 1]]},
        {"operators": [["a", "", 1]]},
        {"origin": "measured"},
        {"model": 3},
    ],
)
def test_an_answer_that_is_no_graph_is_refused(changed: dict[str, Any]) -> None:
    usual = {"model": "Net", "origin": "export", "note": "", "operators": [["a", "", 1, 1, 1]]}
    assert graphing.read(json.dumps(usual).encode(), 1).flops == 1
    with pytest.raises(Untraceable, match=pattern("sizing.graphing.not_a_graph")):
        graphing.read(json.dumps({**usual, **changed}).encode(), 1)
