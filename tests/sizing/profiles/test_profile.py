"""Shards that are cut out of a user's model, or made by its sizes, and run alone on this CPU."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from sizing.base.errors import Untraceable, UsageError
from sizing.cells.shards import Exchange, ShardProfile, StageShard
from sizing.child import graphing, launch
from sizing.model import config
from sizing.model.graph import Graph
from sizing.model.wide_resnet import WideResNet
from sizing.profiles.profile import Profiled, Setting, Unfit, profiled
from tests.support.messages import pattern, says

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.usefixtures("exporting")]

FEW = Setting(rounds=1)
FLOAT = 4

NET = """
import torch
from torch import nn
from torch.nn import functional
import torch.distributed as dist


class Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        dist.all_reduce(grad)
        return grad


class Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class Block(nn.Module):
    def __init__(self, tp):
        super().__init__()
        self.tp = tp
        self.norm = nn.LayerNorm(32)
        self.up = nn.Linear(32, 128 // tp)
        self.down = nn.Linear(128 // tp, 32, bias=False)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        y = self.norm(x)
        y = y if self.tp == 1 else Copied.apply(y)
        y = self.down(functional.gelu(self.up(y)))
        y = y if self.tp == 1 else Summed.apply(y)
        return x + self.drop(y)


class Net(nn.Module):
    def __init__(self, tp):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.register_buffer("places", torch.arange(8))
        self.positions = nn.Embedding(8, 32)
        self.blocks = nn.ModuleList([Block(tp) for _ in range(4)])
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids) + self.positions(self.places)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
"""
TRAIN = """
import torch
from torch import nn
from net import Net


def make_model(batch_size, *, tp=1):
    targets = torch.randint(0, 50, (batch_size, 8))  # the loss holds them
    loss = lambda out: nn.functional.cross_entropy(out.flatten(0, 1), targets.flatten())
    return Net(tp), (torch.randint(0, 50, (batch_size, 8)),), loss


class Image(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)) for _ in "abc"]
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x).float().mean()


def make_image(batch_size):
    return Image(), (torch.randn(batch_size, 4, 8, 8),)


class Deciding(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(3)])

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
            if x.sum().item() > 1e9:
                x = x * 2
        return x


def make_spread(batch_size, *, tp=1):
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (tp,))
    model = parallelize_module(torch.nn.Sequential(torch.nn.Linear(8, 8)), mesh, {"0": ColwiseParallel()})
    return model, (torch.randn(batch_size, 8),)


def make_deciding(batch_size):
    return Deciding(), (torch.randint(0, 50, (batch_size, 4)),)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("user")
    (path / "net.py").write_text(NET)
    (path / "train.py").write_text(TRAIN)
    return path


def run(source: object, shards: list[StageShard], graph: Graph | None = None, setting: Setting = FEW) -> Profiled:
    return profiled(source, shards, setting, graph=graph, device="cpu", python=sys.executable)  # type: ignore[arg-type]


def first_of(graph: Graph, module: str) -> int:
    return next(at for at, each in enumerate(graph.operators) if each.module.startswith(module))


def by_shard(found: Profiled) -> dict[StageShard, ShardProfile]:
    return {each.shard: each for each in found.results if isinstance(each, ShardProfile)}


@pytest.fixture(scope="module")
def exported(folder: Path, exporting_process: Any) -> tuple[Graph, Profiled]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "ended", exporting_process)
        return _exported(folder)


def _exported(folder: Path) -> tuple[Graph, Profiled]:
    step = f"{folder / 'train.py'}:make_model"
    graph = graphing.graph(step, 4, python=sys.executable)
    cut, last = first_of(graph, "blocks.2"), len(graph.operators) - 1
    shards = [
        StageShard(0, last, 4, 1),
        StageShard(0, cut - 1, 4, 1),
        StageShard(cut, last, 4, 1),
        StageShard(0, cut - 1, 4, 2),
        StageShard(cut, last, 4, 2),
    ]
    return graph, run(step, shards, graph)


def test_stages_of_an_exported_model_have_its_weights_between_them_and_share_what_is_tied(
    exported: tuple[Graph, Profiled],
) -> None:
    graph, found = exported
    assert graph.origin == "export"
    whole, front, back = (each for each in found.results[:3] if isinstance(each, ShardProfile))
    assert whole.parameters == graph.parameters
    assert front.parameters + back.parameters == graph.parameters + 50 * 32
    assert any(says(note, "sizing.programs.shared_weights", shared="head.weight") for note in found.notes)
    places = 8 * 8
    assert front.weight_bytes == FLOAT * front.parameters + places
    # gradients, two moments of Adam, and a count of steps for each tensor
    assert 3 * FLOAT * whole.parameters <= whole.state_bytes <= 3 * FLOAT * whole.parameters + 1000
    assert whole.weight_bytes + whole.state_bytes < whole.peak_bytes
    assert front.activation_bytes + back.activation_bytes == pytest.approx(whole.activation_bytes, rel=0.1)


def test_times_are_measured_and_lie_in_their_interval(exported: tuple[Graph, Profiled]) -> None:
    for each in by_shard(exported[1]).values():
        assert each.device == "cpu"
        assert each.compute_s.origin == "measured"
        assert 0 < each.compute_s.low <= each.compute_s.value <= each.compute_s.high
        assert each.update_s.value > 0
        assert each.profile_s > each.rounds * each.compute_s.low


