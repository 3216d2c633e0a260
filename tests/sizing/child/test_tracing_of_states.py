"""A trace never forgets a weight or an optimizer's state: it has what the same step holds for real, or is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sizing.base.errors import Untraceable
from sizing.base.parallel import Parallel
from sizing.child import tracing
from sizing.model.trace import StepTrace
from tests.support.messages import says

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("forked")]

MODELS = Path(__file__).with_name("state_models.py")
CASES = (
    "encoder",
    "transformer",
    "averaged",
    "adapted",
    "tied",
    "shared",
    "lazily_made",
    "lazily_made_in_the_step",
    "made_without_contents",
    "compiled",
    "in_no_module",
    "read_by_the_host",
)
BLOCK_BYTES = 512  # what an allocator of a GPU rounds up to


def traced(where: str, parallel: Parallel | None = None) -> StepTrace:
    return tracing.trace(where, 4, parallel or Parallel(), python=sys.executable)


def held(step: Any) -> tuple[int, int, int]:
    """The bytes of parameters and buffers, and of an optimizer's state, by shapes and types; how many there are."""
    step()
    step()
    weights = {
        id(each): each
        for module in step.modules
        if hasattr(module, "parameters")
        for each in (*module.parameters(), *module.buffers())
    }
    weights |= {id(each): each for one in step.optimizers for group in one.param_groups for each in group["params"]}
    states = [
        each for one in step.optimizers for kept in one.state.values() for each in kept.values() if hasattr(each, "dim")
    ]
    sizes = [sum(each.numel() * each.element_size() for each in several) for several in (weights.values(), states)]
    return sizes[0], sizes[1], len(weights) + len(states)


def compare(found: StepTrace, step: Any, *, copied: bool = False) -> None:
    weights, states, blocks = held(step)
    parameters, optimizer = found.by_category["parameters"], found.by_category["optimizer"]
    least = weights + states - 4 * blocks  # the number of steps taken lies on the host
    assert found.peak_bytes >= least
    assert parameters >= weights
    # Where a model and its copy lie side by side, that may be the peak, before there is a state.
    assert optimizer >= states - 4 * blocks or (copied and not optimizer)
    assert parameters + optimizer <= weights + states + BLOCK_BYTES * blocks
    trained = {id(each): each for one in step.optimizers for group in one.param_groups for each in group["params"]}
    assert found.parameters == sum(each.numel() for each in trained.values() if each.requires_grad)


@pytest.mark.parametrize("name", CASES)
def test_regression_copies_of_modules_lost_their_weights_and_states(name: str) -> None:
    torch = pytest.importorskip("torch")
    from tests.sizing.child import state_models

    torch.manual_seed(0)
    compare(traced(f"{MODELS}:{name}"), getattr(state_models, name)(4))


@example(copies="after", count=4, frozen=3, half=False, optimizer="RMSprop")
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    copies=st.sampled_from(("", "before", "after", "before and after")),
    count=st.integers(1, 4),
    frozen=st.integers(0, 3),
    half=st.booleans(),
    optimizer=st.sampled_from(("AdamW", "RMSprop", "Adagrad", "SGD")),
)
def test_traced_states_are_never_less_than_their_shapes_and_types_say(
    tmp_path: Path, copies: str, count: int, frozen: int, half: bool, optimizer: str
) -> None:
    pytest.importorskip("torch")
    from tests.sizing.child import state_models

    said = (copies, count, min(frozen, count - 1), half, optimizer)
    file = tmp_path / "together.py"
    file.write_text(f"{MODELS.read_text()}\ndef make_step(batch):\n    return put_together(batch, *{said!r})\n")
    compare(traced(f"{file}:make_step"), state_models.put_together(4, *said), copied="after" in copies)


HEAD = "import copy, torch\nfrom torch import nn\n"
STEP = """
    x = torch.randn(batch, 64, device="cuda")
    def step():
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return step
"""


def reason(folder: Path, made: str, step: str = STEP) -> str:
    (folder / "train.py").write_text(f"{HEAD}def make_step(batch):\n{made}\n{step}")
    with pytest.raises(Untraceable) as caught:
        traced(f"{folder / 'train.py'}:make_step")
    assert "\n" not in str(caught.value)
    return str(caught.value)


TWO = "    model = nn.Sequential(nn.Linear(64, 64).cuda(), nn.Linear(64, 64))\n"


