"""Models cut over tensor-parallel ranks by hand: two real ranks have the loss and the gradients of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sizing.cells.size_graph import chain as chain_of
from sizing.model import config
from sizing.model.wide_resnet import WideResNet
from sizing.profiles.profile import sizes_of

pytestmark = [pytest.mark.slow, pytest.mark.torch]

ROOT = Path(__file__).parents[3]
MODELS: dict[str, dict[str, Any]] = {
    "gpt": sizes_of(config.parse("gpt:h=32,l=2,a=4,s=8,V=64")),
    "llama": sizes_of(config.parse("llama:h=32,l=2,a=4,kv=2,s=8,V=64")),
    # with places for all tokens at every expert, or the ranks drop others than one does
    "mixtral": {**sizes_of(config.parse("mixtral:h=32,l=2,a=4,kv=2,s=8,V=64,experts=4,shared=32")), "capacity": 2.0},
    "bert": sizes_of(config.parse("bert:h=32,l=2,a=4,s=8,V=64,recompute=full,attention=math")),
    "wresnet": sizes_of(WideResNet(width=2, blocks=1, channels=8, image=8)),
}

_RANK = """
import json, os, sys
import torch, torch.distributed as dist
from sizing.tracer.families import Whole, chain
from sizing.tracer.families.parallel import part
rank, models, meeting = int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
found = {}
for name, sizes in models.items():
    torch.manual_seed(0)
    whole, mine = Whole(chain(sizes, 1)), Whole(chain(sizes, 2))
    state = dict(whole.named_parameters())
    with torch.no_grad():
        for key, value in mine.named_parameters():
            value.copy_(part(state[key], value.cut, 2, rank))
    torch.manual_seed(1)
    x, targets = chain(sizes, 1).first(4), chain(sizes, 1).targets(4)
    one, two = whole(x, targets), mine(x, targets)
    one.backward()
    two.backward()
    apart = [abs(one.item() - two.item()) / abs(one.item())]
    for key, value in mine.named_parameters():
        own = part(state[key].grad, value.cut, 2, rank)
        apart.append(((value.grad - own).abs().max() / state[key].grad.abs().max()).item())
    found[name] = max(apart), sum(each.numel() for each in whole.parameters())
print(json.dumps(found), flush=True)
os._exit(0)  # at the end of an interpreter gloo's threads may end it with SIGABRT
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[float]]]:
    meeting = str(tmp_path_factory.mktemp("ranks") / "meeting")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _RANK, str(rank), json.dumps(MODELS), meeting],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [each.communicate(timeout=120) for each in started]
    assert [each.returncode for each in started] == [0, 0], said
    return [json.loads(out.splitlines()[-1]) for out, _ in said]


@pytest.mark.parametrize("name", MODELS)
def test_two_ranks_have_the_loss_and_the_gradients_of_one(ranks: list[dict[str, list[float]]], name: str) -> None:
    for rank in ranks:
        assert rank[name][0] < 1e-4


@pytest.mark.parametrize("name", ["gpt", "llama", "wresnet"])
def test_a_model_has_the_weights_that_its_chain_of_operators_counts(
    ranks: list[dict[str, list[float]]], name: str
) -> None:
    sizes = MODELS[name]
    source = (
        WideResNet(2, 1, 8, 8)
        if name == "wresnet"
        else config.parse(f"{name}:h=32,l=2,a=4,s=8,V=64" + (",kv=2" if name == "llama" else ""))
    )
    assert sizes_of(source) == sizes
    assert ranks[0][name][1] == chain_of(source, 4).parameters