def test_a_rank_of_two_has_half_the_matrices_and_its_collectives_stage_by_stage(
    exported: tuple[Graph, Profiled],
) -> None:
    whole, front, back, front_of_two, back_of_two = exported[1].results
    assert all(isinstance(each, ShardProfile) for each in (whole, front, back, front_of_two, back_of_two))
    halves = 2 * (2 * 32 * 128 + 128) // 2
    for full, half in ((front, front_of_two), (back, back_of_two)):
        assert isinstance(full, ShardProfile)
        assert isinstance(half, ShardProfile)
        assert full.exchanges == ()
        assert full.parameters - half.parameters == halves
        # a block sums its output forward and its input's gradient backward
        assert half.exchanges == (Exchange("all_reduce", FLOAT * 4 * 8 * 32, 4),)


def test_the_files_of_a_model_are_those_that_it_was_loaded_from(exported: tuple[Graph, Profiled]) -> None:
    assert [path for path, _ in exported[1].files] == ["net.py", "train.py"]


def test_batch_normalisation_and_what_writes_in_place_run_in_any_stage_and_in_bf16(folder: Path) -> None:
    step = f"{folder / 'train.py'}:make_image"
    graph = graphing.graph(step, 2, python=sys.executable)
    relu = max(at for at, each in enumerate(graph.operators) if each.module == "layers.0.2")
    stages = [StageShard(0, relu - 1, 2, 1), StageShard(relu, len(graph.operators) - 1, 2, 1)]
    # an export checks that what `float` is given is fp32, which under autocast it is not
    found = by_shard(run(step, stages, graph, Setting(rounds=1, precision="bf16")))
    assert sum(each.parameters for each in found.values()) == graph.parameters


def test_a_model_that_does_not_export_is_run_by_its_modules_and_says_what_is_not_timed(folder: Path) -> None:
    step = f"{folder / 'train.py'}:make_deciding"
    graph = graphing.graph(step, 2, python=sys.executable)
    assert graph.origin == "modules"
    found = run(step, [StageShard(0, 1, 2, 1), StageShard(2, 3, 2, 1)], graph)
    assert sum(each.parameters for each in by_shard(found).values()) == graph.parameters
    assert any("not timed" in note for note in found.notes)


def test_a_model_by_its_sizes_exchanges_what_megatron_does() -> None:
    model = config.parse("gpt:h=64,l=2,a=4,s=16,V=128,tied=no,precision=bf16")
    found = by_shard(
        run(model, [StageShard(1, 2, 2, 2), StageShard(0, 0, 2, 2), StageShard(1, 1, 2, 1), StageShard(1, 1, 2, 2)])
    )
    stream = FLOAT * 2 * 16 * 64
    assert found[StageShard(1, 2, 2, 2)].exchanges == (Exchange("all_reduce", stream, 8),)
    assert found[StageShard(0, 0, 2, 2)].exchanges == (Exchange("all_reduce", stream, 1),)
    assert found[StageShard(1, 1, 2, 2)].parameters < found[StageShard(1, 1, 2, 1)].parameters


def test_experts_meet_their_tokens_by_all_to_all_and_a_wide_network_sums_a_block() -> None:
    found = by_shard(run(config.parse("moe:h=64,l=1,a=4,s=16,V=128,experts=4"), [StageShard(1, 1, 2, 2)]))
    kinds = {each.kind: each.calls for each in found[StageShard(1, 1, 2, 2)].exchanges}
    assert kinds["all_to_all"] == 4
    assert kinds["all_gather"] == 2
    found = by_shard(run(WideResNet(2, 1, 8, 8), [StageShard(1, 1, 2, 2)]))
    sizes = sorted(each.bytes for each in found[StageShard(1, 1, 2, 2)].exchanges)
    assert sizes == [FLOAT * 2 * 8 * 64, FLOAT * 2 * 16 * 64]


def test_a_shard_that_is_too_large_is_told_as_such_and_the_others_are_profiled() -> None:
    model = config.parse("gpt:h=1048576,l=1,a=1,s=8,V=16,head=64,ffn=1000000000,bias=no")
    found = run(model, [StageShard(1, 1, 1, 1), StageShard(2, 2, 1, 1)])
    unfit = found.results[0]
    assert isinstance(unfit, Unfit)
    assert "allocate memory" in unfit.why
    assert isinstance(found.results[1], ShardProfile)


def test_regression_a_cpu_that_was_not_asked_for_by_name_had_no_bound_on_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("sizing.profiles.profile._limit_bytes", lambda: 2**30)
    model = config.parse("gpt:h=4096,l=1,a=1,s=8,V=16,ffn=30000,bias=no")  # a GiB of weights
    (found,) = profiled(model, [StageShard(1, 1, 1, 1)], FEW, python=sys.executable).results
    assert isinstance(found, Unfit)


@pytest.mark.parametrize(
    ("source", "shards", "setting", "words"),
    [
        (
            "gpt",
            [StageShard(0, 0, 1, 1)],
            Setting(optimizer="adam8bit"),
            pattern("sizing.measure.optimizer", name="adam8bit"),
        ),
        ("gpt", [StageShard(3, 2, 1, 1)], FEW, "no shard"),
        ("train.py:make_model", [StageShard(0, 4000, 1, 1)], FEW, pattern("sizing.profiles.no_such_stage")),
        ("train.py:make_image", [StageShard(0, 1, 2, 2)], FEW, "no tensor parallelism"),
        ("train.py:make_spread", [StageShard(0, 1, 2, 2)], FEW, pattern("sizing.programs.dtensors")),
    ],
)
def test_what_cannot_be_profiled_is_one_line(
    folder: Path, exported: tuple[Graph, Profiled], source: str, shards: list[StageShard], setting: Setting, words: str
) -> None:
    model = config.parse("gpt:h=64,l=2,a=4,s=16,V=128") if source == "gpt" else f"{folder}{os.sep}{source}"
    with pytest.raises((UsageError, Untraceable), match=words) as error:
        run(model, shards, exported[0], setting)
    assert "\n" not in str(error.value)