def test_what_the_gpu_computes_with_and_lies_on_the_host_is_refused(tmp_path: Path) -> None:
    made = TWO + "    optimizer = torch.optim.AdamW(model[0].parameters())"
    assert says(reason(tmp_path, made), "sizing.tracker.read_from_host", name="Linear.weight", shape=[64, 64])


def test_a_state_of_the_host_that_the_gpu_computes_with_is_refused(tmp_path: Path) -> None:
    made = (
        "    class Held(torch.optim.SGD):\n        def step(self):\n"
        "            for p in self.param_groups[0]['params']:\n"
        "                p.data.add_(self.state[p].setdefault('mean', torch.zeros(64, 1)))\n"
        "    model = nn.Linear(64, 64, bias=False).cuda()\n    optimizer = Held(model.parameters())"
    )
    assert says(reason(tmp_path, made), "sizing.tracker.read_from_host", name="the state of Held", shape=[64, 1])


def test_an_optimizer_of_the_host_beside_a_step_of_the_gpu_is_refused(tmp_path: Path) -> None:
    made = "    model = nn.Linear(64, 64)\n    optimizer = torch.optim.AdamW(model.parameters())"
    found = reason(tmp_path, made, STEP.replace("model(x)", "model(x.cpu())"))
    assert says(found, "sizing.tracker.trained_on_host", name="a parameter of AdamW", shape=[64, 64])


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("with FakeTensorMode(): model.other = nn.Linear(64, 64)", "Linear.weight"),
        (
            "optimizer.add_param_group({'params': [nn.Parameter(torch.empty(64, 64, device='meta'))]})",
            "a parameter of AdamW",
        ),
    ],
    ids=["module", "optimizer"],
)
def test_what_the_trace_does_not_follow_is_refused(tmp_path: Path, line: str, name: str) -> None:
    made = (
        "    from torch._subclasses.fake_tensor import FakeTensorMode\n"
        f"    model = nn.Linear(64, 64).cuda()\n    optimizer = torch.optim.AdamW(model.parameters())\n    {line}"
    )
    assert says(reason(tmp_path, made), "sizing.tracker.not_followed", name=name, shape=[64, 64])


def test_regression_an_optimizer_that_steps_at_times_lost_its_state(tmp_path: Path) -> None:
    made = "    model, calls = nn.Linear(64, 64).cuda(), []\n    optimizer = torch.optim.AdamW(model.parameters())"
    step = STEP.replace("        optimizer.step()", "        calls.append(1)\n        if len(calls) % 4: return")
    assert says(reason(tmp_path, made, step), "sizing.tracker.never_stepped", name="a parameter of AdamW")


def test_a_copy_that_stays_on_the_host_takes_nothing_of_the_gpu(tmp_path: Path) -> None:
    text = (
        f"{HEAD}def make_step(batch):\n    model = nn.Linear(64, 64)\n    average = copy.deepcopy(model)\n"
        f"    model.cuda()\n    optimizer = torch.optim.AdamW(model.parameters())\n{STEP}"
    )
    kept = "optimizer.zero_grad()\n        with torch.no_grad(): average.weight.lerp_(model.weight.cpu(), 0.1)"
    (tmp_path / "train.py").write_text(text.replace("optimizer.zero_grad()", kept))
    found = traced(f"{tmp_path / 'train.py'}:make_step")
    assert 4 * 65 * 64 <= found.by_category["parameters"] <= 4 * 65 * 64 + 2 * BLOCK_BYTES


def test_regression_shards_of_a_copied_encoder_were_not_on_the_gpu(tmp_path: Path) -> None:
    text = f"""{HEAD}
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
def make_step(batch, *, fsdp=1):
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 256, batch_first=True), 2).cuda()
    for layer in model.layers:
        fully_shard(layer, mesh=init_device_mesh("cuda", (fsdp,)))
    fully_shard(model, mesh=init_device_mesh("cuda", (fsdp,)))
    optimizer = torch.optim.AdamW(model.parameters())
{STEP.replace("batch, 64", "batch, 5, 64")}"""
    (tmp_path / "train.py").write_text(text)
    found = traced(f"{tmp_path / 'train.py'}:make_step", Parallel(fsdp=4))
    whole = 2 * (4 * 64 * 64 + 2 * 64 * 256 + 9 * 64 + 256)
    assert found.parameters == whole / 4
    assert found.by_category["parameters"] >= whole  # of 4 bytes, a quarter
    assert found.by_category["optimizer"] >= 2 * whole
