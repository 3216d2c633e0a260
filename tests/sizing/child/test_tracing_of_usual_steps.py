"""Steps as people write them can be traced, and come out right: each of these once did not."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from benchmarks.sizing.memory import real_peak
from sizing.base.errors import Untraceable, UsageError
from sizing.base.parallel import Parallel
from sizing.child import tracing
from sizing.model.trace import StepTrace
from tests.support.messages import pattern, says

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("forked")]

HEAD = "import sys, torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
LINEAR = """
def make_step(batch_size):
    model, x = nn.Linear(64, 64).cuda(), torch.randn(batch_size, 64).cuda()
    optimizer = torch.optim.{optimizer}
    def step():
        loss = model(x).square().mean()
        loss.backward()
        {middle}
        optimizer.step()
        optimizer.zero_grad()
    return step
"""


def traced(folder: Path, text: str) -> StepTrace:
    path = folder / "train.py"
    path.write_text(HEAD + text)
    return tracing.trace(f"{path}:make_step", 4, Parallel(), python=sys.executable)


def linear(middle: str = "pass", optimizer: str = "AdamW(model.parameters())") -> str:
    return LINEAR.format(middle=middle, optimizer=optimizer)


LOSS = """
def make_step(batch_size):
    weight = torch.randn(8192, 16, device="cuda", requires_grad=True)
    x, labels = torch.randn(1024, 16, device="cuda"), torch.randint(8192, (1024,), device="cuda")
    def step():
        weight.grad = None
        with torch.autocast("cuda", torch.{dtype}):
            loss = F.cross_entropy(x @ weight.T, labels)
        loss.backward()
    return step
"""


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_regression_a_cross_entropy_under_autocast_was_computed_in_fp32_from_the_logits_on(
    tmp_path: Path, dtype: str
) -> None:
    """An H200 takes ten bytes a logit: 2 of log-softmax, 4 of what the loss reads, and 4 of that's gradient."""
    found = traced(tmp_path, LOSS.format(dtype=dtype))
    assert found.peak_bytes / (1024 * 8192) == pytest.approx(10, rel=0.03)


SHARED_KEYS = """
def make_step(batch_size):
    q = torch.randn(batch_size, 8, 512, 32, device="cuda", requires_grad=True)
    k, v = (torch.randn(batch_size, 2, 512, 32, device="cuda", requires_grad=True) for _ in range(2))
    def step():
        F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).sum().backward()
    return step
"""


def test_regression_no_kernel_shares_keys_among_heads_in_fp32(tmp_path: Path) -> None:
    """A GPU takes torch's formula then, and keeps the scores: a Llama in fp32 took 29 % less in the trace."""
    scores = 4 * 4 * 8 * 512 * 512
    assert traced(tmp_path, SHARED_KEYS).peak_bytes > 2 * scores


ATTENTION = """
from torch.utils.checkpoint import checkpoint
def make_step(batch_size):
    project, x = nn.Linear(256, 384).cuda(), torch.randn(batch_size, 128, 256, device="cuda")
    def block(x):
        q, k, v = project(x).split([256, 64, 64], -1)
        q, k, v = (each.view(batch_size, 128, -1, 32).transpose(1, 2) for each in (q, k, v))
        assert q.dtype == torch.bfloat16
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = {call}.float().sum()
        loss.backward()
    return step
"""


def test_regression_autocast_was_off_while_activations_were_computed_again(tmp_path: Path) -> None:
    traced(tmp_path, ATTENTION.format(call="checkpoint(block, x, use_reentrant=False)"))


def test_regression_flash_attention_counted_no_operations(tmp_path: Path) -> None:
    found = traced(tmp_path, ATTENTION.format(call="block(x)"))
    scores, projection = 2 * 4 * 8 * 128 * 128 * 32, 2 * 4 * 128 * 256 * 384
    assert found.flops == (2 + 5) * scores + 2 * projection


def test_regression_products_by_groups_counted_no_operations(tmp_path: Path) -> None:
    if not hasattr(pytest.importorskip("torch").ops.aten, "_grouped_mm"):
        pytest.skip("no such operator in this torch")
    text = """
def make_step(batch_size):
    x, w = torch.randn(32, 16, device="cuda", dtype=torch.bfloat16), torch.randn(4, 16, 64, device="cuda").bfloat16()
    ends = torch.arange(8, 33, 8, device="cuda", dtype=torch.int32)
    def step():
        by_row = torch.ops.aten._grouped_mm(x, w, ends)
        torch.ops.aten._grouped_mm(x.t(), by_row, ends)
    return step
"""
    assert traced(tmp_path, text).flops == 2 * (2 * 32 * 16 * 64)


