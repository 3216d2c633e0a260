"""A user's step traced in a process of its own; and what becomes of one that cannot be traced."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sizing.base.errors import Untraceable, UsageError
from sizing.base.parallel import Parallel
from sizing.child import launch, tracing
from sizing.model.trace import StepTrace, Target
from tests.support.messages import excerpt, says, wording
from tests.support.programs import shell_script
from tests.support.waiting import STILL_S, until

pytestmark = [pytest.mark.slow, pytest.mark.torch]

STEP = """
import torch
from torch import nn

def make_step(batch_size{keywords}):
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)){to}
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(batch_size, 256){to}
    def step():
        loss = model(data).square().mean()
        {middle}
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return step
"""
WEIGHTS = 4 * (256 * 1024 * 2 + 1024 + 256)


def written(folder: Path, text: str) -> str:
    path = folder / "train.py"
    path.write_text(text)
    return f"{path}:make_step"


def step(middle: str = "pass", *, to: str = "", keywords: str = "") -> str:
    return STEP.format(middle=middle, to=to, keywords=keywords)


def traced(
    folder: Path, text: str, *, target: Target = "cuda", parallel: Parallel | None = None, timeout_s: float = 100.0
) -> StepTrace:
    where = written(folder, text)
    return tracing.trace(where, 32, parallel or Parallel(), target=target, python=sys.executable, timeout_s=timeout_s)


def reason(folder: Path, text: str, kind: type[Exception] = Untraceable, timeout_s: float = 100.0) -> str:
    with pytest.raises(kind) as caught:
        traced(folder, text, timeout_s=timeout_s)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_step_is_told_by_what_its_memory_is_for_and_by_its_work(tmp_path: Path) -> None:
    found = traced(tmp_path, step(), target="cpu")
    assert found.parameters * 4 == WEIGHTS
    assert sum(found.by_category.values()) == found.peak_bytes
    assert found.by_category["parameters"] == WEIGHTS
    assert 2 * WEIGHTS <= found.by_category["optimizer"] <= 2 * WEIGHTS + 64
    products = 2 * 32 * 256 * 1024
    assert found.flops == products * (2 + 3)  # forward of both, backward without the gradient of the data
    assert {each.name for each in found.operators} >= {"addmm", "mm", "threshold_backward"}


@pytest.mark.usefixtures("forked")
def test_what_lies_on_the_host_is_not_on_the_gpu(tmp_path: Path) -> None:
    host = step().replace("    def step", "    kept = torch.zeros(50_000_000)\n    def step")
    assert traced(tmp_path, host).peak_bytes > 200_000_000  # no GPU is named: all of it lies there
    named = host.replace("nn.Linear(1024, 256))", "nn.Linear(1024, 256)).cuda()").replace(
        "256)\n    kept", "256, device='cuda')\n    kept"
    )
    found = traced(tmp_path, named)
    assert WEIGHTS * 4 <= found.peak_bytes < WEIGHTS * 8
    assert found.by_category["parameters"] == WEIGHTS


@pytest.mark.usefixtures("forked")
def test_what_asks_for_a_gpu_is_answered(tmp_path: Path) -> None:
    text = step(
        'loss = loss * (1 if torch.cuda.is_available() and data.is_cuda and data.device.type == "cuda" else None)\n'
        "        torch.cuda.synchronize(); stream = torch.cuda.Stream(); event = torch.cuda.Event()\n"
        "        assert torch.cuda.current_device() == 0 and torch.zeros(2, device=data.device).is_cuda\n"
        '        assert not torch.zeros(2).is_cuda and not data.cpu().is_cuda and data.to("cpu").to(data).is_cuda\n'
        '        print(f"{loss.item():.3f}", torch.cuda.max_memory_allocated()); total = 0.0; total += loss.item()',
        to='.to("cuda")',
    )
    assert traced(tmp_path, text).by_category["parameters"] == WEIGHTS


@pytest.mark.usefixtures("forked")
def test_autocast_of_a_gpu_computes_a_layer_norm_in_fp32(tmp_path: Path) -> None:
    text = """
import torch
from torch import nn

def make_step(batch_size):
    first, norm = nn.Linear(256, 256, device="cuda"), nn.LayerNorm(256, device="cuda")
    data = torch.randn(batch_size, 256, device="cuda")
    def step():
        for dtype in (torch.float16, torch.bfloat16):
            with torch.autocast("cuda", dtype=dtype):
                low = first(data)
                high = norm(low)
                assert low.dtype == dtype and high.dtype == torch.float32
                assert torch.softmax(low, -1).dtype == torch.float32 and (low @ low.T).dtype == dtype
                assert low.sum().dtype == low.cumsum(0).dtype == torch.float32 and low.sum(0).shape == (256,)
        high.sum().backward()
    return step
"""
    traced(tmp_path, text)


ATTENTION = """
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

def make_step(batch_size):
    q, k, v = (torch.randn(4, 8, 1024, 64, device="cuda", requires_grad=True) for _ in range(3))
    def step():
        with sdpa_kernel(SDPBackend.{kernel}):
            F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1).sum().backward()
    return step
