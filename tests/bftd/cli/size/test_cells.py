"""`bft size cells` as a user meets it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bftd.cli.size import cells
from sizing.model import config
from tests.bftd.cli.sizing_commands import SizeTerminal
from tests.support.messages import excerpt, says, wording

pytestmark = pytest.mark.slow

GPT = "gpt:h=1024,l=24,a=16,s=1024,V=50257"
MODELS = Path(__file__).parents[3] / "sizing" / "child" / "graph_models.py"


def test_the_cells_of_a_model_by_its_sizes_are_a_table(bft: SizeTerminal) -> None:
    ended = bft("size", "cells", "--config", GPT, "--gpus", "8", "--types", "a100,v100", "--stages", "1,4")
    assert ended.code == 0
    assert "a100 is taken for a100-pcie-40gb" in ended.out
    rows = [line.split() for line in ended.out.splitlines() if ".." in line]
    assert rows[0][:6] == ["a100,", "v100", "1", "1", "embedding", ".."]
    assert [row[row.index("..") + 2] for row in rows] == ["8", "2", "2", "2", "2"]
    assert ended.out.count("32.0 MiB") == 3
    assert says(ended.out, "cli.size_cells.slowest_stage", stages=4, slower=2.1)


def test_json_has_each_type_with_each_count_of_stages(bft: SizeTerminal) -> None:
    told = bft("size", "cells", "--config", GPT, "--gpus", "8", "--types", "a100,v100", "--batch", "2", "--json").json
    assert (told["origin"], told["batch"], told["operators"]) == ("formula", 2, 26)
    assert told["flops"] == config.step_flops(config.parse(f"{GPT},b=2"))
    assert told["parameters"] == config.parameters(config.parse(GPT))
    assert [(cell["gpu_type"], len(cell["stages"])) for cell in told["cells"]] == [
        (name, count) for name in ("a100", "v100") for count in (1, 2, 4, 8)
    ]
    for cell in told["cells"]:
        stages = cell["stages"]
        assert sum(stage["gpus"] for stage in stages) == cell["gpus"] == 8
        assert sum(stage["flops"] for stage in stages) == told["flops"]
        assert sum(stage["flops_share"] for stage in stages) == pytest.approx(1, abs=1e-5)
        assert (stages[0]["first_operator"], stages[-1]["last_operator"]) == ("embedding", "head")
        assert stages[-1]["across_bytes"] == 0


def test_a_wide_resnet_narrows(bft: SizeTerminal) -> None:
    told = bft("size", "cells", "--config", "wresnet:k=2,n=4,c=16,s=32,V=10", "--gpus", "2", "--json").json
    assert told["model"] == "wresnet"
    assert [len(cell["stages"]) for cell in told["cells"]] == [1, 2]
    assert told["cells"][1]["stages"][0]["across_bytes"] in (4 * 8 * 32 * 32 * 32, 4 * 8 * 64 * 16 * 16)


def test_regression_small_sends_were_shown_as_nothing(bft: SizeTerminal) -> None:
    small = ("--config", "wresnet:k=1,n=1,c=4,s=8,V=2", "--gpus", "2", "--stages", "2", "--batch", "1")
    ended = bft("size", "cells", *small)
    assert "1.0 KiB" in ended.out
    assert "0.0 MiB" not in ended.out


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.usefixtures("exporting")
def test_a_model_of_the_users_own_is_cut_by_its_modules(bft: SizeTerminal) -> None:
    step, python = f"{MODELS}:gpt", ("--python", sys.executable)
    ended = bft("size", "cells", step, "--gpus", "4", "--stages", "2", *python)
    assert ended.code == 0, ended.err
    rows = [line for line in ended.out.splitlines() if ".." in line]
    assert rows[0].split()[:6] == ["any", "2", "1", "words", "(embedding)", ".."]
    assert "blocks." in rows[0]
    assert "blocks." in rows[1]


@pytest.mark.slow
@pytest.mark.torch
def test_a_model_larger_than_the_machines_memory_is_read(bft: SizeTerminal) -> None:
    told = bft("size", "cells", f"{MODELS}:enormous", "--gpus", "4", "--python", sys.executable, "--json").json
    assert told["parameters"] == 4 * (100_000**2 + 100_000)
    assert [stage["gpus"] for stage in told["cells"][-1]["stages"]] == [1, 1, 1, 1]


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.usefixtures("exporting")
def test_what_cannot_be_read_at_all_is_told_with_the_way_out(bft: SizeTerminal) -> None:
    (bft.folder / "broken.py").write_text(
        "import torch\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return open(x)\n"
        "def make_model(batch_size): return Net(), (torch.ones(2),)\n"
    )
    ended = bft("size", "cells", "broken.py:make_model", "--gpus", "4", "--python", sys.executable)
    assert ended.code == 1
    assert says(ended.err, "sizing.modules.forward_fails", error="broken.py:4: TypeError")
    assert says(ended.err, "cli.size_cells.untraceable")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--config", GPT, "--gpus", "6"), wording("sizing.cells_stages.gpus_no_power", gpus=6, near="4 or 8")),
        (("--config", GPT, "--gpus", "0"), "0 GPUs"),
        (("--config", GPT, "--gpus", str(2**20)), "at most 65536"),
        (
            ("--config", GPT, "--gpus", "64", "--stages", "32"),
            excerpt("sizing.cells_stages.too_few_operators", n_stages=32, operators=26),
        ),
        (("--config", GPT, "--gpus", "8", "--stages", "3"), excerpt("sizing.cells_stages.stages_no_power", n_stages=3)),
        (("--config", GPT, "--gpus", "8", "--stages", "2;4"), wording("cli.size_cells.stages_malformed", text="2;4")),
        (("--config", GPT, "--gpus", "8", "--stages", "16"), "16 stages on 8 GPUs"),
        (
            ("--config", GPT, "--gpus", "8", "--types", "a100,h1000x"),
            wording("cli.size_cells.unknown_gpu_type", name="h1000x", hint="did you mean h100?"),
        ),
        (
            ("--config", GPT, "--gpus", "8", "--types", "zzz"),
            wording("cli.size_cells.unknown_gpu_type", name="zzz", hint="there are p100"),
        ),
        (("--config", GPT, "--gpus", "8", "--types", ","), "--types names none"),
        (("--config", GPT, "--gpus", "8", "--batch", "0"), "--batch 0"),
        (("--config", GPT, "--gpus", "8", "--tp", "2"), excerpt("cli.size_cells.tp_of_config")),
        (("--config", "gptt:h=1", "--gpus", "8"), wording("sizing.fields.hint", near="gpt")),
        (("--config", GPT, "--gpus", "8", "--timeout", "0"), "--timeout 0: seconds"),
        (("--gpus", "8"), excerpt("cli.size_cells.model_missing")),
        (("none.py:make_model", "--gpus", "8"), wording("sizing.launch.no_file", path="none.py")),
        (("train.py", "--gpus", "8"), "write FILE.py:FUNCTION"),
        (("train.py:make", "--config", GPT, "--gpus", "8"), "not both"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(bft: SizeTerminal, words: tuple[str, ...], said: str) -> None:
    ended = bft("size", "cells", *words)
    assert ended.code == 2
    assert said in ended.err
    assert ended.out == ""


def test_a_cut_within_a_module_names_its_operator() -> None:
    assert cells._place("blocks.0", "linear_3") == "blocks.0 (linear_3)"
    assert cells._place("", "add") == "add"