def test_regression_a_depthwise_convolution_counted_as_if_all_channels_met(tmp_path: Path) -> None:
    text = """
def make_step(batch_size):
    model = nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False).cuda()
    x = torch.randn(2, 16, 8, 8, device="cuda", requires_grad=True)
    return lambda: model(x).sum().backward()
"""
    assert traced(tmp_path, text).flops == 3 * 2 * (2 * 16 * 8 * 8) * 9


def test_regression_views_counted_as_traffic_of_memory(tmp_path: Path) -> None:
    text = """
def make_step(batch_size):
    x = torch.randn(64, 64, device="cuda")
    return lambda: [x.view(4096), x.t(), x[1:], x.detach(), x + 1]
"""
    found = {each.name: each.bytes for each in traced(tmp_path, text).operators}
    assert {name for name, moved in found.items() if moved} == {"add"}


@pytest.mark.parametrize(
    "line",
    [
        "if not torch.isfinite(loss): raise RuntimeError('not finite')",
        "assert loss.isfinite().all() and not torch.isnan(model.weight.grad).any()",
        "if torch.isnan(model.weight.grad).sum() > 0: raise RuntimeError('not numbers')",
        "if (~torch.isfinite(x)).any() or math.isinf(loss.item()): raise RuntimeError('not finite')",
        "norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0); assert torch.isfinite(norm)",
    ],
)
def test_regression_a_step_that_asks_whether_its_numbers_are_finite_was_refused(tmp_path: Path, line: str) -> None:
    traced(tmp_path, "import math\n" + linear(line))


def test_regression_a_model_that_is_built_by_small_constants_was_refused(tmp_path: Path) -> None:
    text = """
def make_step(batch_size):
    rates = [rate.item() for rate in torch.linspace(0, 0.3, 4)]
    assert rates[0] == 0 and 0.29 < rates[3] < 0.31, rates
    assert torch.arange(12, device="cuda").view(3, 4)[1].tolist() == [4, 5, 6, 7]
    changed = torch.zeros(3)
    changed += torch.rand(3)
    model = nn.ModuleList(nn.Linear(8, 8) if rate > 0.15 else nn.Identity() for rate in rates).cuda()
    x = torch.randn(batch_size, 8, device="cuda")
    def step():
        y = x
        for layer in model:
            y = layer(y)
        y.sum().backward()
        try:
            bool(changed[0] > 0)
        except Exception as error:
            assert "which a trace does not know" in str(error)
        else:
            raise AssertionError("a number that was drawn is not known")
    return step
"""
    assert traced(tmp_path, text).parameters == 2 * 72


@pytest.mark.parametrize(
    "line",
    [
        "bad = torch.isnan(loss); bad |= loss > 3; bool(bad)",
        "known = torch.zeros(1); known.data = loss[None].detach(); bool(known > 0)",
        "bool(torch.full((1,), loss.item()) > 2)",
    ],
)
def test_a_number_is_not_known_any_more_once_something_unknown_is_in_it(tmp_path: Path, line: str) -> None:
    with pytest.raises(Untraceable) as refused:
        traced(tmp_path, linear(line))
    assert says(str(refused.value), "sizing.refused.decides")


def test_numbers_that_other_ranks_give_are_not_known(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        HEAD
        + "import torch.distributed as dist\n"
        + linear("n = torch.ones(1, device='cuda'); dist.all_reduce(n); bool(n > 2)")
    )
    with pytest.raises(Untraceable) as refused:
        tracing.trace(f"{tmp_path / 'train.py'}:make_step", 4, Parallel(2), python=sys.executable)
    assert says(str(refused.value), "sizing.refused.decides")


@pytest.mark.parametrize(
    "line",
    [
        "assert torch.isinf(torch.full((4, 4), float('-inf')).triu(1)).any()",
        "torch.sum(input=x); torch.any(input=x > 0)",
        "F.interpolate(torch.ones(1, 1, 8, 8).half(), scale_factor=2, mode='bicubic', antialias=True)",
    ],
)
def test_small_constants_are_what_they_are_and_harm_nothing(tmp_path: Path, line: str) -> None:
    traced(tmp_path, linear(line))


def test_what_masks_select_is_counted_whole_and_told_to_be_a_bound(tmp_path: Path) -> None:
    text = """
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(64, 4), nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            row, which = torch.where(chosen == number)
            out.index_add_(0, row, expert(x[row]) * weights[row, which, None])
        return out
def make_step(batch_size):
    model = Experts().cuda()
    x = torch.randn(batch_size, 64, device="cuda")
    def step():
        y = model(x)
        (y[y > 0].mean() + torch.masked_select(y, y > 1).sum()).backward()
    return step
"""
    found = traced(tmp_path, text)
    assert found.upper_bounds == 6
    # Two experts a row: the first is given as many, each other one row. Forward, and the gradients of the weights.
    assert found.flops == 2 * 2 * 64 * (4 * found.batch + (2 * found.batch + 3) * 64)
    assert not traced(tmp_path, linear()).upper_bounds