"""


@pytest.mark.usefixtures("forked")
def test_attention_on_a_gpu_keeps_no_scores_but_where_the_plain_kernel_is_asked_for(tmp_path: Path) -> None:
    scores = 4 * 4 * 8 * 1024 * 1024
    assert traced(tmp_path, ATTENTION.format(kernel="FLASH_ATTENTION")).peak_bytes < scores
    assert traced(tmp_path, ATTENTION.format(kernel="MATH")).peak_bytes > 2 * scores


@pytest.mark.usefixtures("forked")
def test_a_gpus_optimizer_takes_all_parameters_at_once(tmp_path: Path) -> None:
    many = step(to='.to("cuda")').replace(
        "nn.Linear(1024, 256))", "nn.Linear(1024, 256), *[nn.Linear(256, 256) for _ in range(40)])"
    )
    assert (
        traced(tmp_path, many).peak_bytes
        > 1.1 * traced(tmp_path, many.replace("parameters())", "parameters(), foreach=False)")).peak_bytes
    )


@pytest.mark.usefixtures("forked")
def test_data_comes_from_a_loader_with_workers(tmp_path: Path) -> None:
    text = step("batch = next(iter(loader))[0].cuda(non_blocking=True); loss = model(batch).mean()", to=".cuda()")
    loader = """
    from torch.utils.data import DataLoader, TensorDataset
    rows = TensorDataset(torch.randn(100, 256))
    loader = DataLoader(rows, batch_size, shuffle=True, num_workers=4, pin_memory=True)
"""
    found = traced(tmp_path, text.replace("    def step", f"{loader}    def step"))
    assert found.by_category["parameters"] == WEIGHTS


@pytest.mark.usefixtures("forked")
def test_a_replica_keeps_its_gradients_twice_and_hands_them_to_the_others(tmp_path: Path) -> None:
    text = step(keywords=", *, dp=1").replace(
        "    optimizer =",
        "    model = nn.parallel.DistributedDataParallel(model) if dp > 1 else model\n    optimizer =",
    )
    alone, replica = traced(tmp_path, text), traced(tmp_path, text, parallel=Parallel(dp=4))
    assert replica.by_category["gradients"] - alone.by_category["gradients"] == pytest.approx(WEIGHTS, rel=0.01)
    assert (alone.collectives, replica.collectives) == ({}, {"all_reduce": WEIGHTS})


@pytest.mark.usefixtures("forked")
def test_a_step_may_join_its_group_itself_and_reduce(tmp_path: Path) -> None:
    join = "    import torch.distributed as dist\n    dist.init_process_group('nccl')\n    model ="
    text = step(
        "total = loss.detach().clone(); dist.all_reduce(total); dist.barrier()", to=".cuda()", keywords=", dp=1"
    )
    text = text.replace("    model =", join)
    assert traced(tmp_path, text, parallel=Parallel(dp=2)).collectives == {"all_reduce": 4}
    assert traced(tmp_path, text).by_category["parameters"] == WEIGHTS


def test_the_child_is_written_in_python_3_9() -> None:
    for path in launch.CHILD.rglob("*.py"):
        ast.parse(path.read_text(), feature_version=(3, 9))


@pytest.mark.usefixtures("forked")
def test_a_sharded_model_has_its_share_of_the_state(tmp_path: Path) -> None:
    text = step(keywords=", *, fsdp=1", to='.to("cuda")').replace(
        "    optimizer =",
        "    from torch.distributed.fsdp import fully_shard\n"
        "    from torch.distributed.device_mesh import init_device_mesh\n"
        "    fully_shard(model, mesh=init_device_mesh('cuda', (fsdp,)))\n    optimizer =",
    )
    found = traced(tmp_path, text, parallel=Parallel(fsdp=4))
    assert found.parameters * 4 == WEIGHTS / 4
    assert found.by_category["optimizer"] == pytest.approx(WEIGHTS / 2, rel=0.01)
    assert found.collectives["all_gather"] > 0
    assert found.collectives["reduce_scatter"] == WEIGHTS


def test_a_step_that_does_not_spread_its_model_is_told_how_to(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"write def make_step\(batch_size, \*, tp=1\)"):
        traced(tmp_path, step(), parallel=Parallel(tp=2))


REFUSED = [
    ("if loss > 3: pass", r"train.py:11: the step decides on what a tensor holds"),
    ("if loss.item() > 3: pass", r"train.py:11: the step decides on a number"),
    ("torch.unique(loss)", r"train.py:11: .*aten.* depends on what tensors hold"),
    ("loss.detach().cpu().numpy()", r"train.py:11: the step hands a tensor to numpy"),
    ("raise ValueError('my\\nown')", r"train.py:11: ValueError: my"),
    ("import sys; sys.exit(0)", r"train.py:11: SystemExit"),
    ("import socket; socket.create_connection(('127.0.0.1', 9))", r"no network"),
    ("torch.cuda.CUDAGraph()", "train.py:11: " + wording("sizing.cuda.cuda_graph")),
]
ENDED = [
    ("raise ValueError('my\\nown')", r"train.py:11: ValueError: my"),
    ("import os; os._exit(0)", wording("sizing.cpu_watching.ended", code="0 before it was done")),
    ("import os; os.kill(os.getpid(), 11)", r"killed by signal 11"),
    ("import numpy; numpy.ones(4_000_000_000)", r"more memory than it may have"),
]


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(("middle", "said"), REFUSED)
def test_a_step_that_cannot_be_followed_is_refused_with_its_line(tmp_path: Path, middle: str, said: str) -> None:
    found = reason(tmp_path, step(middle))
    assert re.search(said, found), found


@pytest.mark.parametrize(("middle", "said"), ENDED)
def test_a_step_that_ends_its_process_is_refused(tmp_path: Path, middle: str, said: str) -> None:
    found = reason(tmp_path, step(middle))
    assert re.search(said, found), found


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def other(batch_size): pass", "has no function make_step"),
        ("def make_step(): pass", excerpt("sizing.model_main.not_callable")),
        ("def make_step(batch_size): return 3", excerpt("sizing.model_main.not_a_step", name2="int")),
        ("def make_step(batch_size): return lambda batch: None", excerpt("sizing.model_main.not_a_step")),
        (
            "from torch.nn import Linear\ndef make_step(batch_size): return Linear(2, 2)",
            excerpt("sizing.model_main.not_a_step", name2="Linear"),
        ),
        ("class make_step:\n    def __init__(self, sizes): pass", excerpt("sizing.model_main.is_a_class")),
        ("def make_step(batch_size) return 3", "is no Python"),
    ],
)
def test_a_file_without_a_step_is_a_mistake_of_use(tmp_path: Path, text: str, said: str) -> None:
    assert said in reason(tmp_path, text, UsageError)


@pytest.mark.usefixtures("forked")
def test_a_function_says_by_its_keywords_how_its_script_can_be_cut(tmp_path: Path) -> None:
    where = written(tmp_path, step(keywords=", *, tp=1, stages=1"))
    assert tracing.takes(where) == {"tp", "stages"}
    assert tracing.takes(written(tmp_path, step(keywords=", **more"))) == {"dp", "tp", "fsdp"}
    assert traced(tmp_path, step(keywords=", *, stages=1")).flops, "it is traced whole"


def test_other_mistakes_of_use_end_before_a_process_is_started(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        tracing.trace("nowhere.py:make_step", 1, Parallel())
    with pytest.raises(UsageError, match=r"write FILE\.py:FUNCTION"):
        tracing.trace("nowhere.py", 1, Parallel())
    where = written(tmp_path, step())
    with pytest.raises(UsageError, match="at least 1"):
        tracing.trace(where, 0, Parallel())
    with pytest.raises(UsageError, match="cannot be started"):
        tracing.trace(where, 1, Parallel(), python=str(tmp_path / "python"))


def test_a_python_without_torch_is_not_taken(tmp_path: Path) -> None:
    bare = shell_script(tmp_path / "python3", f'exec {sys.executable} -S "$@"')
    with pytest.raises(UsageError, match="--python"):
        tracing.trace(written(tmp_path, step()), 1, Parallel(), python=str(bare))


def test_a_step_that_does_not_end_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    text = f"""
import os, sys, time
def make_step(batch_size):
    if os.fork() == 0:
        os.setsid()
        open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
        time.sleep(600)
    while True:
        os.write(2, b"x" * 65536)
"""
    for timeout_s in (5.0, 20.0, 60.0):  # a busy machine is still importing torch after the first
        assert says(reason(tmp_path, text, timeout_s=timeout_s), "sizing.launch.no_end", timeout_s=f"{timeout_s:g}")
        if (tmp_path / "pid").exists():
            break
    pid = int((tmp_path / "pid").read_text())
    until("it has gone", lambda: not Path(f"/proc/{pid}").exists())


def test_the_traced_process_goes_with_the_one_that_asked(tmp_path: Path) -> None:
    told = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))"
    where = written(tmp_path, f"import os, time\n{told}\ntime.sleep(60)\ndef make_step(batch_size): pass\n")
    code = (
        "from sizing.child import tracing\nfrom sizing.base.parallel import Parallel\n"
        f"tracing.trace({where!r}, 1, Parallel(), python={sys.executable!r})"
    )
    asker = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[3])
    ends = time.monotonic() + 2 * STILL_S
    while time.monotonic() < ends and not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()):
        time.sleep(0.05)
    asker.kill()
    asker.wait()
    pid = (tmp_path / "pid").read_text()
    while time.monotonic() < ends and os.path.exists(f"/proc/{pid}"):
        time.sleep(0.02)
    assert not os.path.exists(f"/proc/{pid}")


def test_the_users_own_modules_are_found_and_ours_are_not(tmp_path: Path) -> None:
    (tmp_path / "bftd.py").write_text("SIZE = 256\n")
    text = step().replace(
        "import torch\n", "import torch, sys\nimport bftd\nassert bftd.SIZE == 256 and 'click' not in sys.modules\n", 1
    )
    traced(tmp_path, text)