def test_regression_the_ctc_loss_was_refused(tmp_path: Path) -> None:
    text = """
def make_step(batch_size):
    model = nn.Linear(40, 29).cuda()
    x, targets = torch.randn(200, batch_size, 40).cuda(), torch.randint(1, 29, (batch_size, 30)).cuda()
    lengths = torch.full((batch_size,), 200).cuda(), torch.full((batch_size,), 30).cuda()
    def step():
        F.ctc_loss(model(x).log_softmax(-1), targets, *lengths).backward()
    return step
"""
    found = traced(tmp_path, text)
    assert found.peak_bytes >= 4 * found.batch * 200 * (40 + 29 + 61)


PACKED = """
def make_step(batch_size):
    model, x = nn.LSTM(8, 8, batch_first=True).cuda(), torch.randn(2, 9, 8, device="cuda")
    pack, pad = nn.utils.rnn.pack_padded_sequence, nn.utils.rnn.pad_packed_sequence
    def step():
        out, lengths = pad(model(pack(x, {lengths}, batch_first=True, enforce_sorted=False))[0], batch_first=True)
        assert out.shape == (2, 9, 8) and lengths.tolist() == [5, 9]
        out.sum().backward()
    return step
"""


def test_regression_sequences_that_are_packed_by_lengths_that_are_known_were_refused(tmp_path: Path) -> None:
    found = traced(tmp_path, PACKED.format(lengths="[5, 9]"))
    # Of 14 tokens that are packed, and not of 18 that are padded: two matrices, and no gradient of the input.
    assert found.flops == 2 * 14 * 2 * 8 * 32 + 2 * 2 * 14 * 8 * 32 + 2 * 12 * 8 * 32


@pytest.mark.parametrize(
    "line",
    [
        "if loss > 3: raise RuntimeError(f'no good loss: {loss}')",
        "assert (x >= -9).all() and not (x > 9).any(), 'out of range'",
        "if not (model.weight <= x.max()).all(): raise ValueError",
        "if torch.rand([]) < 0.1: loss = undefined",
        "loss = [loss, loss][int(torch.empty(1).uniform_(0.0, 1.0).item())]",
    ],
)
def test_regression_checks_and_rare_draws_were_refused(tmp_path: Path, line: str) -> None:
    traced(tmp_path, linear(line))


def test_regression_gradients_that_meet_were_counted_beside_their_sum(tmp_path: Path) -> None:
    text = """
def make_step(batch_size):
    x = torch.zeros(1_000_000, requires_grad=True)
    def step():
        y = x * 2
        (y.sum() + y.square().sum()).backward()
        x.grad = None
    return step
"""
    path = tmp_path / "train.py"
    path.write_text(HEAD + text)
    found = tracing.trace(f"{path}:make_step", 1, Parallel(), target="cpu", python=sys.executable)
    assert found.peak_bytes == pytest.approx(real_peak(f"{path}:make_step", 1, Parallel())["peak_bytes"], rel=1e-6)


SEARCHING = """
def make_step(batch_size):
    model, x = nn.Linear(8, 1).cuda(), torch.randn(batch_size, 8, device="cuda")
    optimizer = torch.optim.LBFGS(model.parameters())
    def closure():
        loss = model(x).square().mean()
        loss.backward()
        return loss
    return lambda: optimizer.step(closure)
"""
FLEX = """
def make_step(batch_size):
    from torch.nn.attention.flex_attention import flex_attention
    q = torch.randn(batch_size, 2, 128, 64, device="cuda", requires_grad=True)
    return lambda: flex_attention(q, q, q).sum().backward()
"""


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (PACKED.format(lengths="torch.randint(3, 9, (2,))"), "sizing.refused.packs"),
        (SEARCHING, "sizing.refused.searches"),
        (FLEX, "sizing.refused.flex"),
        (linear("if loss > 3: loss = loss / 2"), "sizing.refused.decides"),
        (linear("model.weight.detach().cpu().numpy()"), "sizing.refused.numpy"),
        (linear("x.argmax().item()"), "sizing.refused.whole_number"),
    ],
)
def test_what_cannot_be_traced_is_refused_with_the_users_line_and_what_to_write_instead(
    tmp_path: Path, text: str, key: str
) -> None:
    with pytest.raises(Untraceable) as refused:
        traced(tmp_path, text)
    assert says(str(refused.value), key)
    assert re.match(r"train\.py:\d+: ", str(refused.value))


def test_regression_a_layout_of_memory_was_refused(tmp_path: Path) -> None:
    text = """
def make_step(batch_size):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).to(memory_format=torch.channels_last).to(0)
    model.to(torch.bfloat16)
    x = torch.randn(batch_size, 3, 16, 16).to("cuda", memory_format=torch.channels_last, dtype=torch.bfloat16)
    assert x.is_cuda and x.is_contiguous(memory_format=torch.channels_last)
    assert all(each.is_cuda for each in [*model.parameters(), *model.buffers()])
    assert model[0].weight.dtype == torch.bfloat16 and model[1].num_batches_tracked.dtype == torch.int64
    return lambda: model(x).sum().backward()
"""
    traced(tmp_path, text)


def test_regression_a_number_could_not_be_formatted_nor_rounded_for_a_log(tmp_path: Path) -> None:
    traced(tmp_path, linear('print(f"{loss:.3f} {loss.argmax():3d}", round(loss.item(), 3))'))


def test_regression_a_checkpoint_could_not_be_written_and_is_not(tmp_path: Path) -> None:
    kept = tmp_path / "kept.pt"
    kept.write_text("my own")
    traced(tmp_path, linear(f"torch.save(model.state_dict(), {str(kept)!r})"))
    assert kept.read_text() == "my own"


@pytest.mark.parametrize("optimizer", ["ASGD(model.parameters())", "Adafactor(model.parameters())"])
def test_regression_optimizers_that_reckon_with_their_steps_were_refused(tmp_path: Path, optimizer: str) -> None:
    traced(tmp_path, linear(optimizer=optimizer))


def test_regression_a_group_of_one_could_not_replicate_by_a_name_imported_before(tmp_path: Path) -> None:
    text = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
def make_step(batch_size):
    dist.init_process_group("nccl")
    model = DDP(nn.Linear(64, 64).to(dist.get_rank()), device_ids=[0])
    whole = nn.DataParallel(nn.Linear(64, 64).cuda())
    x = torch.randn(batch_size, 64).to(0)
    return lambda: whole(model(x)).sum().backward()
"""
    assert traced(tmp_path, text).by_category["gradients"] >= 4 * 65 * 64


def test_regression_the_compiler_was_imported_for_names_that_nobody_reads(tmp_path: Path) -> None:
    loaded = "assert 'torch._dynamo.guards' not in sys.modules, 'loaded'"
    text = linear(f"torch.tensor(3.0); loss.normal_(); {loaded}")
    traced(tmp_path, text)
    part = "from torch._dynamo.source import AttrSource; import torch._dynamo.utils as u; assert u.counters is not None"
    traced(tmp_path, linear(f"torch.tensor(3.0); {part}"))


@pytest.mark.parametrize(
    ("text", "said", "kind"),
    [
        (
            "def make_step(batch_size):\n    async def step(): pass\n    return step",
            "coroutine, which does",
            UsageError,
        ),
        ("def make_step(batch_size):\n    return lambda: None", "makes no tensor", UsageError),
        (
            "import os\nos.environ['LOCAL_RANK']",
            pattern("sizing.answering.argument_set", args="LOCAL_RANK"),
            Untraceable,
        ),
        (
            "def make_step(batch_size):\n    e = nn.EmbeddingBag(9, 4, sparse=True).cuda()\n"
            "    return lambda: e(torch.ones(2, 2, device='cuda', dtype=torch.int64)).sum().backward()",
            "sparse tensor",
            Untraceable,
        ),
    ],
)
def test_a_step_that_comes_to_nothing_is_told_why(tmp_path: Path, text: str, said: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=said):
        traced(tmp_path, text)


PRODUCTS = """
def make_step(batch_size):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 64)).cuda(){dtype}
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(batch_size, 3, 8, 8, device="cuda"){dtype}
    {setting}
    def step():
        with torch.autocast("cuda", dtype={autocast}, enabled={autocast} is not None):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return step
"""


@pytest.mark.parametrize(
    ("dtype", "autocast", "setting", "products", "convolutions"),
    [
        ("", "None", "", "fp32", "tf32"),  # cuDNN rounds unless it is told not to
        ("", "None", "torch.backends.cudnn.allow_tf32 = False", "fp32", "fp32"),
        ("", "None", "torch.set_float32_matmul_precision('high')", "tf32", "tf32"),
        ("", "torch.float16", "", "fp16", "fp16"),
        ("", "torch.bfloat16", "", "bf16", "bf16"),
        (".bfloat16()", "None", "", "bf16", "bf16"),
        (".double()", "None", "", "fp64", "fp64"),
    ],
)
def test_regression_an_operator_was_not_timed_in_what_it_computes_in(
    tmp_path: Path, dtype: str, autocast: str, setting: str, products: str, convolutions: str
) -> None:
    found = traced(tmp_path, PRODUCTS.format(dtype=dtype, autocast=autocast, setting=setting))
    kinds = {(each.name.startswith("conv"), each.precision) for each in found.operators if each.flops}
    assert kinds == {(False, products), (True, convolutions)}
    assert {each.precision for each in found.operators if not each.flops} == {""}
